package server

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/joblock/toolkit/server/internal/problem"
)

// sites says under which names the Server is reached, and from which web sites.
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
		s.own = cfg.anyone()
		s.any = !s.own
	}
	return s, nil
}

// check refuses a request under a name other than those of the Server, and one that a page of another web site sends
// with rights that the page does not have itself.
func (s *sites) check(r *http.Request) *problem.Problem {
	// HTTP/1.0 has no Host, and no browser sends it.
	if host := hostName(r.Host); !s.any && r.Host != "" && !(s.own && loopback(host)) && !slices.Contains(s.names, host) {
		return problem.New(http.StatusMisdirectedRequest, problem.Misdirected, "the host is %s, which is none of Config.Hosts", problem.Shown(r.Host))
	}
	// A bearer token is sent only by a client that knows it. The browser itself adds a certificate, the rights of Anyone,
	// and passwords such as those of Basic authentication.
	if bearer(r) {
		return nil
	}
	if s.cross.Check(r) != nil {
		return problem.New(http.StatusForbidden, problem.Forbidden, "a page of another web site has sent the request")
	}
	if safe(r.Method) {
		return nil
	}
	// A browser sends each of them once. A proxy in between may add another one, and check a different one from the one
	// checked here.
	for _, name := range []string{"Sec-Fetch-Site", "Origin"} {
		if len(r.Header.Values(name)) > 1 {
			return problem.New(http.StatusForbidden, problem.Forbidden, "the header %s comes twice, so it is unclear which site has sent the request", name)
		}
	}
	return nil
}

func bearer(r *http.Request) bool {
	scheme, _, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	return strings.EqualFold(scheme, "Bearer")
}

// safe reports whether a method changes nothing.
func safe(method string) bool {
	return method == http.MethodGet || method == http.MethodHead || method == http.MethodOptions
}

// within reports whether a page of another site wants the answer as a part of itself: as a frame, a picture, a script. A
// followed link is not one.
func within(r *http.Request) bool {
	if !safe(r.Method) || bearer(r) {
		return false
	}
	for _, site := range r.Header.Values("Sec-Fetch-Site") {
		if site == "cross-site" || site == "same-site" {
			mode, dest := r.Header.Get("Sec-Fetch-Mode"), r.Header.Get("Sec-Fetch-Dest")
			return mode != "" && mode != "navigate" || dest != "" && dest != "document"
		}
	}
	return false
}

// hostName returns the name in a header Host: in lower case, without the port and the brackets of an IPv6 address.
func hostName(host string) string {
	if strings.Contains(host, ":") {
		if name, _, err := net.SplitHostPort(host); err == nil {
			return strings.ToLower(name)
		}
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
}
