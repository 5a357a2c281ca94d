//go:build unix

// Package sqltest starts databases for tests: PostgreSQL and MariaDB, each on a free port of 127.0.0.1 and in a directory
// of its own, which end with the test. It has no driver; callers open the database with theirs.
//
// Only tests may import this package; package layering enforces that rule.
package sqltest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// startTimeout guards against hanging. A database usually answers within a second.
const startTimeout = 60 * time.Second

// startTries is how often a start is tried if another process takes the port first.
const startTries = 3

// Postgres starts a PostgreSQL server, and returns the connection string of an empty database. settings are added to its
// command line, such as "fsync=off". Without PostgreSQL on the machine the test is skipped, or fails if the environment
// variable CI is set.
func Postgres(t testing.TB, settings ...string) string {
	t.Helper()
	initdb := find(t, "initdb", "/usr/lib/postgresql/*/bin/initdb", "/usr/pgsql-*/bin/initdb")
	if real, err := filepath.EvalSymlinks(initdb); err == nil { // its companions may have no links
		initdb = real
	}
	dir, as := place(t, "postgres")
	data := filepath.Join(dir, "data")
	run(t, as, initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync")
	ready := func(port int) bool { // the port is open before
		return exec.Command(filepath.Join(filepath.Dir(initdb), "pg_isready"), "-q", "-h", "127.0.0.1", "-p", strconv.Itoa(port)).Run() == nil
	}
	port := start(t, dir, as, ready, func(port int) *exec.Cmd {
		args := []string{"-D", data, "-h", "127.0.0.1", "-p", strconv.Itoa(port), "-k", dir}
		for _, s := range settings {
			args = append(args, "-c", s)
		}
		return exec.Command(filepath.Join(filepath.Dir(initdb), "postgres"), args...)
	})
	return fmt.Sprintf("host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", port)
}

// MariaDB starts a MariaDB server, and returns its address for the user root, who has no password. The database "test"
// does not exist yet. settings are added to its command line. Without MariaDB on the machine the test is skipped, or
// fails if the environment variable CI is set.
func MariaDB(t testing.TB, settings ...string) (addr string) {
	t.Helper()
	install := find(t, "mariadb-install-db", "/usr/bin/mariadb-install-db")
	server := find(t, "mariadbd", "/usr/sbin/mariadbd")
	dir, as := place(t, "mysql")
	data := filepath.Join(dir, "data")
	run(t, as, install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db")
	port := start(t, dir, as, isOpen, func(port int) *exec.Cmd {
		args := append([]string{"--no-defaults", "--datadir=" + data, "--port=" + strconv.Itoa(port), "--bind-address=127.0.0.1",
			"--skip-name-resolve", "--socket=" + filepath.Join(dir, "s"), "--pid-file=" + filepath.Join(dir, "pid")}, settings...)
		return exec.Command(server, args...)
	})
	return fmt.Sprintf("127.0.0.1:%d", port)
}

// find returns the path of a program.
func find(t testing.TB, name string, patterns ...string) string {
	t.Helper()
	if path, err := exec.LookPath(name); err == nil {
		return path
	}
	for _, pattern := range patterns {
		if paths, _ := filepath.Glob(pattern); len(paths) > 0 {
			return paths[len(paths)-1]
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed: run .ci/setup.sh", name)
	}
	t.Skipf("%s is not installed: install the packages postgresql and mariadb-server, or run .ci/setup.sh", name)
	return ""
}

// place makes a directory for a server that refuses to run as root. The server runs as the user of that name, or as the
// user of the test if that is not root.
func place(t testing.TB, name string) (dir string, as *syscall.Credential) {
	t.Helper()
	dir, err := os.MkdirTemp("", "joblock-"+name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if os.Getuid() != 0 {
		return dir, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return dir, &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
}

// run runs a command that prepares a server.
func run(t testing.TB, as *syscall.Credential, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.SysProcAttr = "/", &syscall.SysProcAttr{Credential: as}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", filepath.Base(name), err, out)
	}
}

// start starts a server on a free port, and returns when it is ready. The server is killed at the end
// of the test.
func start(t testing.TB, dir string, as *syscall.Credential, ready func(port int) bool, command func(port int) *exec.Cmd) int {
	t.Helper()
	logName := filepath.Join(dir, "log")
	for range startTries {
		port := freePort(t)
		log, err := os.Create(logName)
		if err != nil {
			t.Fatal(err)
		}
		cmd := command(port)
		cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = dir, log, log, dieWithParent(as)
		err = cmd.Start()
		log.Close()
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			_ = cmd.Wait()
		}()
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGQUIT) // of PostgreSQL: at once, with its children
			select {
			case <-ended:
			case <-time.After(5 * time.Second):
				_ = cmd.Process.Kill()
				<-ended
			}
		})
		if answers(port, ready, ended) {
			return port
		}
		_ = cmd.Process.Kill()
		<-ended
	}
	log, _ := os.ReadFile(logName)
	t.Fatalf("the database did not start:\n%s", log)
	return 0
}

// isOpen reports whether the port accepts connections.
func isOpen(port int) bool {
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err == nil {
		c.Close()
	}
	return err == nil
}

// answers waits until the server is ready. It returns false if the server has ended.
func answers(port int, ready func(port int) bool, ended <-chan struct{}) bool {
	for giveUp := time.Now().Add(startTimeout); time.Now().Before(giveUp); time.Sleep(20 * time.Millisecond) {
		select {
		case <-ended:
			return false
		default:
		}
		if ready(port) {
			return true
		}
	}
	return false
}

func freePort(t testing.TB) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
