package worker

import (
	"errors"
	"fmt"

	"github.com/joblock/toolkit/joblock"
)

func invalid(format string, args ...any) error {
	return &joblock.Error{Code: joblock.CodeInvalid, Op: "worker", Detail: fmt.Sprintf(format, args...)}
}

func workerClosed() error {
	return &joblock.Error{Code: joblock.CodeClosed, Op: "worker", Detail: "the Worker was closed"}
}

// original undoes the wrapping of errors by the middleware.
func original(err error) error {
	var re *retryError
	if errors.As(err, &re) {
		return re.err
	}
	var fe *finalError
	if errors.As(err, &fe) {
		return fe.err
	}
	return err
}
