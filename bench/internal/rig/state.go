package rig

import (
	"context"
	"fmt"
	"strconv"
)

// State is what a server says of itself at an instant.
type State struct {
	Usage
	In, Out int64 // bytes received and sent since the start
	Memory  int64 // bytes in use
	Clients int64 // connections, but for the one that asks
}

// State asks the server, once.
func (s *Server) State(ctx context.Context) (st State, err error) {
	if st.Usage, err = s.Usage(ctx); err != nil {
		return st, err
	}
	fields, err := s.info(ctx, "stats", "memory", "clients")
	if err != nil {
		return st, err
	}
	for name, to := range map[string]*int64{
		"total_net_input_bytes": &st.In, "total_net_output_bytes": &st.Out,
		"used_memory": &st.Memory, "connected_clients": &st.Clients,
	} {
		if *to, err = strconv.ParseInt(fields[name], 10, 64); err != nil {
			return st, fmt.Errorf("INFO: %s: %w", name, err)
		}
	}
	st.Clients--
	return st, nil
}
