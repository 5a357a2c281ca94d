package redisstore

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/hex"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/joblock/toolkit/joblock/driver"
)

const (
	// proofKeyBytes is the length of a proof key, in hexadecimal.
	proofKeyBytes = 32

	// proofPause is the least time between two readings of the seal keys, which hardly ever change.
	proofPause = time.Minute

	// proofTimeout bounds a reading of the seal keys.
	proofTimeout = 10 * time.Second
)

// proofs has the keys for proofs. A proof shows that the grant in a push is from a script of this package. A client
// that may publish, and read records, knows everything in such a push except the proof. The proof is a MAC. The script
// that grants computes the MAC, with a key that comes with the call and is not stored. That key is derived from a seal
// key. So only a client that can forge the locks that tasks carry can forge a push with a grant.
type proofs struct {
	mu     sync.Mutex
	keys   []string           // in the order of the seal keys; the first key makes proofs, and any key verifies a proof
	read   time.Time          // when the latest reading of the seal keys began
	stop   context.CancelFunc // of that reading
	closed bool

	reading sync.WaitGroup
}

// load reads the seal keys in the background, unless a reading has begun within the last proofPause. Without
// keys, pushes carry no grants, and a waiter asks for its grant. No call waits for the reading: in a cluster the node
// with the seal keys may be away while the node with the lock answers.
func (p *proofs) load(s *store) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || !p.read.IsZero() && time.Since(p.read) <= proofPause {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), proofTimeout)
	p.read, p.stop = time.Now(), cancel
	p.reading.Go(func() {
		defer cancel()
		p.readKeys(ctx, s)
	})
}

// close ends the reading under way. Later calls of load do nothing.
func (p *proofs) close() {
	p.mu.Lock()
	p.closed = true
	if p.stop != nil {
		p.stop()
	}
	p.mu.Unlock()
	p.reading.Wait()
}

func (p *proofs) readKeys(ctx context.Context, s *store) {
	var req driver.SealKeysRequest
	_, _ = rand.Read(req.Fresh[:]) // rand.Read never fails
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

// key returns the key that makes proofs, or "" if there is none.
func (p *proofs) key() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.keys) == 0 {
		return ""
	}
	return p.keys[0]
}

// verify reports whether proof is the proof of text, by any of the keys.
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

// proofOf computes the proof of text, as the stage write of record.lua does.
func proofOf(key, text string) string {
	inner := sha1.Sum([]byte(key + text))
	outer := sha1.Sum([]byte(key + hex.EncodeToString(inner[:])))
	return hex.EncodeToString(outer[:])
}

// parseGrant reads what record.lua publishes to an inbox. The first line is the nonce of an Acquire. With a proof there
// are three more lines: the fence, a letter for how the previous ownership ended, and the proof. If the proof is not
// valid, or the Store has Config.Replicas, the Push has no Grant.
func (s *store) parseGrant(text string) (driver.Push, bool) {
	nonce, rest, proved := strings.Cut(text, "\n")
	if i := strings.LastIndexByte(rest, '\n'); proved && i >= 0 && s.replicas == 0 {
		if s.proofs.verify(text[:len(nonce)+1+i], rest[i+1:]) {
			return push(nonce, rest[:i]), true
		}
	}
	return driver.Push{Nonce: nonce}, true
}

// push returns a Push with a grant. lines has two lines: the fence, and a letter that the
// map endings knows. If lines is not valid, the Push has no Grant.
func push(nonce, lines string) driver.Push {
	number, letter, _ := strings.Cut(lines, "\n")
	fence, err := strconv.ParseInt(strings.TrimLeft(number, " "), 10, 64)
	ended, ok := endings[letter]
	if err != nil || fence < 1 || fence > driver.MaxFence || !ok {
		return driver.Push{Nonce: nonce}
	}
	return driver.Push{Nonce: nonce, Grant: &driver.Grant{Fence: fence, Ended: ended}}
}

// inboxes remembers one inbox that the Store is subscribed to. If a release grants the key to a waiter with
// that inbox, the script announces the grant in the reply to the release, and publishes nothing.
type inboxes struct {
	mu      sync.RWMutex // held for reading during a delivery
	address string       // address of the inbox; "" if there is none
	deliver func(driver.Push)
}

func (in *inboxes) open(address string, deliver func(driver.Push)) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.address == "" {
		in.address, in.deliver = address, deliver
	}
}

func (in *inboxes) close(address string) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.address == address {
		in.address, in.deliver = "", nil
	}
}

func (in *inboxes) own() string {
	in.mu.RLock()
	defer in.mu.RUnlock()
	return in.address
}

// handOver removes from val, the answer to a release, what it says about waiters, and returns the rest for parseReply.
// An answer {outcome, 1} says that a push was made without a proof: handOver sets s.passesOn. An answer {outcome,
// nonce, lines} is a grant to an inbox of this Store: handOver delivers the push. Any other answer is returned
// unchanged.
func (s *store) handOver(val any) any {
	list, ok := val.([]any)
	if !ok || len(list) < 2 {
		return val
	}
	alone := list[0]
	if _, number := alone.(int64); !number || alone == more || alone != int64(driver.OutcomeOK) && alone != int64(driver.OutcomeLapsed) {
		return val
	}
	nonce, named := list[1].(string)
	lines, isText := list[len(list)-1].(string)
	switch {
	case len(list) == 2 && list[1] == int64(1):
		s.passesOn.Store(true)
		s.proofs.load(s)
	case len(list) == 3 && named && isText:
		p := push(nonce, lines)
		if s.replicas > 0 { // the replicas have not acknowledged the grant yet
			p.Grant = nil
		}
		s.inboxes.mu.RLock()
		if s.inboxes.deliver != nil {
			s.inboxes.deliver(p)
		}
		s.inboxes.mu.RUnlock()
		runtime.Gosched() // lets the waiter run before the releasing goroutine does the rest of its work
	default:
		return val
	}
	return alone
}

// listener returns what a release tells the script about its Store, in two lines: the address of the inbox to which the
// script need not push, and the key for proofs. For a Store that has neither subscribed to an inbox nor met a waiter,
// listener returns "".
func (s *store) listener() string {
	own := s.inboxes.own()
	if own == "" && !s.passesOn.Load() {
		return ""
	}
	s.proofs.load(s)
	return own + "\n" + s.proofs.key()
}
