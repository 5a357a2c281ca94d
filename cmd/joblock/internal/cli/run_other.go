//go:build !unix

package cli

import "errors"

const envHolder = "JOBLOCK_RUN_HOLDER"

// run needs process groups and signals, which this system does not have.
func run(*runOptions) error {
	return &exitError{exitFault, errors.New("run is not to be had on this system; it needs a Unix")}
}
