package server

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/joblock/toolkit/internal/files"
	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server/internal/problem"
)

const (
	tokenPrefix   = "jl_"
	maxTokenBytes = 256
	maxAccounts   = 10_000
	maxFile       = 8 << 20
	// checkFile is how often a file of accounts is checked for changes.
	checkFile = time.Second
	// settled is how old a file's modification time must be before the file counts as unchanged while that time stays the
	// same: the clocks of file systems are coarse.
	settled = 2 * time.Second
)

// Accounts is an Authorizer that reads its callers from a file. The file is one JSON object:
//
//	{"accounts": [{
//	  "id": "billing",                     1 to 32 lower-case letters, digits and '-'
//	  "sha256": "9f86d08…",                of the whole token, in hexadecimal; or
//	  "certificate": "billing.internal",   a DNS name or a URI in the client's certificate; or both
//	  "scopes": ["lock", "read"],
//	  "prefixes": ["billing:"],            optional: the keys that the account may use
//	  "queues": ["default"],               optional: the queues of asynq that the account may enqueue into
//	  "expires": "2027-01-01T00:00:00Z"    optional
//	}]}
//
// A token is "jl_", the id, "_" and a secret, as [NewAccountToken] makes it. A client sends its token as Authorization:
// Bearer. A client without that header is known by its certificate, if the TLS server has verified the certificate.
//
// The file is read again at most a second after it changes or is replaced. If the changed file is bad, for example half
// written, the accounts of the last good file stay in use, and this is logged once for each change. To change the file in
// one step, write another file and rename it. A file that anyone but its owner and its group may write counts as bad,
// too.
//
// A stream, or a request that waits, ends at most eleven seconds after its account is removed or loses the right.
type Accounts struct {
	path   string
	logger *slog.Logger

	known atomic.Pointer[accounts]

	mu      sync.Mutex // guards what follows
	checked time.Time
	seen    fileState
}

// fileState is the state of a file when it was read.
type fileState struct {
	info    os.FileInfo // nil if there was no file
	read    time.Time
	digest  [sha256.Size]byte
	problem string // why the file could not be read
}

// stands reports whether the file at path is certainly still the one that was read. A pipe is read only once.
func (f *fileState) stands(path string) bool {
	if f.problem == "" && f.info != nil && !f.info.Mode().IsRegular() {
		return true
	}
	now, err := os.Stat(path)
	return err == nil && f.info != nil && os.SameFile(f.info, now) && f.info.Size() == now.Size() &&
		f.info.ModTime().Equal(now.ModTime()) && f.read.Sub(now.ModTime()) >= settled
}

type accounts struct {
	byID          map[string]*account
	byCertificate map[string]*account
}

type account struct {
	who    Principal
	digest [sha256.Size]byte
	token  bool
}

// noAccount stands in for the account of an unknown id, so that a check takes as long as for a known id.
var noAccount = &account{}

// OpenAccounts reads the accounts in the file at path. If logger is nil, it uses slog.Default().
func OpenAccounts(path string, logger *slog.Logger) (*Accounts, error) {
	if logger == nil {
		logger = slog.Default()
	}
	a := &Accounts{path: path, logger: logger, checked: time.Now()}
	text, seen, err := readAccounts(path, files.Patience)
	if err != nil {
		return nil, err
	}
	known, err := parseAccounts(text)
	if err != nil {
		return nil, fmt.Errorf("server: accounts: %s: %w", path, err)
	}
	a.seen = seen
	a.known.Store(known)
	a.warn(known)
	return a, nil
}

// NewAccountToken returns a new token for the account id, and the token's digest for the file of accounts.
func NewAccountToken(id string) (token, digest string, err error) {
	if err := checkID(id); err != nil {
		return "", "", err
	}
	token = tokenPrefix + id + "_" + rand.Text() + rand.Text()
	sum := sha256.Sum256([]byte(token))
	return token, hex.EncodeToString(sum[:]), nil
}

