package client

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"github.com/joblock/toolkit/internal/certs"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/files"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

// Config configures a Client. URLs is required.
type Config struct {
	// URLs are the base URLs of the replicas, such as https://locks.internal:7420. A URL may have a path.
	URLs []string

	// Token returns the bearer token for a request; see FromFile. Default: no token; then the server knows the caller by
	// its certificate, or admits every caller.
	Token func(context.Context) (string, error)

	// Timeout bounds a call, without the time that the call may wait for a lock. It must suffice to try several replicas.
	// Default 10 s.
	Timeout time.Duration

	// CertFile and KeyFile have this caller's client certificate and its key, in PEM form. Set both or neither. The files
	// are read again for new connections. While they are bad, for example because only one of the two has been replaced,
	// the previous certificate stays in use while valid.
	CertFile, KeyFile string

	// CAFile has the certificate authorities of the servers' certificates, in PEM form. The file is read again for new
	// connections; while it is bad, the previous authorities stay in use. Connections through a proxy use the authorities
	// that New has read. Default: those of the system.
	CAFile string

	// HTTP sends the requests. Its Timeout must be 0, and it must not follow redirections. With HTTP, the files above
	// must not be set. Default: a new http.Client with the settings of http.DefaultTransport.
	HTTP *http.Client

	// Insecure allows a Token to be sent unencrypted, to an http:// URL of another machine.
	Insecure bool
}

// Client is a client of one or several replicas of a lock server. A Client is safe for concurrent use. Make it with New.
type Client struct {
	cfg  Config
	urls []string
	http *http.Client
	at   atomic.Int64 // the index of the replica that has answered last
}

var _ ops.Operator = (*Client)(nil)

// New returns a Client, and sends nothing. The error matches joblock.ErrInvalid and names the bad field. If a file cannot
// be read, it also matches the error of reading the file.
func New(cfg Config) (*Client, error) {
	if len(cfg.URLs) == 0 {
		return nil, invalid("Config.URLs is empty")
	}
	cfg.Timeout = cmp.Or(cfg.Timeout, 10*time.Second)
	if cfg.Timeout < 0 {
		return nil, invalid("Config.Timeout is %s, must be positive", cfg.Timeout)
	}
	c := &Client{cfg: cfg, http: cfg.HTTP}
	for _, text := range cfg.URLs {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Hostname() == "" || u.Fragment != "" {
			return nil, invalid("a URL is bad, must be like https://host:port, without a user or a query")
		}
		if u.Scheme == "http" && cfg.Token != nil && !cfg.Insecure && !loopback(u.Hostname()) {
			return nil, invalid("the token would travel in the clear to %s: use https, or set Config.Insecure", u.Host)
		}
		c.urls = append(c.urls, strings.TrimSuffix(u.String(), "/"))
	}
	secure, authorities, err := cfg.tls()
	if err != nil {
		return nil, err
	}
	if c.http == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.MaxIdleConnsPerHost = 32
		transport.TLSClientConfig = secure
		if authorities != nil {
			direct := secure.Clone()
			direct.NextProtos = []string{"h2", "http/1.1"}
			transport.DialTLSContext = authorities.Dial(net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}, direct)
		}
		c.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	return c, nil
}

