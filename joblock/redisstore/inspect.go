package redisstore

import (
	"context"
	"errors"
	"slices"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

// inspectTogether is how many records one call of a script reads. That takes some tenths of a millisecond, in which the
// server does nothing else.
const inspectTogether = 100

// Inspect implements driver.Store, and asks masters only. One script reads up to a hundred records, in a cluster only
// records of one part; all scripts go in one pipeline. Records with memos are read one by one, because memos may be
// large. So are the records behind a client that is neither a *redis.Client nor a *redis.ClusterClient: such a client
// may send each key to another server.
//
// If a server refuses a script, a second pipeline reads that script's records one by one. A server may refuse because
// the keys' slot migrates, or because the server may not show one of the records. With an error, a Record that could
// not be read has only its Key.
func (s *store) Inspect(ctx context.Context, req driver.InspectRequest) ([]driver.Record, error) {
	recs := make([]driver.Record, len(req.Keys))
	err := s.inspect(ctx, req, func(i int, rec driver.Record, _ bool) { recs[i] = rec })
	return recs, err
}

// inspect reads the records of req.Keys, and calls found once for each key, even for a key
// without a record.
func (s *store) inspect(ctx context.Context, req driver.InspectRequest, found func(i int, rec driver.Record, exists bool)) error {
	var failed error
	answered := func(i int, a answer) {
		rec, exists, err := driver.Record{Key: req.Keys[i]}, false, a.err
		if err == nil {
			rec, exists, err = parseRecord(req.Keys[i], a.val)
		}
		if err != nil && failed == nil {
			failed = err
		}
		found(i, rec, exists)
	}
	single := all(req.Keys)
	if len(single) > 1 && !req.Memo && s.together() {
		single = s.inspectMany(ctx, req, answered)
	}
	if len(single) == 0 {
		return failed
	}
	cmds := make([]*redis.Cmd, len(single))
	for n, i := range single {
		c := newCall(inspectScript, s.name(req.Keys[i])).flag(req.Memo)
		if req.Places != nil {
			c.str(req.Places[i])
		}
		cmds[n] = c.cmd(ctx)
	}
	for n, a := range inspectScript.runAll(ctx, s.calls, cmds) {
		answered(single[n], a)
	}
	return failed
}

// inspectMany reads many records with each script. single has the indexes of the keys that have no answer,
// because the server has refused the script.
func (s *store) inspectMany(ctx context.Context, req driver.InspectRequest, answered func(i int, a answer)) (single []int) {
	parts := make(map[int][]int) // the indexes of the keys, by part
	for i, key := range req.Keys {
		part := s.part(key)
		parts[part] = append(parts[part], i)
	}
	var cmds []*redis.Cmd
	var chunks [][]int
	for _, items := range parts {
		for chunk := range slices.Chunk(items, inspectTogether) {
			names := make([]string, len(chunk))
			for n, i := range chunk {
				names[n] = s.name(req.Keys[i])
			}
			c := newCall(inspectManyScript, names...).flag(false)
			if req.Places != nil {
				for _, i := range chunk {
					c.str(req.Places[i])
				}
			}
			cmds = append(cmds, c.cmd(ctx))
			chunks = append(chunks, chunk)
		}
	}
	for c, a := range inspectManyScript.runAll(ctx, s.calls, cmds) {
		var refused redis.Error
		if errors.As(a.err, &refused) {
			s.apart(a.err)
			single = append(single, chunks[c]...)
			continue
		}
		list, _ := a.val.([]any)
		if a.err == nil && len(list) != len(chunks[c]) {
			a.err = errReply
		}
		for n, i := range chunks[c] {
			one := a
			if a.err == nil {
				one.val = list[n]
			}
			if err, ok := one.val.(error); ok { // the server's answer about this record
				one = answer{err: withoutArgs(err)}
			}
			answered(i, one)
		}
	}
	return single
}
