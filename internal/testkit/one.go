package testkit

// One returns the first element of the list that a call has returned, or the call's error.
// It is written around the call: One(locks.Status(ctx, key)).
func One[T any](all []T, err error) (one T, _ error) {
	if err == nil {
		one = all[0]
	}
	return one, err
}
