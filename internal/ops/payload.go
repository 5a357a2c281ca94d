package ops

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"unicode/utf8"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/joblock"
)

// Payload is the part of a task's payload that people may see.
type Payload struct {
	Bytes int `json:"bytes"`

	// Text is the payload, cut to payloadShown characters; "" if the payload is empty or not text. If it is JSON, the
	// keys of each object are sorted.
	Text string `json:"text,omitempty"`

	Hidden int    `json:"hidden,omitempty"` // how many values were left out: tokens of locks, and values whose names suggest a secret
	Cut    bool   `json:"cut,omitempty"`    // Text was cut
	Why    string `json:"why,omitempty"`    // why there is no Text, in a sentence
}

const (
	payloadShown = 2000    // characters
	payloadRead  = 1 << 20 // bytes; a longer payload is not examined
)

// secretName matches the names of values to hide.
var secretName = regexp.MustCompile(`(?i)passw|passphrase|secret|token|authori[sz]ation|credential|cookie|api[-_]?key|private[-_]?key|access[-_]?key|signature`)

// tokenLike matches what may be the text of a joblock.Token.
var tokenLike = regexp.MustCompile(`[A-Za-z0-9_-]{16,}`)

// Payload reads the payload of the task of a job, "queue/taskID". It hides tokens of locks, and JSON values whose names
// suggest a secret. It cannot recognize other secrets, so show a payload only to people who may read asynq's Redis.
//
// Errors: joblock.ErrInvalid for a text that names no task, joblock.ErrNotFound if no database has the task, and
// joblock.ErrUnavailable.
func (d *Desk) Payload(ctx context.Context, job string) (Payload, error) {
	const op = "payload"
	queue, id, ok := envelope.ParseJob(job)
	if !ok {
		return Payload{}, core.Invalid(op, "", "%.80q names no task; a job is queue/taskID", job)
	}
	t := d.asynq().task(ctx, job)
	if t.State == TaskUnknown {
		return Payload{}, refusal(op, job, joblock.ErrUnavailable, t.Problem)
	}
	for _, db := range d.cfg.Databases {
		if db.Name != t.Database {
			continue
		}
		info, err := call(ctx, func() (*asynq.TaskInfo, error) { return db.Asynq.GetTaskInfo(queue, id) })
		switch {
		case err == nil:
			return payloadOf(info.Payload), nil
		case errors.Is(err, asynq.ErrTaskNotFound), errors.Is(err, asynq.ErrQueueNotFound):
		default:
			return Payload{}, refusal(op, job, joblock.ErrUnavailable, "asynq: "+err.Error())
		}
	}
	return Payload{}, refusal(op, job, joblock.ErrNotFound, "there is no such task")
}

// payloadOf returns the part of a payload that may be shown.
func payloadOf(raw []byte) Payload {
	p := Payload{Bytes: len(raw)}
	text, isJSON := "", false
	switch {
	case len(raw) == 0:
		p.Why = "It is empty."
		return p
	case len(raw) > payloadRead:
		p.Why = fmt.Sprintf("It is longer than %d bytes.", payloadRead)
		return p
	case !utf8.Valid(raw):
		p.Why = "It is no text."
		return p
	}
	if text, isJSON = p.redactJSON(raw); !isJSON {
		text = p.redact(string(raw))
	}
	if runes := []rune(text); len(runes) > payloadShown {
		text, p.Cut = string(runes[:payloadShown]), true
	}
	p.Text = text
	return p
}

// redactJSON returns the JSON text raw with secret values replaced. ok is false if raw is not JSON.
func (p *Payload) redactJSON(raw []byte) (text string, ok bool) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if dec.Decode(&v) != nil {
		return "", false
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return "", false // there is more than one value
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if enc.Encode(p.walk(v)) != nil {
		return "", false
	}
	return strings.TrimSpace(out.String()), true
}

func (p *Payload) walk(v any) any {
	switch v := v.(type) {
	case map[string]any:
		made := make(map[string]any, len(v))
		for name, value := range v {
			if secretName.MatchString(name) && value != nil {
				p.Hidden++
				value = "(hidden)"
			} else {
				value = p.walk(value)
			}
			made[p.redact(name)] = value
		}
		return made
	case []any:
		for i := range v {
			v[i] = p.walk(v[i])
		}
		return v
	case string:
		return p.redact(v)
	}
	return v
}

// redact replaces the tokens of locks in text by descriptions.
func (p *Payload) redact(text string) string {
	return tokenLike.ReplaceAllStringFunc(text, func(run string) string {
		for at := range run {
			if at > 0 && run[at-1] != '-' && run[at-1] != '_' {
				continue
			}
			if token, err := joblock.ParseToken(run[at:]); err == nil {
				p.Hidden++
				return run[:at] + token.String()
			}
		}
		return run
	})
}

// String returns the payload for display, in one line.
func (p Payload) String() string {
	text := visible(p.Text)
	if p.Text == "" {
		text = fmt.Sprintf("(%d bytes) %s", p.Bytes, p.Why)
	}
	if p.Cut {
		text += fmt.Sprintf("… (%d bytes in all)", p.Bytes)
	}
	if p.Hidden > 0 {
		text += fmt.Sprintf(" (%d hidden)", p.Hidden)
	}
	return text
}
