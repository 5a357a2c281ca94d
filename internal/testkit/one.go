package testkit

// One returns the first element of all, or err. The arguments are the results of a call: One(locks.Status(ctx, key)).
func One[T any](all []T, err error) (one T, _ error) {
	if err == nil {
		one = all[0]
	}
	return one, err
}
