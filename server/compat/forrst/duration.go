package forrst

import (
	"fmt"
	"math"
	"time"
)

// duration is a duration of the protocol.
type duration struct {
	Value int64  `json:"value"`
	Unit  string `json:"unit"`
}

var units = map[string]time.Duration{
	"millisecond": time.Millisecond, "second": time.Second, "minute": time.Minute, "hour": time.Hour, "day": 24 * time.Hour,
}

// length returns the duration, or the Error that names the option and the bound.
func (d duration) length(option string) (time.Duration, *Error) {
	unit, known := units[d.Unit]
	switch {
	case !known:
		return 0, errorf(codeArguments, "%s.unit must be millisecond, second, minute, hour or day", option)
	case d.Value < 0 || d.Value > math.MaxInt64/int64(unit):
		return 0, errorf(codeArguments, "%s.value is %d, must be from 0 to %d", option, d.Value, math.MaxInt64/int64(unit))
	}
	return time.Duration(d.Value) * unit, nil
}

// String returns the duration in words.
func (d duration) String() string {
	if d.Value == 1 {
		return "1 " + d.Unit
	}
	return fmt.Sprintf("%d %ss", d.Value, d.Unit)
}

// stamp is a time in answers, in UTC.
type stamp time.Time

func (t stamp) MarshalText() ([]byte, error) {
	return []byte(time.Time(t).UTC().Format("2006-01-02T15:04:05.999Z")), nil
}
