package testkit

// One is the only element of a list that came with err: One(locks.Status(ctx, key)).
func One[T any](all []T, err error) (one T, _ error) {
	if err == nil {
		one = all[0]
	}
	return one, err
}
