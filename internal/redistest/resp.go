package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

var errProtocol = errors.New("redistest: not RESP")

// readCommand reads one command as a client sends it: an array of bulk strings, or a line of words. raw has the bytes
// as they came. args has the command's name and then its arguments.
func readCommand(r *bufio.Reader) (raw []byte, args []string, err error) {
	line, err := readLine(r)
	if err != nil {
		return nil, nil, err
	}
	raw = append(raw, line...)
	if line[0] != '*' {
		return raw, strings.Fields(string(line)), nil
	}
	n, err := length(line)
	if err != nil {
		return nil, nil, err
	}
	for range n {
		line, err := readLine(r)
		if err != nil {
			return nil, nil, err
		}
		size, err := length(line)
		if err != nil || line[0] != '$' || size < 0 {
			return nil, nil, errProtocol
		}
		raw = append(raw, line...)
		start := len(raw)
		if raw, err = readBody(r, raw, size); err != nil {
			return nil, nil, err
		}
		args = append(args, string(raw[start:start+size]))
	}
	return raw, args, nil
}

// reply is one complete answer of a server.
type reply struct {
	raw   []byte
	kind  byte   // its first byte
	first string // of an aggregate: the first element, if that is a string
}

// readReply reads one answer of RESP2 or RESP3, nested to any depth.
func readReply(r *bufio.Reader) (reply, error) {
	raw, err := readValue(r, nil)
	if err != nil {
		return reply{}, err
	}
	out := reply{raw: raw, kind: raw[0]}
	if out.kind == '*' || out.kind == '>' {
		out.first = firstElement(raw)
	}
	return out, nil
}

// firstElement returns the first element of an aggregate, or "" if that element is not a string.
func firstElement(raw []byte) string {
	parts := strings.SplitN(string(raw), "\r\n", 4)
	switch {
	case len(parts) == 4 && strings.HasPrefix(parts[1], "$"):
		return parts[2]
	case len(parts) >= 3 && strings.HasPrefix(parts[1], "+"):
		return parts[1][1:]
	}
	return ""
}

// readValue appends one value to raw.
func readValue(r *bufio.Reader, raw []byte) ([]byte, error) {
	line, err := readLine(r)
	if err != nil {
		return nil, err
	}
	raw = append(raw, line...)
	elements := 0
	switch line[0] {
	case '+', '-', ':', '_', '#', ',', '(':
		return raw, nil
	case '$', '=', '!':
		size, err := length(line)
		if err != nil || size < 0 { // a size of -1 is null and has no body
			return raw, err
		}
		return readBody(r, raw, size)
	case '*', '~', '>':
		elements, err = length(line)
	case '%':
		elements, err = length(line)
		elements *= 2
	case '|': // attributes: pairs, and then the value that they describe
		elements, err = length(line)
		elements = elements*2 + 1
	default:
		err = errProtocol
	}
	if err != nil {
		return nil, err
	}
	for range elements {
		if raw, err = readValue(r, raw); err != nil {
			return nil, err
		}
	}
	return raw, nil
}

// readLine reads up to and including CRLF. Before the CRLF the line has at least one byte.
func readLine(r *bufio.Reader) ([]byte, error) {
	line, err := r.ReadBytes('\n')
	if err != nil {
		return nil, err
	}
	if len(line) < 3 || line[len(line)-2] != '\r' {
		return nil, errProtocol
	}
	return line, nil
}

// readBody appends size bytes and the CRLF that follows the bytes.
func readBody(r *bufio.Reader, raw []byte, size int) ([]byte, error) {
	start := len(raw)
	raw = append(raw, make([]byte, size+2)...)
	_, err := io.ReadFull(r, raw[start:])
	return raw, err
}

func length(line []byte) (int, error) {
	n, err := strconv.Atoi(string(line[1 : len(line)-2]))
	if err != nil {
		return 0, errProtocol
	}
	return n, nil
}

// encode returns a command as bytes.
func encode(args []string) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	return []byte(b.String())
}

// ask sends one command on a new connection, and returns the reply, a string or a number. The readiness checks use ask:
// a go-redis client would send a handshake, retry, and keep a pool.
func ask(addr string, args ...string) (string, error) {
	const timeout = 2 * time.Second
	c, err := net.DialTimeout("tcp", addr, timeout)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(timeout)); err != nil {
		return "", err
	}
	if _, err := c.Write(encode(args)); err != nil {
		return "", err
	}
	got, err := readReply(bufio.NewReader(c))
	if err != nil {
		return "", err
	}
	text := strings.TrimSuffix(string(got.raw[1:]), "\r\n")
	switch got.kind {
	case '+', ':':
		return text, nil
	case '-':
		return "", errors.New(text)
	case '$':
		_, body, _ := strings.Cut(text, "\r\n")
		return body, nil
	}
	return "", fmt.Errorf("%s: unexpected answer %q", args[0], got.raw)
}
