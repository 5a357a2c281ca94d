package storetest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

// startReq asks for a start of id at a rate of 2 starts in a minute.
func (k *kit) startReq(key, id string) driver.AdmitRequest {
	return driver.AdmitRequest{Key: key, ID: id, Starts: 2, Period: time.Minute}
}

// admit makes one request, and fails the test unless the answer has the outcome.
func (k *kit) admit(req driver.AdmitRequest, want driver.Outcome) driver.AdmitReply {
	k.Helper()
	replies, err := k.Store.Admit(k.ctx, []driver.AdmitRequest{req})
	if err != nil || len(replies) != 1 {
		k.Fatalf("Admit: %v, %v", replies, err)
	}
	if replies[0].Outcome != want {
		k.Fatalf("Admit %+v: %+v, want %s", req, replies[0], want)
	}
	return replies[0]
}

// starts asks for starts of ids, and fails the test unless each is admitted.
func (k *kit) starts(ids ...string) (last driver.AdmitReply) {
	k.Helper()
	for _, id := range ids {
		last = k.admit(k.startReq("key", id), driver.OutcomeOK)
	}
	return last
}

// waits asks for starts of ids, and fails the test unless each has to wait.
func (k *kit) waits(ids ...string) (last driver.AdmitReply) {
	k.Helper()
	for _, id := range ids {
		last = k.admit(k.startReq("key", id), driver.OutcomeHeld)
	}
	return last
}

// wantCalled calls up to most IDs, and compares them with want.
func (k *kit) wantCalled(most int, want ...string) {
	k.Helper()
	req := k.startReq("key", "")
	req.Kind, req.Most = driver.AdmitCall, most
	if got := k.admit(req, driver.OutcomeOK).Called; !slices.Equal(got, want) {
		k.Errorf("called %q, want %q", got, want)
	}
}

