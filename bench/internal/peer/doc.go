// Package peer puts the lock libraries under comparison behind one small
// interface, each as its documentation has it used. An adapter allocates nothing
// of its own, so that what is counted is the library's.
//
// Three things are set alike for all: the length of a lease, the wire that is
// counted, and, where go-redis is underneath, a pool large enough that nobody
// waits for a connection.
package peer
