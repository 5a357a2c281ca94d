//go:build linux

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

// pipeWith returns the name of a named pipe from which one reader can read text, once.
func pipeWith(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(name, 0o600); err != nil {
		t.Fatal(err)
	}
	var writer sync.WaitGroup
	writer.Go(func() {
		f, err := os.OpenFile(name, os.O_WRONLY, 0) // waits for the reader
		if err != nil {
			return
		}
		_, _ = f.WriteString(text)
		_ = f.Close()
	})
	t.Cleanup(func() {
		if r, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0); err == nil { // if it was not read
			writer.Wait()
			_ = r.Close()
		}
	})
	return name
}

// A command runs under a lock in each kind of Redis, and operators see the lock there.
func TestEveryKindOfRedis(t *testing.T) {
	for name, url := range map[string]func(t *testing.T) (url string, flags []string){
		"one server": func(t *testing.T) (string, []string) { return "redis://" + redistest.Start(t).Addr() + "/2", nil },
		"socket": func(t *testing.T) (string, []string) {
			redis := redistest.Start(t, "--unixsocket", "s")
			return "unix://" + redis.Dir() + "/s?db=1", nil
		},
		"Sentinel": func(t *testing.T) (string, []string) {
			return "redis-sentinel://" + strings.Join(redistest.StartSentinel(t).Addrs(), ",") + "/" + redistest.MasterName, nil
		},
		"Sentinel with users, passwords by pipe": func(t *testing.T) (string, []string) {
			s := redistest.StartSentinel(t)
			for _, addr := range s.Addrs() {
				rdb := clientOf(t, addr)
				for _, args := range [][]any{
					{"acl", "setuser", "operator", "on", ">at the Sentinels", "allchannels", "+@all"}, {"acl", "setuser", "default", "off"},
				} {
					if err := rdb.Do(t.Context(), args...).Err(); err != nil {
						t.Fatal(err)
					}
				}
			}
			return "redis-sentinel://" + strings.Join(s.Addrs(), ",") + "/" + redistest.MasterName + "?sentinel_user=operator",
				[]string{"--sentinel-password-file", pipeWith(t, "at the Sentinels\n")}
		},
		"password by pipe": func(t *testing.T) (string, []string) {
			redis := redistest.Start(t)
			redis.SetUser(t, "named", "~*", "&*", "+@all")
			return "redis://named@" + redis.Addr(), []string{"--redis-password-file", pipeWith(t, redistest.Password)}
		},
		"Cluster": func(t *testing.T) (string, []string) {
			return "redis-cluster://" + strings.Join(redistest.StartCluster(t, 3, 0).Addrs(), ","), nil
		},
		"TLS": func(t *testing.T) (string, []string) {
			_, secure := redistest.StartTLS(t)
			return "rediss://" + secure.Addr, []string{"--tls-ca", secure.RootsFile, "--tls-cert", secure.ClientFile, "--tls-key", secure.ClientKeyFile}
		},
	} {
		t.Run(name, func(t *testing.T) {
			address, flags := url(t)
			s := &stage{T: t}
			cmd := s.joblockAt(address, append(append([]string{"run", "--timeout", "30s"}, flags...), key, "/bin/echo", "ran")...)
			p := s.launch("a", cmd)
			p.exits(0)
			if p.stdout.String() != "ran\n" {
				t.Errorf("stdout %q, stderr %q", p.stdout, p.stderr)
			}
			if strings.HasSuffix(name, "by pipe") {
				return // a pipe is there for one command
			}
			for command, want := range map[string]string{
				"ls --ended -o name": key + "\n", "ls --job": "", "get -o name " + key: key + "\n", "explain -o name " + key: key + "\n",
				"waiters " + key: "", "watch --until free -o name " + key: key + "\n", "top -o name": "",
			} {
				p := s.launch("looker", s.joblockAt(address, append(append(strings.Fields(command), "--timeout", "30s"), flags...)...))
				p.exits(0)
				if p.stdout.String() != want {
					t.Errorf("%s: stdout %q, want %q; stderr %q", command, p.stdout, want, p.stderr)
				}
			}
		})
	}
}
