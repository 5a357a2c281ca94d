package ops

import (
	"context"
	"slices"
	"unicode"
	"unicode/utf8"
)

// Viewer says what the caller on whose behalf a Desk reads may see. A nil function allows everything.
type Viewer struct {
	Key   func(key string) bool
	Queue func(queue string) bool // of asynq
}

type viewerKey struct{}

// MaySee reports whether v may see what asynq knows about t: whether t is in a queue that v may see and, for a Viewer
// with Key, carries a lock that v may see. A lock that is bound to the task gives no such right: the lock's holder
// chooses the task.
func (v Viewer) MaySee(t Task) bool {
	return (v.Queue == nil || t.Queue == "" || v.Queue(t.Queue)) && (v.Key == nil || t.Type == "" || slices.ContainsFunc(t.keys, v.Key))
}

// MaySeeAction reports whether v may see the record of an action: of one on cron jobs or, for a Viewer with Key, on a key that v
// may see, or on a task that carries locks on such keys alone.
func (v Viewer) MaySeeAction(e AuditEntry) bool {
	if v.Key == nil || e.Scope != "" {
		return true
	}
	if verb := VerbOf(e.Action); verb != nil && verb.Has("Queue") { // Key is that of a job
		return len(e.Keys) > 0 && !slices.ContainsFunc(e.Keys, func(key string) bool { return !v.Key(key) })
	}
	return v.Key(e.Key)
}

// SeenBy returns a child of ctx for reads on behalf of v: they show no task that v may not see, and Doctor looks only at
// the servers and at what has happened to keys that v may see.
func SeenBy(ctx context.Context, v Viewer) context.Context {
	if v.Key == nil && v.Queue == nil {
		return ctx
	}
	return context.WithValue(ctx, viewerKey{}, v)
}

func viewerOf(ctx context.Context) Viewer {
	v, _ := ctx.Value(viewerKey{}).(Viewer)
	return v
}

// OpenEnded reports whether a prefix ends in a letter or a digit, such as "a", which covers the keys "a:1" and "ab:1".
func OpenEnded(prefix string) bool {
	last, _ := utf8.DecodeLastRuneInString(prefix)
	return unicode.IsLetter(last) || unicode.IsDigit(last)
}
