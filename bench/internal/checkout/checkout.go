package checkout

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// module is what a checkout has to be of.
const module = "github.com/joblock/toolkit"

//go:embed driver.go.txt
var driverSource []byte

// Here returns the directory of the checkout that this program is built from. It must be
// called in the directory of the bench, or in one below.
func Here(ctx context.Context) (string, error) {
	return tell(ctx, ".", "go", "list", "-m", "-f", "{{.Dir}}", module)
}

// Describe returns the commit of the checkout in dir, "-dirty" behind it if something was
// changed, or "unknown" where git cannot tell.
func Describe(ctx context.Context, dir string) string {
	name, err := tell(ctx, dir, "git", "describe", "--always", "--dirty", "--exclude=*")
	if err != nil {
		return "unknown"
	}
	return name
}

// Build builds the driver of the checkout in dir as program. A directory that holds no
// checkout is an error.
func Build(ctx context.Context, dir, program string) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	is, err := tell(ctx, dir, "go", "list", "-m")
	if err != nil {
		return err
	}
	if !strings.Contains("\n"+is+"\n", "\n"+module+"\n") {
		return fmt.Errorf("%s holds %s, want a checkout of %s", dir, strings.Fields(is), module)
	}
	temp, err := os.MkdirTemp("", "joblock-bench-driver-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	source, overlay := filepath.Join(temp, "main.go"), filepath.Join(temp, "overlay.json")
	// The source is beside the packages of the checkout in the eyes of the compiler alone.
	const pkg = "benchdriver"
	text, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, pkg, "main.go"): source}})
	if err != nil {
		return err
	}
	if err := errors.Join(os.WriteFile(source, driverSource, 0o600), os.WriteFile(overlay, text, 0o600)); err != nil {
		return err
	}
	_, err = tell(ctx, dir, "go", "build", "-buildvcs=false", "-overlay", overlay, "-o", program, "./"+pkg)
	return err
}

// BuildCommand builds the command line of the checkout in dir as program, which is an absolute name.
func BuildCommand(ctx context.Context, dir, program string) error {
	_, err := tell(ctx, filepath.Join(dir, "cmd", "joblock"), "go", "build", "-buildvcs=false", "-o", program, ".")
	return err
}

// tell runs a program in dir and returns what it prints.
func tell(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOWORK=") // that of the checkout in dir, if it has one
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s in %s: %w\n%s", strings.Join(cmd.Args, " "), dir, err, said.String())
	}
	return strings.TrimSpace(string(out)), nil
}

// Order is what a Driver is to do: pairs of acquire and release, on so many goroutines. The
// keys begin with the prefix and are taken in turn.
type Order struct {
	Prefix     string `json:"prefix"`
	Keys       int    `json:"keys"`
	Pairs      int    `json:"pairs"`
	Goroutines int    `json:"goroutines"`
}

// Answer is what an order has taken.
type Answer struct {
	Elapsed time.Duration `json:"elapsed"`
	CPU     time.Duration `json:"cpu"` // of the driver's process, user and system
	Err     string        `json:"err"`
}

// Driver is a process that Build has built. One goroutine uses it.
type Driver struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
	log strings.Builder // what the process wrote to standard error; read after Wait
}

// Start starts program with the address of a server. The caller stops the Driver.
func Start(ctx context.Context, program, addr string) (*Driver, error) {
	d := &Driver{cmd: exec.CommandContext(ctx, program, addr)}
	d.cmd.Stderr = &d.log
	d.cmd.WaitDelay = time.Second
	var err error
	if d.in, err = d.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	d.out = json.NewDecoder(bufio.NewReader(out))
	return d, d.cmd.Start()
}

// Do has the order done.
func (d *Driver) Do(o Order) (a Answer, err error) {
	if err := json.NewEncoder(d.in).Encode(o); err != nil {
		return a, fmt.Errorf("the driver takes no order: %w", err)
	}
	if err := d.out.Decode(&a); err != nil {
		return a, fmt.Errorf("the driver gives no answer: %w", err)
	}
	if a.Err != "" {
		return a, fmt.Errorf("the driver: %s", a.Err)
	}
	return a, nil
}

// Stop ends the process and waits for it.
func (d *Driver) Stop() error {
	err := d.in.Close()
	if werr := d.cmd.Wait(); werr != nil {
		err = errors.Join(err, fmt.Errorf("the driver: %w: %s", werr, d.log.String()))
	}
	return err
}
