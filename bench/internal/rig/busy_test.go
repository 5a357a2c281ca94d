package rig

import "testing"

func TestBusyProcessEndsWhenItIsStopped(t *testing.T) {
	stop, err := KeepBusy()
	if err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Errorf("the busy process: %v", err)
	}
}
