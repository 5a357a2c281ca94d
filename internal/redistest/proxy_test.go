package redistest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
)

// hang is longer than any test takes.
const hang = 20 * time.Second

// proxied returns a server, a proxy in front of it, a client through the proxy that
// does not repeat commands, and one that goes round the proxy.
func proxied(t *testing.T) (p *Proxy, through, direct *redis.Client) {
	t.Helper()
	t.Parallel() // most of these tests wait for a timeout
	s := Shared(t)
	p = NewProxy(t, s.Addr())
	through = redis.NewClient(&redis.Options{
		Addr: p.Addr(), DB: s.Number(), MaxRetries: -1, ReadTimeout: -1, ContextTimeoutEnabled: true, DialerRetries: 1, PoolSize: 1,
	})
	t.Cleanup(func() { _ = through.Close() })
	if err := through.Ping(t.Context()).Err(); err != nil {
		t.Fatal(err)
	}
	return p, through, s.Client(t)
}

// timedOut is part of the error of a call that has had no reply.
const timedOut = "i/o timeout"

// shortly returns a context for a call that gets no reply: the call ends with timedOut.
func shortly(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 100*time.Millisecond)
}

func TestFaultsOnOneCommand(t *testing.T) {
	p, through, direct := proxied(t)
	for _, tc := range []struct {
		name    string
		action  Action
		ran     bool   // the command reached the server
		failure string // part of the client's error
	}{
		{"pass", Pass(), true, ""},
		{"drop reply", DropReply(), true, "EOF"},
		{"drop request", DropRequest(), false, "EOF"},
		{"swallow reply", SwallowReply(), true, timedOut},
		{"swallow", Swallow(), false, timedOut},
		{"delay request", DelayRequest(time.Millisecond), true, ""},
		{"delay reply", DelayReply(time.Millisecond), true, ""},
		{"fail", Fail("OOM command not allowed"), false, "OOM command not allowed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			f := p.Once(All(Named("incr"), Mentioning(tc.name)), tc.action)
			defer p.Heal()
			ctx := t.Context()
			if tc.failure == timedOut {
				var cancel func()
				ctx, cancel = shortly(ctx)
				defer cancel()
			}
			err := through.Incr(ctx, tc.name).Err()
			if (tc.failure == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.failure) {
				t.Errorf("Incr: %v, want %q", err, tc.failure)
			}
			n, err := direct.Get(t.Context(), tc.name).Int()
			if ran := n == 1; ran != tc.ran || err != nil && err != redis.Nil {
				t.Errorf("command ran: %v (%v), want %v", ran, err, tc.ran)
			}
			if f.Hits() != 1 || f.Seen() != 1 {
				t.Errorf("Hits() = %d, Seen() = %d, want 1, 1", f.Hits(), f.Seen())
			}
			answered := tc.ran && tc.action != Pass()
			select {
			case <-f.Ran():
				if !answered {
					t.Error("Ran() is closed")
				}
			default:
				if answered {
					t.Error("Ran() is open")
				}
			}
			if err := through.Incr(t.Context(), "other").Err(); err != nil {
				t.Errorf("the command after: %v", err)
			}
		})
	}
}

func TestDelaysAreAsLongAsAsked(t *testing.T) {
	p, through, _ := proxied(t)
	const d = 30 * time.Millisecond
	for _, action := range []Action{DelayRequest(d), DelayReply(d)} {
		f := p.Once(Named("PING"), action)
		start := time.Now()
		if err := through.Ping(t.Context()).Err(); err != nil {
			t.Error(err)
		}
		if took := time.Since(start); took < d {
			t.Errorf("took %s, want at least %s", took, d)
		}
		if f.Hits() != 1 {
			t.Errorf("Hits() = %d, want 1", f.Hits())
		}
	}
}

func TestLostReplyIsResentByGoRedis(t *testing.T) {
	s := Shared(t)
	p := NewProxy(t, s.Addr())
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), DB: s.Number()}) // default settings: repeats
	t.Cleanup(func() { _ = rdb.Close() })
	f := p.Once(Named("INCR"), DropReply())
	n, err := rdb.Incr(t.Context(), "n").Result()
	if n != 2 || err != nil {
		t.Errorf("Incr = %d, %v, want 2: run, reply lost, run again", n, err)
	}
	if f.Hits() != 1 || f.Seen() != 2 {
		t.Errorf("Hits() = %d, Seen() = %d, want 1, 2", f.Hits(), f.Seen())
	}
}

