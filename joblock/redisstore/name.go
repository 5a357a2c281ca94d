package redisstore

import (
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/internal/hashtag"
	"github.com/joblock/toolkit/joblock/driver"
)

// tagged reports whether rdb finds the server of a key by the key's hash tag.
func tagged(rdb redis.UniversalClient) bool {
	switch rdb.(type) {
	case *redis.ClusterClient, *redis.Ring:
		return true
	}
	return false
}

// places returns what stands before the keys of each part: the prefix, or the prefix and a hash tag.
func places(prefix string, tagged bool) []string {
	if !tagged {
		return []string{prefix}
	}
	all := make([]string, hashtag.Parts)
	for part := range all {
		all[part] = hashtag.Place(prefix, part)
	}
	return all
}

// Prefix returns what stands before every key in Redis. Package server finds this method by a type assertion.
func (s *store) Prefix() string { return s.prefix }

// Parts implements driver.Store: 1, or 256 in a cluster.
func (s *store) Parts() int { return max(1, len(s.places)) }

// part returns the number of the part that key belongs to.
func (s *store) part(key string) int {
	if s.Parts() == 1 {
		return 0
	}
	line, _ := driver.LineOf(key)
	return hashtag.Of(line)
}

// index returns the Redis key of a part's index of the jobs' locks. No lock can have that name, because keys are not
// empty. The ACL pattern of the locks covers that name.
func (s *store) index(part int) string {
	if len(s.places) == 0 { // New has not made s: the call will return an error
		return ""
	}
	return s.places[part]
}

// indexes returns the ACL pattern for the Redis keys of the index.
func (s *store) indexes() string {
	if s.Parts() > 1 {
		return escapeGlob(s.prefix) + "*"
	}
	return escapeGlob(s.prefix)
}

// name returns the Redis key of the record of key.
func (s *store) name(key string) string { return s.index(s.part(key)) + key }

// keyOf returns the key whose record has the given Redis key. ok is false if no record can have that Redis
// key.
func (s *store) keyOf(name string) (key string, ok bool) {
	key, ok = strings.CutPrefix(name, s.prefix)
	if ok && s.Parts() > 1 {
		_, key, ok = strings.Cut(key, "}")
	}
	return key, ok && key != "" && s.name(key) == name
}
