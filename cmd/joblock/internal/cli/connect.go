package cli

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
	"github.com/spf13/pflag"

	"github.com/joblock/toolkit/internal/certs"
	"github.com/joblock/toolkit/internal/files"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// The variables of the environment that stand for flags.
const (
	envRedis        = "JOBLOCK_REDIS"
	envPasswordFile = "JOBLOCK_REDIS_PASSWORD_FILE"
	envSentinelFile = "JOBLOCK_SENTINEL_PASSWORD_FILE"
	envAsynq        = "JOBLOCK_ASYNQ"
	envServer       = "JOBLOCK_SERVER"
	envServerToken  = "JOBLOCK_SERVER_TOKEN_FILE"
)

// The parameters of a redis-sentinel:// URL.
const (
	querySentinelUser     = "sentinel_user"
	querySentinelPassword = "sentinel_password"
)

const defaultURL = "redis://localhost:6379"

// maxTimeout bounds --timeout. Package joblock bounds Config.CallTimeout by the same value.
const maxTimeout = time.Hour

// server holds the flags that say where the locks are.
type server struct {
	url, passwordFile          string
	sentinelUser, sentinelFile string
	asynq                      []string // the URLs of asynq's databases
	ca, cert, key              string
	apiURL, apiToken           string // of a lock server
	prefix                     string
	timeout                    time.Duration

	set   *pflag.FlagSet    // see given
	files map[string][]byte // the contents of files that were read: a pipe can be read only once

	// The files that are reloaded when they change, and the function that is then called. They are nil before the first
	// connection, or if nothing is reloaded.
	authorities *certs.Pool
	pair        *certs.Pair
	changed     func(flags string, err error) // err is nil if the change took effect
}

func (s *server) flags(f *pflag.FlagSet) {
	s.set = f
	f.StringVarP(&s.url, "redis", "r", "", "`URL` of the Redis: redis://, rediss://, redis-sentinel://, redis-cluster:// or unix:// (default $"+envRedis+", else "+defaultURL+")")
	f.StringVar(&s.passwordFile, "redis-password-file", "", "`FILE` with the password of the Redis user (default $"+envPasswordFile+")")
	f.StringVar(&s.sentinelUser, "sentinel-user", "", "`NAME` of the user at the Sentinels, if they require one")
	f.StringVar(&s.sentinelFile, "sentinel-password-file", "", "`FILE` with the password at the Sentinels (default $"+envSentinelFile+")")
	f.StringArrayVar(&s.asynq, "asynq", nil, "`URL` of a database of asynq, if that is not where the locks are; may be repeated (default $"+envAsynq+", else --redis)")
	f.StringVar(&s.ca, "tls-ca", "", "`FILE` with the certificates that the servers' certificates are checked against (default: those of the system)")
	f.StringVar(&s.cert, "tls-cert", "", "`FILE` with the certificate of this client")
	f.StringVar(&s.key, "tls-key", "", "`FILE` with the key of --tls-cert")
	f.StringVar(&s.apiURL, "server", "", "`URL` of a lock server (\"joblock serve\"), in place of --redis; several, separated by commas, are replicas (default $"+envServer+")")
	f.StringVar(&s.apiToken, "server-token-file", "", "`FILE` with the bearer token for --server (default $"+envServerToken+")")
	f.StringVar(&s.prefix, "prefix", keyspace.DefaultPrefix, "beginning of every key in Redis")
	f.DurationVar(&s.timeout, "timeout", 3*time.Second, "how long to wait for an answer from Redis, from 1ms to 1h")
}

// given returns the first of these flags that the user has set, with its dashes; "" if none was set.
func (s *server) given(names ...string) string {
	for _, name := range names {
		if s.set != nil && s.set.Changed(name) {
			return "--" + name
		}
	}
	return ""
}

// address is a parsed URL.
type address struct {
	kind     string // "single", "sentinel", "cluster" or "unix"
	tls      bool
	hosts    []string // host:port; for "unix" the path of the socket
	master   string   // for "sentinel"
	user     string
	password string
	db       int

	sentinelUser, sentinelPassword string
}

