package ops

import (
	"strings"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/joblock"
)

func TestExplainAStepOfAChain(t *testing.T) {
	four := chainText(&chain.Chain{Step: 2, Next: []chain.Step{{Type: "a"}, {Type: "b"}, {Type: "c"}, {Type: "d"}}})
	if want := "step 2 of 6, then a, then b, then c and 1 more"; four != want {
		t.Errorf("%q, want %q", four, want)
	}
	for id, tt := range map[string]struct {
		task Task
		want string
	}{
		"1":                           {Task{State: "pending", Type: "thumbnail", Attempts: 1, Chain: "step 2 of 3, then notify"}, "It is a step of a chain (step 2 of 3, then notify): the key stays taken until the last step is done"},
		"chain:3:1a2b3c4d:q:1":        {Task{State: TaskAbsent}, "asynq does not have its task, step 3 of a chain: the task was deleted, or the worker of the step before has died"},
		"chain:nothing that we wrote": {Task{State: TaskAbsent}, "the task was deleted or trimmed"},
	} {
		tt.task.Queue, tt.task.ID = "q", id
		l := lockIn(joblock.StateParked, "q/"+id, time.Minute)
		l.Task = &tt.task
		e := explain(l, working(KeeperPlace{}), true, nil, nil)
		checkSentences(t, e)
		if text := strings.Join(e.Text, " "); !strings.Contains(text, tt.want) {
			t.Errorf("%s: %s; want %q", id, text, tt.want)
		}
	}
}
