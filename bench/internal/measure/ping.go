package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/bench/internal/rig"
)

// pingPause is between two PINGs.
const pingPause = time.Millisecond

// sentPing is one PING: when it was sent and answered, in nanoseconds since 1970.
type sentPing struct{ From, To int64 }

// sendPings sends a PING every pingPause until in ends, and then says how long each took.
func sendPings(addr string, in io.Reader, out *json.Encoder) error {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	rdb := redis.NewClient(&redis.Options{Addr: addr, MaxRetries: -1})
	err := rdb.Ping(ctx).Err()
	go func() {
		_, _ = io.Copy(io.Discard, in) // the pipe of a parent that has died ends, too
		stop()
	}()
	tick := time.NewTicker(pingPause)
	defer tick.Stop()
	var sent []sentPing
	for err == nil && ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-tick.C:
			from := time.Now()
			err = rdb.Ping(context.WithoutCancel(ctx)).Err()
			sent = append(sent, sentPing{from.UnixNano(), time.Now().UnixNano()})
		}
	}
	if err := errors.Join(err, rdb.Close()); err != nil {
		return err
	}
	return out.Encode(sent)
}

// stretches notes from when on something goes on, and from when on it stands still. At first it stands still.
type stretches struct {
	mu    sync.Mutex
	turns []int64 // when it began, ended, began and so on, in nanoseconds since 1970
}

func (s *stretches) begin() { s.turn(true) }
func (s *stretches) end()   { s.turn(false) }

func (s *stretches) turn(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if on != (len(s.turns)%2 == 1) {
		s.turns = append(s.turns, time.Now().UnixNano())
	}
}

// split returns how long PINGs took, in µs: those that were sent and answered while it stood still, and while it went on.
func (s *stretches) split(sent []sentPing) (without, with []float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	past := 0 // how many turns were before the PING
	for _, p := range sent {
		for past < len(s.turns) && s.turns[past] <= p.From {
			past++
		}
		took := micros(time.Duration(p.To - p.From))
		switch {
		case past < len(s.turns) && s.turns[past] <= p.To: // a turn while it was under way
		case past%2 == 1:
			with = append(with, took)
		default:
			without = append(without, took)
		}
	}
	return without, with
}

// pingDuring returns how long each PING of another process took while f ran, in µs: those without what s has the
// stretches of, and those with it. That process and the server have one processor, and this process has another one.
func pingDuring(ctx context.Context, server *rig.Server, s *stretches, f func() error) (without, with []float64, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	child, err := rig.StartChild(ctx, contenderEnv, assignment{Addr: server.Addr(), Ping: true}, os.Stderr)
	if err != nil {
		return nil, nil, err
	}
	restore, err := server.Apart(ctx, child)
	if err == nil {
		err = errors.Join(f(), restore())
	}
	err = errors.Join(err, child.In.Close())
	var sent []sentPing
	if derr := child.Answers.Decode(&sent); derr != nil {
		err = errors.Join(err, fmt.Errorf("PINGs: %w", derr))
	}
	err = errors.Join(err, child.Cmd.Wait())
	without, with = s.split(sent)
	if err == nil && (len(without) == 0 || len(with) == 0) {
		err = errors.New("the walk was over too soon")
	}
	return without, with, err
}
