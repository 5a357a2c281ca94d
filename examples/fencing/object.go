package fencing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
)

// Put writes an object into a store that has conditional writes: If-Match and If-None-Match, as S3, GCS and Azure have.
// The object carries the fence of its writer. A writer reads the fence, and writes only if there was no write since.
func Put(ctx context.Context, client *http.Client, url string, body []byte, fence int64) error {
	for {
		etag, seen, err := head(ctx, client, url)
		if err != nil {
			return err
		}
		if seen > fence {
			return ErrFenced
		}
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		req.Header.Set("X-Amz-Meta-Fence", strconv.FormatInt(fence, 10))
		if etag == "" {
			req.Header.Set("If-None-Match", "*")
		} else {
			req.Header.Set("If-Match", etag)
		}
		status, err := do(client, req)
		switch {
		case err != nil:
			return err
		case status == http.StatusPreconditionFailed:
			continue // another writer was faster: compare with its fence
		case status >= 300:
			return fmt.Errorf("put %s: status %d", url, status)
		}
		return nil
	}
}

// head returns the present object's ETag and fence: "" and 0 if there is no object.
func head(ctx context.Context, client *http.Client, url string) (etag string, fence int64, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, url, nil)
	if err != nil {
		return "", 0, err
	}
	res, err := client.Do(req)
	if err != nil {
		return "", 0, err
	}
	defer res.Body.Close()
	switch res.StatusCode {
	case http.StatusNotFound:
		return "", 0, nil
	case http.StatusOK:
		fence, err = strconv.ParseInt(res.Header.Get("X-Amz-Meta-Fence"), 10, 64)
		return res.Header.Get("ETag"), fence, err
	}
	return "", 0, fmt.Errorf("head %s: status %d", url, res.StatusCode)
}

func do(client *http.Client, req *http.Request) (status int, err error) {
	res, err := client.Do(req)
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, errors.Join(err, res.Body.Close())
}
