package scheduler

import "errors"

// Causes with which the context of a running function ends. Func lists the other causes.
var (
	// ErrStopped means that the context of Run has ended. If the function does not return nil, its execution counts as
	// broken off, and another node takes the tick over.
	ErrStopped = errors.New("scheduler: the context of Run has ended")
	// ErrOverlapped means that the job's next tick has come, and that the job has the option OverlapCancel.
	ErrOverlapped = errors.New("scheduler: the next tick has come")
)

// text returns the text of an error, "" for nil.
func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
