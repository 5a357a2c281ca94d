package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/event"
	"github.com/joblock/toolkit/server/client"
)

// api is a lock server as the commands use it: a face, with an ops.Operator.
type api struct {
	*client.Client
	name     string // for display
	holder   string // a label
	observer event.Observer
	maxRenew time.Duration // 0: no bound
}

// api returns the lock server that the flags or the environment name, or nil if the locks are in Redis.
func (s *server) api(getenv func(string) string) (*api, error) {
	switch {
	case s.apiURL != "" && s.url != "":
		return nil, usage("--server and --redis exclude each other")
	case s.url != "" && s.apiToken != "":
		return nil, usage("--server-token-file is for --server, and makes no sense with --redis")
	case s.url != "":
		return nil, nil
	}
	urls := cmp.Or(s.apiURL, getenv(envServer))
	switch name := s.given(ofRedis...); {
	case urls == "" && s.apiToken != "":
		return nil, usage("--server-token-file needs --server, or $%s", envServer)
	case urls == "":
		return nil, nil
	case name != "":
		return nil, usage("%s applies to Redis, but the commands go to the lock server at %s: start \"joblock serve\" with %s, or use --redis in place of --server and $%s",
			name, cmp.Or(s.given("server"), "$"+envServer), name, envServer)
	}
	if s.timeout < time.Millisecond || s.timeout > maxTimeout {
		return nil, usage("--timeout is %s, must be from 1ms to %s", s.timeout, maxTimeout)
	}
	cfg := client.Config{URLs: strings.Split(urls, ","), Timeout: s.callTimeout()}
	var hosts []string
	for _, text := range cfg.URLs {
		u, err := url.Parse(text)
		if err != nil || u.User != nil {
			return nil, usage("the URL of the lock server is bad, must be like https://host:port, without a user")
		}
		hosts = append(hosts, u.Host)
	}
	if file := cmp.Or(s.apiToken, getenv(envServerToken)); file != "" {
		text, err := s.readSecret("--server-token-file", file)
		if err != nil {
			return nil, err
		}
		token := strings.TrimSpace(string(text))
		if token == "" {
			return nil, usage("--server-token-file: the file %s is empty", file)
		}
		cfg.Token = func(context.Context) (string, error) { return token, nil }
	}
	if name := s.given("tls-ca", "tls-cert", "tls-key"); name != "" && !slices.ContainsFunc(cfg.URLs, func(text string) bool { return strings.HasPrefix(strings.ToLower(text), "https:") }) {
		return nil, usage("%s needs a URL of the lock server that begins with https", name)
	}
	secure, err := s.tlsConfig(address{tls: true})
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig, transport.MaxIdleConnsPerHost = secure.Config, 4
	if secure.authorities != nil {
		direct := &security{secure.Clone(), secure.authorities}
		direct.NextProtos = []string{"h2", "http/1.1"} // TLSClientConfig is for connections through a proxy
		transport.DialTLSContext = direct.dial(net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second})
	}
	cfg.HTTP = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	c, err := client.New(cfg)
	if err != nil {
		why := err.Error()
		if e := (*joblock.Error)(nil); errors.As(err, &e) {
			why = e.Detail // all errors except those of files
		}
		return nil, usage("--server: %s", why)
	}
	return &api{Client: c, name: strings.Join(hosts, ",")}, nil
}

// ofRedis lists the flags that have no meaning for a lock server. Environment variables for these flags are not refused,
// because they may be set for other commands.
var ofRedis = []string{"prefix", "asynq", "redis-password-file", "sentinel-user", "sentinel-password-file"}

func (a *api) with(cfg joblock.Config) *api {
	if a != nil {
		a.holder, a.observer, a.maxRenew = cfg.Holder, cfg.Observer, cfg.MaxRenew
	}
	return a
}

func (a *api) close(time.Duration) { _ = a.Client.Close(context.Background()) } // Close always returns nil

// longWait is the longest wait of a plain request, and a server's default limit for it. Longer waits use a stream.
const longWait = time.Minute

// stream takes a lock through a stream; the server renews the lock.
func (a *api) stream(ctx context.Context, want want) (*client.Hold, error) {
	printed := false
	req := client.HoldRequest{Key: want.key, TTL: want.ttl, Holder: a.holder, Limit: want.limit, OnEvent: func(e client.HoldEvent) {
		if e.Kind == client.HoldWaits && a.observer != nil && !printed {
			printed = true
			a.observer(event.Event{Kind: event.Contended, Key: want.key})
		}
	}}
	if req.WaitForever = want.wait == nil; !req.WaitForever {
		req.MaxWait = *want.wait
	}
	return a.Hold(ctx, req)
}

func (a *api) acquire(ctx context.Context, want want) (held, error) {
	if want.renews {
		h, err := a.stream(ctx, want)
		if err != nil {
			return nil, err
		}
		s := streamed{Hold: h}
		if a.maxRenew > 0 {
			s.most = time.Now().Add(a.maxRenew)
		}
		return s, nil
	}
	g, err := a.grant(ctx, want, rand.Text())
	if err != nil {
		return nil, err
	}
	return &granted{a, g}, nil
}

