// Package envelope is the header format in which an asynq task carries locks:
// what handoff writes and worker reads. Headers, unlike a payload, leave asynq's
// Unique key and consumers in other languages untouched.
package envelope

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/google/uuid"

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
	// UntilStartHeader repeats those tokens whose locks are released when the
	// handler starts. A worker that does not know it holds them to the end.
	UntilStartHeader = "joblock-until-start"
	// FromStartHeader repeats those tokens whose locks nobody has taken yet: the
	// worker does, when the task is about to run. One that does not know it goes by
	// its policy for locks that are gone.
	FromStartHeader = "joblock-from-start"
)

const (
	// MaxTokens bounds the locks that are handed over with one task.
	MaxTokens = 64
	// MaxCarried bounds the locks that a task may carry: one that was made of a
	// group has those of all its members.
	MaxCarried = 1024
)

// Headers are all of them: what an earlier envelope may have left on a task.
var Headers = []string{TokensHeader, RetriesHeader, UntilStartHeader, FromStartHeader}

// Envelope is what a task carries.
type Envelope struct {
	Tokens  []joblock.Token
	Retries int // the caller's own MaxRetry; -1 when the task has no spare slot

	// Of Tokens, those with a shorter life than the job.
	UntilStart, FromStart []joblock.Token
}

// Job returns the name under which a task's locks are bound to it. A slash in
// the queue's name is escaped, so that no two tasks have the same name.
func Job(queue, taskID string) string { return queueEscaper.Replace(queue) + "/" + taskID }

// ParseJob is the reverse of Job. ok is false for the name of something else than
// a task.
func ParseJob(job string) (queue, taskID string, ok bool) {
	queue, taskID, ok = strings.Cut(job, "/")
	queue = queueUnescaper.Replace(queue)
	return queue, taskID, ok && taskID != "" && Job(queue, taskID) == job
}

var (
	queueEscaper   = strings.NewReplacer("%", "%25", "/", "%2F")
	queueUnescaper = strings.NewReplacer("%25", "%", "%2F", "/")
)

const aggregatePrefix = "aggregate:"

// AggregateID returns an ID for the task that a group of tasks is made into. It
// names one of them, the lead: while asynq has not enqueued the new task, the locks
// that are bound to it are those of tasks that still exist.
func AggregateID(lead string) string {
	return aggregatePrefix + uuid.NewString() + ":" + lead
}

// LeadOf returns the lead that an ID of AggregateID names.
func LeadOf(taskID string) (lead string, ok bool) {
	rest, ok := strings.CutPrefix(taskID, aggregatePrefix)
	if !ok {
		return "", false
	}
	_, lead, ok = strings.Cut(rest, ":")
	return lead, ok && lead != ""
}

// Seal returns the headers of e.
func (e Envelope) Seal() (map[string]string, error) {
	headers := map[string]string{RetriesHeader: strconv.Itoa(e.Retries)}
	for _, list := range []struct {
		header string
		tokens []joblock.Token
		always bool
	}{
		{TokensHeader, e.Tokens, true},
		{UntilStartHeader, e.UntilStart, false},
		{FromStartHeader, e.FromStart, false},
	} {
		texts := make([]string, len(list.tokens))
		for i, t := range list.tokens {
			text, err := t.MarshalText()
			if err != nil {
				return nil, err
			}
			texts[i] = string(text)
		}
		if len(texts) > 0 || list.always {
			headers[list.header] = strings.Join(texts, " ")
		}
	}
	return headers, nil
}

// Open reads the envelope of a task's headers. ok is false for a task that
// carries no locks. Headers are untrusted input: errors match
// joblock.ErrInvalid, and nothing beyond the bounds is decoded.
func Open(headers map[string]string) (e Envelope, ok bool, err error) {
	text, ok := headers[TokensHeader]
	if !ok {
		return Envelope{}, false, nil
	}
	if e.Tokens, err = parseTokens(text); err != nil {
		return Envelope{}, true, err
	}
	if e.UntilStart, err = e.some(headers, UntilStartHeader); err != nil {
		return Envelope{}, true, err
	}
	if e.FromStart, err = e.some(headers, FromStartHeader); err != nil {
		return Envelope{}, true, err
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

// some reads a header that repeats some of the tokens.
func (e Envelope) some(headers map[string]string, header string) ([]joblock.Token, error) {
	text, ok := headers[header]
	if !ok {
		return nil, nil
	}
	tokens, err := parseTokens(text)
	if err != nil {
		return nil, err
	}
	for _, t := range tokens {
		if !slices.Contains(e.Tokens, t) {
			return nil, invalid(header + " has a token that " + TokensHeader + " has not")
		}
	}
	return tokens, nil
}

func parseTokens(text string) ([]joblock.Token, error) {
	n := strings.Count(text, " ") + 1
	if n > MaxCarried {
		return nil, invalid(fmt.Sprintf("%d tokens, at most %d are allowed", n, MaxCarried))
	}
	tokens := make([]joblock.Token, 0, n)
	for part := range strings.SplitSeq(text, " ") {
		t, err := joblock.ParseToken(part)
		if err != nil {
			return nil, err
		}
		tokens = append(tokens, t)
	}
	return tokens, nil
}

func invalid(detail string) error {
	return &joblock.Error{Code: joblock.CodeInvalid, Op: "open envelope", Detail: detail}
}
