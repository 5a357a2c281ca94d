//go:build !unix

package cli

import (
	"io/fs"
	"os"
)

// lockFile does nothing: on this system two joblocks must not use the same token file at the same time.
func lockFile(*os.File) bool { return true }

// private does nothing: the mode of a file does not say who can read the file on this system.
func private(fs.FileInfo) error { return nil }

// exposed reports nothing, for the same reason.
func exposed(fs.FileInfo, int) (why string, refused bool) { return "", false }
