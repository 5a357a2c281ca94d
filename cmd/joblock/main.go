package main

import (
	"os"

	"github.com/joblock/toolkit/cmd/joblock/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args, os.Stdin, os.Stdout, os.Stderr)) }
