// Package ministore is the miniature of docs/writing-a-store.md: a driver.Store on a map,
// as short and plain as one can be that passes storetest. The guide quotes it, and
// TestTheGuideQuotesTheCode keeps the quotes true. It looks through whole maps and slices
// where a store for use would have an index; use package memstore instead.
//
// Its fences are a plain sequence: 1, 2, 3 and so on. Other packages' tests use it to show
// that nobody takes a fence for a time.
package ministore
