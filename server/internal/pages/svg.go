package pages

import (
	"fmt"
	"html/template"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/joblock"
)

var tips = map[string]string{
	"free":     "the key is free",
	"held":     "a holder has a lease, and renews it while it lives",
	"parked":   "no holder runs; the key is kept for a job or a token",
	"orphaned": "the holder has died; the key is kept for its job",
	"foreign":  "the value at this key is not a lock",
}

func stateOf(name string) joblock.State {
	for _, s := range []joblock.State{joblock.StateHeld, joblock.StateParked, joblock.StateOrphaned} {
		if s.String() == name {
			return s
		}
	}
	return joblock.StateFree
}

func stateTip(s joblock.State) string { return tips[s.String()] }

// stateDiagram draws the states of a key, with the present one marked. The words are also the diagram's text alternative.
func stateDiagram(now joblock.State) template.HTML {
	var b strings.Builder
	at := now.String()
	fmt.Fprintf(&b, `<svg class="diagram" viewBox="0 0 654 200" role="img" aria-label="The states of a key. Now: %s, %s."><title>Now %s: %s</title>`, at, tips[at], at, tips[at])
	b.WriteString(`<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z" class="tip"/></marker></defs>`)
	arrow := func(d, words string, x, y int, anchor string) {
		fmt.Fprintf(&b, `<path class="arrow" d="%s" marker-end="url(#tip)"/>`, d)
		if words != "" {
			fmt.Fprintf(&b, `<text class="edge" x="%d" y="%d" text-anchor="%s">%s</text>`, x, y, anchor, words)
		}
	}
	arrow("M126 30H256", "acquire", 191, 23, "middle")
	arrow("M258 50H128", "release", 191, 66, "middle")
	arrow("M382 30H524", "park", 454, 23, "middle")
	arrow("M526 50H384", "resume", 454, 66, "middle")
	arrow("M304 66V120", "lease ends", 298, 98, "end")
	arrow("M336 120V66", "resume by the next attempt", 344, 98, "start")
	arrow("M258 146H76V68", "", 0, 0, "start")
	arrow("M588 66V190H48V68", "reservation ends, or freed", 84, 180, "start")
	box := func(name string, x, y int) {
		class := "box"
		if name == at {
			class = "box now " + name
		}
		fmt.Fprintf(&b, `<g class="%s"><rect x="%d" y="%d" width="124" height="52" rx="7"/>`, class, x, y)
		if name == at {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" class="name">%s</text><text x="%d" y="%d" text-anchor="middle" class="mark">▲ now</text>`, x+62, y+24, name, x+62, y+41)
		} else {
			fmt.Fprintf(&b, `<text x="%d" y="%d" text-anchor="middle" class="name">%s</text>`, x+62, y+31, name)
		}
		b.WriteString(`</g>`)
	}
	box("free", 2, 14)
	box("held", 258, 14)
	box("parked", 526, 14)
	box("orphaned", 258, 120)
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}

// sparkline draws numbers over time, the latest at the right.
func sparkline(values []int) template.HTML {
	if len(values) < 2 {
		return ""
	}
	most, least := values[0], values[0]
	for _, n := range values {
		most, least = max(most, n), min(least, n)
	}
	const width, height = 120.0, 24.0
	var points strings.Builder
	for i, n := range values {
		y := height - 2
		if most > 0 {
			y -= float64(n) / float64(most) * (height - 4)
		}
		fmt.Fprintf(&points, "%.1f,%.1f ", float64(i)*width/float64(len(values)-1), y)
	}
	return template.HTML(fmt.Sprintf(`<svg class="spark" viewBox="0 0 %.0f %.0f" preserveAspectRatio="none" role="img" aria-label="from %d to %d, at most %d"><polyline points="%s"/></svg>`,
		width, height, values[0], values[len(values)-1], most, strings.TrimSpace(points.String())))
}

const stripRuns = 10

// runStrip draws the latest runs of a cron job, the newest at the right. The shape shows how a run ended, and the height
// how long it took.
func runStrip(j ops.CronJob) template.HTML {
	runs := j.Runs()
	if len(runs) == 0 {
		return "–"
	}
	runs = runs[:min(stripRuns, len(runs))]
	var most time.Duration
	failed := 0
	for _, r := range runs {
		most = max(most, r.Took.Duration())
		if r.State == "failed" || r.State == "lost" {
			failed++
		}
	}
	var b strings.Builder
	words := fmt.Sprintf("the last %s", plural(len(runs), "run", "runs"))
	if failed > 0 {
		words += fmt.Sprintf(", %d of them failed or lost", failed)
	}
	fmt.Fprintf(&b, `<svg class="strip" viewBox="0 0 %d 20" width="%d" height="20" role="img" aria-label="%s"><title>%s</title>`, len(runs)*9, len(runs)*9, words, words)
	for i, r := range runs {
		x := (len(runs) - 1 - i) * 9
		height := 6
		if most > 0 {
			height += int(12 * float64(r.Took.Duration()) / float64(most))
		}
		switch r.State {
		case "done", "enqueued":
			fmt.Fprintf(&b, `<rect class="done" x="%d" y="%d" width="6" height="%d"/>`, x, 20-height, height)
		case "running":
			fmt.Fprintf(&b, `<rect class="running" x="%d.5" y="2.5" width="5" height="17"/>`, x)
		case "failed", "lost":
			tall := max(4, height-6)
			fmt.Fprintf(&b, `<rect class="failed" x="%d" y="%d" width="6" height="%d"/><path class="cross" d="M%d.5 %dl5 4m0 -4l-5 4"/>`, x, 20-tall, tall, x, 20-tall-6)
		default:
			fmt.Fprintf(&b, `<rect class="other" x="%d.5" y="%d.5" width="5" height="%d"/>`, x, 20-height, height-1)
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String())
}
