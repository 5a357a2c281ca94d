package capacity

import (
	"fmt"
	"io"
	"math"
	"strings"
)

// Table writes what a load needs as two tables in Markdown, and one line about the keeper.
func (n Need) Table(out io.Writer, l Load) error {
	locks := "locks' Redis"
	if l.Masters > 1 {
		locks = fmt.Sprintf("one of %d masters", l.Masters)
	}
	asynq := "asynq's Redis"
	if l.Asynqs > 1 {
		asynq = fmt.Sprintf("one of asynq's %d Redis servers", l.Asynqs)
	}
	servers := [][]string{
		{"", "commands/s", "CPU, of a core", "memory", "connections", "network in/s", "network out/s"},
		n.Locks.row(locks), n.Asynq.row(asynq),
	}
	processes := [][]string{
		{"", "own CPU, of a core", "connections to the locks", "connections to asynq", "goroutines at rest", "locks held"},
		n.Web.row(fmt.Sprintf("each of %d web processes", l.Web)), n.Worker.row(fmt.Sprintf("each of %d workers", l.Workers)),
	}
	if _, err := io.WriteString(out, markdown(servers)+"\n"+markdown(processes)); err != nil {
		return err
	}
	if l.Parked == 0 {
		return nil
	}
	behind := ""
	if n.Keeper.Round > l.Every {
		behind = fmt.Sprintf(", which is later than Every, %s: a larger Share or a longer Every is needed", l.Every)
	}
	_, err := fmt.Fprintf(out, "\nA parked lock is checked every %s s%s. Calls to asynq's Redis are under way for %s of the time of a keeper that works.\n"+
		"The worker of that keeper takes %s of a core more.\n", count(n.Keeper.Round.Seconds()), behind, percent(n.Keeper.Busy), percent(n.Keeper.CPU))
	return err
}

func (n Node) row(name string) []string {
	return []string{name, count(n.Commands), percent(n.CPU), size(n.Memory), count(n.Connections), size(n.In), size(n.Out)}
}

func (p Process) row(name string) []string {
	return []string{name, percent(p.CPU), count(p.Locks), count(p.Asynq), count(p.Goroutines), count(p.HeldAtATime)}
}

// count writes a number with two digits that count, or whole.
func count(x float64) string {
	if x >= 100 || x == math.Trunc(x) {
		return thousands(math.Round(x))
	}
	if x >= 10 {
		return fmt.Sprintf("%.0f", x)
	}
	return fmt.Sprintf("%.1f", x)
}

func thousands(x float64) string {
	s := fmt.Sprintf("%.0f", x)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func percent(x float64) string {
	if x < 0.1 {
		return fmt.Sprintf("%.1f %%", 100*x)
	}
	return fmt.Sprintf("%.0f %%", 100*x)
}

// size writes a number of bytes.
func size(x float64) string {
	for _, unit := range []string{"B", "KiB", "MiB"} {
		if x < 1000 {
			return fmt.Sprintf("%.3g %s", x, unit)
		}
		x /= 1024
	}
	return fmt.Sprintf("%.3g GiB", x)
}

// markdown writes rows as a table, the first row as its head. All columns but the first are numbers.
func markdown(rows [][]string) string {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len([]rune(cell)))
		}
	}
	var b strings.Builder
	for n, row := range rows {
		for i, cell := range row {
			pad := strings.Repeat(" ", widths[i]-len([]rune(cell)))
			if i == 0 {
				cell += pad
			} else {
				cell = pad + cell
			}
			b.WriteString("| " + cell + " ")
		}
		b.WriteString("|\n")
		if n == 0 {
			for i, w := range widths {
				b.WriteString("|" + strings.Repeat("-", w+1))
				if i == 0 {
					b.WriteString("-")
				} else {
					b.WriteString(":")
				}
			}
			b.WriteString("|\n")
		}
	}
	return b.String()
}
