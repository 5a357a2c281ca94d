// Command etcd compares locks over HTTP: a Server of this toolkit, and etcd's lock service through etcd's HTTP/JSON
// gateway. It is a module of its own, and its other file has the build tag etcd, so that nothing else has to load or build
// etcd:
//
//	go run -tags etcd .
package main
