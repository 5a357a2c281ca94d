package measure

import (
	"fmt"
	"slices"

	"github.com/joblock/toolkit/bench/internal/peer"
	"github.com/joblock/toolkit/bench/internal/report"
)

// Aims returns what is aimed at. busy is for a machine one core of which is kept busy.
func Aims(scale Scale, busy bool) (aims []report.Aim) {
	to := func(limit float64, section, c, column, subject, base string) {
		aims = append(aims, report.Aim{
			What:    fmt.Sprintf("%s, %s: %s to %s", column, c, subject, base),
			Section: section, Case: c, Subject: subject, Base: base, Column: column, Limit: limit,
		})
	}
	ours := func(limit float64, section, c, column string, base peer.Name) {
		to(limit, section, c, column, string(peer.Joblock), string(base))
	}
	atLeast := func(limit float64, section, c, column, subject, base string) {
		to(limit, section, c, column, subject, base)
		aims[len(aims)-1].AtLeast = true
	}
	itself := func(limit float64, section, c, column, subject string) {
		aims = append(aims, report.Aim{
			What:    fmt.Sprintf("%s, %s: %s", column, c, subject),
			Section: section, Case: c, Subject: subject, Column: column, Limit: limit,
		})
	}

	for _, load := range scale.Pairs {
		for _, use := range keyUses {
			to(0.5, "against", pairCase(load.Goroutines, use), columnScripts, thisCheckout, otherCheckout)
		}
	}
	for _, load := range scale.Pairs {
		c := pairCase(load.Goroutines, usedKeys)
		ours(1.5, "uncontended", c, columnServer, peer.Redislock)
		ours(1.3, "uncontended", c, columnOwn, peer.Redislock)
		switch {
		case load.Goroutines > 1:
			ours(1.1, "uncontended", c, columnMicros, peer.Redislock)
			continue
		case busy:
			ours(1.6, "uncontended", c, columnMicros, peer.Floor)
		default:
			ours(1.4, "uncontended", c, columnMicros, peer.Floor)
		}
		ours(1.2, "uncontended", c, columnMicros, peer.Redislock)
	}
	for _, crowd := range scale.Crowds {
		if crowd.Processes > 1 {
			ours(1.4, "handover", crowd.String(), columnP50, peer.Publish)
		}
		ours(1, "handover", crowd.String(), columnP50, peer.Rueidislock)
		for _, name := range peer.Libraries() {
			if name != peer.Joblock {
				ours(1, "handover", crowd.String(), columnP99, name)
			}
		}
		itself(2.05, "handover", crowd.String(), columnHandover, string(peer.Joblock)) // the first and the last count too
		itself(0, "handover", crowd.String(), columnOvertaken, string(peer.Joblock))
	}
	atLeast(0.8, "jobs", jobCase(0), columnProcessed, string(locked), string(bare))
	atLeast(0.6, "jobs", jobCase(0), columnProcessed, string(lined), string(bare))
	for _, c := range scale.Successions {
		for _, base := range []string{afterEnqueue, byHand} {
			to(1.5, "succession", c.String(), columnP50, afterEnd, base)
			to(1.5, "succession", c.String(), columnP99, afterEnd, base)
		}
	}
	least, most := slices.Min(scale.Lines), slices.Max(scale.Lines)
	to(1.1, "lines", lineRun, columnLineCommands, lineSubject(most), lineSubject(least))
	to(1.1, "lines", lineRun, columnLineScripts, lineSubject(most), lineSubject(least))
	atLeast(0.9, "slots", slotCase(scale), columnProcessed, someWait, nobodyWaits)
	itself(0, "slots", slotCase(scale), columnDeliveries, someWait)
	tasks := enqueueCase(scale)
	atLeast(0.4, "enqueue", tasks, columnEnqueued, string(unique), string(alone))
	atLeast(1, "enqueue", tasks, columnEnqueued, string(many), string(alone))
	for _, c := range memoCases {
		// Processor time of the server is where a reply shows that is longer than it need be.
		to(1.1, "memos", c.name, columnServer, withMemo, withoutMemo)
		to(1.1, "memos", c.name, columnScripts, withMemo, withoutMemo)
	}
	walks := walkCase(scale.Walk, 0)
	to(2, "walks", walks, columnPing99, usualWalk, noWalk)
	itself(1000, "walks", walks, columnFirst, usualWalk)
	to(0.5, "walks", clusterWalkCase(scale.Walk), columnWalk, usualWalk, nodeByNode)
	for _, command := range []string{"ls", "explain"} {
		to(2, "operator", operatorCase(scale.Walk)+", "+command, columnPing99, "joblock "+command, noCommand)
	}
	itself(1000, "operator", operatorCase(scale.Walk)+", ls", columnFirstRow, lsCommand)
	itself(100, "operator", startCase, columnWhole, versionCommand)
	for _, column := range []string{columnP50, columnP99} {
		to(1.3, "fleet", fleetCase(scale.Fleet), column, fleetCluster, fleetServer)
	}
	if masters := scale.Masters; len(masters) > 0 {
		least, most := clusterSubject(slices.Min(masters)), clusterSubject(slices.Max(masters))
		for _, c := range clusterCases {
			itself(0, "cluster", c.name, columnPushes, most)
			itself(1.01*c.calls, "cluster", c.name, columnTurns, most) // the clients also ask for the slots
			to(1.1, "cluster", c.name, columnServer, most, least)
			to(1.1, "cluster", c.name, columnScripts, most, least)
			itself(1.3, "cluster", c.name, columnBusiest, most)
		}
	}
	itself(250, "records", recordCase, columnBytes, remembered)
	itself(0, "records", recordCase, columnBytes, forgotten)
	return aims
}
