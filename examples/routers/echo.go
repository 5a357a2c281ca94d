package routers

import (
	"context"
	"errors"

	"github.com/labstack/echo/v4"

	"github.com/joblock/toolkit/handoff"
)

// Echo is a middleware of echo. A handler finds its lock with joblock.FromContext(c.Request().Context()).
func Echo(guard *handoff.Guard, claim func(echo.Context) handoff.Claim) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
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
