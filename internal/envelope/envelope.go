// Package envelope is the header format in which an asynq task carries locks:
// what handoff writes and worker reads. Headers, unlike a payload, leave asynq's
// Unique key and consumers in other languages untouched.
package envelope

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

// The header names.
const (
	// TokensHeader holds the text forms of the tokens, separated by spaces.
	TokensHeader = "joblock-tokens"
	// RetriesHeader holds the number of retries the caller asked for. The task
	// itself is enqueued with one more, the spare slot: asynq archives a task
	// that has used up its retries before it looks at whether the last attempt
	// was charged, so without a spare one a busy lock would cost the job.
	RetriesHeader = "joblock-retries"
)

// MaxTokens bounds the locks of one task.
const MaxTokens = 64

// Envelope is what a task carries.
type Envelope struct {
	Tokens  []joblock.Token
	Retries int // the caller's own MaxRetry; -1 when the task has no spare slot
}

// Job returns the name under which a task's locks are bound to it. A slash in
// the queue's name is escaped, so that no two tasks have the same name.
func Job(queue, taskID string) string { return queueEscaper.Replace(queue) + "/" + taskID }

var queueEscaper = strings.NewReplacer("%", "%25", "/", "%2F")

// Seal returns the headers of e.
func (e Envelope) Seal() (map[string]string, error) {
	texts := make([]string, len(e.Tokens))
	for i, t := range e.Tokens {
		text, err := t.MarshalText()
		if err != nil {
			return nil, err
		}
		texts[i] = string(text)
	}
	return map[string]string{
		TokensHeader:  strings.Join(texts, " "),
		RetriesHeader: strconv.Itoa(e.Retries),
	}, nil
}

// Open reads the envelope of a task's headers. ok is false for a task that
// carries no locks. Headers are untrusted input: errors match
// joblock.ErrInvalid, and nothing beyond the bounds is decoded.
func Open(headers map[string]string) (e Envelope, ok bool, err error) {
	text, ok := headers[TokensHeader]
	if !ok {
		return Envelope{}, false, nil
	}
	if n := strings.Count(text, " ") + 1; n > MaxTokens {
		return Envelope{}, true, invalid(fmt.Sprintf("%d tokens, at most %d are allowed", n, MaxTokens))
	}
	for part := range strings.SplitSeq(text, " ") {
		t, err := joblock.ParseToken(part)
		if err != nil {
			return Envelope{}, true, err
		}
		e.Tokens = append(e.Tokens, t)
	}
	e.Retries = -1
	if s, ok := headers[RetriesHeader]; ok {
		n, err := strconv.Atoi(s)
		if err != nil || n < 0 {
			return Envelope{}, true, invalid(RetriesHeader + " is not a count")
		}
		e.Retries = n
	}
	return e, true, nil
}

func invalid(detail string) error {
	return &joblock.Error{Code: joblock.CodeInvalid, Op: "open envelope", Detail: detail}
}
