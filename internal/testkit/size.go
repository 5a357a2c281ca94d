package testkit

// Size returns how much of a long test is to run: share, or whole if [Whole] is set.
func Size[T any](share, whole T) T {
	if Whole {
		return whole
	}
	return share
}
