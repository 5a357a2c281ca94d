package redistest

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// A client that waits for the server has the settings of its connection, gets what is published, and keeps its timeouts.
func TestMiniClientsWait(t *testing.T) {
	skipIfRealOnly(t)
	synctest.Test(t, func(t *testing.T) {
		ctx := context.Background()
		m := Mini(t)
		rdb := MiniClient(t, m)
		early := rdb.Subscribe(ctx) // reads before it subscribes
		defer early.Close()
		got := make(chan any, 10)
		go func() {
			for {
				msg, err := early.Receive(ctx)
				if err != nil {
					return
				}
				got <- msg
			}
		}()
		synctest.Wait()
		if err := early.Subscribe(ctx, "news"); err != nil {
			t.Fatal(err)
		}
		<-got
		rdb.Publish(ctx, "news", "hello")
		if msg, ok := (<-got).(*redis.Message); !ok || msg.Payload != "hello" {
			t.Errorf("received %v, want hello", msg)
		}

		conn := rdb.Conn()
		defer conn.Close()
		conn.Select(ctx, 3)
		conn.RPush(ctx, "list", "in 3")
		if popped := conn.BLPop(ctx, time.Minute, "list").Val(); len(popped) != 2 || popped[1] != "in 3" {
			t.Errorf("popped %q", popped)
		}
		other := rdb.Conn() // its first commands are run, and run once
		defer other.Close()
		pipe := other.Pipeline()
		pipe.Incr(ctx, "n")
		pipe.BLPop(ctx, time.Second, "list")
		pipe.Incr(ctx, "n")
		if cmds, _ := pipe.Exec(ctx); cmds[2].(*redis.IntCmd).Val() != 2 || rdb.Get(ctx, "n").Val() != "2" {
			t.Errorf("in a pipeline: %v, and left is %v", cmds, rdb.Get(ctx, "n"))
		}
		begun := time.Now()
		if err := conn.BLPop(ctx, time.Minute, "list").Err(); !errors.Is(err, redis.Nil) || time.Since(begun) != time.Minute {
			t.Errorf("from an empty list: %v after %v, want redis.Nil after a minute", err, time.Since(begun))
		}
	})
}

// Commands may come in pieces and several at a time.
func TestMiniConnPieces(t *testing.T) {
	m := MiniServer(t)
	conn, err := dialMini(m, m.Server())
	if err != nil {
		t.Fatal(err)
	}
	commands := "*3\r\n$3\r\nSET\r\n$1\r\nk\r\n$4\r\na\r\nb\r\n*2\r\n$3\r\nGET\r\n$1\r\nk\r\n*2\r\n$3\r\nGET\r\n$0\r\n\r\n"
	for size := 1; size <= len(commands); size++ {
		for rest := commands; rest != ""; {
			n := min(size, len(rest))
			if _, err := conn.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		var said strings.Builder
		for buf := make([]byte, 5); said.Len() < 20; {
			n, err := conn.Read(buf)
			if err != nil {
				t.Fatal(err)
			}
			said.Write(buf[:n])
		}
		if want := "+OK\r\n$4\r\na\r\nb\r\n$-1\r\n"; said.String() != want {
			t.Errorf("in pieces of %d: answers %q, want %q", size, said.String(), want)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(-time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || !errors.Is(err, context.DeadlineExceeded) && !isTimeout(err) {
		t.Errorf("nothing to read: %v, want a timeout", err)
	}
	_ = conn.Close()
	if _, err := conn.Write([]byte(commands)); err == nil {
		t.Error("a closed connection takes commands")
	}
	if conn, err = dialMini(m, m.Server()); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("+PING\r\n")); !errors.Is(err, errProtocol) {
		t.Errorf("no command: %v", err)
	}
	m.Close()
	if _, err := conn.Write([]byte(commands)); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("to a closed miniredis: %v", err)
	}
	if err := m.Restart(); err != nil {
		t.Fatal(err)
	}
	if err := MiniClient(t, m).Get(t.Context(), "k").Err(); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

func isTimeout(err error) bool {
	var timeout net.Error
	return errors.As(err, &timeout) && timeout.Timeout()
}
