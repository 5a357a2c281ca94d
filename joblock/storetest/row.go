package storetest

import "github.com/joblock/toolkit/joblock/driver"

// Short names of the outcomes keep the columns of the tables below narrow.
const (
	ok   = driver.OutcomeOK
	hld  = driver.OutcomeHeld
	busy = driver.OutcomeBusy
	gone = driver.OutcomeNotFound
	notO = driver.OutcomeNotOwner
	rel  = driver.OutcomeReleased
	laps = driver.OutcomeLapsed
	wjob = driver.OutcomeWrongJob
	forn = driver.OutcomeForeign
	full = driver.OutcomeFull
)

// row is a row of the transition table in the package comment of driver. TestTheTableIsThatOfTheContract compares the
// rows with that table.
type row struct {
	name    string
	outcome driver.Outcome
	effect  effect
}

// Each constant is the heading of a call in the transition table of package driver.
const (
	everyCall = "Every call"
	acquire   = "Acquire"
	take      = "Take"
	resume    = "Resume"
	park      = "Park"
	renew     = "Renew"
	release   = "Release (ReleaseOwn, ReleaseIdle)"
	force     = "Release (ReleaseForced, ReleaseForcedIdle)"
	reserve   = "Reserve"
)

var table = []struct {
	call string
	rows []row
}{
	{everyCall, []row{
		{"foreign", forn, same}, // foreignCases test this row
	}},
	{acquire, []row{
		{"taken up", ok, renews}, // unheardCases test this row
		{"again", ok, same},
		{"taken", hld, same},
		{"next", ok, grants},
		{"passed on", hld, passes},
	}},
	{take, []row{
		{"again", ok, same},
		{"another owner", notO, same},
		{"full", full, same},
		{"taken", hld, same},
		{"parked", ok, takes},
		{"passed on", hld, passes},
	}},
	{resume, []row{
		{"no record", gone, same},
		{"another owner", notO, same},
		{"ended", rel, same},
		{"another ownership", notO, same},
		{"another job", wjob, same},
		{"again", ok, same},
		{"busy", busy, same},
		{"taken back", ok, resumes},
		{"resumed", ok, resumes},
		{"recovered", ok, resumes},
	}},
	{park, []row{
		{"again", ok, same},
		{"moved", ok, parks},
		{"no record", gone, same},
		{"another owner", notO, same},
		{"ended", rel, same},
		{"another term", notO, same},
		{"late", laps, same},
		{"parked", ok, parks},
	}},
	{renew, []row{
		{"no record", gone, same},
		{"another owner", notO, same},
		{"ended", rel, same},
		{"another term", notO, same},
		{"taken back", ok, renews},
		{"late", laps, same},
		{"renewed", ok, renews},
	}},
	{release, []row{
		{"again", ok, same},
		{"again, late", laps, same},
		{"no record", gone, same},
		{"another owner", notO, same},
		{"ended", rel, same},
		{"another term", notO, same},
		{"another job", wjob, same},
		{"busy", busy, same},
		{"released", ok, ends},
		{"released late", laps, ends},
	}},
	{force, []row{
		{"again", ok, same},
		{"again, late", laps, same},
		{"left", ok, same},
		{"passed on", gone, passes}, // slotCases test this row
		{"free", gone, same},
		{"another fence", notO, same},
		{"another job", wjob, same},
		{"busy", busy, same},
		{"forced", ok, ends},
	}},
	{reserve, []row{
		{"no record", gone, same},
		{"reserved", ok, keeps},
		{"waits", hld, same},
		{"next", ok, passes},
		{"passed on", hld, passes},
		{"another job", wjob, same},
		{"ended", rel, same},
		{"reserved again", ok, keeps},
	}},
}

// rowOf returns the row of the table that has this call and this name.
func rowOf(call, name string) (row, bool) {
	for _, part := range table {
		for _, r := range part.rows {
			if part.call == call && r.name == name {
				return r, true
			}
		}
	}
	return row{}, false
}
