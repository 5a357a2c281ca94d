package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// read reads the body of the call, which is one JSON object, into v, a pointer to a struct. A route with a body reads
// it before it does anything else.
func (c *call) read(v any) error {
	text, err := c.body()
	if err != nil {
		return err
	}
	if !utf8.Valid(text) {
		return problemf(http.StatusBadRequest, codeRequest, "the body is not UTF-8")
	}
	names := fieldNames(reflect.TypeOf(v).Elem())
	if err := checkFields(text, names); err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		var wrong *json.UnmarshalTypeError
		if errors.As(err, &wrong) && wrong.Field != "" {
			return problemf(http.StatusBadRequest, codeRequest, "%s is a %s, must be %s", wrong.Field, shown(wrong.Value), kindName(wrong.Type))
		}
		// The text of other errors may repeat a part of the body.
		return problemf(http.StatusBadRequest, codeRequest, "the body is not a JSON object of this route")
	}
	return nil
}

// body returns the body as it came.
func (c *call) body() ([]byte, error) {
	if c.r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	if kind, _, err := mime.ParseMediaType(c.r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return nil, problemf(http.StatusUnsupportedMediaType, codeMediaType, "Content-Type is %s, must be application/json", shown(c.r.Header.Get("Content-Type")))
	}
	if coding := c.r.Header.Get("Content-Encoding"); coding != "" {
		return nil, problemf(http.StatusUnsupportedMediaType, codeMediaType, "Content-Encoding is %s, must be absent", shown(coding))
	}
	rc := http.NewResponseController(c.w)
	deadline := rc.SetReadDeadline(time.Now().Add(c.s.cfg.BodyTimeout))
	text, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	if err == nil {
		if deadline == nil {
			_ = rc.SetReadDeadline(time.Time{}) // the server notices that the client is gone by reading on
		}
		return text, nil
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.w.Header().Set("Connection", "close")
		return nil, problemf(http.StatusRequestTimeout, codeSlow, "the body has not come within %s", c.s.cfg.BodyTimeout)
	}
	c.w.Header().Set("Connection", "close")
	return nil, problemf(http.StatusBadRequest, codeRequest, "the body has ended early")
}

func tooLarge() *problem {
	return problemf(http.StatusRequestEntityTooLarge, codeTooLarge, "the body has more than %d bytes", maxBody)
}

// checkFields refuses a text that is not one JSON object, a field that is not in names, and a field that comes twice.
// Package encoding/json would take a name in another case for the same name.
func checkFields(text []byte, names []string) error {
	dec := json.NewDecoder(bytes.NewReader(text))
	bad := problemf(http.StatusBadRequest, codeRequest, "the body is not one JSON object")
	if open, err := dec.Token(); err != nil || open != json.Delim('{') {
		return bad
	}
	var seen []string
	for dec.More() {
		token, err := dec.Token()
		name, ok := token.(string)
		if err != nil || !ok {
			return bad
		}
		if !slices.Contains(names, name) {
			return problemf(http.StatusBadRequest, codeRequest, "the field %s is unknown; the fields are %s", shown(name), strings.Join(names, ", "))
		}
		if slices.Contains(seen, name) {
			return problemf(http.StatusBadRequest, codeRequest, "the field %s comes twice", name)
		}
		seen = append(seen, name)
		var value json.RawMessage
		if err := dec.Decode(&value); err != nil {
			return bad
		}
	}
	if _, err := dec.Token(); err != nil { // the closing brace
		return bad
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return bad
	}
	return nil
}

var fieldsOf sync.Map // of []string, by reflect.Type

// fieldNames returns the names of the JSON fields of a struct.
func fieldNames(t reflect.Type) []string {
	if names, ok := fieldsOf.Load(t); ok {
		return names.([]string)
	}
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" {
			names = append(names, name)
		}
	}
	fieldsOf.Store(t, names)
	return names
}

func kindName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Int, reflect.Int64:
		return "a whole number"
	case reflect.Bool:
		return "true or false"
	case reflect.Slice:
		return "a list"
	}
	return "a text"
}

// millis returns the duration of a field in milliseconds, or the problem that names the bounds. A field that is absent
// is nil, and gives the parameter absent.
func millis(name string, field *int64, absent, least, most time.Duration) (time.Duration, error) {
	if field == nil {
		return absent, nil
	}
	n, err := number(name, field, 0, least.Milliseconds(), most.Milliseconds())
	return time.Duration(n) * time.Millisecond, err
}

// number returns the value of a field, or the problem that names the bounds.
func number(name string, field *int64, absent, least, most int64) (int64, error) {
	if field == nil {
		return absent, nil
	}
	if *field < least || *field > most {
		return 0, problemf(http.StatusBadRequest, codeInvalid, "%s is %d, must be from %d to %d", name, *field, least, most)
	}
	return *field, nil
}

// stamp is a time in answers: RFC 3339 with milliseconds, in UTC.
type stamp time.Time

func (t stamp) MarshalText() ([]byte, error) {
	return []byte(time.Time(t).UTC().Format("2006-01-02T15:04:05.000Z")), nil
}
