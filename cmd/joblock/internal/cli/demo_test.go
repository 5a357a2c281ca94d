//go:build linux

package cli

import (
	"net"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// Every command can be tried on the demo in another terminal, with the line that the demo prints.
func TestDemo(t *testing.T) {
	for _, n := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		s := &stage{T: t}
		demo := s.joblockAt("redis://nowhere.invalid", "demo") // the demo has a Redis of its own
		p := s.launch("demo", demo)
		s.until("the demo is ready", func() bool { return strings.HasSuffix(p.stdout.String(), "\n") })
		url, ok := strings.CutPrefix(strings.TrimSpace(p.stdout.String()), "export "+envRedis+"=")
		if !ok {
			t.Fatalf("the demo wrote %q", p.stdout)
		}
		s.launch("ping", s.joblockAt(url, "ping")).exits(0)
		for _, args := range [][]string{
			{"ls"}, {"get", "deploy:shop"}, {"explain", "import:prices"}, {"waiters", "webhooks:shop-2"}, {"permits", "geocoder"},
			{"jobs", "ls"}, {"cron", "ls"}, {"doctor"},
		} {
			s.until(strings.Join(args, " ")+" ends with 0", func() bool { // on a busy machine the keeper, or a permit, takes a while
				p := s.launch(args[0], s.joblockAt(url, args...))
				<-p.done
				return p.cmd.ProcessState.ExitCode() == 0
			})
		}
		s.launch("run", s.joblockAt(url, "run", "free", "/bin/true")).exits(0)
		s.until("the deployment has the lock", func() bool {
			busy := s.launch("acquire", s.joblockAt(url, "acquire", "deploy:shop", "--ttl", "1s", "-n"))
			<-busy.done
			return busy.cmd.ProcessState.ExitCode() == 75 && strings.Contains(busy.stderr.String(), "make deploy")
		})
		p.signal(n)
		p.exits(0)
		s.launch("ping", s.joblockAt(url, "ping", "--timeout", "300ms")).exits(69)
	}
}

func TestDemoThatCannotStart(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	taken := strconv.Itoa(listener.Addr().(*net.TCPAddr).Port)
	for code, all := range map[int][][]string{
		64: {{"demo", "x"}, {"demo", "--port", "-1"}, {"demo", "--port", "65536"}, {"demo", "--redis", "redis://localhost"}, {"demo", "--prefix", "x"}},
		70: {{"demo", "--port", taken}},
	} {
		for _, args := range all {
			s := &stage{T: t}
			p := s.launch("demo", s.joblockAt("redis://localhost", args...))
			p.exits(code)
			if p.stdout.String() != "" {
				t.Errorf("%q wrote %q", args, p.stdout)
			}
		}
	}
}
