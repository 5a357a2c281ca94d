package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	defaultListCount = 100
	maxListCount     = 10_000 // the server does nothing else during a SCAN
)

// List implements driver.Store. A page takes one SCAN and one pipeline. A value under the prefix that is no record is
// listed as driver.StateForeign, if the value has the name of a lock.
//
// In a cluster List reads one master after the other. If the node that the cursor names is no longer a master, List
// fails rather than skip the rest of that node's keys. Then the caller has to begin again. A cursor that List did not
// make is joblock.ErrInvalid. With an error there are no records.
func (s *Store) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	if err := s.Validate(); err != nil {
		return driver.ListPage{}, err
	}
	at, err := parseCursor(req.Cursor)
	if err != nil {
		return driver.ListPage{}, err
	}
	node, at, following, err := s.scanNode(ctx, at)
	if err != nil {
		return driver.ListPage{}, err
	}
	count := min(cmp.Or(max(req.Count, 0), defaultListCount), maxListCount)
	scanned := redis.NewScanCmd(ctx, nil, "scan", at.scan, "match", s.pattern(req.Prefix), "count", count)
	if err := node.Process(ctx, scanned); err != nil {
		return driver.ListPage{}, err
	}
	names, scan := scanned.Val()
	next := cursor{node: following}
	if scan != 0 {
		next = cursor{node: at.node, scan: scan}
	}
	page := driver.ListPage{Next: next.String(), Records: make([]driver.Record, 0, len(names))}
	keys := names[:0]
	for _, name := range names {
		if key, ok := s.keyOf(name); ok && name != s.sealKeys() && strings.HasPrefix(key, req.Prefix) {
			keys = append(keys, key)
		}
	}
	err = s.inspect(ctx, driver.InspectRequest{Keys: keys}, func(_ int, rec driver.Record, exists bool) {
		if exists { // a record may have expired since the SCAN
			page.Records = append(page.Records, rec)
		}
	})
	if err != nil {
		return driver.ListPage{}, err
	}
	return page, nil
}

// scanNode returns the node to read, the cursor with the address of that node, and the address of the following node,
// "" after the last node.
func (s *Store) scanNode(ctx context.Context, at cursor) (sender, cursor, string, error) {
	var each func(context.Context, func(context.Context, *redis.Client) error) error
	switch c := s.ops.(type) {
	case *redis.ClusterClient:
		each = c.ForEachMaster
	case *redis.Ring:
		each = c.ForEachShard
	default:
		if at.node != "" {
			return nil, at, "", invalid("list cursor is from a cluster")
		}
		return s.calls.via, at, "", nil
	}

	var mu sync.Mutex
	var nodes []*redis.Client
	err := each(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes = append(nodes, c)
		return nil
	})
	if err != nil {
		return nil, at, "", err
	}
	slices.SortFunc(nodes, func(a, b *redis.Client) int { return cmp.Compare(a.Options().Addr, b.Options().Addr) })
	i := 0
	if at != (cursor{}) {
		i = slices.IndexFunc(nodes, func(c *redis.Client) bool { return c.Options().Addr == at.node })
	}
	if i < 0 || i >= len(nodes) {
		return nil, at, "", fmt.Errorf("redisstore: list: no master at %q any more, begin the listing again", at.node)
	}
	at.node = nodes[i].Options().Addr
	following := ""
	if i+1 < len(nodes) {
		following = nodes[i+1].Options().Addr
	}
	return nodes[i], at, following, nil
}

// The type cursor says where the next page begins: a SCAN cursor and, in a cluster, the address of the master that made
// the SCAN cursor. The zero cursor is the beginning of a listing. In ListPage.Next the zero cursor is the end.
type cursor struct {
	node string
	scan uint64
}

// String returns "", "scan" or "scan@node".
func (c cursor) String() string {
	if c == (cursor{}) {
		return ""
	}
	text := strconv.FormatUint(c.scan, 10)
	if c.node != "" {
		text += "@" + c.node
	}
	return text
}

func parseCursor(text string) (cursor, error) {
	if text == "" {
		return cursor{}, nil
	}
	number, node, _ := strings.Cut(text, "@")
	scan, err := strconv.ParseUint(number, 10, 64)
	c := cursor{node: node, scan: scan}
	if err != nil || c.String() != text {
		return cursor{}, invalid("list cursor %.40q was not made by List", text)
	}
	return c, nil
}

// The method pattern returns the MATCH pattern for the names of locks whose keys begin with prefix. In a cluster the
// pattern also matches names that have prefix after a later brace.
func (s *Store) pattern(prefix string) string {
	if s.Parts() > 1 {
		return escapeGlob(s.prefix) + "{*}" + escapeGlob(prefix) + "*"
	}
	return escapeGlob(s.prefix+prefix) + "*"
}

// escapeGlob returns a MATCH pattern that matches only s.
func escapeGlob(s string) string {
	if !strings.ContainsAny(s, `*?[]\^`) {
		return s
	}
	var b strings.Builder
	for i := range len(s) {
		if strings.IndexByte(`*?[]\^`, s[i]) >= 0 {
			b.WriteByte('\\')
		}
		b.WriteByte(s[i])
	}
	return b.String()
}