// tls returns the TLS configuration with the files, or nil if none is set. authorities is nil without a CAFile.
func (cfg *Config) tls() (_ *tls.Config, authorities *certs.Pool, err error) {
	switch {
	case (cfg.CertFile == "") != (cfg.KeyFile == ""):
		return nil, nil, invalid("Config.CertFile and Config.KeyFile must be set together")
	case cfg.CertFile == "" && cfg.CAFile == "":
		return nil, nil, nil
	case cfg.HTTP != nil:
		return nil, nil, invalid("Config.HTTP has a TLS configuration of its own, so Config.CertFile and Config.CAFile make no sense with it")
	case !slices.ContainsFunc(cfg.URLs, func(text string) bool { return strings.HasPrefix(strings.ToLower(text), "https:") }):
		return nil, nil, invalid("Config.CertFile and Config.CAFile need a URL that begins with https")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if cfg.CertFile != "" {
		pair, err := certs.Open(cfg.CertFile, cfg.KeyFile, nil)
		if err != nil {
			return nil, nil, badFile("the certificate", err)
		}
		c.GetClientCertificate = pair.ForClient
	}
	if cfg.CAFile != "" {
		if authorities, err = certs.OpenPool(cfg.CAFile, nil); err != nil {
			return nil, nil, badFile("the authorities of servers", err)
		}
		c.RootCAs = authorities.Get() // used for connections through a proxy
	}
	return c, authorities, nil
}

// Close closes idle connections. Calls and Holds under way continue. Close does not wait at present, and returns nil; it
// has a context and an error like every other Close of the toolkit.
func (c *Client) Close(context.Context) error {
	c.http.CloseIdleConnections()
	return nil
}

func invalid(format string, args ...any) error {
	return core.Invalid("new client", "", format, args...)
}

func badFile(which string, err error) error {
	return &joblock.Error{Code: joblock.CodeOf(joblock.ErrInvalid), Op: "new client", Detail: which, Err: err}
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// FromFile returns a Config.Token that reads the token from a file with nothing else in it. It reads the file again after
// a change.
func FromFile(path string) func(context.Context) (string, error) {
	var (
		mu    sync.Mutex
		seen  time.Time
		size  int64
		token string
	)
	return func(context.Context) (string, error) {
		mu.Lock()
		defer mu.Unlock()
		info, err := os.Stat(path)
		if err != nil {
			return "", fmt.Errorf("client: the token: %w", err)
		}
		if token != "" && info.ModTime().Equal(seen) && info.Size() == size {
			return token, nil
		}
		text, _, err := files.Read(path, 64<<10, files.Patience)
		if err != nil {
			return "", fmt.Errorf("client: the token: %w", err)
		}
		if token = strings.TrimSpace(string(text)); token == "" || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			token = ""
			return "", fmt.Errorf("client: the file %s has no token", path)
		}
		seen, size = info.ModTime(), info.Size()
		return token, nil
	}
}

// A call is one request, which may be sent to several replicas.
type call struct {
	op     string // for errors
	key    string // for errors
	method string
	path   string
	query  url.Values
	header http.Header
	body   any           // nil: none
	into   any           // the answer is decoded into it
	again  bool          // repeating it does no harm
	wait   time.Duration // how long the server may wait for a lock
}

// maxAnswer is how many bytes of an answer are read.
const maxAnswer = 64 << 20

// do sends a call until a replica answers. It returns the time at which the answered request was sent.
func (c *Client) do(ctx context.Context, op call) (sent time.Time, err error) {
	var text []byte
	if text, err = op.text(); err != nil {
		return sent, err
	}
	attempts := max(2, len(c.urls))
	until := time.Now().Add(c.cfg.Timeout + op.wait)
	whole, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	start := c.at.Load()
	for n := range attempts {
		if n >= len(c.urls) && !pause(whole, time.Duration(n)*50*time.Millisecond) {
			break
		}
		i := (start + int64(n)) % int64(len(c.urls))
		// Each remaining replica gets an equal share of the time; the last one gets all that is left.
		share := time.Until(until)/time.Duration(attempts-n) + op.wait/time.Duration(attempts-n)*time.Duration(attempts-n-1)
		one, stop := context.WithTimeout(whole, share)
		sent = time.Now()
		err = c.once(one, c.urls[i], op, text)
		stop()
		if err == nil {
			c.at.Store(i)
			return sent, nil
		}
		if ctx.Err() != nil {
			return sent, context.Cause(ctx)
		}
		if !next(err, op.again) {
			return sent, err
		}
	}
	return sent, err
}

// text returns the encoded body. It refuses invalid UTF-8, which package json would silently replace, so that two keys
// could become one.
func (op *call) text() ([]byte, error) {
	if name := op.header.Get(idempotencyHeader); strings.ContainsFunc(name, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, core.Invalid(op.op, op.key, "IdempotencyKey is %.60q, must have printable ASCII characters only", name)
	}
	if op.body == nil {
		return nil, nil
	}
	if !validTexts(reflect.ValueOf(op.body)) {
		return nil, core.Invalid(op.op, op.key, "a text of the request is not UTF-8")
	}
	text, err := json.Marshal(op.body)
	if err != nil {
		return nil, core.Invalid(op.op, op.key, "%v", err)
	}
	return text, nil
}

// validTexts reports whether all strings in v are valid UTF-8.
func validTexts(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.String:
		return utf8.ValidString(v.String())
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() && !validTexts(v.Field(i)) {
				return false
			}
		}
	case reflect.Map:
		for pairs := v.MapRange(); pairs.Next(); {
			if !validTexts(pairs.Key()) || !validTexts(pairs.Value()) {
				return false
			}
		}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return true // bytes, or JSON that json.Marshal checks
		}
		for i := range v.Len() {
			if !validTexts(v.Index(i)) {
				return false
			}
		}
	case reflect.Interface, reflect.Pointer:
		return v.IsNil() || validTexts(v.Elem())
	}
	return true
}

// next reports whether to try another replica after err.
func next(err error, again bool) bool {
	var p *Problem
	if !errors.As(err, &p) {
		return false
	}
	switch {
	case p.Code == codeClosed, p.unsent:
		return true
	case p.Status == 0, p.Status == http.StatusBadGateway, p.Status == http.StatusServiceUnavailable, p.Status == http.StatusGatewayTimeout:
		return again
	}
	return false
}

func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// once sends a call to one replica.
func (c *Client) once(ctx context.Context, base string, op call, text []byte) error {
	res, err := c.send(ctx, base, op, text)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	return op.read(res)
}

// send makes a request, and returns the raw response.
func (c *Client) send(ctx context.Context, base string, op call, text []byte) (*http.Response, error) {
	at := base + op.path
	if len(op.query) > 0 {
		at += "?" + op.query.Encode()
	}
	var body io.Reader
	if text != nil {
		body = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, op.method, at, body)
	if err != nil {
		return nil, err
	}
	for name, values := range op.header {
		r.Header[name] = values
	}
	if text != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if c.cfg.Token != nil {
		token, err := c.cfg.Token(ctx)
		if err != nil {
			return nil, err
		}
		r.Header.Set("Authorization", "Bearer "+token)
	}
	res, err := c.http.Do(r)
	if err != nil {
		return nil, unanswered(op, base, err)
	}
	return res, nil
}

// read decodes an answer into op.into, or returns its problem.
func (op *call) read(res *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if res.StatusCode != http.StatusOK && res.StatusCode != http.StatusCreated {
		return problemOf(op, res, text)
	}
	if err == nil && op.into != nil {
		err = json.Unmarshal(text, op.into)
	}
	if err != nil {
		return unanswered(*op, res.Request.URL.Scheme+"://"+res.Request.URL.Host, err)
	}
	return nil
}
