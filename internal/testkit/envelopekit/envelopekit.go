// Package envelopekit reads the envelopes of tasks in tests.
package envelopekit

import (
	"context"
	"strconv"
	"strings"

	"github.com/joblock/toolkit/internal/envelope"
	"github.com/joblock/toolkit/internal/seal"
)

// Read returns the envelope in headers, as envelope.Open does, but does not check the seal, the job and the task type.
func Read(headers map[string]string) (envelope.Opened, bool, error) {
	text, _ := seal.Text(headers[envelope.Header]) // a bad text is Open's to refuse
	var taskType string
	if words := strings.SplitN(text, " ", 7); len(words) == 7 {
		if n, _ := strconv.Atoi(words[5]); n >= 0 && n <= len(words[6]) {
			taskType = words[6][n:]
		}
	}
	return envelope.Open(context.Background(), func(context.Context, string) (seal.Opened, error) {
		return seal.Opened{Text: text}, nil
	}, envelope.Task{Type: taskType, Headers: headers})
}
