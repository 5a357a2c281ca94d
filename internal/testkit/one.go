package testkit

// One returns the first element of all if err is nil: One(locks.Status(ctx, key)).
func One[T any](all []T, err error) (one T, _ error) {
	if err == nil {
		one = all[0]
	}
	return one, err
}
