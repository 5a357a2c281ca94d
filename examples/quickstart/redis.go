package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/alicebob/miniredis/v2"
)

// findRedis returns the address of the Redis to use: addr, or an embedded one.
func findRedis(ctx context.Context, addr string) (_ string, stop func(), err error) {
	if addr != "" {
		// Only a connection, because a go-redis client that cannot connect logs that again
		// and again, to a logger of its own.
		dialer := net.Dialer{Timeout: 3 * time.Second}
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err != nil {
			return "", nil, fmt.Errorf("no Redis to use: %w", err)
		}
		return addr, func() {}, conn.Close()
	}
	embedded := miniredis.NewMiniRedis()
	embedded.ClockTTL(true)
	if err := embedded.Start(); err != nil {
		return "", nil, err
	}
	return embedded.Addr(), embedded.Close, nil
}
