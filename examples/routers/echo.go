package routers

import (
	"context"

	"github.com/labstack/echo/v4"

	"github.com/joblock/toolkit/handoff"
)

// Echo is a middleware of echo. A handler finds its lock with joblock.FromContext(c.Request().Context()).
func Echo(guard *handoff.Guard, claim func(echo.Context) handoff.Claim) echo.MiddlewareFunc {
	return func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) (err error) {
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
