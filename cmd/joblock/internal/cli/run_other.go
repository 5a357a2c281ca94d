//go:build !unix

package cli

import "errors"

const envHolder = "JOBLOCK_RUN_HOLDER"

// run needs process groups and signals, which this system does not have.
func run(*runOptions) error {
	return &exitError{exitFault, errors.New("run is not available on this system; it needs Unix")}
}
