package ops

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/jobline"
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/internal/redistest"
	"github.com/joblock/toolkit/internal/testkit"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/jobs"
	"github.com/joblock/toolkit/joblock/redisstore"
)

// SkipJob passes over the job that has the key, if that job has failed, and over no other.
func TestSkipJob(t *testing.T) {
	planted(t, func(t *testing.T, p *plant) {
		p.retire()
		p.Desk.cfg.Audit = new(memory)
		client, err := handoff.NewClient(p.locks, p.client, p.inspector, nil)
		testkit.WantNil(t, "NewClient", err)
		defer func() { testkit.WantNil(t, "Close", client.Close(context.Background())) }()
		add := func(id string) {
			_, err := client.Enqueue(t.Context(), handoff.Sequence{Key: "k", HaltOnFailure: true}, asynq.NewTask("t", nil, asynq.TaskID(id)))
			testkit.WantNil(t, "Enqueue", err)
		}
		has := func() joblock.Status {
			st, err := testkit.One(p.locks.Status(t.Context(), "k"))
			testkit.WantNil(t, "Status", err)
			return st
		}
		skip := func(fence int64) error {
			_, err := p.Act(t.Context(), SkipJob{Key: "k", Fence: fence, Reason: "the customer is gone"})
			return err
		}
		wantLine := func(ids ...string) {
			t.Helper()
			got := []string{strings.TrimPrefix(has().Job, "default/")}
			for place, err := range jobs.Line(t.Context(), p.locks, "k") {
				testkit.WantNil(t, "Line", err)
				got = append(got, strings.TrimPrefix(place.Job, "default/"))
			}
			if strings.Join(got, " ") != strings.Join(ids, " ") {
				t.Errorf("the line is %q, want %q", got, ids)
			}
		}
		testkit.WantErr(t, skip(1), joblock.ErrNotFound)
		for _, bad := range []SkipJob{{Key: "k", Fence: 1}, {Fence: 1, Reason: "r"}, {Key: "k", Fence: 1, Reason: strings.Repeat("r", 257)}, {Key: "k", Fence: 1, Reason: "two\nlines"}} {
			if _, err := p.Act(t.Context(), bad); !errors.Is(err, joblock.ErrInvalid) {
				t.Errorf("%+v: %v, want ErrInvalid", bad, err)
			}
		}
		add("a")
		add("b")
		first := has().Fence
		testkit.WantErr(t, skip(first), joblock.ErrBusy) // the job is pending
		testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", "a"))
		_, err = client.Enqueue(t.Context(), handoff.Unique{Key: "k"}, asynq.NewTask("t", nil))
		if !errors.Is(err, joblock.ErrHeld) || !strings.Contains(err.Error(), "halts a sequence") {
			t.Errorf("a unique job of the key: %v, want ErrHeld", err)
		}
		testkit.WantErr(t, skip(first+1), joblock.ErrNotOwner)
		wantLine("a", "b")
		testkit.WantNil(t, "SkipJob", skip(first))
		time.Sleep(time.Second)
		wantLine("b")
		if info, err := p.inspector.GetTaskInfo("default", "b"); err != nil || info.State != asynq.TaskStatePending {
			t.Errorf("b is %+v, %v, want pending", info, err)
		}
		// The second of two operators: the next job has failed meanwhile, and is not passed over.
		add("c")
		testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", "b"))
		testkit.WantErr(t, skip(first), joblock.ErrNotOwner)
		wantLine("b", "c")
		testkit.WantNil(t, "DeleteTask", p.inspector.DeleteTask("default", "b"))
		time.Sleep(envelope.EnqueueGrace)
		testkit.WantNil(t, "SkipJob of a job whose task was deleted", skip(has().Fence))
		time.Sleep(time.Second)
		wantLine("c")
		testkit.WantNil(t, "ArchiveTask", p.inspector.ArchiveTask("default", "c"))
		testkit.WantNil(t, "SkipJob", skip(has().Fence))
		if st := has(); st.State != joblock.StateFree || !strings.Contains(st.Reason, "the customer is gone") {
			t.Errorf("%+v", st)
		}
	})
}

// A task that is in the archive for a pause only has not failed.
func TestSkipJobOfAPause(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.park("k", "default/1")
		time.Sleep(2 * envelope.EnqueueGrace)
		skip := func(lastErr string) error {
			s.asynq.set(asynq.TaskInfo{Queue: "default", ID: "1", Type: "t", State: asynq.TaskStateArchived, LastErr: lastErr})
			_, err := s.Act(t.Context(), SkipJob{Key: "k", Fence: s.lock("k").Fence, Reason: "the customer is gone"})
			return err
		}
		testkit.WantErr(t, skip(jobline.ArchiveText+"busy"), joblock.ErrBusy)
		testkit.WantNil(t, "SkipJob of a job that has failed", skip("failed"))
	})
}

// A key whose record cannot be read, and a job whose task cannot be looked up, are left alone.
func TestSkipJobThatCannotBeJudged(t *testing.T) {
	staged(t, func(t *testing.T, s *stage) {
		s.park("k", "default/1")
		time.Sleep(2 * envelope.EnqueueGrace)
		s.asynq.err = errors.New("connection refused")
		_, err := s.Act(t.Context(), SkipJob{Key: "k", Fence: s.lock("k").Fence, Reason: "r"})
		testkit.WantErr(t, err, joblock.ErrUnavailable)
		if l := s.lock("k"); l.State != joblock.StateParked {
			t.Errorf("after a refused skip: %+v", l)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		rdb := redistest.MiniClient(t, redistest.Mini(t))
		locks, err := joblock.New(testkit.Must(redisstore.New(rdb, nil)), nil)
		testkit.WantNil(t, "joblock.New", err)
		defer func() { testkit.WantNil(t, "Close", locks.Close(context.Background())) }()
		desk, err := New(Config{Locks: locks, Audit: new(memory)})
		testkit.WantNil(t, "New", err)
		testkit.WantNil(t, "Set", rdb.Set(t.Context(), keyspace.DefaultPrefix+"k", "of a newer build", 0).Err())
		_, err = desk.As("eva", "test").Act(t.Context(), SkipJob{Key: "k", Fence: 1, Reason: "r"})
		testkit.WantErr(t, err, joblock.ErrInvalid)
	})
}