// Authorize returns the account of the token or of the certificate of r.
func (a *Accounts) Authorize(r *http.Request) (Principal, error) {
	a.refresh()
	known := a.known.Load()
	values := r.Header.Values("Authorization")
	switch {
	case len(values) > 1:
		return Principal{}, ErrUnauthorized
	case len(values) == 1:
		return known.byToken(values[0])
	case r.TLS != nil && len(r.TLS.VerifiedChains) > 0:
		return known.byChain(r.TLS.VerifiedChains)
	}
	return Principal{}, ErrUnauthorized
}

// byToken compares digests in constant time. If the id is unknown, it compares with noAccount's digest.
func (k *accounts) byToken(header string) (Principal, error) {
	scheme, token, _ := strings.Cut(header, " ")
	if !strings.EqualFold(scheme, "Bearer") || len(token) > maxTokenBytes {
		return Principal{}, ErrUnauthorized
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(token, tokenPrefix), "_")
	found := k.byID[id]
	if found == nil {
		found = noAccount
	}
	sum := sha256.Sum256([]byte(token))
	same := subtle.ConstantTimeCompare(sum[:], found.digest[:]) == 1
	if !same || !found.token {
		return Principal{}, ErrUnauthorized
	}
	return found.who, nil
}

func (k *accounts) byChain(chains [][]*x509.Certificate) (Principal, error) {
	leaf := chains[0][0]
	for _, uri := range leaf.URIs {
		if found := k.byCertificate[uri.String()]; found != nil {
			return found.who, nil
		}
	}
	for _, name := range leaf.DNSNames {
		if found := k.byCertificate[name]; found != nil {
			return found.who, nil
		}
	}
	return Principal{}, ErrUnauthorized
}

// refresh reads the file again if it has changed. Meanwhile other requests wait: with the previous accounts, a request
// could be admitted after its account was removed.
func (a *Accounts) refresh() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if time.Since(a.checked) < checkFile {
		return
	}
	a.checked = time.Now()
	if a.seen.stands(a.path) {
		return
	}
	before := a.seen
	text, seen, err := readAccounts(a.path, 0)
	a.seen = seen
	if seen.digest == before.digest && seen.problem == before.problem {
		return // already logged
	}
	var known *accounts
	if err == nil {
		known, err = parseAccounts(text)
	}
	if err != nil {
		a.logger.Error("server: the changed accounts file is invalid; the previous accounts stay in force", "path", a.path, "err", err)
		return
	}
	a.known.Store(known)
	a.logger.Info("server: reloaded the accounts file", "accounts", len(known.byID))
	a.warn(known)
}

// warn logs the accounts that have a prefix that covers more than it seems to.
func (a *Accounts) warn(known *accounts) {
	for _, id := range slices.Sorted(maps.Keys(known.byID)) {
		for _, prefix := range known.byID[id].who.Prefixes {
			if ops.OpenEnded(prefix) {
				a.logger.Warn("server: a prefix of an account does not end in a separator, so it also covers longer names", "account", id, "prefix", prefix)
			}
		}
	}
}

// fileAccount is an account as the file represents it.
type fileAccount struct {
	ID          string     `json:"id"`
	SHA256      string     `json:"sha256"`
	Certificate string     `json:"certificate"`
	Scopes      []string   `json:"scopes"`
	Prefixes    names      `json:"prefixes"`
	Queues      names      `json:"queues"`
	Expires     *time.Time `json:"expires"`
}

// names is a list that must not be null: null would be decoded like an absent list, which restricts nothing.
type names []string

func (n *names) UnmarshalJSON(text []byte) error {
	if string(text) == "null" {
		return errors.New("prefixes or queues is null; leave the field out to allow all")
	}
	return json.Unmarshal(text, (*[]string)(n))
}

