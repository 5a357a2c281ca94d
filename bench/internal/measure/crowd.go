package measure

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// member is a contender process.
type member struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
	errors  *strings.Builder // what it wrote to standard error; read after Wait
}

// crowd is all contender processes of one measurement.
type crowd []*member

// gather starts the processes and waits until all are connected. The waiters are
// spread evenly, the first processes having one more where that does not work out.
func gather(ctx context.Context, a assignment, c Crowd) (crowd, []answer, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	var all crowd
	for i := range c.Processes {
		a.Seat, a.Seats = i, c.Processes
		a.Waiters = (c.Waiters + c.Processes - 1 - i) / c.Processes
		m, err := newMember(ctx, self, a)
		if err != nil {
			return nil, nil, errors.Join(err, all.disperse())
		}
		all = append(all, m)
	}
	first, err := all.listen()
	if err != nil {
		return nil, nil, errors.Join(err, all.disperse())
	}
	return all, first, nil
}

func newMember(ctx context.Context, self string, a assignment) (*member, error) {
	text, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	m := &member{cmd: exec.CommandContext(ctx, self), errors: new(strings.Builder)}
	m.cmd.Env = append(os.Environ(), contenderEnv+"="+string(text))
	m.cmd.Stderr = m.errors
	m.cmd.WaitDelay = time.Second
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	m.answers = json.NewDecoder(bufio.NewReader(out))
	return m, m.cmd.Start()
}

// order gives all the same order and returns their answers.
func (all crowd) order(order string) ([]answer, error) {
	for _, m := range all {
		if _, err := fmt.Fprintln(m.in, order); err != nil {
			return nil, err
		}
	}
	return all.listen()
}

func (all crowd) listen() ([]answer, error) {
	out := make([]answer, len(all))
	for i, m := range all {
		if err := m.answers.Decode(&out[i]); err != nil {
			return nil, fmt.Errorf("contender %d gave no answer: %w", i, err)
		}
		if out[i].Err != "" {
			return nil, fmt.Errorf("contender %d: %s", i, out[i].Err)
		}
	}
	return out, nil
}

// disperse waits for all processes to end. Without input they do.
func (all crowd) disperse() error {
	var errs []error
	for _, m := range all {
		errs = append(errs, m.in.Close())
	}
	for i, m := range all {
		if err := m.cmd.Wait(); err != nil {
			errs = append(errs, fmt.Errorf("contender %d: %w: %s", i, err, m.errors))
		}
	}
	return errors.Join(errs...)
}

// sent returns what all have sent between two answers of theirs.
func sent(before, after []answer) rig.Count {
	var sum rig.Count
	for i := range after {
		d := after[i].Sent.Sub(before[i].Sent)
		sum.Commands += d.Commands
		sum.Turns += d.Turns
	}
	return sum
}

// grown returns by how much the memory of all has grown between two answers.
func grown(before, after []answer) (bytes int64) {
	for i := range after {
		bytes += after[i].Memory - before[i].Memory
	}
	return bytes
}
