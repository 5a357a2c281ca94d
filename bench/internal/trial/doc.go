// Package trial runs a capacity.Load on real servers and says what the load took. With loads of one kind at a time it
// measures capacity.Costs. With other loads it checks what package capacity predicts.
//
// The locks and asynq have a server each. The processes of a fleet are parts of this one process: each has Redis
// clients, a Locker and asynq's objects of its own. Their processor time is told together.
//
// Calls come at random times, as requests do. Locks that are held are taken at even distances over one period of
// renewal.
package trial