// readAccounts reads the file at path. It takes state before it reads the file, so that a later change is noticed. See
// files.Read for patience.
func readAccounts(path string, patience time.Duration) (text []byte, state fileState, err error) {
	bad := func(err error) ([]byte, fileState, error) {
		state.problem = err.Error()
		return nil, state, fmt.Errorf("server: accounts: %w", err)
	}
	state.read = time.Now()
	if text, state.info, err = files.Read(path, maxFile, patience); err != nil {
		return bad(err)
	}
	if mode := state.info.Mode(); runtime.GOOS != "windows" && mode.Perm()&0o002 != 0 { // Windows has no such permissions
		return bad(fmt.Errorf("%s has the mode %04o, must not be writable by others, who could give themselves every right", path, mode.Perm()))
	}
	state.digest = sha256.Sum256(text)
	return text, state, nil
}

func parseAccounts(text []byte) (*accounts, error) {
	var file struct {
		Accounts []fileAccount `json:"accounts"`
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&file); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("unexpected data after the object")
	}
	if len(file.Accounts) > maxAccounts {
		return nil, fmt.Errorf("%d accounts, at most %d are allowed", len(file.Accounts), maxAccounts)
	}
	known := &accounts{byID: make(map[string]*account), byCertificate: make(map[string]*account)}
	for i, from := range file.Accounts {
		made, err := from.account()
		if err != nil {
			return nil, fmt.Errorf("account %d (%s): %w", i+1, problem.Shown(from.ID), err)
		}
		if known.byID[from.ID] != nil {
			return nil, fmt.Errorf("account %d: the id %s appears twice", i+1, from.ID)
		}
		known.byID[from.ID] = made
		if from.Certificate == "" {
			continue
		}
		if known.byCertificate[from.Certificate] != nil {
			return nil, fmt.Errorf("account %d: the certificate %s appears twice", i+1, problem.Shown(from.Certificate))
		}
		known.byCertificate[from.Certificate] = made
	}
	return known, nil
}

func (f *fileAccount) account() (*account, error) {
	if err := checkID(f.ID); err != nil {
		return nil, err
	}
	a := &account{who: Principal{ID: f.ID, Prefixes: f.Prefixes, AllKeys: f.Prefixes == nil, Queues: f.Queues, AllQueues: f.Queues == nil}}
	if f.SHA256 == "" && f.Certificate == "" {
		return nil, errors.New("neither sha256 nor certificate is set")
	}
	if f.SHA256 != "" {
		sum, err := hex.DecodeString(f.SHA256)
		if err != nil || len(sum) != sha256.Size {
			return nil, fmt.Errorf("sha256 must have %d hexadecimal digits", 2*sha256.Size)
		}
		a.digest, a.token = [sha256.Size]byte(sum), true
	}
	if len(f.Scopes) == 0 {
		return nil, errors.New("scopes is empty")
	}
	var err error
	if a.who.Scopes, err = ParseScopes(f.Scopes...); err != nil {
		return nil, err
	}
	// An empty prefix would allow every key; leaving prefixes out says that more clearly.
	if f.Prefixes != nil && len(f.Prefixes) == 0 || slices.Contains(f.Prefixes, "") {
		return nil, errors.New("prefixes has no prefix or an empty one; leave prefixes out to allow every key")
	}
	if f.Queues != nil && len(f.Queues) == 0 || slices.Contains(f.Queues, "") {
		return nil, errors.New("queues has no queue or an empty one; leave queues out to allow every queue")
	}
	if f.Expires != nil {
		a.who.Expires = *f.Expires
	}
	return a, nil
}

func checkID(id string) error {
	const most = 32
	if id == "" || len(id) > most {
		return fmt.Errorf("the id has %d bytes, must have 1 to %d", len(id), most)
	}
	for _, r := range id {
		if (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' {
			return fmt.Errorf("the id has the character %q, must have lower-case letters, digits and '-' only", r)
		}
	}
	return nil
}
