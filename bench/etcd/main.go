//go:build etcd && linux

package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
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
	s, err := server.New(server.Config{Locks: locks, Authorize: server.Anyone, Logger: slog.New(slog.NewJSONHandler(io.Discard, nil))})
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
	for _, fsync := range []bool{false, true} {
		redisAddr, redisPID, stop, err := startRedis(filepath.Join(dir, fmt.Sprint("redis-", fsync)), fsync)
		if err != nil {
			return err
		}
		stops = append(stops, stop)
		addr, pid, stop, err := startSelf(role{Redis: redisAddr})
		if err != nil {
			return err
		}
		stops = append(stops, stop)
		s := &subject{name: "joblock, Redis " + durable(fsync), addr: addr, pids: []int{pid, redisPID}, pair: (*client).joblockPair}
		s.like = s
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
		)
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
		fmt.Println("Ratios are to the joblock that writes to its disk as often: with fsync, or without.")
		fmt.Println()
		fmt.Println("| subject | pairs/s | CPU µs/pair | pairs/s of joblock to this | CPU of this to joblock |")
		fmt.Println("|---|--:|--:|--:|--:|")
		for _, s := range subjects {
			var times, cheaper []float64
			for i := range s.rates {
				times = append(times, s.like.rates[i]/s.rates[i])
				cheaper = append(cheaper, s.costs[i]/s.like.costs[i])
			}
			fmt.Printf("| %s | %s | %s | %s | %s |\n", s.name, spread(s.rates, 0), spread(s.costs, 0), spread(times, 2), spread(cheaper, 2))
		}
	}
	return nil
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
	_, err := fmt.Fprintf(c.conn, "POST %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", path, c.addr, len(body), body)
	if err != nil {
		return "", err
	}
	res, err := http.ReadResponse(c.r, nil)
	if err != nil {
		return "", err
	}
	text, err := io.ReadAll(res.Body)
	if err != nil {
		return "", err
	}
	_ = res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s: %d %s", path, res.StatusCode, text)
	}
	if field == "" {
		return "", nil
	}
	_, rest, _ := strings.Cut(string(text), `"`+field+`":"`)
	value, _, ok := strings.Cut(rest, `"`)
	if !ok {
		return "", fmt.Errorf("%s: %s has no %s", path, text, field)
	}
	return value, nil
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

// startRedis starts a redis-server. With fsync, each write is on its disk before it is answered.
func startRedis(dir string, fsync bool) (addr string, pid int, stop func(), err error) {
	free, err := freeURL()
	if err != nil {
		return "", 0, nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", 0, nil, err
	}
	args := []string{"--port", free.Port(), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no", "--logfile", filepath.Join(dir, "log")}
	if fsync {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
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
