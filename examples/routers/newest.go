package routers

import (
	"context"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/labstack/echo/v5"

	"github.com/joblock/toolkit/handoff"
)

// EchoV5 is Echo for echo v5.
func EchoV5(guard *handoff.Guard, claim func(*echo.Context) handoff.Claim) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) (err error) {
			outside := c.Request()
			refusal := guard.Do(outside.Context(), claim(c), func(ctx context.Context) {
				defer c.SetRequest(outside) // middlewares outside need a context that has not ended
				c.SetRequest(outside.WithContext(ctx))
				err = next(c)
			})
			if refusal != nil {
				refusal.ServeHTTP(c.Response(), outside)
			}
			return err
		}
	}
}

// FiberV3 is Fiber for fiber v3. A handler finds its lock with joblock.FromContext(c.Context()), and not with c itself,
// although a fiber.Ctx of v3 is a context.Context.
func FiberV3(guard *handoff.Guard, claim func(fiber.Ctx) handoff.Claim) fiber.Handler {
	return func(c fiber.Ctx) (err error) {
		outside := c.Context()
		refusal := guard.Do(outside, claim(c), func(ctx context.Context) {
			defer c.SetContext(outside) // middlewares outside need a context that has not ended
			c.SetContext(ctx)
			err = c.Next()
		})
		if refusal != nil {
			return adaptor.HTTPHandler(refusal)(c)
		}
		return err
	}
}
