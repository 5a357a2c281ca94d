package server

import (
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/joblock/toolkit/server/internal/problem"
)

// sites says under which names the Server is reached, and which web sites may send requests.
//
// Any web page can have the browser send requests to the user's own machine. If the page's host name resolves to
// 127.0.0.1, the browser treats the answers as the page's own. Such a request has the page's host name in its Host
// header.
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

// check refuses a request with a Host other than the Server's names. It also refuses a request that a page of another web
// site sends with rights that the page itself does not have.
func (s *sites) check(r *http.Request) *problem.Problem {
	// An HTTP/1.0 request may lack a Host, and browsers do not send HTTP/1.0.
	if host := hostName(r.Host); !s.any && r.Host != "" && !(s.own && loopback(host)) && !slices.Contains(s.names, host) {
		return problem.New(http.StatusMisdirectedRequest, problem.Misdirected, "the host is %s, which is none of Config.Hosts", problem.Shown(r.Host))
	}
	// Only a client that knows a bearer token can send it. The browser adds certificates, Basic passwords and the like by
	// itself, and Anyone needs no credentials.
	if bearer(r) {
		return nil
	}
	if s.cross.Check(r) != nil {
		return problem.New(http.StatusForbidden, problem.Forbidden, "a page of another web site has sent the request")
	}
	if safe(r.Method) {
		return nil
	}
	// A browser sends each of these headers once. A proxy in between may add another one, and check a different one from
	// the one checked here.
	for _, name := range []string{"Sec-Fetch-Site", "Origin"} {
		if len(r.Header.Values(name)) > 1 {
			return problem.New(http.StatusForbidden, problem.Forbidden, "the header %s occurs twice, so it is unclear which site has sent the request", name)
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

// within reports whether a page of another site wants to embed the answer, for example as a frame, an image or a script.
// A followed link does not count.
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

// hostName returns the host name in a Host header: in lower case, without the port and the brackets of an IPv6 address.
func hostName(host string) string {
	if strings.Contains(host, ":") {
		if name, _, err := net.SplitHostPort(host); err == nil {
			return strings.ToLower(name)
		}
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
}