func TestFaultStrikesOneCommandOfAPipeline(t *testing.T) {
	p, through, direct := proxied(t)
	p.Once(Mentioning("k1"), Fail("ERR injected"))
	cmds, _ := through.Pipelined(t.Context(), func(pl redis.Pipeliner) error {
		for i := range 3 {
			pl.Incr(t.Context(), fmt.Sprint("k", i))
		}
		return nil
	})
	for i, want := range []string{"<nil>", "ERR injected", "<nil>"} {
		if got := fmt.Sprint(cmds[i].Err()); got != want {
			t.Errorf("command %d: %s, want %s", i, got, want)
		}
	}
	if n := direct.Exists(t.Context(), "k0", "k1", "k2").Val(); n != 2 {
		t.Errorf("%d commands ran, want 2", n)
	}

}

func TestDroppedReplySparesThoseBeforeIt(t *testing.T) {
	s := Shared(t)
	p := NewProxy(t, s.Addr())
	p.Once(Mentioning("second"), DropReply())
	// go-redis reports the error for the whole pipeline, so this looks at the bytes.
	r := send(t, p, fmt.Sprintf("SELECT %d\r\nINCR first\r\nINCR second\r\nINCR third\r\n", s.Number()))
	if got, err := r.ReadString('\n'); got != "+OK\r\n" || err != nil {
		t.Fatalf("reply to SELECT: %q, %v", got, err)
	}
	if got, err := r.ReadString('\n'); got != ":1\r\n" || err != nil {
		t.Errorf("reply before the lost one: %q, %v", got, err)
	}
	if got, err := r.ReadString('\n'); err == nil {
		t.Errorf("in place of the lost reply: %q, want an error", got)
	}
	if n := s.Client(t).Get(t.Context(), "second").Val(); n != "1" {
		t.Errorf("second = %q, want 1: it was to run", n)
	}
}

// send writes text to the proxy on a connection of its own, and returns its answers.
func send(t *testing.T, p *Proxy, text string) *bufio.Reader {
	t.Helper()
	c, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if _, err := c.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	return bufio.NewReader(c)
}

func TestOwnAnswersKeepTheirPlaceInTheOrder(t *testing.T) {
	s := Shared(t)
	p := NewProxy(t, s.Addr())
	p.Always(Mentioning("bad"), Fail("ERR injected"))
	r := send(t, p, "ECHO bad\r\nECHO a\r\nECHO bad\r\nECHO bad\r\nECHO b\r\nECHO bad\r\n")
	for i, want := range []string{"-ERR injected", "$1", "a", "-ERR injected", "-ERR injected", "$1", "b", "-ERR injected"} {
		if got, err := r.ReadString('\n'); strings.TrimSpace(got) != want || err != nil {
			t.Fatalf("line %d: %q, %v, want %q", i, got, err, want)
		}
	}
}

func TestTimesAndOrderOfFaults(t *testing.T) {
	p, through, _ := proxied(t)
	count := p.Always(Any, Pass())
	twice := p.Times(2, Named("INCR"), Fail("ERR first"))
	after := p.Always(Named("INCR"), Fail("ERR second"))
	for i, want := range []string{"ERR first", "ERR first", "ERR second", "ERR second"} {
		if err := through.Incr(t.Context(), "k").Err(); err == nil || err.Error() != want {
			t.Errorf("command %d: %v, want %s", i, err, want)
		}
	}
	after.Disarm()
	if err := through.Incr(t.Context(), "k").Err(); err != nil {
		t.Errorf("after Disarm: %v", err)
	}
	if twice.Hits() != 2 || after.Hits() != 2 || count.Hits() != 5 || twice.Seen() != 5 {
		t.Errorf("hits %d, %d, %d, seen %d, want 2, 2, 5 and 5", twice.Hits(), after.Hits(), count.Hits(), twice.Seen())
	}
}

func TestStruckReturnsWhenItHappened(t *testing.T) {
	p, through, _ := proxied(t)
	f := p.Always(Named("BLPOP"), Pass())
	done := make(chan error, 1)
	go func() { done <- through.BLPop(t.Context(), hang, "list").Err() }()
	<-f.Struck()
	p.Cut()
	if err := <-done; err == nil || err == redis.Nil {
		t.Errorf("blocked command after Cut: %v, want a network error", err)
	}
}

