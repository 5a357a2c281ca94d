package server

import (
	"context"
	"iter"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/internal/sleep"
	"github.com/joblock/toolkit/joblock/driver"
	"github.com/joblock/toolkit/server/internal/problem"
	"github.com/joblock/toolkit/server/internal/routes"
)

// operator returns an Operator that acts in the caller's name.
func (c *call) operator() ops.Operator { return c.s.desk.As(c.who.ID, c.r.RemoteAddr) }

// performs performs the operator's action that req points to, if the caller may. The fields of the action decide which
// right it needs.
func performs(c *call, req any) (any, error) {
	v := reflect.ValueOf(req).Elem()
	verb, about := ops.VerbOf(v.Interface().(ops.Action).Verb()), func(name string) *string { return v.FieldByName(name).Addr().Interface().(*string) }
	if verb == nil { // there is no such action, for example because Then is unknown
		verb = &ops.Verb{Action: v.Interface().(ops.Action)}
	}
	var err error
	fail := func(err error) error { return err }
	switch {
	case verb.Has("Key"):
		err, fail = c.mayFree(verb, about("Key"), req), keyProblem
	case verb.Has("Limit"):
		if !c.who.mayUse("") {
			err = problem.New(http.StatusForbidden, problem.Forbidden, "a named limit may be that of any key, and this caller may use only some keys")
		}
		fail = keyProblem
	case verb.Has("Queue"):
		err, fail = c.maySteer(*about("Queue"), *about("ID"), req), taskProblem
	case verb.Has("From"):
		err, fail = c.useRange(about("Scope"), v.FieldByName("From").Interface().(time.Time), v.FieldByName("To").Interface().(time.Time)), cronProblem
	case verb.Has("Scope"):
		err, fail = c.useScope(about("Scope")), cronProblem
	}
	if err != nil {
		return nil, err
	}
	done, err := c.operator().Act(c.lasting(), v.Interface().(ops.Action))
	if err != nil {
		return nil, fail(err)
	}
	return done, nil
}

// acts returns the handler of a route that performs an operator's action, which takes a place in the record of actions.
func acts(do func(*call) (*answer, error)) func(*call) (*answer, error) {
	return func(c *call) (*answer, error) {
		if p := c.act(); p != nil {
			return nil, p
		}
		return do(c)
	}
}

// act counts an action, and returns a problem if the caller has reached its limit.
func (c *call) act() *problem.Problem {
	after := c.s.quotas.act(c.who.ID, 1)
	if after == 0 {
		return nil
	}
	return tooOften(after, "at most %d actions a second are allowed over time, and %d at once", actionRate, actionBurst)
}

// walkPatience is how long a read may be delayed by its rate limit.
const walkPatience = 10 * time.Second

// walks returns the handler of a route that reads much of the store. Beyond its rate, a read is delayed.
func walks(do func(*call) (*answer, error)) func(*call) (*answer, error) {
	return func(c *call) (*answer, error) {
		after, ok := c.s.quotas.walk(c.who.ID, walkPatience)
		if !ok {
			return nil, tooOften(after, "at most %d reads of lists a second are allowed over time, and %d at once", walkRate, walkBurst)
		}
		if err := sleep.For(c.r.Context(), after); err != nil {
			return nil, errGone
		}
		return do(c)
	}
}

func tooOften(after time.Duration, format string, args ...any) *problem.Problem {
	return problem.New(http.StatusTooManyRequests, problem.Rate, format, args...).Again(after)
}

// walkTime bounds a walk that has no cursor. The answer has what was found by then, and says that there is more.
const walkTime = 10 * time.Second

// cut returns up to most items from the start of a walk.
func cut[T any](c *call, most int, walk func(context.Context) iter.Seq2[T, error]) (routes.List[T], error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), walkTime)
	defer cancel()
	l := routes.List[T]{Items: []T{}}
	for item, err := range walk(ctx) {
		if err != nil && ctx.Err() != nil && !c.ended() {
			l.More = true
			break
		}
		if err != nil {
			return l, err
		}
		if len(l.Items) == most {
			l.More = true
			break
		}
		l.Items = append(l.Items, item)
	}
	return l, nil
}

// listMost is how many items a list has if the request does not say.
const listMost = 100

// ifMatch returns the fence in If-Match, which is a number or the ETag of a lock.
func (c *call) ifMatch() (int64, error) {
	values := c.r.Header.Values("If-Match")
	if len(values) == 0 {
		return 0, problem.New(http.StatusPreconditionRequired, problem.Precondition, "set If-Match to the ETag, or the fence in quotes, of the lock as you have seen it")
	}
	text, ok := strings.CutPrefix(values[0], `"`)
	text, closed := strings.CutSuffix(text, `"`)
	number, _, _ := strings.Cut(text, "-")
	fence, err := strconv.ParseInt(number, 10, 64)
	if len(values) > 1 || !ok || !closed || err != nil || fence < 1 || fence > driver.MaxFence {
		return 0, problem.New(http.StatusBadRequest, problem.Invalid, "If-Match is %s, must be one ETag of a lock, or its fence in quotes", problem.Shown(strings.Join(values, ",")))
	}
	return fence, nil
}

// ifMatchStep returns the step of a task in If-Match, "" for *.
func (c *call) ifMatchStep() (string, error) {
	values := c.r.Header.Values("If-Match")
	if len(values) == 0 {
		return "", problem.New(http.StatusPreconditionRequired, problem.Precondition, "set If-Match to the ETag of the job, which is the step of its task in quotes, or to * for whatever step it is at")
	}
	if len(values) == 1 && values[0] == "*" {
		return "", nil
	}
	text, opened := strings.CutPrefix(values[0], `"`)
	text, closed := strings.CutSuffix(text, `"`)
	if len(values) > 1 || !opened || !closed || text == "" || strings.ContainsAny(text, `"\`) {
		return "", problem.New(http.StatusBadRequest, problem.Invalid, "If-Match is %s, must be one ETag of a job, or *", problem.Shown(strings.Join(values, ",")))
	}
	return text, nil
}
