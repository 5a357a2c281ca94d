package asynqprivate

import (
	"reflect"
	"testing"
	"time"

	"github.com/hibiken/asynq"
)

// everyOption is one of each kind that asynq v0.26 has.
func everyOption() []asynq.Option {
	at := time.Date(2030, time.January, 1, 3, 0, 0, 0, time.UTC)
	return []asynq.Option{
		asynq.MaxRetry(3), asynq.Queue("exports"), asynq.Timeout(time.Minute), asynq.Deadline(at),
		asynq.Unique(time.Hour), asynq.ProcessAt(at), asynq.ProcessIn(time.Hour), asynq.TaskID("t-1"),
		asynq.Retention(time.Hour), asynq.Group("g"),
	}
}

// If this fails, asynq has changed its layout: every Enqueue of package handoff
// refuses its task until optionsOf knows the new one.
func TestOptionsReadsTheOptionsOfThisAsynq(t *testing.T) {
	for name, task := range map[string]*asynq.Task{
		"NewTask":            asynq.NewTask("export", nil, everyOption()...),
		"NewTaskWithHeaders": asynq.NewTaskWithHeaders("export", nil, nil, everyOption()...),
	} {
		got, err := Options(task)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if want := everyOption(); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: options are %v, want %v", name, got, want)
		}
	}
}

func TestOptionsOfATaskWithoutAny(t *testing.T) {
	got, err := Options(asynq.NewTask("export", nil))
	if err != nil || len(got) != 0 {
		t.Errorf("Options = %v, %v; want none", got, err)
	}
}

func TestOptionsAreACopy(t *testing.T) {
	task := asynq.NewTask("export", nil, asynq.Queue("a"))
	first, err := Options(task)
	if err != nil {
		t.Fatal(err)
	}
	first[0] = asynq.Queue("b")
	second, err := Options(task)
	if err != nil {
		t.Fatal(err)
	}
	if got := second[0].Value(); got != "a" {
		t.Errorf("queue is %q after a change to an earlier copy, want a", got)
	}
}

type withAccessor struct{ opts string }

func (withAccessor) Options() []asynq.Option { return []asynq.Option{asynq.MaxRetry(7)} }

func TestAccessorOfALaterAsynqComesFirst(t *testing.T) {
	got, err := optionsOf(&withAccessor{opts: "of another type"})
	if err != nil || len(got) != 1 || got[0].Value() != 7 {
		t.Errorf("optionsOf = %v, %v; want what the accessor returns", got, err)
	}
}

func TestUnknownLayoutIsRefusedAndNotGuessed(t *testing.T) {
	type option interface{ String() string }
	for name, task := range map[string]any{
		"no such field":    &struct{ options []asynq.Option }{},
		"another type":     &struct{ opts []option }{},
		"pointer to slice": &struct{ opts *[]asynq.Option }{},
		"nil task":         nil,
	} {
		var err error
		if task == nil {
			_, err = Options(nil)
		} else {
			_, err = optionsOf(task)
		}
		if err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
