package routers

import (
	"context"

	"github.com/joblock/toolkit/handoff"
)

// Function wraps the handler of a function as a service, or of a consumer of messages. The error of a refusal is a
// *handoff.Refusal, which matches the sentinels of joblock, such as joblock.ErrHeld. Most consumers deliver a message
// again after an error. Set Claim.MaxHold to the longest time that the handler may take.
func Function[In, Out any](
	guard *handoff.Guard, claim func(In) handoff.Claim, next func(context.Context, In) (Out, error),
) func(context.Context, In) (Out, error) {
	return func(ctx context.Context, in In) (out Out, err error) {
		err = guard.Do(ctx, claim(in), func(ctx context.Context) error {
			out, err = next(ctx, in)
			return err
		})
		return out, err
	}
}
