// Package jobdone marks a release as that of a job that is done. A later delivery of
// the job is not run then, so this is for package worker alone to say: were it an
// option or a reason, an application could say it without meaning to, and lose a job.
package jobdone

import "context"

type key struct{}

// Context returns a child of ctx: what is released with it ends as joblock.EndedDone,
// if it is bound to job, and is left alone otherwise. A handler must never get it.
func Context(ctx context.Context, job string) context.Context {
	return context.WithValue(ctx, key{}, job)
}

// Of returns the job that Context was given.
func Of(ctx context.Context) (job string, done bool) {
	job, done = ctx.Value(key{}).(string)
	return job, done
}
