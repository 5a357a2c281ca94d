//go:build etcd && linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
	"github.com/joblock/toolkit/server"
)

// roleEnv is the environment variable that makes this program one of the servers.
const roleEnv = "JOBLOCK_BENCH_ETCD_ROLE"

// A role says what a server process is.
type role struct {
	Redis string // the address; "" for an etcd
	Dir   string // of etcd
	Fsync bool   // etcd writes to its disk before it answers
}

func main() {
	var err error
	if text := os.Getenv(roleEnv); text != "" {
		err = serve(text)
	} else {
		err = compare()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve is a server process. It prints its address, and ends with its input.
func serve(text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	if r.Redis == "" {
		return r.serveEtcd()
	}
	rdb := redis.NewClient(&redis.Options{Addr: r.Redis})
	locks, err := joblock.New(redisstore.New(rdb, nil), &joblock.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	s, err := server.New(server.Config{Locks: locks, Authorize: server.Anyone(), Logger: slog.New(slog.NewJSONHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	l, err := s.Listen(server.ListenConfig{Address: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	hs := server.HTTPServer(s)
	go func() { _ = hs.Serve(l) }()
	fmt.Println(l.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return errors.Join(s.Close(context.Background()), hs.Close(), locks.Close(context.Background()), rdb.Close())
}

func (r *role) serveEtcd() error {
	clients, err := freeURL()
	if err != nil {
		return err
	}
	peers, err := freeURL()
	if err != nil {
		return err
	}
	cfg := embed.NewConfig()
	cfg.Dir, cfg.LogLevel, cfg.LogOutputs = r.Dir, "fatal", []string{"stderr"} // it logs its own end as errors
	cfg.UnsafeNoFsync = !r.Fsync
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{*clients}, []url.URL{*clients}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{*peers}, []url.URL{*peers}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case err := <-e.Err():
		return err
	}
	fmt.Println(clients.Host)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return nil
}

func freeURL() (*url.URL, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return &url.URL{Scheme: "http", Host: l.Addr().String()}, nil
}

// A subject is what is compared.
type subject struct {
	name string
	addr string
	pids []int // whose CPU counts
	pair func(c *client) error
	like *subject // the joblock that is as durable
	as   *subject // the joblock that is set up as its documentation says, if this is set up so too

	rates, costs []float64 // pairs/s, and CPU µs per pair, of each round
}

func compare() (err error) {
	turn := flag.Duration("turn", 2*time.Second, "how long each is measured in a round")
	rounds := flag.Int("rounds", 5, "how many rounds")
	conns := flag.String("conns", "1,8,32", "how many connections, each with a key of its own")
	flag.Parse()
	var stops []func()
	defer func() {
		for _, stop := range slices.Backward(stops) {
			stop()
		}
	}()
	dir, err := os.MkdirTemp("", "joblock-bench-etcd")
	if err != nil {
		return err
	}
	stops = append(stops, func() { _ = os.RemoveAll(dir) })
	fmt.Printf("%s, %d CPUs; load %s; data in %s (%s)\n", runtime.Version(), runtime.NumCPU(), load(), dir, fileSystem(dir))

	var subjects []*subject
	durability := []string{"no", "always", "everysec"}
	for _, aof := range durability {
		redisAddr, redisPID, stop, err := startRedis(filepath.Join(dir, "redis-"+aof), aof)
		if err != nil {
			return err
		}
		stops = append(stops, stop)
		addr, pid, stop, err := startSelf(role{Redis: redisAddr})
		if err != nil {
			return err
		}
		stops = append(stops, stop)
		s := &subject{name: "joblock, Redis " + persists(aof), addr: addr, pids: []int{pid, redisPID}, pair: (*client).joblockPair}
		s.like, s.as = s, s
		subjects = append(subjects, s)
	}
	for i, fsync := range []bool{false, true} {
		addr, pid, stop, err := startSelf(role{Dir: filepath.Join(dir, fmt.Sprint("etcd-", fsync)), Fsync: fsync})
		if err != nil {
			return err
		}
		stops = append(stops, stop)
		subjects = append(subjects,
			&subject{name: "etcd " + durable(fsync) + ", one lease for all", addr: addr, pids: []int{pid}, pair: (*client).etcdPair, like: subjects[i]},
			&subject{name: "etcd " + durable(fsync) + ", a lease for each", addr: addr, pids: []int{pid}, pair: (*client).etcdLeasePair, like: subjects[i]},
			&subject{name: "etcd " + durable(fsync) + ", a lease for each, unlocked by its revocation", addr: addr, pids: []int{pid}, pair: (*client).etcdRevokePair, like: subjects[i]},
		)
		if fsync {
			for _, s := range subjects[len(subjects)-3:] {
				s.as = subjects[2] // the append-only file that docs/operate.md asks for, and etcd as it comes
			}
		}
	}
	for text := range strings.SplitSeq(*conns, ",") {
		n, err := strconv.Atoi(text)
		if err != nil || n < 1 {
			return fmt.Errorf("-conns: %q is no number of connections", text)
		}
		for _, s := range subjects {
			s.rates, s.costs = nil, nil
		}
		for round := range *rounds + 1 {
			for i := range subjects {
				s := subjects[(i+round)%len(subjects)]
				rate, cost, err := s.measure(n, *turn)
				if err != nil {
					return fmt.Errorf("%s: %w", s.name, err)
				}
				if round > 0 { // the first one warms up
					s.rates, s.costs = append(s.rates, rate), append(s.costs, cost)
				}
			}
		}
		fmt.Printf("\n%d connections; least, median and greatest of %d rounds of %s; load %s\n\n", n, *rounds, *turn, load())
		fmt.Println("Ratios are to the joblock that writes to its disk as often: with fsync, or without. The last column is to the joblock")
		fmt.Println("with an append-only file that is synced every second, as docs/operate.md says; etcd syncs each write by default.")
		fmt.Println()
		fmt.Println("A lock of joblock has a TTL of its own, so a lease for each lock is the same work; one lease for all is less.")
		fmt.Println()
		fmt.Println("| subject | pairs/s | CPU µs/pair | pairs/s of joblock to this | CPU of this to joblock | pairs/s of joblock to this, both as documented |")
		fmt.Println("|---|--:|--:|--:|--:|--:|")
		for _, s := range subjects {
			var times, cheaper, documented []float64
			for i := range s.rates {
				times = append(times, s.like.rates[i]/s.rates[i])
				cheaper = append(cheaper, s.costs[i]/s.like.costs[i])
				if s.as != nil && s.as != s {
					documented = append(documented, s.as.rates[i]/s.rates[i])
				}
			}
			fmt.Printf("| %s | %s | %s | %s | %s | %s |\n", s.name, spread(s.rates, 0), spread(s.costs, 0), spread(times, 2), spread(cheaper, 2), spread(documented, 2))
		}
	}
	return nil
}

func persists(aof string) string {
	switch aof {
	case "no":
		return durable(false)
	case "always":
		return durable(true)
	}
	return "with fsync every second"
}

func durable(fsync bool) string {
	if fsync {
		return "with fsync"
	}
	return "without fsync"
}

func spread(values []float64, digits int) string {
	s := slices.Sorted(slices.Values(values))
	if len(s) == 0 {
		return ""
	}
	return fmt.Sprintf("%.*f–%.*f–%.*f", digits, s[0], digits, s[len(s)/2], digits, s[len(s)-1])
}

// measure takes and releases locks for so long.
func (s *subject) measure(conns int, turn time.Duration) (rate, cost float64, err error) {
	clients := make([]*client, conns)
	for i := range clients {
		if clients[i], err = dial(s.addr, fmt.Sprint("bench:", i)); err != nil {
			return 0, 0, err
		}
		defer clients[i].conn.Close()
		if err := s.pair(clients[i]); err != nil { // the lease, scripts, pools
			return 0, 0, err
		}
	}
	before := s.cpu()
	began := time.Now()
	counts, errs := make([]int, conns), make([]error, conns)
	var group sync.WaitGroup
	for i, c := range clients {
		group.Go(func() {
			for time.Since(began) < turn && errs[i] == nil {
				if errs[i] = s.pair(c); errs[i] == nil {
					counts[i]++
				}
			}
		})
	}
	group.Wait()
	took := time.Since(began)
	used := s.cpu() - before
	pairs := 0
	for _, n := range counts {
		pairs += n
	}
	if err := errors.Join(errs...); err != nil || pairs == 0 {
		return 0, 0, errors.Join(err, errors.New("the round is void"))
	}
	return float64(pairs) / took.Seconds(), float64(used) / 1e3 / float64(pairs), nil
}

// cpu returns the user and system time of the threads of all processes of the subject.
func (s *subject) cpu() (used time.Duration) {
	for _, pid := range s.pids {
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, thread := range threads {
			text, _ := os.ReadFile(thread)
			first, _, _ := strings.Cut(string(text), " ")
			n, _ := strconv.ParseInt(first, 10, 64)
			used += time.Duration(n)
		}
	}
	return used
}

// A client costs little: the machine is the servers'.
type client struct {
	conn  net.Conn
	r     *bufio.Reader
	out   []byte
	addr  string
	key   string
	lease string
}

func dial(addr, key string) (*client, error) {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &client{conn: conn, r: bufio.NewReader(conn), addr: addr, key: key}, nil
}

// ask sends a request, and returns a text field of the answer.
func (c *client) ask(path, body, field string) (string, error) {
	c.out = fmt.Appendf(c.out[:0], "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, c.addr, len(body), body)
	if _, err := c.conn.Write(c.out); err != nil {
		return "", err
	}
	text, err := c.answer()
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	if field == "" {
		return "", nil
	}
	_, rest, _ := strings.Cut(text, `"`+field+`":"`)
	value, _, ok := strings.Cut(rest, `"`)
	if !ok {
		return "", fmt.Errorf("%s: %s has no %s", path, text, field)
	}
	return value, nil
}

// answer reads an answer with little work, because the client takes its time from the servers.
func (c *client) answer() (string, error) {
	status, length := "", -1
	for {
		line, err := c.r.ReadSlice('\n')
		if err != nil {
			return "", err
		}
		if status == "" {
			status = strings.TrimSpace(string(line))
			continue
		}
		if len(line) <= 2 {
			break
		}
		if name, value, _ := bytes.Cut(line, []byte(":")); bytes.EqualFold(name, []byte("Content-Length")) {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return "", err
			}
		}
	}
	var text []byte
	var err error
	if length < 0 {
		text, err = c.chunks()
	} else {
		text = make([]byte, length)
		_, err = io.ReadFull(c.r, text)
	}
	if err == nil && !strings.HasPrefix(status, "HTTP/1.1 200 ") {
		err = fmt.Errorf("%s: %s", status, text)
	}
	return string(text), err
}

// chunks reads a body in chunks, with the line behind the last one.
func (c *client) chunks() ([]byte, error) {
	text, err := io.ReadAll(httputil.NewChunkedReader(c.r))
	if err == nil {
		_, err = c.r.ReadSlice('\n')
	}
	return text, err
}

func (c *client) joblockPair() error {
	token, err := c.ask("/v1/acquire", `{"key":"`+c.key+`","ttl_ms":30000}`, "token")
	if err != nil {
		return err
	}
	_, err = c.ask("/v1/release", `{"token":"`+token+`"}`, "")
	return err
}

// etcdPair takes and releases a lock under a lease that all locks of the connection have. The lease is as long as a
// measurement, so nothing has to keep it alive.
func (c *client) etcdPair() (err error) {
	if c.lease == "" {
		if c.lease, err = c.ask("/v3/lease/grant", `{"TTL":600}`, "ID"); err != nil {
			return err
		}
	}
	key, err := c.ask("/v3/lock/lock", `{"name":"`+base64.StdEncoding.EncodeToString([]byte(c.key))+`","lease":"`+c.lease+`"}`, "key")
	if err != nil {
		return err
	}
	_, err = c.ask("/v3/lock/unlock", `{"key":"`+key+`"}`, "")
	return err
}

// etcdLeasePair takes a lock with a TTL of its own, as an acquire of joblock does.
func (c *client) etcdLeasePair() (err error) {
	c.lease = ""
	if err := c.etcdPair(); err != nil {
		return err
	}
	_, err = c.ask("/v3/lease/revoke", `{"ID":"`+c.lease+`"}`, "")
	return err
}

// etcdRevokePair is etcdLeasePair in one request less: the end of its lease is the end of the lock.
func (c *client) etcdRevokePair() (err error) {
	if c.lease, err = c.ask("/v3/lease/grant", `{"TTL":30}`, "ID"); err != nil {
		return err
	}
	if _, err = c.ask("/v3/lock/lock", `{"name":"`+base64.StdEncoding.EncodeToString([]byte(c.key))+`","lease":"`+c.lease+`"}`, "key"); err != nil {
		return err
	}
	_, err = c.ask("/v3/lease/revoke", `{"ID":"`+c.lease+`"}`, "")
	return err
}

// startSelf starts this program as a server.
func startSelf(r role) (addr string, pid int, stop func(), err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return "", 0, nil, err
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleEnv+"="+string(text))
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		return "", 0, nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	stop = func() {
		_ = in.Close()
		_ = cmd.Wait()
	}
	if err != nil {
		stop()
		return "", 0, nil, fmt.Errorf("start %s: %w", text, err)
	}
	return strings.TrimSpace(line), cmd.Process.Pid, stop, nil
}

// startRedis starts a redis-server: without an append-only file, or with one that is synced before each answer (always) or
// every second (everysec).
func startRedis(dir, aof string) (addr string, pid int, stop func(), err error) {
	free, err := freeURL()
	if err != nil {
		return "", 0, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", 0, nil, err
	}
	args := []string{"--port", free.Port(), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no", "--logfile", filepath.Join(dir, "log")}
	if aof != "no" {
		args = append(args, "--appendonly", "yes", "--appendfsync", aof)
	}
	cmd := exec.Command("redis-server", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return "", 0, nil, err
	}
	stop = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if conn, err := net.Dial("tcp", free.Host); err == nil {
			_ = conn.Close()
			return free.Host, cmd.Process.Pid, stop, nil
		}
	}
	stop()
	return "", 0, nil, errors.New("redis-server does not answer")
}

// load returns the load of the machine.
func load() string {
	text, _ := os.ReadFile("/proc/loadavg")
	return strings.Join(strings.Fields(string(text))[:3], " ")
}

// fileSystem returns the type of a directory's file system.
func fileSystem(dir string) string {
	out, err := exec.Command("stat", "-f", "-c", "%T", dir).Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}
