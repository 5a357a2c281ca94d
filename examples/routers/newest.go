package routers

import (
	"context"
	"errors"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/labstack/echo/v5"

	"github.com/joblock/toolkit/handoff"
)

// EchoV5 is Echo for echo v5.
func EchoV5(guard *handoff.Guard, claim func(*echo.Context) handoff.Claim) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			outside := c.Request()
			err := guard.Do(outside.Context(), claim(c), func(ctx context.Context) error {
				defer c.SetRequest(outside) // the middlewares around this one need a context that has not ended
				c.SetRequest(outside.WithContext(ctx))
				return next(c)
			})
			if refusal := (*handoff.Refusal)(nil); errors.As(err, &refusal) {
				refusal.ServeHTTP(c.Response(), outside)
				return nil
			}
			return err
		}
	}
}

// FiberV3 is Fiber for fiber v3. A handler finds its lock with joblock.FromContext(c.Context()), and not with c itself,
// although a fiber.Ctx of v3 is a context.Context.
func FiberV3(guard *handoff.Guard, claim func(fiber.Ctx) handoff.Claim) fiber.Handler {
	return func(c fiber.Ctx) error {
		outside := c.Context()
		err := guard.Do(outside, claim(c), func(ctx context.Context) error {
			defer c.SetContext(outside) // the middlewares around this one need a context that has not ended
			c.SetContext(ctx)
			return c.Next()
		})
		if refusal := (*handoff.Refusal)(nil); errors.As(err, &refusal) {
			return adaptor.HTTPHandler(refusal)(c)
		}
		return err
	}
}
