//go:build servers

package worker_test

func init() { pauseDays = 7 }