const urlForms = "redis://[user@]host[:port][/database], redis-sentinel://[user@]host[:port],.../master[/database][?sentinel_user=user], redis-cluster://[user@]host[:port],..., unix:///path[?db=database]; rediss for TLS"

// parseURL parses the URL of a Redis. Errors do not contain the URL, because it may have a password.
func parseURL(text string) (a address, err error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return a, usage("the Redis URL has no scheme; the forms are %s", urlForms)
	}
	if tail, ok := strings.CutPrefix(scheme, "rediss"); ok {
		a.tls, scheme = true, "redis"+tail
	}
	port := "6379"
	switch scheme {
	case "redis":
		a.kind = "single"
	case "redis-sentinel":
		a.kind, port = "sentinel", "26379"
	case "redis-cluster":
		a.kind = "cluster"
	case "unix":
		a.kind = "unix"
	default:
		return a, usage("the Redis URL begins with %q; the forms are %s", scheme+"://", urlForms)
	}
	if a.kind != "unix" && !passwordIsEncoded(rest) {
		return a, usage("the Redis URL has an @ after a / or a ?: in a password, write / as %%2F and ? as %%3F")
	}
	rest, query, _ := strings.Cut(rest, "?")
	hosts, path, _ := strings.Cut(rest, "/")
	if at := strings.LastIndex(hosts, "@"); at >= 0 {
		user, password, _ := strings.Cut(hosts[:at], ":")
		hosts = hosts[at+1:]
		var bad1, bad2 error
		a.user, bad1 = url.PathUnescape(user)
		a.password, bad2 = url.PathUnescape(password)
		if bad1 != nil || bad2 != nil {
			return a, usage("the user or the password in the Redis URL is not percent-encoded")
		}
	}
	database := path
	switch a.kind {
	case "unix":
		values, bad := url.ParseQuery(query)
		if bad != nil || path == "" {
			return a, usage("the Redis URL is not unix:///path[?db=database]")
		}
		a.hosts, database, query = []string{"/" + path}, values.Get("db"), ""
	case "sentinel":
		a.master, database, _ = strings.Cut(path, "/")
		if a.master == "" {
			return a, usage("the Redis URL names no master: redis-sentinel://host,.../master")
		}
		values, bad := url.ParseQuery(query)
		a.sentinelUser, a.sentinelPassword = values.Get(querySentinelUser), values.Get(querySentinelPassword)
		values.Del(querySentinelUser)
		values.Del(querySentinelPassword)
		if bad != nil || len(values) > 0 {
			return a, usage("after the ? the Redis URL may have %s=USER and %s=PASSWORD, percent-encoded", querySentinelUser, querySentinelPassword)
		}
		query = ""
	case "cluster":
		if path != "" {
			return a, usage("the Redis URL has %q after the hosts; a cluster has no databases", "/"+path)
		}
	}
	if query != "" {
		return a, usage("the Redis URL has a query, which only unix:// and redis-sentinel:// have")
	}
	if database != "" {
		if a.db, err = strconv.Atoi(database); err != nil || a.db < 0 {
			return a, usage("the database in the Redis URL is %q, must be a number from 0", database)
		}
	}
	if a.kind == "unix" {
		return a, nil
	}
	for host := range strings.SplitSeq(hosts, ",") {
		if host == "" {
			return a, usage("the Redis URL has an empty host")
		}
		if _, _, err := net.SplitHostPort(host); err != nil {
			name := host
			if inner, ok := strings.CutPrefix(host, "["); ok && strings.HasSuffix(inner, "]") {
				name = strings.TrimSuffix(inner, "]")
			}
			if name == "" || strings.ContainsAny(name, "[]") {
				return a, usage("the Redis URL has the host %q, must be a name, an IP address, or [an IPv6 address], with :port if need be", host)
			}
			host = net.JoinHostPort(name, port)
		}
		a.hosts = append(a.hosts, host)
	}
	if a.kind == "single" && len(a.hosts) > 1 {
		return a, usage("the Redis URL names %d hosts; redis-cluster:// and redis-sentinel:// take several", len(a.hosts))
	}
	return a, nil
}

