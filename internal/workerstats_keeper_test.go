package internal_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/joblock/toolkit/internal/workerstats"
)

func TestFiguresComeBackUnchanged(t *testing.T) {
	k := workerstats.Keeper{
		At: time.UnixMilli(1).UTC(), Began: time.UnixMilli(2).UTC(), Asked: time.UnixMilli(3).UTC(), Behind: true, Late: 4,
		Every: 5, Reserve: 6, Share: 0.7, Keepers: 8, Databases: 9, DryRun: true, Checked: 10, Held: 11, Kept: 12, Listed: 13,
		Extended: 14, Over: 15, Foreign: 16, Unanswered: 17, Freed: map[string]int64{"why": 18}, Strangers: []string{"q"},
	}
	for i, v := 0, reflect.ValueOf(k); i < v.NumField(); i++ {
		if v.Field(i).IsZero() {
			t.Errorf("the test leaves out %s", v.Type().Field(i).Name)
		}
	}
	got, err := workerstats.DecodeKeeper(k.Encode())
	if err != nil || !reflect.DeepEqual(got, k) {
		t.Errorf("%+v, %v; want %+v", got, err, k)
	}
	if _, err := workerstats.DecodeKeeper([]byte("{")); err == nil {
		t.Error("half a text is no error")
	}
}
