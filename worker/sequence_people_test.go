package worker_test

import (
	"testing"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// What people do to job c while b, c and d wait: the job keeps its place or leaves the line, and the order of the others
// stays.
func TestPeopleAndAJobThatWaits(t *testing.T) {
	all := []string{"b", "c", "d"}
	tests := []struct {
		name string
		do   func(*asynq.Inspector) error
		left []string // who still waits, and runs in this order
	}{
		{"RunTask", func(in *asynq.Inspector) error { return in.RunTask(queue, "c") }, all},
		{"RunAllScheduledTasks", counted((*asynq.Inspector).RunAllScheduledTasks), all},
		{"DeleteTask", func(in *asynq.Inspector) error { return in.DeleteTask(queue, "c") }, []string{"b", "d"}},
		{"DeleteAllScheduledTasks", counted((*asynq.Inspector).DeleteAllScheduledTasks), nil},
		{"ArchiveTask", func(in *asynq.Inspector) error { return in.ArchiveTask(queue, "c") }, []string{"b", "d"}},
		{"ArchiveAllScheduledTasks", counted((*asynq.Inspector).ArchiveAllScheduledTasks), nil},
		{"UpdateTaskPayload", func(in *asynq.Inspector) error { return in.UpdateTaskPayload(queue, "c", []byte("new")) }, all},
		{"PauseQueue, then UnpauseQueue", func(in *asynq.Inspector) error {
			if err := in.PauseQueue(queue); err != nil {
				return err
			}
			time.Sleep(10 * time.Minute)
			return in.UnpauseQueue(queue)
		}, all},
		{"DeleteQueue, by force", func(in *asynq.Inspector) error { return in.DeleteQueue(queue, true) }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var p probe
				lock := l.hold()
				l.add(handoff.Sequence{HaltOnFailure: true}, all...)
				r.serve(service{}, p.handler(succeed))
				time.Sleep(2 * every) // the keeper meets the queue
				if err := tt.do(r.inspector); err != nil {
					t.Fatal(err)
				}
				time.Sleep(grace + 2*every)
				l.wantLine(tt.left...)
				if p.count() > 0 {
					t.Errorf("%+v ran before their turn", p.all())
				}
				l.release(lock, r.next())
				r.until("the line is empty, and the key free", func() bool {
					return len(l.inLine()) == 0 && !r.status(seqKey).Locked()
				})
				l.wantOrder(&p, tt.left...)
			})
		})
	}
}

// counted is a method of the Inspector that says how many tasks it has changed.
func counted(f func(*asynq.Inspector, string) (int, error)) func(*asynq.Inspector) error {
	return func(in *asynq.Inspector) error {
		_, err := f(in, queue)
		return err
	}
}

// What people do to job b that has its turn and is pending, while c waits: c runs, with b before it or without. A
// sequence that halts does so if b is archived.
func TestPeopleAndAJobThatHasItsTurn(t *testing.T) {
	remove := func(in *asynq.Inspector) error { return in.DeleteTask(queue, "b") }
	archive := func(in *asynq.Inspector) error { return in.ArchiveTask(queue, "b") }
	tests := []struct {
		name   string
		do     func(*asynq.Inspector) error
		policy bool
		order  []string
		halts  bool
	}{
		{"DeleteTask, go on", remove, false, []string{"c"}, false},
		{"DeleteTask, halt", remove, true, []string{"c"}, false},
		{"ArchiveTask, go on", archive, false, []string{"c"}, false},
		{"ArchiveTask, halt", archive, true, []string{"b", "c"}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			kept(t, func(r *rig) {
				l := r.line()
				var p probe
				r.pause(true)
				l.add(handoff.Sequence{HaltOnFailure: tt.policy}, "b", "c")
				r.serve(service{}, p.handler(succeed))
				time.Sleep(2 * every)
				if err := tt.do(r.inspector); err != nil {
					t.Fatal(err)
				}
				time.Sleep(grace + 2*every)
				r.pause(false)
				if tt.halts {
					time.Sleep(2 * reserve)
					r.wantState(seqKey, joblock.StateParked, "b")
					l.wantLine("c")
					l.run("b")
				}
				r.untilTask("c", "gone")
				l.wantOrder(&p, tt.order...)
			})
		})
	}
}
