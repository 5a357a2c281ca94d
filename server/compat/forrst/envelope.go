package forrst

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/joblock/toolkit/joblock"
)

// Protocol names the protocol, in requests and in responses.
type Protocol struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// version is the protocol of every Response.
var version = Protocol{Name: "forrst", Version: "0.1.0"}

// Request is a call of a function.
type Request struct {
	Protocol   Protocol        `json:"protocol"`
	ID         string          `json:"id"`
	Call       Call            `json:"call"`
	Context    json.RawMessage `json:"context,omitempty"`
	Extensions []Extension     `json:"extensions,omitempty"`
}

// Call names a function and has its arguments.
type Call struct {
	Function  string          `json:"function"`
	Version   string          `json:"version"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

// Extension has the options of an extension in a Request, and its data in a Response.
type Extension struct {
	URN     string          `json:"urn"`
	Options json.RawMessage `json:"options,omitempty"`
	Data    any             `json:"data,omitempty"`
}

// Response is the answer to a Request: a Result, or Errors.
type Response struct {
	Protocol   Protocol    `json:"protocol"`
	ID         *string     `json:"id"` // nil if the request has none that can be read
	Result     any         `json:"result"`
	Errors     []*Error    `json:"errors,omitempty"`
	Extensions []Extension `json:"extensions,omitempty"`
}

// Error is one error of a Response. Message is for display and contains no secrets.
type Error struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details any    `json:"details,omitempty"`
}

// Error returns the code and the message.
func (e *Error) Error() string { return "forrst: " + e.Code + ": " + e.Message }

// Answer returns the response with a result.
func (r *Request) Answer(result any) *Response {
	return &Response{Protocol: version, ID: &r.ID, Result: result}
}

// Refuse returns the response with an error.
func (r *Request) Refuse(e *Error) *Response {
	return &Response{Protocol: version, ID: &r.ID, Errors: []*Error{e}}
}

// Refusal returns the response to a request whose ID cannot be read.
func Refusal(e *Error) *Response { return &Response{Protocol: version, Errors: []*Error{e}} }

// statuses has the status of each code over HTTP. Other codes are 400.
var statuses = map[string]int{
	codeHeld: http.StatusConflict, codeTimeout: http.StatusConflict, codeNotFound: http.StatusNotFound,
	codeNotOwner: http.StatusConflict, codeReleased: http.StatusGone, codeUnavailable: http.StatusServiceUnavailable,
	codeDeadline: http.StatusRequestTimeout, codeInternal: http.StatusInternalServerError,
	codeNoFunction: http.StatusNotFound, codeNoVersion: http.StatusNotFound,
	"UNAUTHORIZED": http.StatusUnauthorized, "FORBIDDEN": http.StatusForbidden, "NOT_FOUND": http.StatusNotFound,
	"CONFLICT": http.StatusConflict, "GONE": http.StatusGone, "RATE_LIMITED": http.StatusTooManyRequests,
	"SCHEMA_VALIDATION_FAILED": http.StatusUnprocessableEntity, "DEPENDENCY_ERROR": http.StatusBadGateway,
	"FUNCTION_DISABLED": http.StatusServiceUnavailable,
}

// Status returns the HTTP status of the response: 200, the status of its error, or 400 for several errors.
func (r *Response) Status() int {
	switch len(r.Errors) {
	case 0:
		return http.StatusOK
	case 1:
		if status, known := statuses[r.Errors[0].Code]; known {
			return status
		}
	}
	return http.StatusBadRequest
}

// The codes of errors that this package makes.
var (
	codeHeld     = joblock.CodeOf(joblock.ErrHeld)
	codeTimeout  = joblock.CodeOf(joblock.ErrTimeout)
	codeNotFound = joblock.CodeOf(joblock.ErrNotFound)
	codeNotOwner = joblock.CodeOf(joblock.ErrNotOwner)
	codeReleased = joblock.CodeOf(joblock.ErrAlreadyReleased)
)

const (
	codeParse       = "PARSE_ERROR"
	codeRequest     = "INVALID_REQUEST"
	codeProtocol    = "INVALID_PROTOCOL_VERSION"
	codeNoFunction  = "FUNCTION_NOT_FOUND"
	codeNoVersion   = "VERSION_NOT_FOUND"
	codeArguments   = "INVALID_ARGUMENTS"
	codeUnavailable = "UNAVAILABLE"
	codeDeadline    = "DEADLINE_EXCEEDED"
	codeInternal    = "INTERNAL_ERROR"
)

func errorf(code, format string, args ...any) *Error {
	return &Error{Code: code, Message: fmt.Sprintf(format, args...)}
}

// ErrorOf returns the Error for an error of one of the extension's functions. If err is an *Error, it returns err; for an
// error of package joblock, it returns the Error in the table of the package comment. Any other error becomes an
// INTERNAL_ERROR without the text of err.
func ErrorOf(err error) *Error {
	var own *Error
	var lock *joblock.Error
	switch {
	case errors.As(err, &own):
		return own
	case !errors.As(err, &lock):
	case errors.Is(lock, joblock.ErrNotFound), errors.Is(lock, joblock.ErrLost):
		return errorf(codeNotFound, "Lock does not exist or already expired")
	case errors.Is(lock, joblock.ErrNotOwner):
		return errorf(codeNotOwner, "Lock is owned by a different process")
	case errors.Is(lock, joblock.ErrAlreadyReleased):
		return errorf(codeReleased, "Lock was already released")
	case errors.Is(lock, joblock.ErrInvalid):
		return errorf(codeArguments, "%s", lock.Detail)
	case errors.Is(lock, joblock.ErrUnavailable), errors.Is(lock, joblock.ErrClosed):
		return errorf(codeUnavailable, "Locks are unavailable at the moment")
	}
	return errorf(codeInternal, "The request could not be served")
}

// ParseRequest parses a request. If it cannot be served, ParseRequest returns the Response to send instead.
func ParseRequest(text []byte) (*Request, *Response) {
	var req Request
	if err := json.Unmarshal(text, &req); err != nil {
		e := errorf(codeRequest, "The request is not a request of the protocol")
		if !json.Valid(text) {
			e = errorf(codeParse, "The request is not valid JSON")
		}
		return nil, Refusal(e)
	}
	refuse := func(code, format string, args ...any) (*Request, *Response) {
		res := req.Refuse(errorf(code, format, args...))
		if req.ID == "" {
			res.ID = nil
		}
		return nil, res
	}
	switch {
	case req.Protocol.Name != version.Name || !strings.HasPrefix(req.Protocol.Version, "0.1."):
		return refuse(codeProtocol, "The protocol must be %s %s", version.Name, version.Version)
	case req.ID == "":
		return refuse(codeRequest, "id is missing")
	case req.Call.Function == "":
		return refuse(codeRequest, "call.function is missing")
	}
	return &req, nil
}

// decode decodes one JSON object into v, and refuses unknown fields.
func decode(what string, text json.RawMessage, v any) *Error {
	if text = bytes.TrimSpace(text); len(text) == 0 || text[0] != '{' {
		return errorf(codeArguments, "%s is missing, or no object", what)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	err := d.Decode(v)
	var wrong *json.UnmarshalTypeError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &wrong):
		return errorf(codeArguments, "%s.%s has the wrong type", what, wrong.Field)
	}
	if _, field, unknown := strings.Cut(err.Error(), "unknown field "); unknown && len(field) <= 64 {
		return errorf(codeArguments, "%s has an unknown field: %s", what, field)
	}
	return errorf(codeArguments, "%s cannot be read", what)
}
