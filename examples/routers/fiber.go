package routers

import (
	"context"

	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"

	"github.com/joblock/toolkit/handoff"
)

// Fiber is a middleware of fiber. A handler finds its lock with joblock.FromContext(c.UserContext()).
func Fiber(guard *handoff.Guard, claim func(*fiber.Ctx) handoff.Claim) fiber.Handler {
	return func(c *fiber.Ctx) (err error) {
		outside := c.UserContext()
		refusal := guard.Do(outside, claim(c), func(ctx context.Context) {
			defer c.SetUserContext(outside) // middlewares outside need a context that has not ended
			c.SetUserContext(ctx)
			err = c.Next()
		})
		if refusal != nil {
			return adaptor.HTTPHandler(refusal)(c)
		}
		return err
	}
}
