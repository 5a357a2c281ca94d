package ops

import (
	"context"
	"unicode"
	"unicode/utf8"
)

// Viewer says what the caller may see for whom a Desk reads. A nil function allows everything.
type Viewer struct {
	Key   func(key string) bool
	Queue func(queue string) bool // of asynq
}

type viewerKey struct{}

// SeenBy returns a child of ctx for reads on behalf of v: they show no task in a queue that v may not see, and Doctor looks
// only at the servers and at what has happened to keys that v may see.
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

// OpenEnded reports whether a prefix ends in a letter or a digit: such as "a", which covers the keys "a:1" and "ab:1".
func OpenEnded(prefix string) bool {
	last, _ := utf8.DecodeLastRuneInString(prefix)
	return unicode.IsLetter(last) || unicode.IsDigit(last)
}
