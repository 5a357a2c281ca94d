package journal

import (
	"github.com/joblock/toolkit/internal/keyspace"
	"github.com/joblock/toolkit/joblock"
)

// cronKey returns the key of the lock of a cron job, so that the history of the key has the events of the job too.
func cronKey(scope, name string) string { return keyspace.Cron(joblock.Key(scope, name)) }
