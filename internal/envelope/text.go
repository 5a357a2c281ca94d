package envelope

import (
	"cmp"
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/joblock/toolkit/internal/chain"
	"github.com/joblock/toolkit/internal/core"
	"github.com/joblock/toolkit/internal/seal"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/joblock/driver"
)

// The text of an envelope is a series of words, each followed by a space, and then the job and the type of the task, and its part
// in a chain:
//
//	version       "1"
//	retries       the field Retries; of an aggregate also the field Members
//	sequence      the field Sequence: "-", or five numbers: the index of the token; 1 for Halt; Limit; 1 for Waits;
//	              NotBefore in Unix milliseconds; and LimitName, escaped, unless it is ""
//	until start   the indices of the tokens in the field UntilStart; "-" if there is none
//	from start    likewise of the field FromStart; with Cancel, after a "!", and with OwnQueue too, after a "!="
//	newest        likewise of the field Newest
//	cooldowns     the field Cooldowns: for each the index of the token and the time in milliseconds; "-" if there is none
//	tokens        the tokens
//	length        of the job, in bytes; with a Chain also that of the type
//
// The field Chain follows, in JSON: few tasks have one, and its payloads are most of it.
//
// Numbers and tokens are separated by commas.
//
// Any addition needs a new version: a build that does not know the version leaves the task to builds that do. The words
// before "until start" must keep their places, and the first five numbers their meaning: see MayWait.
//
// Not JSON: a worker reads such a text before each job, and decoding JSON took longer than verifying the seal.
const none = "-"

const version = "1"

// wordSequence is the index of the word about the sequence.
const wordSequence = 2

