package redisstore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// spoiled are records that a stranger or a broken program has written to: the fields of a
// held lock that are set, as its text or as fields of its hash. In the text, a name in braces stands for what the lock has there.
var spoiled = map[string][]string{
	"empty state":               {"s", ""},
	"state of another kind":     {"s", `{"owner":"me","fence":1}`},
	"too few lines":             {"s", "jobH{fence}\n{owner}\n{holder}\n"},
	"a line too few":            {"s", strings.Replace(textWith("reason", ""), "\n", "", 1)},
	"a line too many":           {"s", textWith("reason", "\n")},
	"no kind":                   {"s", textWith("kind", "job")},
	"another magic":             {"s", textWith("kind", "jobs")},
	"since no number":           {"s", textWith("since", "yesterday")},
	"since without end":         {"s", textWith("since", strings.Repeat("9", 300))},
	"first no number":           {"s", textWith("first", "the first")},
	"first beyond the end":      {"s", textWith("first", "9007199254740991")},
	"changed no number":         {"s", textWith("changed", "now")},
	"changed without end":       {"s", textWith("changed", strings.Repeat("9", 300))},
	"negative fence":            {"s", textWith("fence", "-{fence}")},
	"short fence":               {"s", textWith("fence", "12")},
	"negative lease":            {"s", textWith("ttl", "      -60000")},
	"lease no number":           {"s", textWith("ttl", "    6 0000  ")},
	"no lease":                  {"s", textWith("ttl", "            ")},
	"begun no number":           {"s", textWith("begun", "     1234567890")},
	"fence no integer":          {"s", textWith("fence", "17953071640088.5")},
	"fence in hex":              {"s", textWith("fence", "0x17953071640088")},
	"fence at the end":          {"s", textWith("fence", "9007199254740991")},
	"fence beyond the end":      {"s", textWith("fence", strings.Repeat("9", 400))},
	"until beyond the end":      {"s", textWith("reserve", "99999999999999999999")},
	"lease beyond the end":      {"s", textWith("ttl", "9007199254740991")},
	"an end that there is not":  {"s", textWith("kind", "jobX")},
	"an end with a lease":       {"s", textWith("kind", "jobR")},
	"a prior that is not":       {"s", textWith("prior", "X")},
	"huge memo":                 {"s", textWith("memo", "m"), "memo", strings.Repeat("m", 8<<20)},
	"queue no numbers":          {"q", "first last 1"},
	"queue empty":               {"q", ""},
	"queue negative":            {"q", "-5 5 0"},
	"queue backwards":           {"q", "5 1 0"},
	"queue to the end":          {"q", "0 9007199254740990 1"},
	"queue beyond the end":      {"q", "0 " + strings.Repeat("9", 300) + " 1"},
	"queue as doubles":          {"q", "0 1e300 1"},
	"queue of too many":         {"q", "0 1 2"},
	"queue without a length":    {"q", "0 1"},
	"queue of empty places":     {"q", "0 20000000000 20000000000"},
	"place in a gap":            {"q", "0 3 2", "q0", "99999999999999\n3\n           1\nwho\nholder\n\n\na\ninbox\n1795307164008897", "wa", "0", "q1", "99999999999999\n3\n           1\nwho\nholder\n\n\nb\ninbox\n1795307164008897", "wb", "1", "g1", "1", "q2", "99999999999999\n3\n           1\nwho\nholder\n\n\ncall\ninbox\n1795307164008897", "wcall", "2"},
	"place of gaps without end": {"q", "0 9 3", "q0", "1\n3\n           1\nwho\nholder\n\n\na\ninbox\n1795307164008897", "g1", "99999999999999999999", "g5", "-3", "q4", "1\n3\n           1\nwho\nholder\n\n\ncall\ninbox\n1795307164008897", "wcall", "4", "g3", "1.5"},
	"place is garbage":          {"q", "0 1 1", "q0", "garbage", "wcall", "0"},
	"place with negatives":      {"q", "0 1 1", "q0", "-1\n-1\n          -1\nwho\nholder\n\n\ncall\ninbox\n1795307164008897", "wcall", "0"},
	"place with a split lease":  {"q", "0 1 1", "q0", "99999999999999\n20001\n1          2\nwho\nholder\n\n\nBBBBBBBBBBBBB\ninbox\n1795307164008897", "wBBBBBBBBBBBBB", "0"},
	"place with doubles":        {"q", "0 1 1", "q0", "1e300\n1e300\n       1e300\nwho\nholder\n\n\ncall\ninbox\n1795307164008897", "wcall", "0"},
	"place without end":         {"q", "0 1 1", "q0", "9007199254740990\n9007199254740990\n9007199254740990\nwho\nholder\n\n\ncall\ninbox\n1795307164008897", "wcall", "0"},
	"place beyond all ends":     {"q", "0 1 1", "q0", strings.Repeat("9", 400) + "\n2001\n        1000\nwho\nholder\n\n\ncall\ninbox\n1795307164008897", "wcall", "0"},
	"place of a job":            {"q", "0 1 1", "q0", "99999999999999\n2001\n        1000\nwho\nholder\nq/1\n\n0000000000000\nchannel\n1795307164008897", "w0000000000000", "0"},
	"place of a job and reason": {"q", "0 1 1", "q0", "99999999999999\n2001\n        1000\nwho\nholder\nq/1\nwhy\n0000000000000\nchannel\n1795307164008897", "w0000000000000", "0"},
	"place without a time":      {"q", "0 1 1", "q0", "99999999999999\n2001\n        1000\nwho\nholder\nq/1\n\n0000000000000\nchannel\n", "w0000000000000", "0"},
	"place of an odd time":      {"q", "0 1 1", "q0", "99999999999999\n2001\n        1000\nwho\nholder\nq/1\n\n0000000000000\nchannel\n1 2 3 4 5 6 7 8 ", "w0000000000000", "0"},
	"place kept forever":        {"q", "0 1 1", "q0", strings.Repeat("9", 400) + "\n2001\n        1000\nwho\nholder\nq/1\n\n0000000000000\nchannel\n1795307164008897", "w0000000000000", "0"},
	"place of another call":     {"q", "0 2 2", "q0", "99999999999999\n2001\n        1000\nwho\nholder\nq/2\n\n0000000000000\nchannel\n1795307164008897", "w0000000000000", "1", "q1", "garbage"},
	"places without a count":    {"q", "0 1 1", "q7", "garbage", "q-1", "garbage", "qq", "garbage", "w", "x"},
}

