package routers

import (
	"context"

	"github.com/gin-gonic/gin"

	"github.com/joblock/toolkit/handoff"
)

// Gin is a middleware of gin. A handler finds its lock with joblock.FromContext(c) if the Engine has
// ContextWithFallback, and otherwise with joblock.FromContext(c.Request.Context()).
func Gin(guard *handoff.Guard, claim func(*gin.Context) handoff.Claim) gin.HandlerFunc {
	return func(c *gin.Context) {
		outside := c.Request
		err := guard.Do(outside.Context(), claim(c), func(ctx context.Context) error {
			defer func() { c.Request = outside }() // the middlewares around this one need a context that has not ended
			c.Request = outside.WithContext(ctx)
			c.Next()
			return nil
		})
		if err != nil {
			c.Abort() // or gin calls the handler after this middleware
			handoff.Refuse(c.Writer, outside, err)
		}
	}
}
