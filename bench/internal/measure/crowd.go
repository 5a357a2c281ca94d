package measure

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// member is a contender process.
type member struct {
	*rig.Child
	errors *strings.Builder // what it wrote to standard error; read after Wait
}

// crowd is all contender processes of one measurement.
type crowd []*member

// gather starts the processes and waits until all are connected. The waiters are
// spread evenly, the first processes having one more where that does not work out.
func gather(ctx context.Context, a assignment, c Crowd) (crowd, []answer, error) {
	var all crowd
	for i := range c.Processes {
		a.Seat, a.Seats = i, c.Processes
		a.Waiters = (c.Waiters + c.Processes - 1 - i) / c.Processes
		m, err := newMember(ctx, a)
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

func newMember(ctx context.Context, a assignment) (*member, error) {
	m := &member{errors: new(strings.Builder)}
	var err error
	m.Child, err = rig.StartChild(ctx, contenderEnv, a, m.errors)
	return m, err
}

// order gives all the same order and returns their answers.
func (all crowd) order(order string) ([]answer, error) {
	for _, m := range all {
		if _, err := fmt.Fprintln(m.In, order); err != nil {
			return nil, err
		}
	}
	return all.listen()
}

func (all crowd) listen() ([]answer, error) {
	out := make([]answer, len(all))
	for i, m := range all {
		if err := m.Answers.Decode(&out[i]); err != nil {
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
		errs = append(errs, m.In.Close())
	}
	for i, m := range all {
		if err := m.Cmd.Wait(); err != nil {
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
