package forrst

import (
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strconv"
)

// maxBody bounds the body of a request to Handler.
const maxBody = 1 << 20

// Handler serves f over HTTP: a POST with a request of at most a mebibyte as application/json. The status is
// [Response.Status], or 405, 413 or 415 for a request that f does not get.
func Handler(f Function) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		refuse := func(status int, message string) {
			write(w, status, Refusal(errorf(codeRequest, "%s", message)))
		}
		if r.Method != http.MethodPost {
			w.Header().Set("Allow", http.MethodPost)
			refuse(http.StatusMethodNotAllowed, "The method must be POST")
			return
		}
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			refuse(http.StatusUnsupportedMediaType, "Content-Type must be application/json")
			return
		}
		text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
		var large *http.MaxBytesError
		switch {
		case errors.As(err, &large):
			refuse(http.StatusRequestEntityTooLarge, "The request has more than "+strconv.Itoa(maxBody)+" bytes")
			return
		case err != nil:
			refuse(http.StatusBadRequest, "The request has ended early")
			return
		}
		req, res := ParseRequest(text)
		if req != nil {
			res = f(r.Context(), req)
		}
		if res == nil {
			res = req.Refuse(errorf(codeInternal, "The function has given no answer"))
		}
		write(w, res.Status(), res)
	})
}

func write(w http.ResponseWriter, status int, res *Response) {
	text, err := json.Marshal(res)
	if err != nil { // of a result of the application
		status = http.StatusInternalServerError
		text, _ = json.Marshal(&Response{Protocol: version, ID: res.ID, Errors: []*Error{errorf(codeInternal, "The result cannot be encoded")}})
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store") // an answer may have an owner
	h.Set("Content-Length", strconv.Itoa(len(text)+1))
	w.WriteHeader(status)
	_, _ = w.Write(append(text, '\n')) // the client may have disconnected
}
