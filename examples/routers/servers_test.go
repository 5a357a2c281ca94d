package routers

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v2"
	"github.com/gofiber/fiber/v2/middleware/adaptor"
	fiberrecover "github.com/gofiber/fiber/v2/middleware/recover"
	"github.com/labstack/echo/v4"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/joblock/toolkit/handoff"
	"github.com/joblock/toolkit/joblock"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.TestMode)
	m.Run()
}

// handler is that of net/http.
func (b *bench) handler() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := b.run(r.Context()); err != nil {
			handoff.Refuse(w, r, err)
		}
	})
}

// overHTTP sends requests to h. A panic counts as status 500.
func (b *bench) overHTTP(h http.Handler) sender {
	return func(account string, typo bool) (got answer) {
		defer func() {
			if recover() != nil {
				got = answer{status: http.StatusInternalServerError}
			}
		}()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, target(account, typo), nil))
		return b.read(w.Result())
	}
}

func target(account string, typo bool) string {
	if typo {
		return "/typo/" + account
	}
	return "/exports/" + account
}

// read reads an answer of HTTP.
func (b *bench) read(res *http.Response) answer {
	b.Helper()
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		b.Error(err)
	}
	got := answer{status: res.StatusCode}
	if retry := res.Header.Get("Retry-After"); retry != "" {
		seconds, err := strconv.Atoi(retry)
		if err != nil {
			b.Error(err)
		}
		got.retry = time.Duration(seconds) * time.Second
	}
	if res.StatusCode >= 400 && len(text) > 0 && text[0] == '{' {
		var body struct{ Message, Code string }
		if err := json.Unmarshal(text, &body); err != nil || body.Message == "" {
			b.Errorf("the body is %s", text)
		}
		got.code = body.Code
	}
	return got.wantDiscreet(b.T, string(text))
}

func startNetHTTP(b *bench) sender {
	mux, locks, handler := http.NewServeMux(), b.Kit.Locks, b.handler()
	perAccount := handoff.Middleware(locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	mux.Handle("POST /exports/{account}", perAccount(handler))
	mux.Handle("POST /typo/{acount}", perAccount(handler))
	return b.overHTTP(mux)
}

func startChi(b *bench) sender {
	router, handler := chi.NewRouter(), b.handler()
	perAccount := handoff.Middleware(b.Kit.Locks, func(r *http.Request) (handoff.Claim, error) {
		return handoff.Claim{Key: joblock.Key("export", r.PathValue("account"))}, nil
	})
	router.With(perAccount).Method("POST", "/exports/{account}", handler)
	router.With(perAccount).Method("POST", "/typo/{acount}", handler)
	return b.overHTTP(router)
}

func startGin(b *bench) sender {
	router, guard := gin.New(), b.guard
	router.Use(func(c *gin.Context) {
		c.Next()
		if err := c.Request.Context().Err(); err != nil {
			b.Errorf("outside, the context has ended: %v", err)
		}
	})
	handler := func(c *gin.Context) {
		if err := b.run(c); err != nil {
			handoff.Refuse(c.Writer, c.Request, err)
		}
	}
	router.ContextWithFallback = true // so that a *gin.Context is the request's context
	router.POST("/exports/:account", Gin(guard, func(c *gin.Context) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Param("account"))}
	}), handler)
	router.POST("/typo/:acount", Gin(guard, func(c *gin.Context) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Param("account"))}
	}), handler)
	return b.overHTTP(router)
}

func startEcho(b *bench) sender {
	e, guard := echo.New(), b.guard
	e.Use(func(next echo.HandlerFunc) echo.HandlerFunc {
		return func(c echo.Context) error {
			err := next(c)
			if err := c.Request().Context().Err(); err != nil {
				b.Errorf("outside, the context has ended: %v", err)
			}
			return err
		}
	})
	handler := func(c echo.Context) error {
		if err := b.run(c.Request().Context()); err != nil {
			handoff.Refuse(c.Response(), c.Request(), err)
			return nil
		}
		return c.NoContent(http.StatusOK)
	}
	e.POST("/exports/:account", handler, Echo(guard, func(c echo.Context) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Param("account"))}
	}))
	e.POST("/typo/:acount", handler, Echo(guard, func(c echo.Context) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Param("account"))}
	}))
	return b.overHTTP(e)
}

func (b *bench) fiberHandler(c *fiber.Ctx) error {
	if err := b.run(c.UserContext()); err != nil {
		return adaptor.HTTPHandler(handoff.RefusalOf(c.UserContext(), err))(c)
	}
	return c.SendStatus(http.StatusOK)
}

// overFiber sends requests to app.
func (b *bench) overFiber(app *fiber.App) sender {
	return func(account string, typo bool) answer {
		res, err := app.Test(httptest.NewRequest(http.MethodPost, target(account, typo), nil), -1)
		if err != nil {
			b.Error(err)
			return answer{}
		}
		return b.read(res)
	}
}

func startFiber(b *bench) sender {
	app, guard, handler := fiber.New(), b.guard, b.fiberHandler
	app.Use(fiberrecover.New(), func(c *fiber.Ctx) error {
		err := c.Next()
		if err := c.UserContext().Err(); err != nil {
			b.Errorf("outside, the context has ended: %v", err)
		}
		return err
	})
	app.Post("/exports/:account", Fiber(guard, func(c *fiber.Ctx) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Params("account"))}
	}), handler)
	app.Post("/typo/:acount", Fiber(guard, func(c *fiber.Ctx) handoff.Claim {
		return handoff.Claim{Key: joblock.Key("export", c.Params("account"))}
	}), handler)
	return b.overFiber(app)
}

