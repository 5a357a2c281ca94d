package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
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

	"github.com/joblock/toolkit/server/internal/problem"
)

// maxBody bounds the body of a request.
const maxBody = 64 << 10

// read decodes the body of the call, one JSON object, into the struct that v points to. A route with a body must call it
// first.
func (c *call) read(v any) error {
	text, err := c.body()
	if err != nil {
		return err
	}
	if !utf8.Valid(text) {
		return problem.New(http.StatusBadRequest, problem.Request, "the body is not UTF-8")
	}
	if err = json.Unmarshal(text, v); err == nil {
		return checkFields(text, fieldNames(reflect.TypeOf(v).Elem()))
	}
	var broken *json.SyntaxError
	if errors.As(err, &broken) {
		return notAnObject()
	}
	if err := checkFields(text, fieldNames(reflect.TypeOf(v).Elem())); err != nil {
		return err
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		return problem.New(http.StatusBadRequest, problem.Request, "%s is a %s, must be %s", wrong.Field, problem.Shown(wrong.Value), kindName(wrong.Type))
	}
	if late := (*time.ParseError)(nil); errors.As(err, &late) {
		return problem.New(http.StatusBadRequest, problem.Invalid, "a time is %s, must be like 2026-01-02T15:04:05Z", problem.Shown(strings.Trim(late.Value, `"`)))
	}
	// The texts of other errors may repeat a part of the body, so they are not shown.
	return problem.New(http.StatusBadRequest, problem.Request, "the body is not a JSON object of this route")
}

// body returns the raw body.
func (c *call) body() ([]byte, error) {
	if c.r.ContentLength > maxBody {
		return nil, tooLarge()
	}
	if as := c.r.Header.Get("Content-Type"); as != jsonType {
		if kind, _, err := mime.ParseMediaType(as); err != nil || kind != jsonType {
			return nil, problem.New(http.StatusUnsupportedMediaType, problem.MediaType, "Content-Type is %s, must be application/json", problem.Shown(as))
		}
	}
	if coding := c.r.Header.Get("Content-Encoding"); coding != "" {
		return nil, problem.New(http.StatusUnsupportedMediaType, problem.MediaType, "Content-Encoding is %s, must be absent", problem.Shown(coding))
	}
	text, err := c.readAll()
	if err == nil {
		c.whole = true
		if c.timed {
			_ = http.NewResponseController(c.w).SetReadDeadline(time.Time{}) // net/http has to read on to notice a disconnect
		}
		return text, nil
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return nil, tooLarge()
	case errors.Is(err, os.ErrDeadlineExceeded):
		c.w.Header().Set("Connection", "close")
		return nil, problem.New(http.StatusRequestTimeout, problem.Slow, "the body has not come within %s", c.s.cfg.BodyTimeout)
	}
	c.w.Header().Set("Connection", "close")
	return nil, problem.New(http.StatusBadRequest, problem.Request, "the body has ended early")
}

// readAll reads the whole body, at most maxBody bytes. A body with a small Content-Length takes one allocation. For a
// large Content-Length, no memory is allocated before that much has arrived.
func (c *call) readAll() ([]byte, error) {
	const small = 4 << 10
	declared := c.r.ContentLength
	if declared < 0 || declared > small {
		return io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody))
	}
	text := make([]byte, declared+1) // one byte more, to detect the end
	n, err := io.ReadFull(c.r.Body, text)
	switch {
	case err == nil: // the embedding program has replaced the request's body
		rest, err := io.ReadAll(http.MaxBytesReader(c.w, c.r.Body, maxBody-declared-1))
		return append(text, rest...), err
	case int64(n) == declared && (err == io.EOF || err == io.ErrUnexpectedEOF):
		return text[:n], nil
	}
	return nil, err
}

func tooLarge() *problem.Problem {
	return problem.New(http.StatusRequestEntityTooLarge, problem.TooLarge, "the body has more than %d bytes", maxBody)
}

// checkFields refuses a field of the JSON object text that is not in names, and a field that occurs twice: package
// encoding/json would match names case-insensitively, and use the last of two. The text must be valid JSON.
func checkFields(text []byte, names []string) error {
	text = bytes.TrimLeft(text, " \t\r\n")
	if len(text) == 0 || text[0] != '{' {
		return notAnObject()
	}
	var seen uint64 // by index in names
	depth, isName := 0, false
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
			isName = depth == 1
		case '}', ']':
			depth--
		case ',':
			isName = depth == 1
		case '"':
			end := i + 1
			for text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			if isName {
				isName = false
				if err := checkField(text[i:end+1], names, &seen); err != nil {
					return err
				}
			}
			i = end
		}
	}
	return nil
}

// shownName returns the name of an unknown field or parameter for an error text. It hides a long name, which may be a
// token.
func shownName(name string) string {
	const most = 20
	if len(name) > most {
		return fmt.Sprintf("of %d bytes", len(name))
	}
	return problem.Shown(name)
}

// checkField checks the name of one field; quoted includes the quotes.
func checkField(quoted []byte, names []string, seen *uint64) error {
	at := slices.IndexFunc(names, func(name string) bool { return string(quoted[1:len(quoted)-1]) == name })
	if at < 0 {
		var name string
		_ = json.Unmarshal(quoted, &name) // the text is valid JSON
		return problem.New(http.StatusBadRequest, problem.Request, "the field %s is unknown; the fields are %s", shownName(name), strings.Join(names, ", "))
	}
	if *seen&(1<<at) != 0 {
		return problem.New(http.StatusBadRequest, problem.Request, "the field %s occurs twice", names[at])
	}
	*seen |= 1 << at
	return nil
}

func notAnObject() *problem.Problem {
	return problem.New(http.StatusBadRequest, problem.Request, "the body is not one JSON object")
}

var fieldsOf sync.Map // of []string, by reflect.Type

// fieldNames returns the names of the JSON fields of a struct.
func fieldNames(t reflect.Type) []string {
	if names, ok := fieldsOf.Load(t); ok {
		return names.([]string)
	}
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
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

// millis returns the duration in a field of milliseconds, or the parameter absent if the field is nil. The error is a
// problem that names the bounds.
func millis(name string, field *int64, absent, least, most time.Duration) (time.Duration, error) {
	if field == nil {
		return absent, nil
	}
	n, err := number(name, field, 0, least.Milliseconds(), most.Milliseconds())
	return time.Duration(n) * time.Millisecond, err
}

// number returns the value of a field, or the parameter absent if the field is nil. The error is a problem that names the
// bounds.
func number(name string, field *int64, absent, least, most int64) (int64, error) {
	if field == nil {
		return absent, nil
	}
	if *field < least || *field > most {
		return 0, problem.New(http.StatusBadRequest, problem.Invalid, "%s is %d, must be from %d to %d", name, *field, least, most)
	}
	return *field, nil
}

// oneOf returns the index of text in the list; "" means the first item.
func oneOf(name, text string, list []string) (int, error) {
	if text == "" {
		return 0, nil
	}
	if i := slices.Index(list, text); i >= 0 {
		return i, nil
	}
	return 0, problem.New(http.StatusBadRequest, problem.Invalid, "%s is %s, must be one of %s", name, problem.Shown(text), strings.Join(list, ", "))
}