// text returns the text of e, for the task with this job name and type.
func (e *Envelope) text(job, taskType string) (string, error) {
	var few [1024]byte
	out := strconv.AppendInt(append(few[:0], version+" "...), int64(e.Retries), 10)
	if e.Members > 0 {
		out = strconv.AppendInt(append(out, ','), int64(e.Members), 10)
	}
	out = append(out, ' ')
	if s := e.Sequence; s == nil {
		out = append(out, none...)
	} else {
		at, err := e.place(s.Token)
		if err != nil {
			return "", err
		}
		var notBefore int64
		if !s.NotBefore.IsZero() {
			notBefore = s.NotBefore.UnixMilli()
		}
		out = strconv.AppendInt(out, int64(at), 10)
		for _, n := range [...]int64{one(s.Halt), int64(s.Limit), one(s.Waits), notBefore} {
			out = strconv.AppendInt(append(out, ','), n, 10)
		}
		if s.LimitName != "" {
			out = append(append(out, ','), url.QueryEscape(s.LimitName)...)
		}
	}
	for list, some := range [...][]joblock.Token{e.UntilStart, e.FromStart, e.Newest} {
		out = append(out, ' ')
		if list == 1 && e.Cancel {
			out = append(out, '!')
			if e.OwnQueue {
				out = append(out, '=')
			}
		}
		if len(some) == 0 {
			out = append(out, none...)
		}
		for i, t := range some {
			at, err := e.place(t)
			if err != nil {
				return "", err
			}
			if i > 0 {
				out = append(out, ',')
			}
			out = strconv.AppendInt(out, int64(at), 10)
		}
	}
	out = append(out, ' ')
	if len(e.Cooldowns) == 0 {
		out = append(out, none...)
	}
	for i, c := range e.Cooldowns {
		at, err := e.place(c.Token)
		if err != nil {
			return "", err
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendInt(append(strconv.AppendInt(out, int64(at), 10), ','), c.For.Milliseconds(), 10)
	}
	for i, t := range e.Tokens {
		token, err := t.MarshalText()
		if err != nil {
			return "", err
		}
		between := byte(',')
		if i == 0 {
			between = ' '
		}
		out = append(append(out, between), token...)
	}
	out = strconv.AppendInt(append(out, ' '), int64(len(job)), 10)
	if e.Chain != nil {
		out = strconv.AppendInt(append(out, ','), int64(len(taskType)), 10)
	}
	out = append(append(append(out, ' '), job...), taskType...)
	if e.Chain != nil {
		steps, err := json.Marshal(e.Chain)
		if err != nil {
			return "", err
		}
		out = append(out, steps...)
	}
	return string(out), nil
}

func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// place returns the index of t in e.Tokens.
func (e *Envelope) place(t joblock.Token) (int, error) {
	i := slices.Index(e.Tokens, t)
	if i < 0 {
		return 0, core.Invalid("seal envelope", "", "%s is not among the tokens", t)
	}
	return i, nil
}

// read is the reverse of Envelope.text.
func read(text string) (e Opened, taskType string, err error) {
	const op = "open envelope"
	var words [9]string
	for i := range words {
		var more bool
		if words[i], text, more = strings.Cut(text, " "); !more {
			return e, "", core.Invalid(op, "", "%d words, must be %d", i, len(words))
		}
		if words[0] != version {
			return e, "", core.Invalid(op, "", "version %.20q is unknown", words[0])
		}
	}
	ofJob, ofType, chained := strings.Cut(words[8], ",")
	n, err := strconv.Atoi(ofJob)
	if err != nil || n < 0 || n > len(text) {
		return e, "", core.Invalid(op, "", "the length of the job is not a number from 0 to %d", len(text))
	}
	e.Job, taskType = text[:n], text[n:]
	if chained {
		if n, err = strconv.Atoi(ofType); err != nil || n < 0 || n > len(taskType) {
			return e, "", core.Invalid(op, "", "the length of the type is not a number from 0 to %d", len(taskType))
		}
		e.Chain = new(chain.Chain)
		if err := json.Unmarshal([]byte(taskType[n:]), e.Chain); err != nil || e.Chain.Step < 1 {
			return e, "", core.Invalid(op, "", "the chain cannot be read: %v", err)
		}
		taskType = taskType[:n]
	}
	retries, members, aggregate := strings.Cut(words[1], ",")
	if e.Retries, err = strconv.Atoi(retries); err != nil || e.Retries < -1 {
		return e, "", core.Invalid(op, "", "the retries are not a number of at least -1")
	}
	if aggregate {
		if e.Members, err = strconv.Atoi(members); err != nil || e.Members < 1 {
			return e, "", core.Invalid(op, "", "the members of the group are not a number of at least 1")
		}
	}
	count := 1 + strings.Count(words[7], ",")
	if count > MaxCarried {
		return e, "", core.Invalid(op, "", "%d tokens, must be from 1 to %d", count, MaxCarried)
	}
	e.Tokens = make([]joblock.Token, 0, count)
	for token := range strings.SplitSeq(words[7], ",") {
		t, err := joblock.ParseToken(token)
		if err != nil {
			return e, "", err
		}
		e.Tokens = append(e.Tokens, t)
	}
	var err1, err2, err3, err4, err5 error
	e.Sequence, err1 = e.readSequence(words[wordSequence])
	e.UntilStart, err2 = e.at(words[3])
	if words[4], e.Cancel = strings.CutPrefix(words[4], "!"); e.Cancel {
		words[4], e.OwnQueue = strings.CutPrefix(words[4], "=")
	}
	e.FromStart, err3 = e.at(words[4])
	e.Newest, err4 = e.at(words[5])
	e.Cooldowns, err5 = e.readCooldowns(words[6])
	return e, taskType, cmp.Or(err1, err2, err3, err4, err5)
}

// readSequence reads the word about the sequence. The result is nil if there is none.
func (e *Envelope) readSequence(word string) (*Sequence, error) {
	if word == none {
		return nil, nil
	}
	var n [5]int64
	rest, more := word, true
	for i := range n {
		var part string
		var err error
		part, rest, more = strings.Cut(rest, ",")
		if n[i], err = strconv.ParseInt(part, 10, 64); err != nil || !more && i < len(n)-1 {
			return nil, core.Invalid("open envelope", "", "the sequence is not %d numbers", len(n))
		}
	}
	token, err := e.token(n[0])
	if err != nil {
		return nil, err
	}
	if n[1] != one(n[1] == 1) || n[3] != one(n[3] == 1) {
		return nil, core.Invalid("open envelope", "", "the sequence has a flag that is neither 0 nor 1")
	}
	s := &Sequence{Token: token, Halt: n[1] == 1, Limit: int(n[2]), Waits: n[3] == 1}
	if more {
		if s.LimitName, err = url.QueryUnescape(rest); err != nil || s.LimitName == "" || strings.Contains(rest, ",") {
			return nil, core.Invalid("open envelope", "", "the name of the sequence's limit cannot be read")
		}
	}
	if n[4] != 0 {
		s.NotBefore = time.UnixMilli(n[4])
	}
	return s, nil
}

// readCooldowns reads the word about the cooldowns.
func (e *Envelope) readCooldowns(word string) ([]Cooldown, error) {
	if word == none {
		return nil, nil
	}
	n := 1 + strings.Count(word, ",")
	if n%2 != 0 || n > 2*len(e.Tokens) {
		return nil, core.Invalid("open envelope", "", "%d numbers of cooldowns for %d tokens", n, len(e.Tokens))
	}
	all := make([]Cooldown, 0, n/2)
	for word != "" {
		var index, length string
		index, word, _ = strings.Cut(word, ",")
		length, word, _ = strings.Cut(word, ",")
		i, err1 := strconv.ParseInt(index, 10, 64)
		ms, err2 := strconv.ParseInt(length, 10, 64)
		if err1 != nil || err2 != nil || ms <= 0 || ms > driver.MaxPeriod.Milliseconds() {
			return nil, core.Invalid("open envelope", "", "a cooldown is not the index of a token and a time")
		}
		t, err := e.token(i)
		if err != nil {
			return nil, err
		}
		if slices.ContainsFunc(all, func(c Cooldown) bool { return c.Token == t }) {
			return nil, core.Invalid("open envelope", "", "two cooldowns of token %d", i)
		}
		all = append(all, Cooldown{t, time.Duration(ms) * time.Millisecond})
	}
	return all, nil
}

// at returns the tokens with the indices in word.
func (e *Envelope) at(word string) ([]joblock.Token, error) {
	if word == none {
		return nil, nil
	}
	n := 1 + strings.Count(word, ",")
	if n > len(e.Tokens) {
		return nil, core.Invalid("open envelope", "", "%d indices of %d tokens", n, len(e.Tokens))
	}
	some := make([]joblock.Token, 0, n)
	for text := range strings.SplitSeq(word, ",") {
		i, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return nil, core.Invalid("open envelope", "", "the index of a token is not a number")
		}
		t, err := e.token(i)
		if err != nil {
			return nil, err
		}
		some = append(some, t)
	}
	return some, nil
}

// token returns the token with the index i.
func (e *Envelope) token(i int64) (joblock.Token, error) {
	if i < 0 || i >= int64(len(e.Tokens)) {
		return joblock.Token{}, core.Invalid("open envelope", "", "there is no token %d", i)
	}
	return e.Tokens[i], nil
}

// MayWait returns what the headers of a task say about the job's place in line, or nil. It is for a first look at many
// tasks and does not verify the seal. It also believes texts of newer versions, whose sequence may have more numbers,
// because a waiting task is started when its turn comes even if this build cannot read the rest.
func MayWait(headers map[string]string) *Sequence {
	text, err := seal.Text(headers[Header])
	if err != nil {
		return nil
	}
	var word string
	for range wordSequence + 1 {
		var more bool
		if word, text, more = strings.Cut(text, " "); !more {
			return nil
		}
	}
	parts := strings.SplitN(word, ",", 6) // strings.Split of a hostile word would allocate sixteen times its size
	if len(parts) < 5 {
		return nil
	}
	return &Sequence{Waits: parts[3] == "1"}
}
