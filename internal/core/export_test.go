package core

import "time"

// The two ways to read the binary form of a token.
var (
	ScanToken = scanToken
	ReadToken = readToken
)

// MaxTokenBytes bounds every form of a token.
const MaxTokenBytes = maxTokenBytes

func WithDefaults(c *Config) *Config { return c.withDefaults() }

// EngineAwake returns when the goroutine of the engine wakes up next. Each run of the goroutine changes that.
func EngineAwake(l *Locker) time.Time {
	l.engine.mu.Lock()
	defer l.engine.mu.Unlock()
	return l.engine.awake
}
