// Package driver is the contract between package joblock and the stores in which it
// keeps locks. Applications do not need it: it is for those who write a store.
//
// [Store] says what each call does. Package storetest checks a store against it.
//
// # Compatibility
//
// Fields may be added to requests, replies and records, and methods to Store. A store
// outside this module that embeds no Store will not compile against a version with a
// new method, and is meant not to: the new behaviour would be missing in silence.
package driver