// healthServer is a service that comes with gRPC.
type healthServer struct {
	health.UnimplementedHealthServer
	b *bench
}

func (s healthServer) Check(ctx context.Context, _ *health.HealthCheckRequest) (*health.HealthCheckResponse, error) {
	if err := s.b.run(ctx); err != nil {
		return nil, GRPCError(handoff.RefusalOf(ctx, err))
	}
	return &health.HealthCheckResponse{}, nil
}

func (s healthServer) Watch(_ *health.HealthCheckRequest, stream grpc.ServerStreamingServer[health.HealthCheckResponse]) error {
	if err := s.b.run(stream.Context()); err != nil {
		return GRPCError(handoff.RefusalOf(stream.Context(), err))
	}
	return stream.Send(&health.HealthCheckResponse{})
}

func claim(method string, request any) handoff.Claim {
	check, ok := request.(*health.HealthCheckRequest)
	if !ok {
		return handoff.Claim{NoLock: true}
	}
	return handoff.Claim{Key: joblock.Key("export", check.GetService())}
}

func claimStream(ctx context.Context, method string) handoff.Claim {
	md, _ := metadata.FromIncomingContext(ctx)
	if account := md.Get("account"); len(account) == 1 {
		return handoff.Claim{Key: joblock.Key("export", account[0]), MaxHold: time.Hour}
	}
	return handoff.Claim{Key: joblock.Key("export", "")}
}

// dial starts a gRPC server, and returns a client of it.
func (b *bench) dial() health.HealthClient {
	guard := b.guard
	server := grpc.NewServer(
		grpc.UnaryInterceptor(recoverUnary), grpc.StreamInterceptor(recoverStream), // outside of the others
		grpc.ChainUnaryInterceptor(Unary(guard, claim)),
		grpc.ChainStreamInterceptor(Stream(guard, claimStream)),
	)
	health.RegisterHealthServer(server, healthServer{b: b})
	listener := bufconn.Listen(1 << 16)
	go func() { _ = server.Serve(listener) }()
	b.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	return health.NewHealthClient(conn)
}

var errPanic = status.Error(codes.Internal, "panic")

func recoverUnary(ctx context.Context, request any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return next(ctx, request)
}

func recoverStream(server any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
	defer func() {
		if recover() != nil {
			err = errPanic
		}
	}()
	return next(server, stream)
}

// readGRPC reads an error of gRPC.
func (b *bench) readGRPC(err error) answer {
	b.Helper()
	statuses := map[codes.Code]int{
		codes.OK: http.StatusOK, codes.ResourceExhausted: http.StatusTooManyRequests, codes.Unavailable: http.StatusServiceUnavailable,
		codes.InvalidArgument: http.StatusBadRequest, codes.Internal: http.StatusInternalServerError,
	}
	got := answer{status: statuses[status.Code(err)]}
	for _, detail := range status.Convert(err).Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			got.code = detail.GetReason()
		case *errdetails.RetryInfo:
			got.retry = detail.GetRetryDelay().AsDuration()
		}
	}
	return got.wantDiscreet(b.T, status.Convert(err).String())
}

func startUnary(b *bench) sender {
	client := b.dial()
	return func(account string, typo bool) answer {
		request := &health.HealthCheckRequest{Service: account}
		if typo {
			request.Service = ""
		}
		_, err := client.Check(b.T.Context(), request)
		return b.readGRPC(err)
	}
}

func startStream(b *bench) sender {
	client := b.dial()
	return func(account string, typo bool) answer {
		ctx := b.T.Context()
		if !typo {
			ctx = metadata.AppendToOutgoingContext(ctx, "account", account)
		}
		stream, err := client.Watch(ctx, &health.HealthCheckRequest{})
		for err == nil {
			_, err = stream.Recv()
		}
		if errors.Is(err, io.EOF) {
			err = nil
		}
		return b.readGRPC(err)
	}
}

func startFunction(b *bench) sender {
	type message struct{ account string }
	f := Function(b.guard, func(m message) handoff.Claim { return handoff.Claim{Key: joblock.Key("export", m.account)} },
		func(ctx context.Context, _ message) (string, error) { return "done", b.run(ctx) })
	return func(account string, typo bool) (got answer) {
		defer func() {
			if recover() != nil {
				got = answer{status: http.StatusInternalServerError}
			}
		}()
		m := message{account}
		if typo {
			m.account = ""
		}
		out, err := f(b.T.Context(), m)
		if err != nil {
			refusal := handoff.RefusalOf(b.T.Context(), err)
			return answer{refusal.Status, refusal.Code, refusal.RetryAfter}
		}
		if out != "done" {
			b.Errorf("the result is %q", out)
		}
		return answer{status: http.StatusOK}
	}
}

// A refusal has the code of gRPC that says the same.
func TestGRPCError(t *testing.T) {
	for code, want := range map[int]codes.Code{
		http.StatusTooManyRequests:     codes.ResourceExhausted,
		http.StatusServiceUnavailable:  codes.Unavailable,
		http.StatusConflict:            codes.AlreadyExists,
		http.StatusBadRequest:          codes.InvalidArgument,
		http.StatusInternalServerError: codes.Internal,
	} {
		if got := status.Code(GRPCError(&handoff.Refusal{Status: code})); got != want {
			t.Errorf("%d is %s, want %s", code, got, want)
		}
	}
}
