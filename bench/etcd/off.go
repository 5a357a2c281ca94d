//go:build !etcd || !linux

package main

import (
	"fmt"
	"os"
)

func main() {
	fmt.Fprintln(os.Stderr, "on Linux: go run -tags etcd .")
	os.Exit(2)
}
