#!/usr/bin/env python3
"""A web service in Python whose exports run in a Go worker, one at a time for each account.

One call takes the lock of the account and enqueues the task that carries it, so the lock is never taken without an
owner. It needs Python's standard library, a lock server, and the worker of the service example:

    joblock serve &
    go run ./examples/service/worker &
    python3 web.py 8080 &
    curl -X POST http://localhost:8080/exports/acct-7
"""

import http.server
import json
import os
import sys
import urllib.error
import urllib.request
import uuid

SERVERS = os.environ.get("JOBLOCK_SERVER", "http://localhost:7420").split(",")
TOKEN_FILE = os.environ.get("JOBLOCK_SERVER_TOKEN_FILE")


def call(path, body, idempotency_key):
    """Posts to a lock server: returns the status and the answer. Until an answer comes, it asks again, also at other
    servers: with the same Idempotency-Key nothing happens twice."""
    headers = {"Content-Type": "application/json", "Idempotency-Key": idempotency_key}
    if TOKEN_FILE:
        with open(TOKEN_FILE) as file:
            headers["Authorization"] = "Bearer " + file.read().strip()
    status, answer = 503, {"code": "LOCK_UNAVAILABLE", "detail": "no lock server answers"}
    for server in SERVERS * 3:
        request = urllib.request.Request(server + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=5) as response:
                return response.status, json.load(response)
        except urllib.error.HTTPError as error:
            status, answer = error.code, json.load(error)
            if status != 503:
                break
        except (OSError, ValueError):
            pass  # no answer: ask again
    return status, answer


class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        account = self.path.removeprefix("/exports/")
        status, answer = call(
            "/v1/enqueue",
            {"key": "export:" + account, "type": "export", "payload": {"account": account}},
            self.headers.get("Idempotency-Key") or str(uuid.uuid4()),
        )
        if status == 409:  # an export of the account is under way
            self.answer(429, {"error": "an export is under way", "job": answer.get("job")}, {"Retry-After": "5"})
        elif status in (200, 201):
            self.answer(202, {"task": answer["task_id"], "queue": answer["queue"]})
        else:
            self.answer(503, {"error": answer.get("detail", answer.get("title"))})

    def answer(self, status, body, headers=None):
        text = json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(text)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_):
        pass


if __name__ == "__main__":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()
