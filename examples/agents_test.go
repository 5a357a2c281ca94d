package examples_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/hibiken/asynq"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
	"github.com/joblock/toolkit/worker"
)

// docs/agents.md
func Example_agents() {
	p, closeAll := onMiniredis()
	defer closeAll()
	ctx, conversation := context.Background(), "c-7"
	message := func(text string) *asynq.Task { return asynq.NewTask("agent", []byte(text)) }

	// [reject
	reject := handoff.Unique{Key: joblock.Key("agent", conversation)}
	// reject]
	// [enqueue
	inOrder := handoff.Sequence{Key: joblock.Key("agent", conversation), MaxWaiting: 10}
	// enqueue]
	// [interrupt
	interrupt := handoff.Unique{Key: joblock.Key("agent", conversation), OnConflict: handoff.CancelInProgress}
	// interrupt]
	inOrder.Key = joblock.Key("agent", "another")

	started, ended := make(chan string), make(chan string)
	messages, saved := conversationStore{}, 0

	// [handler
	agent := func(ctx context.Context, task *asynq.Task) error {
		before := messages.position(conversation)
		err := answer(ctx, task, messages, conversation)
		if errors.Is(context.Cause(ctx), worker.ErrSuperseded) {
			// The newer run waits until this handler returns. ctx has ended, so undo with another context.
			return messages.rollback(context.WithoutCancel(ctx), conversation, before)
		}
		return err
	}
	// handler]

	tasks := asynq.NewServeMux()
	tasks.HandleFunc("agent", func(ctx context.Context, task *asynq.Task) error {
		started <- string(task.Payload())
		err := agent(ctx, task)
		saved = messages.position(conversation)
		ended <- string(task.Payload())
		return err
	})

	// [post
	chat := func(w http.ResponseWriter, r *http.Request) {
		done, err := p.Jobs.Enqueue(r.Context(), interrupt, message(r.FormValue("text")))
		if err != nil {
			handoff.Refuse(w, r, err)
			return
		}
		w.WriteHeader(http.StatusAccepted)
		fmt.Fprintln(w, "run", done.Task.ID)
	}
	// post]

	server := must(p.NewServer(impatient))
	check(server.Start(tasks))
	must(p.Jobs.Enqueue(ctx, interrupt, message("long question")))
	fmt.Println("started", <-started)
	w := httptest.NewRecorder()
	chat(w, httptest.NewRequest(http.MethodPost, "/chat?text=no,+wait", nil))
	fmt.Println(w.Code)
	fmt.Println("ended", <-ended, "with", saved, "messages")
	fmt.Println("started", <-started)
	fmt.Println("ended", <-ended, "with", saved, "messages")

	reject.Key = joblock.Key("agent", "a third") // with the other policies
	must(p.Jobs.Enqueue(ctx, reject, asynq.NewTask("later", nil, asynq.Queue("idle"))))
	_, err := p.Jobs.Enqueue(ctx, reject, asynq.NewTask("later", nil, asynq.Queue("idle")))
	fmt.Println("rejected:", errors.Is(err, joblock.ErrHeld))
	must(p.Jobs.Enqueue(ctx, inOrder, asynq.NewTask("later", nil, asynq.Queue("idle"))))
	second := must(p.Jobs.Enqueue(ctx, inOrder, asynq.NewTask("later", nil, asynq.Queue("idle"))))
	fmt.Println("waits in line:", second.Waits)
	// Output:
	// started long question
	// 202
	// ended long question with 0 messages
	// started no, wait
	// ended no, wait with 1 messages
	// rejected: true
	// waits in line: true
}

// conversationStore has the messages of conversations.
type conversationStore map[string][]string

func (s conversationStore) position(conversation string) int { return len(s[conversation]) }

func (s conversationStore) rollback(_ context.Context, conversation string, to int) error {
	s[conversation] = s[conversation][:to]
	return nil
}

// answer appends the answer to a message. The answer to a long question takes until its context ends.
func answer(ctx context.Context, task *asynq.Task, s conversationStore, conversation string) error {
	s[conversation] = append(s[conversation], "the answer to "+string(task.Payload()))
	if string(task.Payload()) != "long question" {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}
