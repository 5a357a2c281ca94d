package redisstore

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// proofKeyBytes is the length of a proof key, in hexadecimal.
	proofKeyBytes = 32

	// proofPause lies between two readings of the seal keys. They hardly ever change.
	proofPause = time.Minute
)

// proofs prove that the grant in a push is of this package. Whoever may publish, and read
// records, knows all of such a push but the proof. The proof is a MAC that the script of the
// release computes. Its key comes with the call, is not stored, and is derived from a seal key.
// So whoever can forge a push can forge what tasks carry, and nobody else can.
type proofs struct {
	mu   sync.Mutex
	keys []string  // in the order of the seal keys; the first one proves, each verifies
	read time.Time // the last reading, successful or not
}

// load reads the seal keys, unless that was done or tried lately. Without them pushes carry no
// grants, and waiters ask.
func (p *proofs) load(ctx context.Context, s *Store) {
	p.mu.Lock()
	due := p.read.IsZero() || time.Since(p.read) > proofPause
	if due {
		p.read = time.Now()
	}
	p.mu.Unlock()
	if !due {
		return
	}
	var req driver.SealKeysRequest
	_, _ = rand.Read(req.Fresh[:]) // never fails
	found, err := s.SealKeys(ctx, req)
	if err != nil {
		return
	}
	keys := make([]string, len(found))
	for i, k := range found {
		mac := hmac.New(sha256.New, k.Secret[:])
		mac.Write([]byte("joblock push"))
		keys[i] = hex.EncodeToString(mac.Sum(nil))[:proofKeyBytes]
	}
	p.mu.Lock()
	p.keys = keys
	p.mu.Unlock()
}

// key returns the key for proofs, "" if there is none.
func (p *proofs) key() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) == 0 {
		return ""
	}
	return p.keys[0]
}

// verify reports whether proof is that of the text.
func (p *proofs) verify(text, proof string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range p.keys {
		if hmac.Equal([]byte(proof), []byte(proofOf(key, text))) {
			return true
		}
	}
	return false
}

// proofOf computes what record.lua does.
func proofOf(key, text string) string {
	inner := sha1.Sum([]byte(key + text))
	outer := sha1.Sum([]byte(key + hex.EncodeToString(inner[:])))
	return hex.EncodeToString(outer[:])
}

// parseGrant reads what record.lua publishes: the nonce of an Acquire, and with a proof also
// the fence and the letter for how the last ownership ended.
func (s *Store) parseGrant(text string) (driver.Push, bool) {
	nonce, rest, proved := strings.Cut(text, "\n")
	if i := strings.LastIndexByte(rest, '\n'); proved && i >= 0 && s.replicas == 0 {
		if s.proofs.verify(text[:len(nonce)+1+i], rest[i+1:]) {
			return push(nonce, rest[:i]), true
		}
	}
	return driver.Push{Nonce: nonce}, true
}

// push is a push with the grant of these two lines: the fence and a letter.
func push(nonce, lines string) driver.Push {
	number, letter, _ := strings.Cut(lines, "\n")
	fence, err := strconv.ParseInt(strings.TrimLeft(number, " "), 10, 64)
	ended, ok := endings[letter]
	if err != nil || fence < 1 || fence > driver.MaxFence || !ok {
		return driver.Push{Nonce: nonce}
	}
	return driver.Push{Nonce: nonce, Grant: &driver.Grant{Fence: fence, Ended: ended}}
}

// inboxes are the subscriptions of a Store. A release that passes the key on to one of them
// says so in its reply, and nothing is published.
type inboxes struct {
	mu      sync.RWMutex // held for reading during a delivery
	channel string       // the first inbox that is subscribed to; "" if there is none
	deliver func(driver.Push)
}

func (in *inboxes) open(channel string, deliver func(driver.Push)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.channel == "" {
		in.channel, in.deliver = channel, deliver
	}
}

func (in *inboxes) close(channel string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.channel == channel {
		in.channel, in.deliver = "", nil
	}
}

func (in *inboxes) own() string {
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.channel
}

// handOvers is what the answers to releases say about those who wait, besides the answer
// itself: {answer, 1} if a push was made without a proof, and {answer, nonce, lines} for a
// grant to an inbox of this Store.
func (s *Store) handOver(val any) any {
	list, ok := val.([]any)
	if !ok || len(list) < 2 {
		return val
	}
	alone := list[0]
	if _, number := alone.(int64); !number || alone == more || alone != int64(driver.OutcomeOK) && alone != int64(driver.OutcomeLapsed) {
		return val
	}
	nonce, named := list[1].(string)
	lines, told := list[len(list)-1].(string)
	switch {
	case len(list) == 2 && list[1] == int64(1):
		s.passesOn.Store(true)
	case len(list) == 3 && named && told:
		s.inboxes.mu.RLock()
		defer s.inboxes.mu.RUnlock()
		if p := push(nonce, lines); s.inboxes.deliver != nil {
			if s.replicas > 0 { // nobody has acknowledged it yet
				p.Grant = nil
			}
			s.inboxes.deliver(p)
		}
	default:
		return val
	}
	return alone
}

// listener is what a release says of its Store: the inbox to which it need not push, and the
// key for proofs. It is "" for a Store that has not met a waiter.
func (s *Store) listener(ctx context.Context) string {
	own := s.inboxes.own()
	if own == "" && !s.passesOn.Load() {
		return ""
	}
	s.proofs.load(ctx, s)
	return own + "\n" + s.proofs.key()
}
