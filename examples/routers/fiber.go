package routers

import (
	"context"
	"errors"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/joblock/toolkit/handoff"
)

// Fiber is a middleware of fiber. A handler finds its lock with joblock.FromContext(c.UserContext()).
func Fiber(guard *handoff.Guard, claim func(*fiber.Ctx) handoff.Claim) fiber.Handler {
	return func(c *fiber.Ctx) error {
		outside := c.UserContext()
		err := guard.Do(outside, claim(c), func(ctx context.Context) error {
			defer c.SetUserContext(outside) // the middlewares around this one need a context that has not ended
			c.SetUserContext(ctx)
			return c.Next()
		})
		if refusal := (*handoff.Refusal)(nil); errors.As(err, &refusal) {
			return adaptor.HTTPHandler(refusal)(c)
		}
		return err
	}
}
