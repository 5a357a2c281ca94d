// Package published has tests of what users get: the modules as a module proxy has them, without go.work and without
// the rest of the checkout. The tests have the build tag servers, since they compile much.
package published
