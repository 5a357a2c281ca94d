package main

import (
	"net"
	"net/http"
	"time"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

// routes is the web side: a lock for each request, handed over to the job.
func routes(s *story, locks *joblock.Locker, jobs *handoff.Client, queue string) http.Handler {
	takeLock := handoff.Middleware(locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	mux := http.NewServeMux()
	mux.Handle("POST /exports/{account}", takeLock(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		lock, _ := joblock.FromContext(r.Context())
		defer lock.Release(r.Context()) // harmless once the job has the lock
		s.say("request", lock.Fence(), "has the lock")
		job, err := jobs.Enqueue(r.Context(), handoff.Carry(lock), asynq.NewTask("export", nil,
			asynq.Queue(queue), asynq.MaxRetry(2), asynq.Timeout(time.Second)))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		s.say("request", lock.Fence(), "handed the lock to job %s, and answers 202", job.Task.ID[:8])
		w.Header().Set("Location", "/exports/"+job.Task.ID)
		w.WriteHeader(http.StatusAccepted)
	})))
	return mux
}

// serve serves h on a free port of this machine.
func serve(h http.Handler) (url string, stop func() error, err error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	web := &http.Server{Handler: h, ReadTimeout: 10 * time.Second}
	go web.Serve(listener)
	return "http://" + listener.Addr().String(), web.Close, nil
}
