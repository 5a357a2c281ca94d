// Package routers has adapters of handoff.Guard to routers and protocols, to copy from. docs/routers.md shows them.
//
//	Gin, Echo, Fiber       middlewares of gin, echo v4 and fiber v2
//	EchoV5, FiberV3        the same for echo v5 and fiber v3
//	Unary, Stream          interceptors of gRPC servers
//	Function               for the rest: functions as a service, consumers of messages
//	handoff.Middleware     for net/http and chi, without an adapter
//
// Each adapter runs the handler inside of Guard.Do, so a refused request never reaches the handler. Each adapter puts
// the context that Guard.Do gives it where the framework's handlers look for their context.
package routers
