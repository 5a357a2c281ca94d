package testkit

import (
	"errors"
	"testing"
)

// Must returns v, and panics if err is not nil.
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// WantErr ends the test if err is nil, and fails the test if err does not match all targets.
func WantErr(t testing.TB, err error, targets ...error) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want %v", targets)
	}
	for _, target := range targets {
		if !errors.Is(err, target) {
			t.Errorf("error %q is not %q", err, target)
		}
	}
}

// WantNotErr fails the test if err matches one of the targets.
func WantNotErr(t testing.TB, err error, targets ...error) {
	t.Helper()
	for _, target := range targets {
		if errors.Is(err, target) {
			t.Errorf("error %q is %q", err, target)
		}
	}
}

// WantNil ends the test if err is not nil. what names the call that returned err.
func WantNil(t testing.TB, what string, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
