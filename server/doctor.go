package server

import (
	"cmp"
	"context"
	"iter"
	"time"

	"github.com/joblock/toolkit/internal/ops"
	"github.com/joblock/toolkit/server/internal/routes"
)

func (s *Server) keeper(c *call, _ *routes.Empty) (ops.Keeper, error) {
	return s.desk.Keeper(c.r.Context())
}

func (s *Server) outboxes(c *call, _ *routes.Empty) (ops.Outboxes, error) {
	return s.desk.Outboxes(c.r.Context())
}

// doctorTime bounds a run of the doctor.
const doctorTime = 30 * time.Second

func (s *Server) doctor(c *call, _ *routes.Empty) (a routes.DoctorAnswer, err error) {
	ctx, cancel := context.WithTimeout(c.r.Context(), doctorTime)
	defer cancel()
	a.Report, err = s.desk.Doctor(ctx)
	if a.More = err != nil; a.More && ctx.Err() != nil {
		err = nil
	}
	return a, err
}

func (s *Server) audit(c *call, q *routes.AuditQuery) (routes.List[ops.AuditEntry], error) {
	return cut(c, cmp.Or(q.Limit, listMost), func(ctx context.Context) iter.Seq2[ops.AuditEntry, error] {
		return func(yield func(ops.AuditEntry, error) bool) {
			for e, err := range s.desk.Audit(ctx, q.AuditQuery) {
				if (err != nil || c.who.viewer().MaySeeAction(e)) && !yield(e, err) {
					return
				}
			}
		}
	})
}
