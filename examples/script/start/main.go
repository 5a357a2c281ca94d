// Start enqueues the export of an account under a lock that another program has taken and parked: a shell script, or a
// program in another language. It reads the token of the lock from standard input. The job of the service example then
// runs under that lock.
//
//	joblock park --job "default/$id" --token-file "$token"
//	REDIS_ADDR=localhost:6379 start -account acct-7 -id "$id" <"$token"
//
// The exit code is 0 if the job has the lock. With any other code there is no job, or it is unknown whether there is
// one. A lock that start has taken over is then released, so that its key is free again.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/joblock/toolkit/examples/service/export"
	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/redisstore"
)

func main() {
	account := flag.String("account", "", "the account to export")
	id := flag.String("id", "", "the ID of the task, for which the lock is parked")
	flag.Parse()
	if err := start(os.Stdin, *account, *id); err != nil {
		slog.Error("start", "err", err)
		os.Exit(1)
	}
}

func start(stdin io.Reader, account, id string) (err error) {
	text, err := io.ReadAll(io.LimitReader(stdin, 4096))
	if err != nil {
		return err
	}
	token, err := joblock.ParseToken(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	// The script names the account, and the token names the lock. They must belong together.
	if token.Key() != export.Key(account) {
		return fmt.Errorf("the token is of a lock on %q, want %q", token.Key(), export.Key(account))
	}
	task, err := export.NewTask(account)
	if err != nil {
		return err
	}

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	addr := cmp.Or(os.Getenv("REDIS_ADDR"), "localhost:6379")
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	store, err := redisstore.New(rdb, nil)
	if err != nil {
		return err
	}
	locks, err := joblock.New(store, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, locks.Close(ctx)) }()
	client, inspector := asynq.NewClient(asynq.RedisClientOpt{Addr: addr}), asynq.NewInspector(asynq.RedisClientOpt{Addr: addr})
	defer client.Close()
	defer inspector.Close()
	jobs, err := handoff.NewClient(locks, client, inspector, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, jobs.Close(ctx)) }()

	// From the script to this process, and from this process to the job.
	lock, err := locks.Resume(ctx, token, joblock.ForJob("default/"+id))
	if err != nil {
		return err
	}
	if _, err := jobs.Enqueue(ctx, handoff.Carry(lock), task, asynq.TaskID(id)); err != nil {
		_ = lock.Release(ctx) // releases nothing if the job may have the lock
		return err
	}
	fmt.Println("default/" + id)
	return nil
}
