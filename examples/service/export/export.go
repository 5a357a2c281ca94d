// Package export is what the web process and the worker process share: the name
// and payload of the task, and the key of its lock.
package export

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/joblock"
)

// Type is the asynq task type.
const Type = "export"

type payload struct {
	Account string `json:"account"`
}

// Key returns the key of the lock: one export per account at a time.
func Key(account string) string { return joblock.Key("export", account) }

// NewTask makes the task. The lock is not in it: Enqueue adds it.
func NewTask(account string) (*asynq.Task, error) {
	body, err := json.Marshal(payload{account})
	if err != nil {
		return nil, err
	}
	return asynq.NewTask(Type, body, asynq.MaxRetry(5), asynq.Timeout(10*time.Minute)), nil
}

// Handle does the work, under the lock.
func Handle(ctx context.Context, task *asynq.Task) error {
	var p payload
	if err := json.Unmarshal(task.Payload(), &p); err != nil {
		return fmt.Errorf("%v: %w", err, asynq.SkipRetry) // it will never be readable
	}
	lock, ok := joblock.FromContext(ctx)
	if !ok {
		return fmt.Errorf("export of %s came without a lock", p.Account)
	}
	slog.Info("exporting", "account", p.Account, "fence", lock.Fence())
	select { // the work; pass ctx to it, and the fence to what it writes to
	case <-time.After(300 * time.Millisecond):
	case <-ctx.Done():
		return context.Cause(ctx) // timeout, shutdown, or joblock.ErrLost
	}
	slog.Info("exported", "account", p.Account)
	return nil
}
