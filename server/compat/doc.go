// Package compat serves other products' lock APIs on a lock server, so that their clients need no change. A handler
// shares its server's callers, rights, rates, limits, log and record of actions. docs/compat.md has every example in the
// documentation of these APIs, with its answer.
//
//	saasignal, err := compat.SaaSignal(s, "")
//	terraform, err := compat.Terraform(s, "")
//	alpha1, err := compat.DaprAlpha1(s, map[string]string{"redisStore": "shop:"})
//	alpha2, err := compat.DaprAlpha2(s, compat.DaprAlpha2Config{Prefix: "shop:"})
//	...
//	mux.Handle("/infra/locks/", saasignal)
//	mux.Handle("/terraform/", http.StripPrefix("/terraform", terraform))
//	mux.Handle("/v1.0-alpha1/", alpha1)
//	mux.Handle("/v1.0-alpha2/", http.StripPrefix("/v1.0-alpha2", alpha2))
//	mux.Handle("/rpc", compat.Forrst(s))
//
// "joblock serve" mounts them by its flags.
package compat
