package roster

import (
	"encoding/binary"
	"slices"

	"github.com/joblock/toolkit/scheduler/internal/codec"
)

// MaxJobs is how many jobs of a node a Node can distinguish. The jobs take at most five bytes each, and four thirds of
// that in JSON.
const MaxJobs = 8000

// Nodes has the IDs of the nodes. A node that has died keeps its ID until another node starts.
type Nodes struct {
	Version int      `json:"v"`
	IDs     []string `json:"ids"`
}

// DecodeNodes reads a memo. An empty memo has no nodes.
func DecodeNodes(memo []byte) (Nodes, error) {
	n := Nodes{Version: version}
	err := decode(memo, &n, &n.Version, "list of nodes")
	return n, err
}

// Encode returns the memo that DecodeNodes reads.
func (n Nodes) Encode() []byte { return codec.Encode(n) }

// Node is a node that is up.
type Node struct {
	Version int    `json:"v"`
	Name    string `json:"node"`
	Program string `json:"by"`
	Build   string `json:"build,omitempty"`
	Start   int64  `json:"start"` // of Run, in ms of the store's clock
	Count   int    `json:"n"`     // of jobs

	// Jobs has 32 bits of the hash of each job's name: the differences between the sorted hashes, as varints. Jobs is nil
	// if the node has more than MaxJobs jobs. Names would not fit: this record is one memo, and a node may have thousands
	// of jobs. One in four billion other names passes for the name of a given job.
	Jobs []byte `json:"jobs,omitempty"`

	// Conflicts has the jobs for which the node has a spec other than the one in force, as far as there is room for them.
	Conflicts []Conflict `json:"apart,omitempty"`
}

// Conflict is a job for which a node has a spec other than the one in force.
type Conflict struct {
	Job   string `json:"j"`
	Spec  string `json:"s"`
	Since int64  `json:"t"` // in ms of the store's clock
}

// maxConflicts bounds the bytes of Node.Conflicts.
const maxConflicts = 8 << 10

// SetConflicts sets Conflicts to the first jobs of list, as many as there is room for.
func (n *Node) SetConflicts(list []Conflict) {
	n.Conflicts = nil
	size := 0
	for _, a := range list {
		if size += len(codec.Encode(a)) + len(","); size > maxConflicts {
			return
		}
		n.Conflicts = append(n.Conflicts, a)
	}
}

// SetJobs sets Count and Jobs.
func (n *Node) SetJobs(names []string) {
	if n.Count, n.Jobs = len(names), nil; n.Count > MaxJobs {
		return
	}
	hashes := make([]uint32, len(names))
	for i, name := range names {
		hashes[i] = uint32(codec.Hash(name))
	}
	slices.Sort(hashes)
	last := uint32(0)
	for _, h := range hashes {
		n.Jobs = binary.AppendUvarint(n.Jobs, uint64(h-last))
		last = h
	}
}

// Has returns a function that reports whether the node has a job. For a node with more than MaxJobs jobs it always
// reports true: such a node's jobs must not be taken for removed ones.
func (n *Node) Has() func(name string) bool {
	if n.Count > MaxJobs {
		return func(string) bool { return true }
	}
	all := make(map[uint32]bool, n.Count)
	last := uint64(0)
	for rest := n.Jobs; len(rest) > 0; {
		diff, size := binary.Uvarint(rest)
		if size <= 0 {
			break // not written by this package
		}
		last += diff
		all[uint32(last)] = true
		rest = rest[size:]
	}
	return func(name string) bool { return all[uint32(codec.Hash(name))] }
}

// DecodeNode reads a memo.
func DecodeNode(memo []byte) (Node, error) {
	n := Node{Version: version}
	err := decode(memo, &n, &n.Version, "record of a node")
	return n, err
}

// Encode returns the memo that DecodeNode reads.
func (n *Node) Encode() []byte { return codec.Encode(n) }
