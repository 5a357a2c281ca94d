// Package ministore is the miniature of docs/writing-a-store.md: a driver.Store on a map. No store that passes
// storetest is much shorter. The guide quotes the code of ministore, and TestTheGuideQuotesTheCode keeps the quotes
// true. Package ministore searches whole maps and slices, so it is too slow for use: use package memstore.
//
// The fences of ministore are a plain sequence: 1, 2, 3 and so on. Other packages' tests show with such fences that no
// code takes a fence for a time.
package ministore
