// Package outbox enqueues jobs in database transactions: the job exists if, and only if, the transaction is committed.
//
//	box, err := outbox.New(p.Jobs, db, outbox.Postgres, nil) // p is a *toolkit.Process, db a *sql.DB
//	p.Go(box.Run)                                            // the relay
//
//	tx, err := db.BeginTx(ctx, nil)
//	defer tx.Rollback()
//	// … write the order …
//	_, err = box.Enqueue(ctx, tx, handoff.Sequence{Key: joblock.Key("customer", id)}, task)
//	err = tx.Commit()
//
// Enqueue writes a row into the table joblock_outbox. The relay, which runs in the application, reads committed rows and
// enqueues their tasks with a handoff.Client. docs/outbox.md is a guide, with a comparison.
//
// # What is promised
//
//   - The task of a committed row is enqueued at least once, and that of a rolled back row never.
//   - asynq has one task for a row: a repeated enqueue finds the task by its ID. A relay repeats an enqueue if it has died,
//     or lost the database, before it marked the row. asynq keeps completed tasks for a minute, unless the task has an
//     asynq.Retention or an asynq.TaskID, so the job is only enqueued again if no relay works for that long.
//   - The rows of one key are enqueued in the order of their ids: each row once asynq has the task of the row before it. A
//     row that waits makes the later rows of its key wait, and no others. The key of a row is the key of Unique or Sequence, or
//     of the first lock of Carry.
//   - Two transactions that write rows of one key at the same time have no fixed order: either job may come first. If both
//     lock a row that they share before Enqueue, such as the customer's, the jobs have the order of the commits.
//
// # Who has the key
//
//	the key is taken        Unique, Sequence: by the relay              Carry, Sequence.Lock: before Enqueue
//	before the transaction  free                                        the request's
//	Enqueue                 free                                        parked for the job
//	rollback                free                                        parked; Reclaim gives it back
//	  … the process dies    free                                        the keeper frees it a minute or two after Enqueue
//	commit                  free: another job may take it first         parked for the job
//	  … the relay is down   free                                        parked for about a minute, then free
//	the relay enqueues      the job's, or the job has a place in line   the job's
//	  … and dies            the next relay goes on with the same key    the next relay goes on
//	the job runs            as with handoff.Client.Enqueue              likewise; a lock that is gone is taken again
//
// Let the relay take the key, which is the default, if the order of jobs is what counts: a rollback then leaves nothing
// behind, and Enqueue works while Redis is unreachable. Take a lock before the transaction and hand it over with Carry
// if a second request must be refused at once, or if no other job may come between the request and its job.
//
// No lock has two holders in any of these cases. If a lock of Carry was freed before the relay came, the job takes the
// key again when it runs, and waits while another caller has it: see worker.Config.OnLockLost. Row columns show the key of a lock
// and the job, but not the owner token, which is encrypted with the secret of the locks' store or of joblock.Config.Secrets.
//
// # When a key is busy at the relay
//
//	handoff.Unique with Reject              the row waits until the key is free, and is tried every few seconds
//	  … Skip                                the row counts as sent: the other job's task stands for it. Its column error says so
//	  … Replace, KeepLast                   as with Enqueue. A row that Replace cannot put in the place of a running job waits
//	handoff.Sequence                        the job gets a place in line
//	  … a line with MaxWaiting jobs         the row waits
//	a task has the TaskID already           refused, unless it is the row's own task: then the row counts as sent
//	asynq.Unique, another task has it       the row counts as sent. Its column error says so
//	ErrInvalid, such as a passed Deadline   refused
//
// A row that is refused stays in the table with state 2 and its error, is logged as an ERROR, and does not hold up
// other rows. Repair what is wrong, and set its state to 0, or delete the row. A row with any other error is tried
// twenty times, in about a quarter of an hour, before it is refused. Outages of Redis are not counted.
//
// # A crash at each step
//
//	kill -9 of                                    what happens then
//	the application before COMMIT                 the database rolls back; for Carry see the table above
//	the application after COMMIT                  the row exists, and the relay enqueues its task
//	the relay before the enqueue                  the next relay starts when the lease has ended, within ten seconds
//	the relay after it has taken the key          the next relay finds the key taken by the same row, and enqueues the task
//	the relay after the enqueue                   the next relay finds the task, and marks the row
//	the database                                  the relay pauses and logs; then as a crash after the enqueue
//	Redis, which keeps its data                   the relay pauses and logs
//	Redis, which loses its data                   rows that are not sent yet are sent; see docs/failures.md for tasks and locks
//	two relays at a time, after a frozen process  each enqueues under the same TaskID and the same key: one task
package outbox