// rateCases test the rates of keys.
var rateCases = []testCase{
	{"no more starts than the rate allows, and then as many again", func(k *kit) {
		first := k.starts("a", "b")
		if first.Used != 2 || first.Waiting != 0 {
			k.Errorf("after two starts the answer is %+v", first)
		}
		late := k.waits("c", "d", "e")
		if late.Ahead != 2 || late.Waiting != 3 || late.Wait <= time.Minute || late.Wait > 2*time.Minute {
			k.Errorf("the third in line gets %+v, want two ahead and a wait of more than one and up to two minutes", late)
		}
	}},
	{"a newcomer does not overtake those who wait", func(k *kit) {
		req := func(id string) driver.AdmitRequest {
			return driver.AdmitRequest{Key: "key", ID: id, Starts: 1, Period: k.Unit}
		}
		k.admit(req("a"), driver.OutcomeOK)
		k.admit(req("b"), driver.OutcomeHeld)
		k.lapse()
		if got := k.admit(req("c"), driver.OutcomeHeld); got.Ahead != 1 || got.Used != 0 {
			k.Errorf("c gets %+v, want one ahead and nothing used", got)
		}
		k.admit(req("b"), driver.OutcomeOK)
	}},
	{"a try that is refused takes no place", func(k *kit) {
		k.starts("a", "b")
		req := k.startReq("key", "c")
		req.Kind = driver.AdmitTry
		if got := k.admit(req, driver.OutcomeHeld); got.Waiting != 0 || got.Wait <= 0 {
			k.Errorf("the answer is %+v", got)
		}
	}},
	{"a call claims the openings for the first in line", func(k *kit) {
		second := k.starts("a", "b")
		k.waits("c", "d", "e")
		k.wantCalled(5)
		back := k.startReq("key", "b")
		back.Kind, back.Back = driver.AdmitLeave, second.Start
		if got := k.admit(back, driver.OutcomeOK); got.Used != 1 {
			k.Errorf("after the start was taken back, %d are used, want 1", got.Used)
		}
		k.wantCalled(5, "c")
		k.wantCalled(5)
		k.waits("d", "new")
		k.starts("c")
		k.waits("e")
	}},
	{"an opening that comes early enough is taken, and the start is at that opening", func(k *kit) {
		req := driver.AdmitRequest{Key: "key", ID: "a", Starts: 1, Period: k.Unit}
		first := k.admit(req, driver.OutcomeOK)
		req.ID = "b"
		k.admit(req, driver.OutcomeHeld)
		req.Kind, req.ID, req.Most, req.Early = driver.AdmitCall, "", 5, k.Unit
		if got := k.admit(req, driver.OutcomeOK); !slices.Equal(got.Called, []string{"b"}) {
			k.Errorf("called are %q, want b", got.Called)
		}
		req.Kind, req.ID = driver.AdmitStart, "new"
		k.admit(req, driver.OutcomeHeld)
		req.ID = "b"
		got := k.admit(req, driver.OutcomeOK)
		if want := first.Start + k.Unit.Microseconds(); got.Start != want || got.Now.Add(got.Wait).UnixMicro() != want || !got.Claim {
			k.Errorf("b starts at %d, want %d: %+v", got.Start, want, got)
		}
		req.ID = "c"
		if got := k.admit(req, driver.OutcomeHeld); got.Wait <= k.Unit {
			k.Errorf("c waits for %s, want more than a period", got.Wait)
		}
	}},
	{"who leaves is no longer in line", func(k *kit) {
		k.starts("a", "b")
		k.waits("c", "d")
		leave := k.startReq("key", "c")
		leave.Kind = driver.AdmitLeave
		if got := k.admit(leave, driver.OutcomeOK); got.Waiting != 1 {
			k.Errorf("%d wait, want 1", got.Waiting)
		}
		if got := k.waits("d"); got.Ahead != 0 {
			k.Errorf("%d are ahead, want none", got.Ahead)
		}
	}},
	{"a later claim keeps no other out before its time, and is served at once then", func(k *kit) {
		later := k.startReq("key", "a")
		later.Kind, later.Delay = driver.AdmitLater, long
		k.admit(later, driver.OutcomeOK)
		k.starts("b", "a")
	}},
	{"nothing starts during a delay", func(k *kit) {
		k.starts("a")
		req := driver.AdmitRequest{Key: "key", Kind: driver.AdmitDelay, Delay: long}
		end := k.admit(req, driver.OutcomeOK).Until
		req.Delay = time.Minute
		if got := k.admit(req, driver.OutcomeOK); !got.Until.Equal(end) || end.IsZero() {
			k.Errorf("a shorter delay ends at %s, want %s", got.Until, end)
		}
		if got := k.waits("b"); got.Wait <= long-time.Minute || got.Wait > long {
			k.Errorf("the wait is %s, want the rest of %s", got.Wait, long)
		}
		k.wantCalled(5)
		req.Delay = 0
		k.admit(req, driver.OutcomeOK)
		k.wantCalled(5, "b")
		k.starts("b")
	}},
	{"the answer has the rate of the previous request", func(k *kit) {
		if got := k.starts("a"); got.Starts != 0 || got.Period != 0 {
			k.Errorf("at first the rate is %+v", got)
		}
		req := driver.AdmitRequest{Key: "key", ID: "b", Starts: 5, Period: time.Hour}
		if got := k.admit(req, driver.OutcomeOK); got.Starts != 2 || got.Period != time.Minute {
			k.Errorf("the rate is %d in %s, want 2 in a minute", got.Starts, got.Period)
		}
		look := driver.AdmitRequest{Key: "key", Kind: driver.AdmitLook}
		if got := k.admit(look, driver.OutcomeOK); got.Starts != 5 || got.Period != time.Hour || got.Used != 2 {
			k.Errorf("a look shows %+v", got)
		}
	}},
	{"rates and locks are apart", func(k *kit) {
		k.hold("key", "me")
		k.starts("a")
		if got := k.list("", 1000); len(got) != 1 {
			k.Errorf("%d keys listed, want 1: %v", len(got), got)
		}
	}},
	{"of many at once no more start than the rate allows", func(k *kit) {
		var wg sync.WaitGroup
		var mu sync.Mutex
		started := 0
		for i := range 16 {
			wg.Go(func() {
				replies, err := k.Store.Admit(k.ctx, []driver.AdmitRequest{k.startReq("key", fmt.Sprint(i))})
				mu.Lock()
				defer mu.Unlock()
				if err != nil {
					k.Errorf("Admit: %v", err)
				} else if replies[0].Outcome == driver.OutcomeOK {
					started++
				}
			})
		}
		if wg.Wait(); started != 2 {
			k.Errorf("%d have started, want 2", started)
		}
	}},
	{"random requests are answered as by a driver.Rate", func(k *kit) {
		for seed := range uint64(6) {
			dice := rand.New(rand.NewPCG(seed, 1))
			key := fmt.Sprint("key ", seed)
			var model driver.Rate
			var starts []int64
			// A claim that stays: without it, the store may forget the key, and with it the rate that was last used.
			anchor := driver.AdmitRequest{Key: key, Kind: driver.AdmitLater, ID: "q/anchor", Delay: long}
			model.Admit(k.admit(anchor, driver.OutcomeOK).Now, anchor)
			for step := range 60 {
				req := driver.AdmitRequest{
					Key: key, Kind: driver.AdmitKind(dice.IntN(int(driver.AdmitLook) + 1)), ID: fmt.Sprint("q/", dice.IntN(6)),
					Starts: 1 + int(seed)%4, Period: k.Unit, Most: dice.IntN(4), Delay: time.Duration(dice.Int64N(int64(k.Unit))),
				}
				switch n := dice.IntN(10); {
				case n < 4:
					req.Kind = driver.AdmitStart
				case n == 4 && len(starts) > 0:
					req.Back = starts[dice.IntN(len(starts))]
				case n == 5:
					req.Starts, req.Period = 1+dice.IntN(5), k.Unit/2
				}
				if req.Kind == driver.AdmitDelay && dice.IntN(4) > 0 {
					req.Delay = 0
				}
				req.Delay = req.Delay.Truncate(time.Microsecond)
				if dice.IntN(2) == 0 {
					req.Early = time.Duration(dice.Int64N(int64(k.Unit))).Truncate(time.Microsecond)
				}
				replies, err := k.Store.Admit(k.ctx, []driver.AdmitRequest{req})
				if err != nil {
					k.Fatalf("seed %d, step %d: %v", seed, step, err)
				}
				got := replies[0]
				want := model.Admit(got.Now, req)
				if !reflect.DeepEqual(got, want) {
					k.Fatalf("seed %d, step %d: %+v\n is answered %+v\n          want %+v", seed, step, req, got, want)
				}
				if got.Start != 0 {
					starts = append(starts, got.Start)
				}
				if dice.IntN(3) == 0 {
					k.Advance(time.Duration(1 + dice.Int64N(int64(k.Unit/2))))
				}
			}
		}
	}},
}
