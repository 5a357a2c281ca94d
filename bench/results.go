package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/joblock/toolkit/bench/internal/measure"
	"github.com/joblock/toolkit/bench/internal/report"
)

// writeResults writes the report into dir, which is made if need be. The names
// are fixed so that version control shows what has changed. There is a plot if
// hand-overs were measured.
func writeResults(dir string, r *report.Report, scale measure.Scale) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	err := errors.Join(
		writeFile(filepath.Join(dir, "results.md"), r.WriteMarkdown),
		writeFile(filepath.Join(dir, "results.json"), r.WriteJSON),
	)
	for _, s := range r.Sections {
		if s.Name == "handover" {
			err = errors.Join(err, writeFile(filepath.Join(dir, "handover.svg"), func(w io.Writer) error {
				return measure.PlotHandover(w, s, scale.Crowds)
			}))
		}
	}
	return err
}

// writeFile writes only what is complete.
func writeFile(path string, write func(io.Writer) error) error {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}
