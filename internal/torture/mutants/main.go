package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

func main() {
	length := flag.Duration("time", 20*time.Second, "length of one torture, of each kind of Redis that it takes")
	tries := flag.Int("tries", 6, "how often a mutant is tortured until it is found out")
	flag.Parse()
	survived, err := run(flag.Args(), *length, *tries)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(2)
	}
	if survived > 0 {
		fmt.Fprintf(os.Stderr, "mutants: %d survived\n", survived)
		os.Exit(1)
	}
}

// run tortures the mutants whose name has one of words in it, or all without words.
func run(words []string, length time.Duration, tries int) (survived int, err error) {
	root, err := moduleRoot()
	if err != nil {
		return 0, err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	for i, m := range mutants {
		if len(words) > 0 && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(m.name, w) }) {
			continue
		}
		own := filepath.Join(dir, fmt.Sprint(i))
		if err := os.Mkdir(own, 0o700); err != nil {
			return 0, err
		}
		how := "DOES NOT BUILD" // the others are tried all the same
		bin, err := m.build(root, own)
		if err != nil {
			fmt.Fprintln(os.Stderr, "mutants:", err)
			survived++
		} else if how = m.torture(root, bin, length, tries); how == "" {
			how = "SURVIVED"
			survived++
		}
		fmt.Printf("%-52s %s\n", m.name, how)
	}
	return survived, nil
}

func moduleRoot() (string, error) {
	mod, err := exec.Command("go", "env", "GOMOD").Output()
	return filepath.Dir(strings.TrimSpace(string(mod))), err
}

// build makes the test binary with the rule broken.
func (m *mutant) build(root, dir string) (bin string, err error) {
	overlay, err := m.overlay(root, dir)
	if err != nil {
		return "", err
	}
	bin = filepath.Join(dir, "torture.test")
	cmd := exec.Command("go", "test", "-tags", "servers", "-c", "-overlay", overlay, "-o", bin, m.where())
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", m.name, err, out)
	}
	return bin, nil
}

// torture returns how the mutant was detected, "" if it was not. For a mutant of the keeper
// it runs a test of package worker.
func (m *mutant) torture(root, bin string, length time.Duration, tries int) string {
	for try := 1; try <= tries; try++ {
		test, share := m.test()
		all := time.Duration(float64(length) / share)
		cmd := exec.Command(bin, "-test.v", "-test.run", "^"+test+"$", "-test.timeout", (length + 3*time.Minute).String())
		cmd.Dir = filepath.Join(root, m.where())
		cmd.Env = append(os.Environ(), "JOBLOCK_TORTURE="+all.String(), fmt.Sprintf("JOBLOCK_SEED=%d", try))
		if m.native() && os.Getenv("JOBLOCK_SERVER") == "" {
			cmd.Env = append(cmd.Env, "JOBLOCK_SERVER="+filepath.Join(root, ".cache/servers/redis-8"))
		}
		out, err := cmd.CombinedOutput()
		if err == nil {
			continue
		}
		for _, complaint := range m.found {
			if n := strings.Count(string(out), complaint); n > 0 {
				return fmt.Sprintf("try %d: %d x %s", try, n, complaint)
			}
		}
		// The test failed for another reason, which proves nothing about the rule.
		fmt.Fprintf(os.Stderr, "%s, try %d: not one of %q in:\n%s\n", m.name, try, m.found, out)
	}
	return ""
}