// textWith is the text of a lock that is held, with one field replaced.
func textWith(field, text string) string {
	rec := map[string]string{"kind": "{kind}", "fence": "{fence}", "changed": "{changed}", "prior": "-", "memo": "-",
		"begun": "{begun}", "ttl": "{ttl}", "reserve": "{reserve}"}
	for _, name := range recordLines {
		rec[name] = "{" + name + "}"
	}
	rec[field] = text
	return recordText(rec)
}

// spoil takes key, and writes to its record as a stranger.
func (k *kit) spoil(t *testing.T, key string, fields []string) driver.Term {
	t.Helper()
	term := k.acquire(key)
	rec := k.readRecord(k.name(key))
	text := recordText(rec)
	var others []any
	for i := 0; i < len(fields); i += 2 {
		if fields[i] != "s" {
			others = append(others, fields[i], fields[i+1])
			continue
		}
		text = fields[i+1]
		for name, was := range rec {
			text = strings.ReplaceAll(text, "{"+name+"}", was)
		}
	}
	k.writeRecord(k.name(key), text, others...)
	return term
}

// calls does every call about the key that the term may be for, the releases last. It
// fails the test if one is not answered, or if two have the key.
func (k *kit) calls(t *testing.T, key string, term driver.Term) {
	t.Helper()
	ctx := t.Context()
	try := func(what string, call func() (driver.Reply, error)) driver.Reply {
		t.Helper()
		r, err := call()
		if err != nil && ctx.Err() != nil {
			t.Fatalf("%s of %q is not answered: %v", what, key, err)
		}
		if err != nil && strings.Contains(err.Error(), "attempt to") {
			t.Errorf("%s of %q: the script failed: %v", what, key, err)
		}
		if err != nil && r.Outcome != driver.OutcomeUnknown {
			t.Errorf("%s of %q: outcome %d with the error %v", what, key, r.Outcome, err)
		}
		return r
	}
	one := func(rs []driver.Reply, err error) (driver.Reply, error) { return rs[0], err }
	acquire := func(owner, inbox string) driver.Reply {
		t.Helper()
		return try("acquire", func() (driver.Reply, error) {
			return k.Acquire(ctx, driver.AcquireRequest{
				Key: key, Owner: owner, Nonce: k.nonce(), TTL: long, Retain: long, Inbox: inbox, Patience: long,
			})
		})
	}
	if k.fast {
		try("fast release", func() (driver.Reply, error) {
			return one(k.Release(ctx, []driver.ReleaseRequest{{Term: term, Nonce: k.nonce(), Retain: long}}))
		})
	}
	line := driver.TakeRequest{
		Key: key, Owner: "a job", Nonce: "0000000000000", Job: "q/1", Reserve: long, Retain: long, Grace: long, Patience: long, Most: 3,
	}
	have := 0
	for _, r := range []driver.Reply{
		acquire("a stranger", ""), acquire("one who waits", "inbox"),
		try("wait as a job", func() (driver.Reply, error) { return k.Take(ctx, line) }),
		try("renew", func() (driver.Reply, error) { return one(k.Renew(ctx, []driver.RenewRequest{k.renewal(term)})) }),
	} {
		if r.Outcome == driver.OutcomeOK {
			have++
		}
	}
	if have > 1 {
		t.Errorf("%d have the key %q", have, key)
	}
	try("inspect", func() (driver.Reply, error) {
		_, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{key, key}, Places: []string{line.Nonce, "call"}})
		return driver.Reply{}, err
	})
	try("line", func() (driver.Reply, error) {
		page, err := k.Line(ctx, driver.LineRequest{Key: key, Limit: 10})
		if len(page.Places) > 10 {
			t.Errorf("%d places of %q in a page of 10", len(page.Places), key)
		}
		return driver.Reply{}, err
	})
	try("keep a place", func() (driver.Reply, error) {
		return one(k.Reserve(ctx, []driver.ReserveRequest{{Key: key, Job: "q/1", Nonce: line.Nonce, Reserve: long, Retain: long}}))
	})
	try("list", func() (driver.Reply, error) {
		_, err := k.List(ctx, driver.ListRequest{Prefix: key})
		return driver.Reply{}, err
	})
	try("reserve", func() (driver.Reply, error) {
		return one(k.Reserve(ctx, []driver.ReserveRequest{{Key: key, Job: "q/1", Reserve: long, Retain: long}}))
	})
	try("park", func() (driver.Reply, error) { return k.Park(ctx, k.park(term)) })
	for _, owner := range []string{term.Owner, "a stranger"} {
		try("resume", func() (driver.Reply, error) {
			return k.Resume(ctx, driver.ResumeRequest{Key: key, Owner: owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1", Grace: long})
		})
	}
	leave := k.release(driver.Term{Key: key, Owner: "x", Grant: "call"})
	drop := k.release(driver.Term{Key: key, Grant: line.Nonce})
	drop.Kind, drop.Job, drop.Starts = driver.ReleaseForcedIdle, "q/1", true
	force := k.release(driver.Term{Key: key})
	force.Kind = driver.ReleaseForced
	for _, req := range []driver.ReleaseRequest{leave, drop, k.release(driver.Term{Key: key, Owner: term.Owner}), force, force} {
		req.Nonce = k.nonce()
		try("release", func() (driver.Reply, error) { return one(k.Release(ctx, []driver.ReleaseRequest{req})) })
	}
	if first, second := acquire("the next", ""), acquire("one more", "inbox"); first.Outcome == driver.OutcomeOK && second.Outcome == driver.OutcomeOK {
		t.Errorf("two have the key %q after it was freed", key)
	}
	if err := k.rdb.Ping(ctx).Err(); err != nil {
		t.Fatalf("after the calls about %q the server does not answer: %v", key, err)
	}
}

// Whatever stands in a record: every call about it is answered, the server goes on
// answering others, and no two get the lock.
func TestHostileRecords(t *testing.T) {
	for what, fast := range map[string]bool{"general stages": false, "short stages": true} {
		t.Run(what, func(t *testing.T) {
			k := newRealKit(t)
			k.fast = fast
			hostileRecords(t, k)
		})
	}
}

func hostileRecords(t *testing.T, k *kit) {
	for name, fields := range spoiled {
		t.Run(name, func(t *testing.T) {
			term := k.spoil(t, name, fields)
			before := k.content(k.name(name))
			k.calls(t, name, term)
			// The only answer about a value that is no record of ours is just that, and it is left alone. But a short stage
			// may release the lock without looking at what is damaged.
			if k.fast {
				return
			}
			ours := strings.HasPrefix(name, "place") || name == "queue of empty places" || name == "huge memo"
			if after := k.content(k.name(name)); ours == (after == before) {
				t.Errorf("the record changed: %t", after != before)
			}
		})
	}
}

// A memo that is too large for one is not sent to anybody, and nothing is done for those
// who ask for it.
func TestHugeMemosAreRefusedToThoseWhoAsk(t *testing.T) {
	k := newRealKit(t)
	ctx := context.Background()
	term := k.spoil(t, "key", spoiled["huge memo"])
	wantOutcome := func(what string, r driver.Reply, err error, want driver.Outcome) {
		t.Helper()
		if err != nil || r.Outcome != want {
			t.Errorf("%s: outcome %d, %v; want %d", what, r.Outcome, err, want)
		}
	}
	rs, err := k.Renew(ctx, []driver.RenewRequest{k.renewal(term)})
	wantOutcome("renew", rs[0], err, driver.OutcomeOK)
	r, err := k.Park(ctx, k.park(term))
	wantOutcome("park", r, err, driver.OutcomeOK)
	for memo, want := range map[bool]driver.State{false: driver.StateParked, true: driver.StateForeign} {
		recs, err := k.Inspect(ctx, driver.InspectRequest{Keys: []string{"key"}, Memo: memo})
		if err != nil || recs[0].State != want || len(recs[0].Memo) > 0 {
			t.Errorf("inspect: %s with a memo of %d bytes, %v; want %s", recs[0].State, len(recs[0].Memo), err, want)
		}
	}
	resume := driver.ResumeRequest{Key: "key", Owner: term.Owner, Nonce: k.nonce(), TTL: long, Retain: long, Job: "q/1", Grace: long, Memo: true}
	r, err = k.Resume(ctx, resume)
	wantOutcome("resume with its memo", r, err, driver.OutcomeForeign)
	resume.Memo = false
	r, err = k.Resume(ctx, resume)
	wantOutcome("resume", r, err, driver.OutcomeOK)
	rs, err = k.Release(ctx, []driver.ReleaseRequest{k.release(driver.Term{Key: "key", Owner: term.Owner})})
	wantOutcome("release", rs[0], err, driver.OutcomeOK)
	acquire := driver.AcquireRequest{Key: "key", Owner: "next", Nonce: k.nonce(), TTL: long, Retain: long, Memo: true}
	r, err = k.Acquire(ctx, acquire)
	wantOutcome("acquire with its memo", r, err, driver.OutcomeForeign)
	acquire.Memo = false
	r, err = k.Acquire(ctx, acquire)
	wantOutcome("acquire", r, err, driver.OutcomeOK)
}

// The same for records in which a few bytes are others.
func TestDamagedRecords(t *testing.T) {
	k := newRealKit(t)
	rnd := rand.New(rand.NewPCG(1, 0))
	bytes := []byte("\n\n\n  -019999\x00\xffaeqs.HRm")
	for i := range 300 {
		key := fmt.Sprintf("key %d", i)
		term := k.acquire(key)
		ctx := context.Background()
		for _, inbox := range []string{"one", "two"} {
			r, err := k.Acquire(ctx, driver.AcquireRequest{
				Key: key, Owner: inbox, Nonce: k.nonce(), TTL: long, Retain: long, Inbox: inbox, Patience: long,
			})
			wantOutcome(t, "wait", r, err, driver.OutcomeHeld)
		}
		record := k.rdb.HGetAll(ctx, k.name(key)).Val()
		if i%2 == 1 { // no waiters: the record is a text
			term = k.acquire(key + "s")
			key += "s"
			record = map[string]string{"s": recordText(k.readRecord(k.name(key)))}
		}
		was := fmt.Sprintf("%q", record)
		fields := []string{"s"}
		if i%2 == 0 {
			fields = []string{"s", "q", "q0", "q1", "g1"}
		}
		for range 1 + rnd.IntN(3) {
			f := fields[rnd.IntN(len(fields))]
			text := []byte(record[f])
			switch at := rnd.IntN(len(text) + 1); rnd.IntN(3) {
			case 0:
				text = append(text[:at:at], text[min(len(text), at+1+rnd.IntN(3)):]...)
			case 1:
				text = append(append(text[:at:at], bytes[rnd.IntN(len(bytes))]), text[at:]...)
			case 2:
				if at < len(text) {
					text[at] = bytes[rnd.IntN(len(bytes))]
				}
			}
			record[f] = string(text)
		}
		if i%2 == 1 {
			k.writeRecord(k.name(key), record["s"])
		} else if err := k.rdb.HSet(ctx, k.name(key), record).Err(); err != nil {
			t.Fatal(err)
		}
		if k.calls(t, key, term); t.Failed() {
			t.Fatalf("the record was\n%s\nand became\n%q", was, record)
		}
	}
}

// A record that has lost its time to live, as by a PERSIST or a copy, is not forgotten while it is held.
func TestRecordsWithoutATimeToLive(t *testing.T) {
	k := newRealKit(t)
	ctx := context.Background()
	for _, memo := range []string{"", "memo"} {
		for what, then := range map[string]func(driver.AcquireRequest){
			"sent again": func(req driver.AcquireRequest) {
				r, err := k.Acquire(ctx, req)
				wantOutcome(t, "acquire again", r, err, driver.OutcomeOK)
			},
			"waited for": func(req driver.AcquireRequest) {
				req.Owner, req.Nonce, req.Inbox = "waiter", k.nonce(), "inbox"
				req.TTL, req.Retain, req.Patience = time.Millisecond, time.Millisecond, time.Millisecond
				r, err := k.Acquire(ctx, req)
				wantOutcome(t, "wait", r, err, driver.OutcomeHeld)
			},
		} {
			key := what + memo
			req := driver.AcquireRequest{Key: key, Owner: "owner", Nonce: fastName(k.nonce()), TTL: long, Retain: long}
			r, err := k.Acquire(ctx, req)
			wantOutcome(t, "acquire", r, err, driver.OutcomeOK)
			renewal := k.renewal(driver.Term{Key: key, Owner: "owner", Fence: r.Fence})
			renewal.Memo = []byte(memo)
			rs, err := k.Renew(ctx, []driver.RenewRequest{renewal})
			wantOutcomes(t, "renew", rs, err, 1, driver.OutcomeOK)
			if err := k.rdb.Persist(ctx, k.name(key)).Err(); err != nil {
				t.Fatal(err)
			}
			then(req)
			time.Sleep(5 * time.Millisecond)
			r, err = k.Acquire(ctx, driver.AcquireRequest{Key: key, Owner: "another", Nonce: k.nonce(), TTL: long, Retain: long})
			if err != nil || r.Outcome != driver.OutcomeHeld {
				t.Errorf("%s: acquire by another: outcome %s, %v; want held", key, r.Outcome, err)
			}
			if life := k.rdb.PTTL(ctx, k.name(key)).Val(); life < long/2 { // a busy machine is late
				t.Errorf("%s: the record lives for %s, want the lease", key, life)
			}
		}
	}
}
