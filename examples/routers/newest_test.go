package routers

import (
	"net/http"
	"net/http/httptest"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	fiberrecover "github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/labstack/echo/v5"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

func startEchoV5(b *bench) sender {
	e, guard := echo.New(), b.guard
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c *echo.Context) error {
			err := next(c)
			if err := c.Request().Context().Err(); err != nil {
				b.Errorf("outside, the context has ended: %v", err)
			}
			return err
		}
	})
	handler := func(c *echo.Context) error {
		if err := b.run(c.Request().Context()); err != nil {
			handoff.Refuse(c.Response(), c.Request(), err)
			return nil
		}
		return c.NoContent(http.StatusOK)
	}
	claim := func(c *echo.Context) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Param("account"))}
	}
	e.POST("/exports/:account", handler, EchoV5(guard, claim))
	e.POST("/typo/:acount", handler, EchoV5(guard, claim))
	return b.overHTTP(e)
}

func startFiberV3(b *bench) sender {
	app, guard := fiber.New(), b.guard
	app.Use(fiberrecover.New(), func(c fiber.Ctx) error {
		err := c.Next()
		if err := c.Context().Err(); err != nil {
			b.Errorf("outside, the context has ended: %v", err)
		}
		return err
	})
	handler := func(c fiber.Ctx) error {
		if err := b.run(c.Context()); err != nil {
			return adaptor.HTTPHandler(handoff.RefusalOf(c.Context(), err))(c)
		}
		return c.SendStatus(http.StatusOK)
	}
	claim := func(c fiber.Ctx) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Params("account"))}
	}
	app.Post("/exports/:account", FiberV3(guard, claim), handler)
	app.Post("/typo/:acount", FiberV3(guard, claim), handler)
	return func(account string, typo bool) answer {
		res, err := app.Test(httptest.NewRequest(http.MethodPost, target(account, typo), nil), fiber.TestConfig{})
		if err != nil {
			b.Error(err)
			return answer{}
		}
		return b.read(res)
	}
}
