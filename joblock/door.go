package joblock

import (
	"github.com/joblock/toolkit/internal/door"
	"github.com/joblock/toolkit/internal/seal"
)

func init() {
	door.Open(door.Joblock{
		Locker: func(locker any) door.Locker { return inside{locker.(*Locker)} },
		Option: func(d door.Option) any { return option(func(o *options) { o.own = d.OwnKey }) },
	})
}

// inside is a Locker as package door shows it; the Locker may be nil.
type inside struct{ l *Locker }

func (in inside) Ring() *seal.Ring {
	if in.l == nil {
		return nil
	}
	return in.l.seals
}
