//go:build servers

package bench

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// cpu returns the processor time that this process and all its descendants, such as servers, have used; 0 where there is
// no /proc.
func cpu() time.Duration {
	type process struct {
		parent int
		used   time.Duration
	}
	all := make(map[int]process)
	names, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, name := range names {
		text, err := os.ReadFile(name)
		if err != nil {
			continue // it has ended
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		_, after, _ := strings.Cut(string(text), ") ")
		fields := strings.Fields(after)
		if len(fields) < 15 {
			continue
		}
		var p process
		p.parent, _ = strconv.Atoi(fields[1])
		for _, field := range fields[11:15] { // of the process, and of its children that have ended
			ticks, _ := strconv.Atoi(field)
			p.used += time.Duration(ticks) * 10 * time.Millisecond
		}
		all[pid] = p
	}
	var sum time.Duration
	for pid, p := range all {
		for at := pid; at != 0; at = all[at].parent {
			if at == os.Getpid() {
				sum += p.used
				break
			}
		}
	}
	return sum
}
