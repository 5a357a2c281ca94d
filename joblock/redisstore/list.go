package redisstore

import (
	"cmp"
	"context"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	defaultListCount = 100

	// maxListCount bounds the keys of one SCAN. A server with millions of keys takes about a millisecond for a thousand
	// keys, and does nothing else meanwhile.
	maxListCount = 1000
)

// List implements driver.Store. A page takes one SCAN and the calls that Inspect takes for the found locks. A value
// under the prefix that is not a record is listed as driver.StateForeign, if the value has the name of a lock.
//
// In a cluster the first page sends nothing, and has a cursor for each master. A separate list for each hash tag would
// look at only a 64th of other applications' keys, but only from Redis 7.4 and Valkey 8.0 on. Older servers would look
// at all keys for each of the 256 tags.
//
// If the node that a cursor names is no longer a master, List fails rather than skip the rest of that node's keys. Then
// the caller has to begin again. A lock whose slot moves meanwhile may be missing. For a cursor that List did not make,
// the error is joblock.ErrInvalid. On error there are no records.
func (s *store) List(ctx context.Context, req driver.ListRequest) (driver.ListPage, error) {
	at, err := parseCursor(req.Cursor)
	if err != nil {
		return driver.ListPage{}, err
	}
	nodes, err := s.scanNodes(ctx)
	if err != nil {
		return driver.ListPage{}, err
	}
	if at == (cursor{}) && nodes != nil {
		return driver.ListPage{Next: firstCursors(nodes)}, context.Cause(ctx)
	}
	node, err := s.scanNode(at, nodes)
	if err != nil {
		return driver.ListPage{}, err
	}
	count := min(cmp.Or(max(req.Count, 0), defaultListCount), maxListCount)
	scanned := redis.NewScanCmd(ctx, nil, "scan", at.scan, "match", s.pattern(req.Prefix), "count", count)
	if err := node.Process(ctx, scanned); err != nil {
		return driver.ListPage{}, refused(err)
	}
	names, scan := scanned.Val()
	page := driver.ListPage{Records: make([]driver.Record, 0, len(names))}
	if scan != 0 {
		page.Next = []string{cursor{node: at.node, scan: scan}.String()}
	}
	switch {
	case nodes == nil:
		page.Progress = scanProgress(at.scan, scan)
	case scan == 0: // the cursors of a cluster's node may have slots in their low bits
		page.Progress = 1 / float64(len(nodes))
	}
	keys := names[:0]
	for _, name := range names {
		if key, ok := s.keyOf(name); ok && !s.noLock(name) && strings.HasPrefix(key, req.Prefix) {
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

// scanNodes returns the masters by their addresses, or nil if there is no cluster.
func (s *store) scanNodes(ctx context.Context) (map[string]*redis.Client, error) {
	var each func(context.Context, func(context.Context, *redis.Client) error) error
	switch c := s.ops.(type) {
	case *redis.ClusterClient:
		each = c.ForEachMaster
	case *redis.Ring:
		each = c.ForEachShard
	default:
		return nil, nil
	}
	var mu sync.Mutex
	nodes := make(map[string]*redis.Client)
	err := each(ctx, func(_ context.Context, c *redis.Client) error {
		mu.Lock()
		defer mu.Unlock()
		nodes[c.Options().Addr] = c
		return nil
	})
	return nodes, err
}

// firstCursors returns the cursors at which the parts of a list begin.
func firstCursors(nodes map[string]*redis.Client) []string {
	cursors := make([]string, 0, len(nodes))
	for addr := range nodes {
		cursors = append(cursors, cursor{node: addr}.String())
	}
	return cursors
}

// scanNode returns the node to read.
func (s *store) scanNode(at cursor, nodes map[string]*redis.Client) (sender, error) {
	switch node := nodes[at.node]; {
	case nodes == nil && at.node != "":
		return nil, invalid("list cursor is from a cluster")
	case nodes == nil:
		return s.calls.via, nil
	case node == nil:
		return nil, fmt.Errorf("redisstore: list: no master at %q any more, begin the listing again", at.node)
	default:
		return node, nil
	}
}

// cursor says where a page begins: a SCAN cursor and, in a cluster, the address of the master that made the
// SCAN cursor. The zero cursor is the beginning of a list.
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

// scanProgress returns the part of the keys that one SCAN has looked at. at is the cursor that the SCAN was given, and
// next is the cursor that it returned, 0 at the end. SCAN counts from the highest bit of its cursors down.
func scanProgress(at, next uint64) float64 {
	const all = 1 << 64
	if next == 0 {
		return 1 - float64(bits.Reverse64(at))/all
	}
	return (float64(bits.Reverse64(next)) - float64(bits.Reverse64(at))) / all
}

// pattern returns the MATCH pattern for the names of locks whose keys begin with prefix. In a cluster the
// pattern also matches names that have prefix after a later brace.
func (s *store) pattern(prefix string) string {
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
