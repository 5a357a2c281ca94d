package forrst

import (
	"context"
	"strings"
	"time"

	"github.com/joblock/toolkit/joblock"
)

// The names of the extension and of its functions.
const (
	ExtensionURN    = "urn:forrst:ext:atomicLock"
	functionsPrefix = "urn:cline:forrst:ext:atomic-lock:fn:"
)

// Function serves the requests for a function, or for several functions.
type Function func(ctx context.Context, req *Request) *Response

// Functions are the functions of the extension. A nil field means that the function does not exist. The parameter key is
// the key of a lock, which begins with "lock:". The errors are those of a joblock.Locker, or an *Error.
type Functions struct {
	Release      func(ctx context.Context, key, owner string) error
	ForceRelease func(ctx context.Context, key string) error
	Status       func(ctx context.Context, key string) (joblock.Status, error)
}

// LocksOf returns the functions release and status for the locks of a Locker.
func LocksOf(locks *joblock.Locker) Functions {
	return Functions{
		Release: func(ctx context.Context, key, owner string) error {
			// By the owner alone, because the protocol has no fences.
			token, err := joblock.NewToken(key, owner, time.Second)
			if err != nil {
				return err
			}
			return locks.Release(ctx, token)
		},
		Status: func(ctx context.Context, key string) (joblock.Status, error) {
			all, err := locks.Status(ctx, key)
			if err != nil {
				return joblock.Status{}, err
			}
			return all[0], nil
		},
	}
}

type released struct {
	Released bool   `json:"released"`
	Key      string `json:"key"`
	Forced   bool   `json:"forced,omitempty"`
}

type status struct {
	Key        string `json:"key"`
	Locked     bool   `json:"locked"`
	Owner      string `json:"owner,omitempty"` // a digest
	AcquiredAt *stamp `json:"acquired_at,omitempty"`
	ExpiresAt  *stamp `json:"expires_at,omitempty"`
	Remaining  *int64 `json:"ttl_remaining,omitempty"` // in whole seconds
}

// owned reports whether this is the name of a function of the extension.
func owned(function string) bool { return strings.HasPrefix(function, functionsPrefix) }

// Call serves a request for a function of the extension.
func (f Functions) Call(ctx context.Context, req *Request) *Response {
	result, key, err := f.call(ctx, req)
	if err == nil {
		return req.Answer(result)
	}
	e := *ErrorOf(err)
	if e.Details == nil && key != "" {
		e.Details = map[string]string{"key": key}
	}
	return req.Refuse(&e)
}

// call returns the result of a function, and the key for the details of an error.
func (f Functions) call(ctx context.Context, req *Request) (result any, key string, err error) {
	name := strings.TrimPrefix(req.Call.Function, functionsPrefix)
	known := name == "release" && f.Release != nil || name == "force-release" && f.ForceRelease != nil || name == "status" && f.Status != nil
	switch {
	case !known:
		return nil, "", errorf(codeNoFunction, "There is no such function")
	case req.Call.Version != "" && req.Call.Version != "1.0.0":
		return nil, "", errorf(codeNoVersion, "The function has the version 1.0.0 only")
	}
	if name == "release" {
		var args struct {
			Key   string `json:"key"`
			Owner string `json:"owner"`
		}
		if e := decode("arguments", req.Call.Arguments, &args); e != nil {
			return nil, "", e
		}
		if e := checkFull(args.Key); e != nil {
			return nil, "", e
		}
		return released{Released: true, Key: args.Key}, args.Key, f.Release(ctx, args.Key, args.Owner)
	}
	var args struct {
		Key string `json:"key"`
	}
	if e := decode("arguments", req.Call.Arguments, &args); e != nil {
		return nil, "", e
	}
	if e := checkFull(args.Key); e != nil {
		return nil, "", e
	}
	if name == "force-release" {
		return released{Released: true, Key: args.Key, Forced: true}, args.Key, f.ForceRelease(ctx, args.Key)
	}
	st, err := f.Status(ctx, args.Key)
	return statusOf(st), args.Key, err
}

// keyPrefix begins the key of each lock of the extension. The extension cannot touch locks with other keys.
const keyPrefix = "lock:"

func checkFull(key string) *Error {
	if !strings.HasPrefix(key, keyPrefix) || key == keyPrefix {
		return errorf(codeArguments, "key must begin with %s, as full_key does", keyPrefix)
	}
	return nil
}

func statusOf(st joblock.Status) status {
	out := status{Key: st.Key, Locked: st.Locked()}
	if !out.Locked {
		return out
	}
	left := max(st.Lease, st.Reserved)
	since, expires, seconds := stamp(st.Since), stamp(st.Now.Add(left)), int64(left/time.Second)
	out.Owner, out.AcquiredAt, out.ExpiresAt, out.Remaining = st.Owner, &since, &expires, &seconds
	return out
}
