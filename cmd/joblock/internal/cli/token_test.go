//go:build linux

package cli

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/joblock"
)

// tool runs joblock to its end. The text in the parameter stdin is the standard input.
func (s *stage) tool(stdin string, args ...string) (code int, stdout, stderr string) {
	s.Helper()
	p := s.launchWith(stdin, args...)
	select {
	case <-p.done:
	case <-time.After(patience):
		s.Fatalf("joblock %q does not end; it said %s", args, p.stderr)
	}
	return p.cmd.ProcessState.ExitCode(), p.stdout.String(), p.stderr.String()
}

func (s *stage) launchWith(stdin string, args ...string) *process {
	s.Helper()
	cmd := s.joblock(append(append([]string{args[0]}, s.where()...), args[1:]...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return s.launch(args[0], cmd)
}

// wants runs joblock, and checks the exit code.
func (s *stage) wants(code int, stdin string, args ...string) (stdout, stderr string) {
	s.Helper()
	got, stdout, stderr := s.tool(stdin, args...)
	if got != code {
		s.Errorf("joblock %q ended with %d, want %d; it said:\n%s%s", args, got, code, stdout, stderr)
	}
	return stdout, stderr
}

// file returns the name of a token file that does not exist yet.
func (s *stage) file() string { return filepath.Join(s.TempDir(), "token") }

func (s *stage) tokenIn(file string) joblock.Token {
	s.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		s.Fatal(err)
	}
	first, _, _ := strings.Cut(string(text), "\n")
	return s.parse(first)
}

func (s *stage) parse(text string) joblock.Token {
	s.Helper()
	token, err := joblock.ParseToken(strings.TrimSpace(text))
	if err != nil {
		s.Fatalf("%q: %v", text, err)
	}
	return token
}

// state checks the state of the key.
func (s *stage) state(want joblock.State) joblock.Status {
	s.Helper()
	st := s.status()
	if st.State != want {
		s.Errorf("the lock is %+v, want %s", st, want)
	}
	return st
}

// warm makes Redis load the scripts. Then the first command that mentions a key is the call itself.
func (s *stage) warm() {
	s.Helper()
	s.wants(0, "", "ping", "-c", "1")
	token, _ := s.wants(0, "", "acquire", "--ttl", "1m", "warm")
	token, _ = s.wants(0, token, "park")
	token, _ = s.wants(0, token, "resume")
	s.wants(0, token, "renew")
	s.wants(0, token, "release")
}

// unanswered makes all calls about the key take effect without an answer, until Heal.
func (s *stage) unanswered() {
	s.proxy.Always(redistest.Mentioning(s.prefix()+key), redistest.SwallowReply())
}

// Everything that scripts do with tokens.
func TestTokens(t *testing.T) {
	redis := redistest.Start(t)
	for name, row := range map[string]func(s *stage){
		"by standard input and output": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m", "--holder", "export.sh")
			held := s.state(joblock.StateHeld)
			if held.Holder != "export.sh" || held.Lease > time.Minute || held.Lease < 20*time.Second {
				s.Errorf("%+v, want a lock of export.sh for a minute", held)
			}
			out, _ := s.wants(0, token, "renew", "--ttl", "10m")
			if st := s.status(); out != "" || st.Lease < 9*time.Minute || st.Fence != held.Fence {
				s.Errorf("after renew: %+v; it wrote %q", st, out)
			}
			parked, _ := s.wants(0, token, "park", "--job", "default/7", "--reserve", "2h")
			if st := s.state(joblock.StateParked); st.Job != "default/7" || st.Reserved < 119*time.Minute || st.Reserved > 2*time.Hour {
				s.Errorf("after park: %+v", st)
			}
			if again, _ := s.wants(0, token, "park", "--job", "default/7"); again != parked {
				s.Error("a second park with the same token has another result")
			}
			s.wants(1, token, "release")
			s.wants(1, parked, "resume", "--job", "default/8")
			resumed, _ := s.wants(0, parked, "resume", "--job", "default/7", "--ttl", "30s")
			s.wants(75, parked, "resume", "--job", "default/7")
			s.wants(1, parked, "release")
			s.state(joblock.StateHeld)
			s.wants(0, resumed, "release", "--reason", "done")
			if st := s.state(joblock.StateFree); st.Reason != "done" {
				s.Errorf("after release: %+v", st)
			}
			s.wants(0, resumed, "release")
			s.wants(1, resumed, "renew")
		},
		"by a file": func(s *stage) {
			file := s.file()
			out, _ := s.wants(0, "", "acquire", key, "--ttl", "1m", "--token-file", file)
			info, err := os.Stat(file)
			if err != nil || info.Mode().Perm() != 0o600 || out != "" {
				s.Fatalf("the file is %v, %v; joblock wrote %q", info, err, out)
			}
			held := s.tokenIn(file)
			s.wants(64, "", "acquire", key, "--ttl", "1m", "--token-file", file)
			s.wants(0, "", "renew", "--token-file", file)
			if s.tokenIn(file) != held {
				s.Error("renew has changed the token")
			}
			s.wants(0, "", "park", "--token-file", file)
			if s.state(joblock.StateParked); s.tokenIn(file) == held {
				s.Error("park has not changed the token")
			}
			s.wants(0, "", "resume", "--token-file", file)
			s.state(joblock.StateHeld)
			s.wants(0, "", "release", "--token-file", file)
			s.state(joblock.StateFree)
			if left, _ := filepath.Glob(filepath.Join(filepath.Dir(file), "*")); left != nil {
				s.Errorf("files are left: %q", left)
			}
		},
		"by a file descriptor": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			file := s.file()
			if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
				s.Fatal(err)
			}
			open, err := os.Open(file)
			if err != nil {
				s.Fatal(err)
			}
			defer open.Close()
			cmd := s.joblock("release", "--prefix", s.prefix(), "--token-fd", "3")
			cmd.ExtraFiles = []*os.File{open}
			s.launch("release", cmd).exits(0)
			s.state(joblock.StateFree)
		},
		"by a file that mktemp has made": func(s *stage) {
			file := s.file()
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				s.Fatal(err)
			}
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			s.wants(75, "", "acquire", key, "--ttl", "1m", "--no-wait", "--token-file", file)
			if text, err := os.ReadFile(file); err != nil || len(text) > 0 {
				s.Errorf("after a refusal the file has %q, %v", text, err)
			}
			s.wants(0, token, "release")
			s.wants(0, "", "acquire", key, "--ttl", "1m", "--token-file", file)
			if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
				s.Errorf("the file is %v, %v", info, err)
			}
		},
		"busy": func(s *stage) {
			s.wants(0, "", "acquire", key, "--ttl", "1m", "--holder", "the one")
			_, said := s.wants(75, "", "acquire", key, "--ttl", "1m", "-n")
			if !strings.Contains(said, "the one") {
				s.Errorf("joblock said %q, want the holder", said)
			}
			s.wants(75, "", "acquire", key, "--ttl", "1m", "--wait", "0.2")
			s.wants(9, "", "acquire", key, "--ttl", "1m", "-n", "-E", "9")
			file := s.file()
			s.wants(69, "", "acquire", key, "--ttl", "1m", "-n", "-E", "69", "--token-file", file)
			if _, err := os.Stat(file); err == nil {
				s.Error("the file is there after a refusal")
			}
		},
		"waits": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			p := s.launchWith("", "acquire", key, "--ttl", "1m", "--wait", "10m", "--token-file", s.file())
			s.inLine(1)
			s.wants(0, token, "release")
			p.exits(0)
			s.state(joblock.StateHeld)
		},
		"a signal ends the wait": func(s *stage) {
			s.wants(0, "", "acquire", key, "--ttl", "10m")
			for _, n := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT} {
				for _, file := range []string{"", s.file()} {
					p := s.launchWith("", "acquire", key, "--ttl", "10m", "--token-file", file)
					s.inLine(1)
					p.signal(n)
					p.exits(128 + int(n))
					s.inLine(0)
					if _, err := os.Stat(file); err == nil {
						s.Errorf("%s: the file is still there", n)
					}
				}
			}
		},
		"the answer to acquire is lost": func(s *stage) {
			s.warm()
			file := s.file()
			s.unanswered()
			s.wants(69, "", "acquire", key, "--ttl", "1m", "-n", "--timeout", "500ms", "--token-file", file)
			s.proxy.Heal()
			held := s.state(joblock.StateHeld)
			for _, args := range [][]string{
				{"acquire", "other", "--ttl", "1m", "--token-file", file},
				{"acquire", key, "--ttl", "2m", "--token-file", file},
				{"acquire", key, "--ttl", "1m", "--limit", "2", "--token-file", file},
				{"renew", "--token-file", file},
				{"park", "--token-file", file},
				{"resume", "--token-file", file},
			} {
				s.wants(64, "", args...)
			}
			s.wants(0, "", "acquire", key, "--ttl", "1m", "-n", "--token-file", file)
			if st := s.state(joblock.StateHeld); st.Fence != held.Fence {
				s.Errorf("fence %d, want %d: the same lock", st.Fence, held.Fence)
			}
			s.wants(0, "", "release", "--token-file", file)
			s.state(joblock.StateFree)
		},
		"the answer to acquire is lost, and the script gives up": func(s *stage) {
			s.warm()
			file := s.file()
			s.unanswered()
			s.wants(69, "", "acquire", key, "--ttl", "1m", "-n", "--timeout", "500ms", "--token-file", file)
			s.proxy.Heal()
			s.state(joblock.StateHeld)
			s.wants(0, "", "release", "--token-file", file)
			s.state(joblock.StateFree)
		},
		"joblock is killed before it has the answer": func(s *stage) {
			s.warm()
			file := s.file()
			s.unanswered()
			p := s.launchWith("", "acquire", key, "--ttl", "1m", "-n", "--timeout", "1h", "--token-file", file)
			s.until("the lock is taken", func() bool { return s.status().State == joblock.StateHeld })
			p.signal(syscall.SIGKILL)
			p.exits(-9)
			s.proxy.Heal()
			held := s.status()
			s.wants(0, "", "acquire", key, "--ttl", "1m", "-n", "--token-file", file)
			if st := s.state(joblock.StateHeld); st.Fence != held.Fence {
				s.Errorf("fence %d, want %d: the same lock", st.Fence, held.Fence)
			}
		},
		"the answers to park, resume and release are lost": func(s *stage) {
			s.warm()
			file := s.file()
			s.wants(0, "", "acquire", key, "--ttl", "1m", "--token-file", file)
			for _, command := range []string{"park", "resume", "renew"} {
				s.unanswered()
				s.wants(69, "", command, "--timeout", "500ms", "--token-file", file)
				s.proxy.Heal()
				after := s.status()
				s.wants(0, "", command, "--token-file", file)
				if st := s.status(); st.Fence != after.Fence || st.State != after.State {
					s.Errorf("%s: %+v, want %+v", command, st, after)
				}
			}
			s.unanswered()
			s.wants(69, "", "release", "--timeout", "500ms", "--token-file", file)
			s.proxy.Heal()
			s.state(joblock.StateFree)
			other, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			s.wants(0, "", "release", "--token-file", file) // as the first one did
			s.wants(0, other, "renew")
		},
		"two processes with one file": func(s *stage) {
			s.wants(0, "", "acquire", key, "--ttl", "10m")
			file := s.file()
			p := s.launchWith("", "acquire", key, "--ttl", "10m", "--token-file", file)
			s.inLine(1)
			_, said := s.wants(75, "", "acquire", key, "--ttl", "10m", "--token-file", file)
			if !strings.Contains(said, "is using the file") {
				s.Errorf("joblock said %q", said)
			}
			s.wants(75, "", "release", "--token-file", file)
			p.signal(syscall.SIGTERM)
			p.exits(128 + 15)
		},
		"permits": func(s *stage) {
			var files []string
			for range 2 {
				files = append(files, s.file())
				s.wants(0, "", "acquire", key, "--ttl", "1m", "--limit", "2", "--token-file", files[len(files)-1])
			}
			s.wants(75, "", "acquire", key, "--ttl", "1m", "--limit", "2", "-n")
			s.wants(0, "", "renew", "--token-file", files[0])
			s.wants(0, "", "park", "--token-file", files[0])
			s.wants(75, "", "acquire", key, "--ttl", "1m", "--limit", "2", "-n")
			s.wants(0, "", "resume", "--token-file", files[0])
			s.wants(0, "", "release", "--token-file", files[0])
			s.wants(0, "", "acquire", key, "--ttl", "1m", "--limit", "2", "-n")
		},
		"the answer to the acquire of a permit is lost": func(s *stage) {
			s.warm()
			s.wants(0, "", "acquire", key, "--ttl", "1m", "--limit", "3")
			file := s.file()
			// Permits have numbers, and the gate has none.
			for _, n := range []string{"1", "2", "3"} {
				s.proxy.Always(redistest.Mentioning(s.prefix()+key+"%#"+n), redistest.SwallowReply())
			}
			p := s.launchWith("", "acquire", key, "--ttl", "1m", "--limit", "3", "--timeout", "1h", "--token-file", file)
			taken := func() (n int) {
				for _, permit := range []string{"1", "2", "3"} {
					if st, err := s.locks.Status(context.Background(), key+"%#"+permit); err == nil && st[0].Locked() {
						n++
					}
				}
				return n
			}
			s.until("a second permit is taken", func() bool { return taken() >= 2 }) // or both that are free: joblock gives one back
			p.signal(syscall.SIGKILL)
			p.exits(-9)
			s.proxy.Heal()
			s.wants(0, "", "acquire", key, "--ttl", "1m", "--limit", "3", "-n", "--token-file", file)
			if n := taken(); n != 2 {
				s.Errorf("%d permits are taken, want 2: the same one again", n)
			}
			s.wants(0, "", "release", "--token-file", file)
			if n := taken(); n != 1 {
				s.Errorf("%d permits are taken after the release, want 1", n)
			}
		},
		"the lease ends": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1s")
			s.until("the lease has ended", func() bool { return s.status().State == joblock.StateFree })
			s.wants(79, token, "renew")
			s.wants(79, token, "park")
			s.wants(79, token, "release")
			token, _ = s.wants(0, "", "acquire", key, "--ttl", "1s")
			s.until("the lease has ended", func() bool { return s.status().State == joblock.StateFree })
			s.wants(0, "", "acquire", key, "--ttl", "1m")
			for _, command := range []string{"renew", "park", "resume", "release"} {
				s.wants(1, token, command)
			}
			s.state(joblock.StateHeld)
		},
		"an operator has freed the key": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			s.locksForced()
			_, said := s.wants(1, token, "renew")
			if !strings.Contains(said, "by hand") {
				s.Errorf("renew said %q, want the reason", said)
			}
			s.wants(1, token, "release")
		},
		"the standard output has no reader": func(s *stage) {
			for _, format := range []string{"text", "json"} {
				full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
				if err != nil {
					s.Fatal(err)
				}
				r, w, err := os.Pipe()
				if err != nil {
					s.Fatal(err)
				}
				_ = r.Close()
				for _, out := range []*os.File{full, w} {
					cmd := s.joblock("acquire", "--prefix", s.prefix(), key, "--ttl", "10m", "-o", format, "--token-file", "-")
					cmd.Stdout = out
					s.launch("acquire", cmd).exits(70)
					s.state(joblock.StateFree)
					_ = out.Close()
				}
			}
		},
		"Redis is away": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			s.proxy.Refuse()
			for _, args := range tokenCommands {
				_, said := s.wants(69, token, append(args, "--timeout", "300ms")...)
				if strings.Contains(said, strings.TrimSpace(token)) {
					s.Errorf("%q said the token", args)
				}
			}
			s.wants(69, "", "ping", "--timeout", "300ms")
		},
		"Redis is silent": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			s.proxy.BlackHole()
			for _, args := range tokenCommands {
				s.wants(69, token, append(args, "--timeout", "300ms")...)
			}
			s.wants(69, "", "ping", "--timeout", "300ms")
		},
		"the user may do nothing": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", key, "--ttl", "1m")
			s.redis.SetUser(s.T, "limited", "+hello", "+ping")
			for _, args := range append(tokenCommands, []string{"ping"}) {
				cmd := s.joblockAt("redis://limited:"+redistest.Password+"@"+s.redis.Addr(), append(args, "--prefix", s.prefix())...)
				cmd.Stdin = strings.NewReader(token)
				s.launch(args[0], cmd).exits(77)
			}
		},
		"bad usage": func(s *stage) {
			token, _ := s.wants(0, "", "acquire", "other", "--ttl", "1m")
			garbage := filepath.Join(s.TempDir(), "garbage")
			if err := os.WriteFile(garbage, []byte("garbage\n"), 0o600); err != nil {
				s.Fatal(err)
			}
			open := filepath.Join(s.TempDir(), "open")
			if err := os.WriteFile(open, []byte(token), 0o644); err != nil {
				s.Fatal(err)
			}
			for _, args := range [][]string{
				{"acquire"}, {"acquire", key}, {"acquire", key, key, "--ttl", "1m"}, {"acquire", key, "--ttl", "1ms"}, {"acquire", key, "--ttl", "9000h"},
				{"acquire", "", "--ttl", "1m"}, {"acquire", "a\x1b[2Jb", "--ttl", "1m"}, {"acquire", "a\xffb", "--ttl", "1m"}, {"acquire", "50%", "--ttl", "1m"},
				{"acquire", strings.Repeat("x", 600), "--ttl", "1m"}, {"acquire", "-x", "--ttl", "1m"},
				{"acquire", key, "--ttl", "1m", "-n", "-w", "1"}, {"acquire", key, "--ttl", "1m", "-w", "-1"}, {"acquire", key, "--ttl", "1m", "-E", "256"},
				{"acquire", key, "--ttl", "1m", "-l", "-1"}, {"acquire", key, "--ttl", "1m", "-l", "257"}, {"acquire", key, "--ttl", "1m", "--holder", "\n"},
				{"acquire", key, "--ttl", "1m", "-o", "yaml"}, {"acquire", key, "--ttl", "1m", "-o", "json"}, {"acquire", key, "--ttl", "1m", "--token-fd", "3"},
				{"acquire", key, "--ttl", "1m", "--token-file", "/no/such/directory/token"}, {"acquire", key, "--ttl", "1m", "--token-file", "/"},
				{"acquire", key, "--ttl", "1m", "--token-file", "/dev/null"}, {"acquire", key, "--ttl", "1m", "--token-file", garbage},
				{"renew", "x"}, {"renew", "--ttl", "1ms"}, {"renew", "--reserve", "-1s"}, {"renew", "--token-file", garbage}, {"renew", "--token-file", open},
				{"renew", "--token-file", "/no/such/file"}, {"renew", "--token-file", "/dev/null"}, {"renew", "--token-file", "/"},
				{"renew", "--token-fd", "1"}, {"renew", "--token-fd", "99"}, {"renew", "--token-file", open, "--token-fd", "3"},
				{"park", "--job", "7"}, {"park", "--job", "a\nb/7"}, {"park", "--reserve", "1ms"}, {"park", "-o", "json"},
				{"resume", "--job", "7"}, {"resume", "--ttl", "1ms"}, {"resume", "--holder", "\n"}, {"resume", "-o", "json"},
				{"release", "--reason", "a\nb"}, {"release", "--reason", strings.Repeat("x", 300)}, {"release", "--nosuch"},
				{"ping", "-c", "0"}, {"ping", "x"}, {"ping", "--interval", "-1s"}, {"ping", "-o", "xml"},
			} {
				_, said := s.wants(64, token, args...)
				if strings.ContainsFunc(said, func(r rune) bool { return r < ' ' && r != '\n' }) || strings.Contains(said, strings.TrimSpace(token)) {
					s.Errorf("%q said %q", args, said)
				}
			}
			for name, stdin := range map[string]string{
				"nothing": "", "blank": " \n\n", "garbage": "garbage", "two tokens": token + token + "more and more", "long": strings.Repeat("A", 5000),
				"binary": "\x00\x01\x1b[2J", "half": token[:len(token)/2],
			} {
				for _, args := range [][]string{{"renew"}, {"release"}, {"park"}, {"resume"}} {
					_, said := s.wants(64, stdin, args...)
					if stdin != "" && strings.Contains(said, strings.TrimSpace(stdin)) && name != "blank" && name != "garbage" {
						s.Errorf("%s: %q said %q", name, args, said)
					}
				}
			}
			s.wants(0, token, "renew")
			s.untouched()
		},
		"JSON": func(s *stage) {
			file := s.file()
			type answer struct {
				V         int    `json:"v"`
				Key       string `json:"key"`
				State     string `json:"state"`
				Fence     int64  `json:"fence"`
				TTL       int64  `json:"ttl_ms"`
				ExpiresAt string `json:"expires_at"`
				Job       string `json:"job"`
				Token     string `json:"token"`
			}
			read := func(text string) (a answer) {
				s.Helper()
				if err := json.Unmarshal([]byte(text), &a); err != nil || a.V != 1 || a.Key != key {
					s.Errorf("%q: %v", text, err)
				}
				var doc any
				wantJSON(s.T, "token.json", text, &doc)
				return a
			}
			in := func(a answer, d time.Duration) {
				s.Helper()
				at, err := time.Parse(time.RFC3339, a.ExpiresAt)
				if left := time.Until(at); err != nil || left > d || left < d-30*time.Second {
					s.Errorf("%+v, %v, want it to end in %s", a, err, d)
				}
			}
			out, _ := s.wants(0, "", "acquire", key, "--ttl", "1m", "-o", "json", "--token-file", file)
			a := read(out)
			in(a, time.Minute)
			if a.State != "held" || a.TTL != 60_000 || a.Fence != s.status().Fence || a.Token != "" {
				s.Errorf("acquire: %+v", a)
			}
			out, _ = s.wants(0, "", "renew", "--ttl", "5m", "-o", "json", "--token-file", file)
			in(read(out), 5*time.Minute)
			out, _ = s.wants(0, "", "park", "--job", "default/7", "--reserve", "2h", "-o", "json", "--token-file", file)
			in(read(out), 2*time.Hour)
			if a := read(out); a.State != "parked" || a.Job != "default/7" || a.Fence != s.status().Fence || a.Token != "" {
				s.Errorf("park: %+v", a)
			}
			out, _ = s.wants(0, "", "resume", "--job", "default/7", "-o", "json", "--token-file", file)
			in(read(out), time.Minute)
			out, _ = s.wants(0, "", "release", "-o", "json", "--token-file", file)
			if a := read(out); a.State != "released" {
				s.Errorf("release: %+v", a)
			}
			out, _ = s.wants(0, "", "acquire", key, "--ttl", "1m", "-o", "json", "--token-file", "-")
			if a := read(out); s.parse(a.Token).Key() != key {
				s.Errorf("acquire: %+v", a)
			}
			out, _ = s.wants(0, read(out).Token, "park", "-o", "json", "--token-file", "-")
			out, _ = s.wants(0, read(out).Token, "resume", "-o", "json", "--token-file", "-")
			s.wants(0, read(out).Token, "release", "-o", "json")
		},
		"ping": func(s *stage) {
			out, _ := s.wants(0, "", "ping", "-c", "20")
			if !strings.HasPrefix(out, "20 of 20 answered\n") || !strings.Contains(out, "p99") {
				s.Errorf("ping wrote %q", out)
			}
			out, _ = s.wants(0, "", "ping", "-c", "3", "--interval", "1ms", "-o", "json")
			var doc any
			wantJSON(s.T, "ping.json", out, &doc)
			keys, err := s.redis.Client(s.T).Keys(context.Background(), s.prefix()+"joblock-ping*").Result()
			if err != nil {
				s.Fatal(err)
			}
			for _, key := range keys {
				if ttl := s.redis.Client(s.T).PTTL(context.Background(), key).Val(); ttl < 0 || ttl > time.Minute {
					s.Errorf("%q stays for %s", key, ttl)
				}
			}
			p := s.launchWith("", "ping", "-c", "1000", "--interval", "1h")
			p.until("the first ping", func() bool {
				keys, err := s.redis.Client(s.T).Keys(context.Background(), s.prefix()+"joblock-ping*:"+strconv.Itoa(p.cmd.Process.Pid)+":*").Result()
				return err == nil && len(keys) > 0
			})
			p.signal(syscall.SIGTERM)
			p.exits(128 + 15)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			row(newStage(t, redis))
		})
		if !remoteRows[name] {
			continue
		}
		t.Run("remote/"+name, func(t *testing.T) {
			t.Parallel()
			row(newStage(t, redis).remotely())
		})
	}
}

