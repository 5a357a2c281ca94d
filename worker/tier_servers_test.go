//go:build servers

package worker_test

// thorough has the tests run the rest of their repetitions.
const thorough = true