// passwordIsEncoded reports whether the whole password in rest, a URL without its scheme, comes before the first / and
// the first ?.
func passwordIsEncoded(rest string) bool {
	end := strings.IndexAny(rest, "/?")
	return end < 0 || !strings.Contains(rest[end:], "@")
}

// flagURL parses the URL in the flag with this name. A password is refused; the error names env, the environment variable
// that may have one.
func flagURL(name, text, env string) (address, error) {
	a, err := parseURL(text)
	if err == nil && (a.password != "" || a.sentinelPassword != "") {
		err = usage("a password in --%s is visible to all users of this machine; put the URL with the password into $%s, or the password into a file for --redis-password-file or --sentinel-password-file", name, env)
	}
	return a, err
}

// address returns the address of the Redis, with the password. It refuses a password in --asynq, even for commands that
// use no asynq database.
func (s *server) address(getenv func(string) string) (a address, err error) {
	for _, text := range s.asynq {
		if _, err := flagURL("asynq", text, envAsynq); err != nil {
			return a, err
		}
	}
	if s.url != "" {
		a, err = flagURL("redis", s.url, envRedis)
	} else {
		a, err = parseURL(cmp.Or(getenv(envRedis), defaultURL))
	}
	if err != nil {
		return a, err
	}
	if err := s.password(&a.password, "--redis-password-file", cmp.Or(s.passwordFile, getenv(envPasswordFile))); err != nil {
		return a, err
	}
	if a.kind != "sentinel" {
		if s.sentinelUser != "" || s.sentinelFile != "" { // the environment variable may be set for another URL
			return a, usage("--sentinel-user and --sentinel-password-file need a URL that begins with redis-sentinel or rediss-sentinel")
		}
		return a, nil
	}
	if s.sentinelUser != "" {
		a.sentinelUser = s.sentinelUser
	}
	return a, s.password(&a.sentinelPassword, "--sentinel-password-file", cmp.Or(s.sentinelFile, getenv(envSentinelFile)))
}

// password reads a password from file into *to; name is the flag that names the file. Without a file, *to stays as it is.
func (s *server) password(to *string, name, file string) error {
	if file == "" {
		return nil
	}
	secret, err := s.readSecret(name, file)
	if err != nil {
		return err
	}
	if *to = string(bytes.TrimRight(secret, "\r\n")); *to == "" {
		return usage("%s: the file %s is empty", name, file)
	}
	return nil
}

// readFile reads a small file; name is the flag that names it. A second call returns what the first one has read, because
// the file may be a pipe, such as the shell's <(command).
func (s *server) readFile(name, file string) ([]byte, error) {
	if data, ok := s.files[file]; ok {
		return data, nil
	}
	data, err := readFile(name, file, s.timeout)
	if err != nil {
		return nil, err
	}
	if s.files == nil {
		s.files = make(map[string][]byte)
	}
	s.files[file] = data
	return data, nil
}

// readSecret is readFile for a file with a secret. If the file belongs to the calling user, other users must not be able
// to read it. For root that is only a warning, because secrets that Docker and Kubernetes mount belong to root and have
// the mode 0444 or 0644.
func (s *server) readSecret(name, file string) ([]byte, error) {
	if _, read := s.files[file]; !read {
		if info, err := os.Stat(file); err == nil && info.Mode().IsRegular() {
			switch why, refused := exposed(info, os.Geteuid()); {
			case refused:
				return nil, usage("%s: the file %s %s; its mode must be 0600", name, file, why)
			case why != "":
				sayTo(os.Stderr, fmt.Sprintf("warning: %s: the file %s %s; its mode should be 0600", name, visible(file), why))
			}
		}
	}
	return s.readFile(name, file)
}

