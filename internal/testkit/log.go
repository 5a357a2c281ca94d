package testkit

import (
	"bytes"
	"log/slog"
	"sync"
)

// Log collects all texts that are written to it. The zero value is empty and ready.
type Log struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

// String returns everything written so far.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// Text returns a logger of every level that writes lines of key=value.
func (l *Log) Text() *slog.Logger { return slog.New(slog.NewTextHandler(l, everything)) }

// JSON returns a logger of every level that writes lines of JSON.
func (l *Log) JSON() *slog.Logger { return slog.New(slog.NewJSONHandler(l, everything)) }

var everything = &slog.HandlerOptions{Level: slog.LevelDebug}
