//go:build linux

package cli

import (
	"strings"
	"testing"

	"github.com/joblock/toolkit/internal/redistest"
)

// A command runs under a lock in each kind of Redis.
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
		})
	}
}