// databases returns the addresses of the locks' Redis and of asynq's databases. A database at the same hosts as the
// Redis, whose URL has no user and no password, uses those of the Redis.
func (s *server) databases(getenv func(string) string) (redis address, all []address, err error) {
	if redis, err = s.address(getenv); err != nil {
		return redis, nil, err
	}
	for _, text := range s.asynq {
		a, err := flagURL("asynq", text, envAsynq)
		if err != nil {
			return redis, nil, err
		}
		all = append(all, a)
	}
	if text := getenv(envAsynq); text != "" && len(all) == 0 {
		a, err := parseURL(text)
		if err != nil {
			return redis, nil, err
		}
		all = append(all, a)
	}
	if len(all) == 0 {
		return redis, []address{redis}, nil
	}
	for i, a := range all {
		if a.user == "" && a.password == "" && a.kind == redis.kind && slices.Equal(a.hosts, redis.hosts) {
			all[i].user, all[i].password = redis.user, redis.password
			all[i].sentinelUser, all[i].sentinelPassword = redis.sentinelUser, redis.sentinelPassword
		}
	}
	return redis, all, nil
}

// readFile reads a small file; name is the flag that names it. See files.Read for pipes.
func readFile(name, file string, patience time.Duration) ([]byte, error) {
	data, _, err := files.Read(file, 1<<20, patience)
	if err != nil {
		return nil, usage("%s: %w", name, err)
	}
	return data, nil
}

// security says how connections are encrypted. A nil *security means no encryption.
type security struct {
	*tls.Config
	authorities *certs.Pool // for new connections; nil: those in Config
}

// dial returns the function that connects to the servers, or nil if the client should use the Config.
func (c *security) dial(dialer net.Dialer) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if c == nil || c.authorities == nil {
		return nil
	}
	return c.authorities.Dial(dialer, c.Config)
}

// config returns the Config, or nil.
func (c *security) config() *tls.Config {
	if c == nil {
		return nil
	}
	return c.Config
}

func (s *server) tlsConfig(a address) (*security, error) {
	if !a.tls {
		return nil, nil
	}
	c := &security{Config: &tls.Config{MinVersion: tls.VersionTLS12}}
	if a.kind == "single" {
		c.ServerName, _, _ = net.SplitHostPort(a.hosts[0])
	}
	if s.ca != "" {
		pem, err := s.readFile("--tls-ca", s.ca)
		if err != nil {
			return nil, err
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, usage("--tls-ca: the file %s has no certificate in PEM form", s.ca)
		}
		if regular(s.ca) && s.authorities == nil { // a command may run longer than the CA certificates are valid
			if s.authorities, err = certs.OpenPool(s.ca, s.tell("--tls-ca")); err != nil {
				return nil, usage("--tls-ca: %w", err)
			}
		}
		c.authorities = s.authorities
	}
	if (s.cert == "") != (s.key == "") {
		return nil, usage("--tls-cert and --tls-key must be used together")
	}
	if s.cert != "" {
		cert, err := s.readFile("--tls-cert", s.cert)
		if err != nil {
			return nil, err
		}
		key, err := s.readFile("--tls-key", s.key)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			return nil, usage("--tls-cert, --tls-key: %w", err)
		}
		if c.Certificates = []tls.Certificate{pair}; regular(s.cert) && regular(s.key) { // a command may run longer than its certificate is valid
			if s.pair == nil {
				if s.pair, err = certs.Open(s.cert, s.key, s.tell("--tls-cert, --tls-key")); err != nil {
					return nil, usage("--tls-cert, --tls-key: %w", err)
				}
			}
			c.Certificates, c.GetClientCertificate = nil, s.pair.ForClient
		}
	}
	return c, nil
}

// tell returns the function that reports changes of the files that these flags name, or nil if s.changed is nil.
func (s *server) tell(flags string) func(error) {
	if s.changed == nil {
		return nil
	}
	return func(err error) { s.changed(flags, err) }
}

// regular reports whether name is a regular file, which can be read again, unlike a pipe.
func regular(name string) bool {
	info, err := os.Stat(name)
	return err == nil && info.Mode().IsRegular()
}

