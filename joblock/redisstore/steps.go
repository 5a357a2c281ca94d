package redisstore

import (
	"context"
	"reflect"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/joblock/toolkit/internal/scriptstep"
	"github.com/joblock/toolkit/joblock/driver"
)

var _ scriptstep.Store = (*store)(nil)

// SameServer implements scriptstep.Store.
func (s *store) SameServer(client redis.UniversalClient) bool { return sameServer(s.app, client) }

// sameServer reports whether two clients certainly talk to the same database of one server: they are the
// same client, or have the same address and user, and no Dialer of the application. With another user the server might
// refuse the steps, and would write each refusal into its ACL LOG.
func sameServer(a, b redis.UniversalClient) bool {
	x, one := a.(*redis.Client)
	y, other := b.(*redis.Client)
	if !one || !other || x == nil || y == nil {
		return false
	}
	if x == y {
		return true
	}
	p, q := x.Options(), y.Options()
	return p.Network == q.Network && p.Addr == q.Addr && p.DB == q.DB && namesUser(p) && namesUser(q) && p.Username == q.Username &&
		plainDialer(p) && plainDialer(q)
}

// namesUser reports whether o itself names the user.
func namesUser(o *redis.Options) bool {
	return o.CredentialsProvider == nil && o.CredentialsProviderContext == nil && o.StreamingCredentialsProvider == nil
}

// plainDialer reports whether o has the Dialer that go-redis makes. The client of a Sentinel has another one:
// its Addr is not an address.
func plainDialer(o *redis.Options) bool {
	return reflect.ValueOf(o.Dialer).Pointer() == dialerOfGoRedis()
}

// dialerOfGoRedis returns the code pointer of the Dialer that go-redis makes. It takes the Dialer from a client,
// because the compiler may make several copies of the function that redis.NewDialer returns.
var dialerOfGoRedis = sync.OnceValue(func() uintptr {
	client := redis.NewClient(&redis.Options{
		Addr:                     "127.0.0.1:1", // a name would be looked up
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	})
	defer func() { _ = client.Close() }()
	return reflect.ValueOf(client.Options().Dialer).Pointer()
})

// stepScripts has the scripts of releases with steps, by *scriptstep.Steps.
var stepScripts sync.Map

// scriptWithSteps returns the script of a release with steps. In that script the stages of the release are the body of
// a function, because they contain return statements. The steps' arguments are the last two of the call.
func scriptWithSteps(steps *scriptstep.Steps) *script {
	if sc, ok := stepScripts.Load(steps); ok {
		return sc.(*script)
	}
	var src strings.Builder
	src.WriteString("local n = #ARGV\nlocal first, second = ARGV[n - 1], ARGV[n]\nARGV[n - 1], ARGV[n] = nil, nil\n")
	src.WriteString(steps.Before)
	src.WriteString("\nlocal answer = (function()\n")
	for _, name := range releaseStages {
		src.WriteString(stages[name])
	}
	// After OK or LAPSED, the second field is a job or the call of a waiter. An answer with the call of a waiter has a third
	// field, so one with two fields has a job.
	src.WriteString(`
end)()
if type(answer) == 'table' and #answer == 2 and (answer[1] == 1 or answer[1] == 7) and type(answer[2]) == 'string' then
  local job = answer[2]
  local done, started = pcall(function()
`)
	src.WriteString(steps.After)
	src.WriteString("\n  end)\n  if done and started then return answer[1] end\nend\nreturn answer\n")
	sc, _ := stepScripts.LoadOrStore(steps, scriptOf("release", src.String()))
	return sc.(*script)
}

const notYet = "not yet" // the answer of steps

// ReleaseWithSteps implements scriptstep.Store.
func (s *store) ReleaseWithSteps(ctx context.Context, req driver.ReleaseRequest, steps *scriptstep.Steps, first, second string) (driver.Reply, error) {
	sc := scriptWithSteps(steps)
	c := s.releaseArgs(newCall(sc, s.name(req.Key)), &req, s.listener(), false).str(first).str(second)
	a := sc.run(ctx, s.calls, c.cmd(ctx))
	if a.err != nil {
		return driver.Reply{}, a.err
	}
	if a.val == notYet {
		return driver.Reply{}, scriptstep.ErrNotYet
	}
	reply, err := parseReply(releaseScript, s.handOver(a.val))
	if err == errMore {
		one := []driver.Reply{reply}
		s.finishReleases(ctx, releaseScript, []driver.ReleaseRequest{req}, []int{0}, one)
		return one[0], nil
	}
	return reply, err
}
