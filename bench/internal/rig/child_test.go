package rig

import (
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"
)

const echoEnv = "JOBLOCK_BENCH_ECHO"

// echo answers with its orders, and fails if its input is not empty.
func echo(orders []int, in io.Reader, out *json.Encoder) error {
	if err := out.Encode(orders); err != nil {
		return err
	}
	if text, err := io.ReadAll(in); err != nil || len(text) > 0 {
		return errors.Join(errors.New("there was input"), err)
	}
	return nil
}

func TestChildGetsItsOrders(t *testing.T) {
	for name, c := range map[string]struct {
		orders any
		input  string
		ends   string // the beginning of what the child writes to standard error
	}{
		"it succeeds":  {[]int{1, 2}, "", ""},
		"it fails":     {[]int{1, 2}, "text", echoEnv + ": there was input"},
		"other orders": {"text", "", echoEnv + ": json: cannot unmarshal"},
	} {
		t.Run(name, func(t *testing.T) {
			var stderr strings.Builder
			child, err := StartChild(t.Context(), echoEnv, c.orders, &stderr)
			if err != nil {
				t.Fatal(err)
			}
			var got []int
			if err := child.Answers.Decode(&got); (err == nil) != (name != "other orders") || err == nil && len(got) != 2 {
				t.Errorf("answered %v, %v", got, err)
			}
			_, _ = io.WriteString(child.In, c.input) // the child may have ended
			_ = child.In.Close()
			err = child.Cmd.Wait()
			if (err == nil) != (c.ends == "") || !strings.HasPrefix(stderr.String(), c.ends) {
				t.Errorf("ended with %v, and wrote %q", err, stderr.String())
			}
		})
	}
}
