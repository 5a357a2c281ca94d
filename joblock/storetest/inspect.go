package storetest

import (
	"reflect"

	"github.com/joblock/toolkit/joblock/driver"
)

var inspectCases = []testCase{
	{"a key without a record is free with fence 0", func(k *kit) {
		got := k.inspect("absent")
		if want := (driver.Record{Key: "absent"}); !reflect.DeepEqual(got, want) {
			k.Errorf("got %+v, want %+v", got, want)
		}
	}},
	{"records come in the order of the keys, absent and repeated ones included", func(k *kit) {
		k.hold("one", "me")
		k.hold("two", "you")
		keys := []string{"two", "absent", "one", "two"}
		owners := []string{"you", "", "me", "you"}
		for i, r := range k.inspectAll(keys) {
			if r.Key != keys[i] || r.Owner != owners[i] {
				k.Errorf("item %d is key %q of %q, want %q of %q", i, r.Key, r.Owner, keys[i], owners[i])
			}
		}
	}},
	{"Inspect changes nothing", func(k *kit) {
		k.holdFor("key", "me", k.Unit)
		for range 5 {
			k.inspect("key")
		}
		k.lapse()
		r := k.wantState("key", driver.StateFree)
		if r.Ended != driver.EndedLapsed || r.Lease != 0 || r.Reserved != 0 {
			k.Errorf("record %+v, want lapsed with nothing left", r)
		}
	}},
}