func TestRefuseAndHeal(t *testing.T) {
	p, through, _ := proxied(t)
	addr := p.Addr()
	p.Refuse()
	if err := through.Ping(t.Context()).Err(); err == nil {
		t.Error("a connection survived Refuse")
	}
	if c, err := net.Dial("tcp", addr); err == nil {
		c.Close()
		t.Error("a connection was accepted after Refuse")
	}
	p.Heal()
	// A connection of its own: go-redis remembers a refused dial for up to a second.
	if pong, err := ask(addr, "PING"); pong != "PONG" {
		t.Errorf("after Heal: %q, %v", pong, err)
	}
}

func TestHealClosesOnlyConnectionsThatLostBytes(t *testing.T) {
	s := Shared(t)
	p := NewProxy(t, s.Addr())
	f := p.Once(Mentioning("lost"), SwallowReply())
	whole := send(t, p, "ECHO whole\r\n")
	if line, err := whole.ReadString('\n'); line != "$5\r\n" || err != nil {
		t.Fatalf("undisturbed connection: %q, %v", line, err)
	}
	lossy := send(t, p, "ECHO lost\r\n")
	<-f.Struck()
	for !losing(p) { // the reply has to come, to be lost
		runtime.Gosched()
	}
	p.Heal()
	if got, err := lossy.ReadString('\n'); err != io.EOF {
		t.Errorf("on the lossy connection after Heal: %q, %v, want EOF", got, err)
	}
	if line, err := whole.ReadString('\n'); line != "whole\r\n" || err != nil {
		t.Errorf("on the other connection after Heal: %q, %v", line, err)
	}
}

// losing reports whether a connection through the proxy has lost bytes.
func losing(p *Proxy) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		if l.lossy() {
			return true
		}
	}
	return false
}

func TestBlackHoleSwallowsPresentAndComingConnections(t *testing.T) {
	p, through, direct := proxied(t)
	p.BlackHole()
	var timeout net.Error
	for range 2 { // the pooled connection, then a new one
		ctx, cancel := shortly(t.Context())
		if err := through.Incr(ctx, "k").Err(); !errors.As(err, &timeout) || !timeout.Timeout() {
			t.Errorf("in a black hole: %v, want a timeout", err)
		}
		cancel()
	}
	if n := direct.Exists(t.Context(), "k").Val(); n != 0 {
		t.Error("a command came through the black hole")
	}
	p.Heal()
	if err := through.Incr(t.Context(), "k").Err(); err != nil {
		t.Errorf("after Heal: %v", err)
	}
}

func TestPushesAreNotTakenForReplies(t *testing.T) {
	for _, protocol := range []int{2, 3} {
		t.Run(fmt.Sprint("RESP", protocol), func(t *testing.T) {
			s := Shared(t)
			p := NewProxy(t, s.Addr())
			rdb := redis.NewClient(&redis.Options{Addr: p.Addr(), DB: s.Number(), Protocol: protocol})
			t.Cleanup(func() { _ = rdb.Close() })
			ctx := t.Context()
			sub := rdb.Subscribe(ctx, "a", "b")
			defer sub.Close()
			for range 2 {
				if _, err := sub.Receive(ctx); err != nil {
					t.Fatal(err)
				}
			}
			if err := sub.Unsubscribe(ctx, "b"); err != nil {
				t.Fatal(err)
			}
			if _, err := sub.Receive(ctx); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				if err := s.Client(t).Publish(ctx, "a", i).Err(); err != nil {
					t.Fatal(err)
				}
			}
			p.Once(Named("PING"), DropReply()) // strikes the pong, not the messages before it
			if err := sub.Ping(ctx); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				m, err := sub.ReceiveMessage(ctx)
				if err != nil || m.Payload != fmt.Sprint(i) {
					t.Fatalf("message %d: %v, %v", i, m, err)
				}
			}
		})
	}
}

func TestLostSubscribeConfirmation(t *testing.T) {
	p, through, _ := proxied(t)
	f := p.Once(Named("SUBSCRIBE"), DropReply())
	sub := through.Subscribe(t.Context(), "a")
	defer sub.Close()
	if msg, err := sub.Receive(t.Context()); err == nil {
		t.Errorf("Receive = %v, want an error: the confirmation was to be lost", msg)
	}
	if f.Hits() != 1 {
		t.Errorf("Hits() = %d, want 1", f.Hits())
	}
}
