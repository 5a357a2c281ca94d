// Package checkout drives the locks of a checkout of this repository, an older one for
// example, in a process of its own. The program is built in that checkout, in which nothing is
// written, and uses only calls that all versions have: New, TryAcquire, Release and Close.
package checkout
