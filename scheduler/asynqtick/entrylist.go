package asynqtick

import (
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/redis/go-redis/v9"
)

// asynq keeps the entries of a scheduler in a list, and the keys of all such lists in a sorted set, by the time at which
// the list expires. asynq exports neither the keys nor the encoding. TestTheInspectorShowsTheJobs holds both against
// asynq's own reader.
const (
	allSchedulers = "asynq:schedulers"
	pushAtOnce    = 500 // entries in one command
)

// entryList is the list of one process.
type entryList struct {
	rdb redis.UniversalClient
	key string
	has bool // the list may exist
}

func newEntryList(rdb redis.UniversalClient) *entryList {
	return &entryList{rdb: rdb, key: fmt.Sprintf("%s:{joblock:%016x}", allSchedulers, rand.Uint64())}
}

// write replaces the list. The list expires after ttl.
func (l *entryList) write(ctx context.Context, entries []any, ttl time.Duration) error {
	l.has = true
	score := float64(time.Now().Add(ttl).Unix())
	if err := l.rdb.ZAdd(ctx, allSchedulers, redis.Z{Score: score, Member: l.key}).Err(); err != nil {
		return err
	}
	_, err := l.rdb.TxPipelined(ctx, func(p redis.Pipeliner) error {
		p.Del(ctx, l.key)
		for part := range slices.Chunk(entries, pushAtOnce) {
			p.RPush(ctx, l.key, part...)
		}
		p.PExpire(ctx, l.key, ttl)
		return nil
	})
	return err
}

// clear removes the list.
func (l *entryList) clear(ctx context.Context) error {
	if !l.has {
		return nil
	}
	if err := l.rdb.ZRem(ctx, allSchedulers, l.key).Err(); err != nil {
		return err
	}
	if err := l.rdb.Del(ctx, l.key).Err(); err != nil {
		return err
	}
	l.has = false
	return nil
}

// encodeEntry returns asynq's protobuf message SchedulerEntry.
func encodeEntry(id, spec, taskType string, payload []byte, opts []string, next, prev time.Time) (b []byte) {
	for i, text := range []string{id, spec, taskType, string(payload)} {
		if i < 3 && !utf8.ValidString(text) {
			text = fmt.Sprintf("%q", text) // a message with other bytes in a string cannot be decoded
		}
		b = appendField(b, 1+i, []byte(text))
	}
	for _, opt := range opts {
		b = appendField(b, 5, []byte(opt))
	}
	return appendField(appendField(b, 6, encodeTime(next)), 7, encodeTime(prev))
}

// encodeTime returns protobuf's message Timestamp.
func encodeTime(t time.Time) (b []byte) {
	b = binary.AppendUvarint([]byte{1 << 3}, uint64(t.Unix())) // field 1: a varint
	return binary.AppendUvarint(append(b, 2<<3), uint64(t.Nanosecond()))
}

// appendField appends a field of protobuf's type 2: bytes with their length.
func appendField(b []byte, field int, value []byte) []byte {
	b = binary.AppendUvarint(append(b, byte(field<<3|2)), uint64(len(value)))
	return append(b, value...)
}
