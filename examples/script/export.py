#!/usr/bin/env python3
"""Prepares the export of an account under the lock of the account, and hands the lock over to a job, which exports.

The same as export.sh, for programs that work for so long that a thread has to renew the lock. It needs Python's
standard library, the command joblock, and start, the program in the directory of that name. A worker runs the job:

    REDIS_ADDR=localhost:6379 go run ./examples/service/worker

    REDIS_ADDR=localhost:6379 JOBLOCK_REDIS=redis://localhost:6379 ./export.py acct-7
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

UNAVAILABLE = 69  # the exit code with which a command is repeated


def until(answer):
    """The end of the lease in an answer of joblock, by time.monotonic. Both clocks are of this machine."""
    end = datetime.datetime.strptime(answer["expires_at"], "%Y-%m-%dT%H:%M:%S.%f%z")
    return time.monotonic() + end.timestamp() - time.time()


class Lost(Exception):
    """The lock is lost, or may be lost: stop, and touch nothing that the lock protects."""


class Lock:
    """A lock that a thread renews. The class knows of locks what "joblock COMMAND --help" says."""

    def __init__(self, key, ttl=60.0, wait=30.0):
        self.key, self.ttl, self.wait = key, ttl, wait
        self.fence = 0  # send it along to what the lock protects
        self._until = 0.0  # by time.monotonic: the lock can be relied on until then
        self._stop = threading.Event()
        self._renewer = threading.Thread(target=self._renew, daemon=True)

    def __enter__(self):
        directory = tempfile.mkdtemp(prefix="lock-")  # for this user only
        self._file = os.path.join(directory, "token")
        try:
            for pause in (1, 2, 4, None):
                code, answer = self._joblock(
                    "acquire", self.key, "--ttl", f"{self.ttl}s", "--wait", f"{self.wait}s"
                )
                # After UNAVAILABLE the same command finds out what became of the call.
                if code != UNAVAILABLE or pause is None:
                    break
                time.sleep(pause)
            if code != 0:
                sys.exit(code)
            self._until = until(answer)
            self.fence = answer["fence"]
            self._renewer.start()
        except BaseException:  # Ctrl-C too
            self._give_back()
            raise
        return self

    def __exit__(self, *_):
        self._give_back()

    def check(self):
        """Raises Lost unless the lock can be relied on."""
        if time.monotonic() >= self._until:
            raise Lost(self.key)

    def hand_over(self, job, *command):
        """Parks the lock for job, and gives its token to command, which enqueues the job."""
        self._stop.set()
        self._renewer.join()
        self.check()
        for pause in (1, 2, 4, None):
            code, _ = self._joblock("park", "--job", job, "--reserve", "1h")
            if code != UNAVAILABLE or pause is None:
                break
            time.sleep(pause)
        if code != 0:
            raise Lost(self.key)
        with open(self._file, "rb") as token:
            subprocess.run(command, stdin=token, check=True)
        os.remove(self._file)  # the job has the lock

    def _renew(self):
        while not self._stop.wait(self.ttl / 3):
            code, answer = self._joblock("renew")
            if code == 0:
                self._until = until(answer)
            elif code != UNAVAILABLE:
                self._until = 0.0
                return

    def _joblock(self, *args):
        done = subprocess.run(
            ["joblock", *args, "--token-file", self._file, "-o", "json"],
            stdout=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        return done.returncode, json.loads(done.stdout) if done.stdout else None

    def _give_back(self):
        """Releases the lock, unless the job has it. What was never answered is released too."""
        self._stop.set()
        if self._renewer.is_alive():
            self._renewer.join()
        if os.path.exists(self._file):
            self._joblock("release", "--reason", "export.py has ended")
        shutil.rmtree(os.path.dirname(self._file))  # if Redis is away, the lock ends with its lease


def main():
    account = sys.argv[1]
    with Lock("export:" + account) as lock:
        for part in ("customers", "orders"):
            print(f"preparing the {part} of {account}, fence {lock.fence}", flush=True)
            time.sleep(float(os.environ.get("PART", "1")))
            lock.check()
        task = f"export-{account}-{time.time_ns()}"
        lock.hand_over("default/" + task, "start", "-account", account, "-id", task)


if __name__ == "__main__":
    main()