// target returns the address of the Redis, with the password, and how to encrypt. It reads every file that the flags
// name.
func (s *server) target(getenv func(string) string) (address, *security, error) {
	a, err := s.address(getenv)
	if err != nil {
		return a, nil, err
	}
	if !a.tls && (s.ca != "" || s.cert != "" || s.key != "") {
		return a, nil, usage("--tls-ca, --tls-cert and --tls-key need a URL that begins with rediss")
	}
	secure, err := s.tlsConfig(a)
	return a, secure, err
}

// client returns a client of the Redis, which connects at its first call.
func (s *server) client(getenv func(string) string) (redis.UniversalClient, error) {
	if s.timeout < time.Millisecond || s.timeout > maxTimeout {
		return nil, usage("--timeout is %s, must be from 1ms to %s", s.timeout, maxTimeout)
	}
	a, secure, err := s.target(getenv)
	if err != nil {
		return nil, err
	}
	return s.connect(a, secure, 0), nil
}

// connect returns a client of the server at a, which connects at its first call. If bound is not 0, a call without a
// context is tried once, for at most bound.
func (s *server) connect(a address, secure *security, bound time.Duration) redis.UniversalClient {
	o := redis.UniversalOptions{
		Addrs: a.hosts, Username: a.user, Password: a.password, DB: a.db, TLSConfig: secure.config(),
		Dialer:      secure.dial(net.Dialer{Timeout: s.timeout, KeepAliveConfig: keepAlive}),
		DialTimeout: s.timeout, DialerRetries: 1, ContextTimeoutEnabled: true,
		// Otherwise go-redis sends CLIENT SETINFO and CLIENT MAINT_NOTIFICATIONS on every connection, which a user with the
		// documented rights may not: each refusal is an entry in the ACL LOG.
		DisableIdentity: true, MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
	if bound > 0 {
		o.ReadTimeout, o.WriteTimeout, o.MaxRetries = bound, bound, -1
	}
	switch a.kind {
	case "cluster":
		cluster := o.Cluster()
		cluster.DisableRoutingPolicies = true // otherwise go-redis sends COMMAND, which is not needed, because all calls name their key
		return redis.NewClusterClient(cluster)
	case "sentinel":
		o.MasterName, o.SentinelUsername, o.SentinelPassword = a.master, a.sentinelUser, a.sentinelPassword
		return redis.NewFailoverClient(o.Failover())
	}
	single := o.Simple()
	if a.kind == "unix" {
		single.Network = "unix"
	}
	return redis.NewClient(single)
}

// keepAlive has the settings of go-redis's own dialer.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 5 * time.Second, Count: 3}

// session is a Locker with what has to be closed after it.
type session struct {
	*joblock.Locker
	store driver.Store
	rdb   redis.UniversalClient
}

// open makes a Locker with cfg, sets the fields that are the same for every command, and sends nothing.
func (s *server) open(getenv func(string) string, cfg joblock.Config) (*session, error) {
	rdb, err := s.client(getenv)
	if err != nil {
		return nil, err
	}
	cfg.CallTimeout = cmp.Or(cfg.CallTimeout, s.timeout)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	store, err := redisstore.New(rdb, &redisstore.Config{Prefix: s.prefix})
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	locks, err := joblock.New(store, &cfg)
	if err != nil {
		_ = rdb.Close()
		return nil, err
	}
	return &session{locks, store, rdb}, nil
}

// examine checks the servers of the locks.
func (s *session) examine(ctx context.Context) (redisstore.Report, error) {
	return redisstore.Check(ctx, s.store)
}

// Commands that take or change a lock divide --timeout between an unanswered call, which package joblock ends up to an
// eighth late, and the clean-up after it.

// callTimeout bounds a call of such a command.
func (s *server) callTimeout() time.Duration { return max(s.timeout*2/3, driver.MinPeriod) }

// cleanUp bounds the clean-up of such a command.
func (s *server) cleanUp() time.Duration { return s.timeout / 4 }

// close waits for at most patience for the clean-up after unanswered calls.
func (s *session) close(patience time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = s.Locker.Close(ctx) // what is left in Redis expires
	_ = s.rdb.Close()
}

// quiet silences go-redis: errors are reported where they arise.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}

func init() { redis.SetLogger(quiet{}) }
