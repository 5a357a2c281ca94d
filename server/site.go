package server

import (
	"net"
	"net/http"
	"slices"
	"strings"
)

// The type sites says under which names the Server is reached, and from which web sites.
//
// A page of any web site can have the browser send requests to the user's own machine. If the page's name resolves to
// 127.0.0.1, the browser takes the answers for the page's own. Such a request has the page's name in its header Host.
type sites struct {
	any   bool
	own   bool     // the names of this machine's loopback interface
	names []string // in lower case

	cross *http.CrossOriginProtection
}

func newSites(cfg Config) (*sites, error) {
	s := &sites{cross: http.NewCrossOriginProtection()}
	for _, name := range cfg.Hosts {
		switch bare := hostName(name); {
		case name == "*":
			s.any = true
		case bare == "" || strings.ContainsAny(name, "/ ") || bare != strings.ToLower(strings.Trim(name, "[]")):
			return nil, invalid("Config.Hosts has %q, must have names without a port, or \"*\"", name)
		default:
			s.names = append(s.names, bare)
		}
	}
	if len(cfg.Hosts) == 0 {
		s.own = cfg.Authorize == Anyone
		s.any = !s.own
	}
	return s, nil
}

// check refuses a request under another name than those of the Server, and one that a page of another web site sends
// with rights that the page does not have itself.
func (s *sites) check(r *http.Request) *problem {
	// HTTP/1.0 has no Host, and no browser sends it.
	if host := hostName(r.Host); !s.any && r.Host != "" && !(s.own && loopback(host)) && !slices.Contains(s.names, host) {
		return problemf(http.StatusMisdirectedRequest, codeMisdirected, "the host is %s, which is none of Config.Hosts", shown(r.Host))
	}
	// A token is sent by whoever knows it. A certificate, and the rights of Anyone, the browser adds by itself.
	if r.Header.Get("Authorization") == "" && s.cross.Check(r) != nil {
		return problemf(http.StatusForbidden, codeForbidden, "a page of another web site has sent the request")
	}
	return nil
}

// hostName returns the name in a header Host: in lower case, without the port and the brackets of an IPv6 address.
func hostName(host string) string {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	return strings.ToLower(name)
}
