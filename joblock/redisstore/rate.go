package redisstore

import (
	"context"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/joblock/driver"
)

var rateScript = newScript("admit", "rate")

// admitKinds are the names of the kinds in rate.lua.
var admitKinds = [...]string{
	driver.AdmitStart: "start", driver.AdmitTry: "try", driver.AdmitCall: "call", driver.AdmitLeave: "leave",
	driver.AdmitLater: "later", driver.AdmitDelay: "delay", driver.AdmitLook: "look",
}

// rate returns the Redis key of the rate of key. No lock has such a name: see noLock.
func (s *store) rate(key string) string { return s.prefix + "%%rate:" + key }

// Admit implements driver.Store, in one pipeline. The rates of keys are one Redis key each, on any node of a cluster.
func (s *store) Admit(ctx context.Context, reqs []driver.AdmitRequest) ([]driver.AdmitReply, error) {
	replies := make([]driver.AdmitReply, len(reqs))
	cmds := make([]*redis.Cmd, len(reqs))
	for i, req := range reqs {
		cmds[i] = newCall(rateScript, s.rate(req.Key)).str(admitKinds[req.Kind]).int(int64(req.Starts)).micros(req.Period).
			str(req.ID).add(req.Back).add(req.Most).add(max(0, req.Delay.Microseconds())).add(max(0, req.Early.Microseconds())).cmd(ctx)
	}
	var err error
	for i, a := range rateScript.runAll(ctx, s.calls, cmds) {
		failed := a.err
		if failed == nil {
			replies[i], failed = parseAdmit(a.val)
		}
		err = firstError(err, failed)
	}
	return replies, err
}

// parseAdmit reads the answer of rateScript.
func parseAdmit(val any) (driver.AdmitReply, error) {
	if n, ok := val.(int64); ok && n == int64(driver.OutcomeForeign) {
		return driver.AdmitReply{Outcome: driver.OutcomeForeign}, nil
	}
	list, ok := val.([]any)
	f := fields{rest: list, bad: !ok}
	r := driver.AdmitReply{Outcome: driver.Outcome(f.num()), Now: f.clock(), Start: f.micros(), Wait: f.period()}
	r.Ahead, r.Waiting, r.Claims, r.Used = int(f.num()), int(f.num()), int(f.num()), int(f.num())
	if until := f.micros(); until > 0 {
		r.Until = time.UnixMicro(until)
	}
	r.Starts, r.Period = int(f.micros()), f.period()
	r.Claim = f.num() == 1
	for !f.bad && len(f.rest) > 0 {
		r.Called = append(r.Called, f.str())
	}
	return r, f.end(rateScript.op)
}

// micros reads a time or a number that comes as text. 0 means none.
func (f *fields) micros() int64 {
	n, err := strconv.ParseInt(f.str(), 10, 64)
	f.bad = f.bad || err != nil || n < 0
	return n
}

// period reads a time span in microseconds.
func (f *fields) period() time.Duration { return time.Duration(f.micros()) * time.Microsecond }
