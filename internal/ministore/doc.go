// Package ministore is the miniature of docs/writing-a-store.md: a driver.Store on a map,
// as short and plain as one can be that passes storetest. The guide quotes it, and
// TestTheGuideQuotesTheCode keeps the quotes true. Package ministore searches
// whole maps and slices. A store for use needs indexes; use package memstore.
//
// The fences of ministore are a plain sequence: 1, 2, 3 and so on. Other packages' tests show with such fences that no
// code takes a fence for a time.
package ministore
