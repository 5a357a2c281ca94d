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
	text, _ := seal.Text(headers[envelope.Header]) // Open refuses a bad text
	var taskType string
	if words := strings.SplitN(text, " ", 10); len(words) == 10 {
		ofJob, ofType, chained := strings.Cut(words[8], ",")
		if n, _ := strconv.Atoi(ofJob); n >= 0 && n <= len(words[9]) {
			taskType = words[9][n:]
		}
		if n, _ := strconv.Atoi(ofType); chained && n >= 0 && n <= len(taskType) {
			taskType = taskType[:n]
		}
	}
	return envelope.Open(context.Background(), func(context.Context, string) (seal.Opened, error) {
		return seal.Opened{Text: text}, nil
	}, envelope.Task{Type: taskType, Headers: headers})
}