// tokenCommands are all commands about a lock, with a token on the standard input.
var tokenCommands = [][]string{
	{"acquire", "free", "--ttl", "1m", "-n"}, {"renew"}, {"park"}, {"resume"}, {"release"},
}

// The help of a command has every exit code that the command is known to have, and an example.
func TestHelpOfScripts(t *testing.T) {
	for name, codes := range map[string][]string{
		"acquire": {"0", "64", "69", "75", "77", "128+n"},
		"renew":   {"0", "1", "64", "69", "77", "79"},
		"release": {"0", "1", "64", "69", "77", "79"},
		"park":    {"0", "1", "64", "69", "77", "79"},
		"resume":  {"0", "1", "64", "69", "75", "77"},
		"ping":    {"0", "64", "69", "77"},
		"demo":    {"0", "64", "70"},
		"serve":   {"0", "64", "69", "70", "128+n"},
	} {
		var text strings.Builder
		if code := Main([]string{"joblock", name, "--help"}, strings.NewReader(""), &text, &text); code != 0 {
			t.Errorf("%s --help: %d", name, code)
		}
		_, rest, ok := strings.Cut(text.String(), "Exit codes:\n")
		if !ok || !strings.Contains(rest, "Examples:") {
			t.Errorf("%s --help has no exit codes, or no examples", name)
		}
		rest, _, _ = strings.Cut(rest, "\n\n")
		var got []string
		for line := range strings.SplitSeq(rest, "\n") {
			got = append(got, strings.Fields(line)[0])
		}
		if !slices.Equal(got, codes) {
			t.Errorf("%s --help has the exit codes %q, want %q", name, got, codes)
		}
	}
}
