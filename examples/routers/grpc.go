package routers

import (
	"context"
	"errors"
	"net/http"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/joblock/toolkit/handoff"
)

// Unary is an interceptor of a gRPC server. claim sees every method of the server, and returns
// handoff.Claim{NoLock: true} for a method that needs no lock. A handler finds its lock with joblock.FromContext(ctx).
func Unary(guard *handoff.Guard, claim func(method string, request any) handoff.Claim) grpc.UnaryServerInterceptor {
	return func(ctx context.Context, request any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (answer any, err error) {
		err = guard.Do(ctx, claim(info.FullMethod, request), func(ctx context.Context) error {
			answer, err = next(ctx, request)
			return err
		})
		if refusal := (*handoff.Refusal)(nil); errors.As(err, &refusal) {
			return nil, GRPCError(refusal)
		}
		return answer, err
	}
}

// Stream is the interceptor for streams. When a stream begins, no message has come yet, so claim gets only the context:
// see metadata.FromIncomingContext. A stream may be longer than the default of Claim.MaxHold, a minute.
func Stream(guard *handoff.Guard, claim func(ctx context.Context, method string) handoff.Claim) grpc.StreamServerInterceptor {
	return func(server any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		err := guard.Do(stream.Context(), claim(stream.Context(), info.FullMethod), func(ctx context.Context) error {
			return next(server, lockedStream{stream, ctx})
		})
		if refusal := (*handoff.Refusal)(nil); errors.As(err, &refusal) {
			return GRPCError(refusal)
		}
		return err
	}
}

type lockedStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s lockedStream) Context() context.Context { return s.ctx }

// GRPCError returns refusal as a gRPC error. In a handler, get the refusal from handoff.RefusalOf(ctx, err).
func GRPCError(refusal *handoff.Refusal) error {
	code := codes.Internal
	switch refusal.Status {
	case http.StatusTooManyRequests:
		code = codes.ResourceExhausted
	case http.StatusServiceUnavailable:
		code = codes.Unavailable
	case http.StatusConflict:
		code = codes.AlreadyExists
	case http.StatusBadRequest:
		code = codes.InvalidArgument
	}
	plain := status.New(code, refusal.Message)
	detailed, err := plain.WithDetails(
		&errdetails.ErrorInfo{Reason: refusal.Code},
		&errdetails.RetryInfo{RetryDelay: durationpb.New(refusal.RetryAfter)},
	)
	if err != nil {
		return plain.Err()
	}
	return detailed.Err()
}
