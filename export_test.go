package toolkit

import "time"

// Settle sets how long Run and Shutdown of s wait for handlers that were cut short.
func Settle(s *Server, d time.Duration) { s.patience = d }
