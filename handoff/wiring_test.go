package handoff_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// An error about wiring names the place that is easily overlooked.
func TestWiringErrorsNameThePlace(t *testing.T) {
	for name, tc := range map[string]struct {
		how  handoff.How
		task *asynq.Task
		want string
	}{
		"gRPC interceptor is not called": {handoff.Carry(nil), asynq.NewTask("export", nil), "grpc-gateway"},
		"option of NewTask": {
			handoff.Unique{Key: "k"}, asynq.NewTask("export", nil, asynq.Unique(time.Hour)), "asynq.NewTask",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := newMiniWeb(t).jobs.Enqueue(t.Context(), tc.how, tc.task)
			if !errors.Is(err, joblock.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v; want ErrInvalid that names %s", err, tc.want)
			}
		})
	}
}