// grant takes a lock that is not renewed. The name makes the call repeatable, unless the wait is unbounded or exceeds
// longWait.
func (a *api) grant(ctx context.Context, want want, name string) (client.Grant, error) {
	if want.wait == nil || *want.wait > longWait {
		h, err := a.stream(ctx, want)
		if err != nil {
			return client.Grant{}, err
		}
		return h.Detach()
	}
	return a.Acquire(ctx, client.AcquireRequest{
		Key: want.key, TTL: want.ttl, MaxWait: *want.wait, Holder: a.holder, Limit: want.limit, IdempotencyKey: name,
	})
}

// callName returns the Idempotency-Key of the acquire with a token that this program has made. It is a secret like the
// token.
func callName(token joblock.Token) string {
	sum := sha256.Sum256([]byte("joblock acquire " + core.Token(token).Owner()))
	return hex.EncodeToString(sum[:])
}

func grantOf(g client.Grant) ops.Grant {
	return ops.Grant{Token: g.Token, Fence: g.Fence, Lease: time.Until(g.ExpiresAt), Until: g.ExpiresAt, Prior: g.Prior}
}

func (a *api) take(ctx context.Context, token joblock.Token, want want) (ops.Grant, error) {
	g, err := a.grant(ctx, want, callName(token))
	if errors.Is(err, joblock.ErrAlreadyReleased) || errors.Is(err, joblock.ErrBusy) {
		return ops.Grant{}, &exitError{exitNo, err} // an operator has freed it in the meantime
	}
	return grantOf(g), err
}

// findPermit always reports false, because a server cannot find the permit of an acquire whose answer was lost. That
// permit ends with its lease.
func (a *api) findPermit(context.Context, joblock.Token, int) (g ops.Grant, found bool, err error) {
	return ops.Grant{}, false, nil
}

func (a *api) giveUp(ctx context.Context, token joblock.Token, want want) error {
	if want.limit > 0 {
		return nil
	}
	want.wait = new(time.Duration)
	g, err := a.grant(ctx, want, callName(token))
	if err != nil {
		return err
	}
	return a.Release(ctx, g.Token, givenUp)
}

func (a *api) renew(ctx context.Context, token joblock.Token, ttl, reserve time.Duration) (time.Duration, error) {
	g, err := a.Renew(ctx, client.RenewRequest{Token: token, TTL: ttl, Reserve: reserve})
	return time.Until(g.ExpiresAt), err
}

func (a *api) park(ctx context.Context, token joblock.Token, job string, reserve time.Duration) (joblock.Token, error) {
	return a.Park(ctx, client.ParkRequest{Token: token, Job: job, Reserve: reserve})
}

func (a *api) resume(ctx context.Context, token joblock.Token, name string, want takeover) (ops.Grant, error) {
	g, err := a.Resume(ctx, client.ResumeRequest{
		Token: token, Job: want.job, TTL: want.ttl, Reserve: want.reserve, Holder: want.holder, IdempotencyKey: name,
	})
	if err != nil {
		return ops.Grant{}, err
	}
	return grantOf(g), nil
}

func (a *api) release(ctx context.Context, token joblock.Token, reason string) error {
	return a.Release(ctx, token, reason)
}

// streamed is a lock that a server renews.
type streamed struct {
	*client.Hold
	most time.Time // when the command has to give the lock up; zero: never
}

func (s streamed) ExpiresAt() time.Time {
	if until := s.Hold.ExpiresAt(); s.most.IsZero() || until.Before(s.most) {
		return until
	}
	return s.most
}

func (s streamed) Prior() driver.Ended { return driver.EndedNone }

func (s streamed) Release(ctx context.Context, _ ...joblock.LockReleaseOption) error {
	return s.Hold.Release(ctx, "")
}

// granted is a lock that is not renewed.
type granted struct {
	a *api
	g client.Grant
}

func (g *granted) Token() joblock.Token  { return g.g.Token }
func (g *granted) Fence() int64          { return g.g.Fence }
func (g *granted) Prior() driver.Ended   { return g.g.Prior }
func (g *granted) ExpiresAt() time.Time  { return g.g.ExpiresAt }
func (g *granted) Done() <-chan struct{} { return nil }
func (g *granted) Err() error            { return nil }

func (g *granted) Release(ctx context.Context, _ ...joblock.LockReleaseOption) error {
	return g.a.Release(ctx, g.g.Token, "")
}

// codeOfAnswer returns the exit code for a lock server's error that is not about a lock; 0 for other errors.
func codeOfAnswer(err error) int {
	var p *client.Problem
	if !errors.As(err, &p) || strings.HasPrefix(p.Code, "LOCK_") && p.Code != joblock.CodeOf(joblock.ErrClosed) {
		return 0
	}
	switch p.Status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusMisdirectedRequest:
		return exitDenied
	case http.StatusNotFound:
		if errors.Is(p, client.ErrCronNotFound) || errors.Is(p, client.ErrTaskNotFound) {
			return exitNo
		}
		return exitUsage // not a lock server, or one without this part
	case http.StatusTooManyRequests, http.StatusConflict, http.StatusPreconditionFailed:
		return exitBusy
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return exitUsage
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return exitUnavailable
	}
	return exitFault
}

// needsRedis returns the error for a request that a lock server cannot serve.
func needsRedis(what string) error {
	return usage("%s is not available from a lock server; use --redis", what)
}
