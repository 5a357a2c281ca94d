package redisstore

import (
	"strconv"
	"strings"
)

// record is the text of a lock's record: scripts/record.lua describes the lines. This file and record.lua are the two
// places that know the format; TestRecordsAreThoseOfTheScripts compares them.
type record struct {
	kind                       string // the first four bytes: "job" and a letter
	fence                      int64
	owner, holder, job, reason string
	first                      int64
	since                      int64 // 0 if equal to first
	nonce, last                string
	changed                    int64
	prior, memo                byte
	at, ttl, reserve           int64 // only if owned
}

const (
	ownedKind  = "jobH"
	nativeKind = "jobN" // owned; the times follow from the expiry of the key
	endedKind  = "jobR"
	doneKind   = "jobD"

	// noLast stands in the line last as long as there was no END.
	noLast = "-------------"

	endedTail = 16 + 2                         // bytes of the last line of a record that is not owned
	ownedTail = endedTail + 16 + 2*periodBytes // the same if owned
)

func (r *record) owned() bool { return r.kind == ownedKind || r.kind == nativeKind }

// text returns the text of r, in one allocation.
func (r *record) text() string {
	var b strings.Builder
	b.Grow(r.size())
	r.write(&b)
	return b.String()
}

// size returns how many bytes write writes at most.
func (r *record) size() int {
	return len(r.kind) + 3*fenceBytes + ownedTail + 9 + len(r.owner) + len(r.holder) + len(r.job) + len(r.reason) + len(r.nonce) + len(r.last)
}

// write writes the text of r to b.
func (r *record) write(b *strings.Builder) {
	b.WriteString(r.kind)
	writeWide(b, r.fence, fenceBytes)
	for _, line := range [...]string{r.owner, r.holder, r.job, r.reason} {
		b.WriteByte('\n')
		b.WriteString(line)
	}
	b.WriteByte('\n')
	writeWide(b, r.first, fenceBytes)
	b.WriteByte('\n')
	if r.since != 0 {
		writeWide(b, r.since, fenceBytes)
	}
	b.WriteByte('\n')
	b.WriteString(r.nonce)
	b.WriteByte('\n')
	b.WriteString(r.last)
	b.WriteByte('\n')
	writeWide(b, r.changed, fenceBytes)
	b.WriteByte(r.prior)
	b.WriteByte(r.memo)
	if r.owned() {
		writeWide(b, r.at, fenceBytes)
		writeWide(b, r.ttl, periodBytes)
		writeWide(b, r.reserve, periodBytes)
	}
}

func writeWide(b *strings.Builder, n int64, width int) {
	var text [fenceBytes]byte
	fill(text[:width], n)
	b.Write(text[:width])
}

// readRecord reads the text of a record. ok is false for a text that r.text would not write.
func readRecord(text string) (r record, ok bool) {
	ok = true
	line := func() string {
		part, rest, found := strings.Cut(text, "\n")
		ok = ok && found
		text = rest
		return part
	}
	number := func(part string, width int) int64 {
		n, err := strconv.ParseInt(strings.TrimLeft(part, " "), 10, 64)
		ok = ok && len(part) == width && err == nil && n >= 0
		return n
	}
	head := line()
	if len(head) != len(ownedKind)+fenceBytes {
		return record{}, false
	}
	r.kind, r.fence = head[:len(ownedKind)], number(head[len(ownedKind):], fenceBytes)
	r.owner, r.holder, r.job, r.reason = line(), line(), line(), line()
	r.first = number(line(), fenceBytes)
	if since := line(); since != "" {
		r.since = number(since, fenceBytes)
	}
	r.nonce, r.last = line(), line()
	tail := endedTail
	if r.owned() {
		tail = ownedTail
	}
	if !ok || len(text) != tail {
		return record{}, false
	}
	r.changed, r.prior, r.memo = number(text[:16], 16), text[16], text[17]
	if r.owned() {
		r.at, r.ttl, r.reserve = number(text[18:34], 16), number(text[34:46], periodBytes), number(text[46:58], periodBytes)
	}
	return r, ok
}
