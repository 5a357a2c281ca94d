package storetest

import (
	"github.com/joblock/toolkit/joblock/driver"
)

var releaseCases = []testCase{
	{"a release with Done, if idle, ends the lock as done", func(k *kit) {
		k.parkFor("key", "me", "q/job", 10*long)
		req := k.releaseReq(byOwner("key", "me"))
		req.Job, req.Done, req.Reason, req.Kind = "q/job", true, "all of it", driver.ReleaseIdle
		k.want("release", k.release(req), driver.OutcomeOK)
		if r := k.wantState("key", driver.StateFree); r.Ended != driver.EndedDone || r.Reason != "all of it" || r.Job != "q/job" {
			k.Errorf("record %+v, want it ended as done, with the reason and the job", r)
		}
	}},
}
