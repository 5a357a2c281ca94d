package routers

import (
	"context"
	"strconv"

	"github.com/gofiber/fiber/v2"

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
			return RefuseFiber(c, refusal)
		}
		return err
	}
}

// RefuseFiber answers with a refusal: that of Fiber, or handoff.RefusalOf(c.UserContext(), err) in a handler.
func RefuseFiber(c *fiber.Ctx, refusal *handoff.Refusal) error {
	if refusal.RetryAfter > 0 {
		c.Set(fiber.HeaderRetryAfter, strconv.Itoa(int(refusal.RetryAfter.Seconds())))
	}
	return c.Status(refusal.Status).JSON(refusal)
}
