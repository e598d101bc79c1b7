#!/usr/bin/env python3
"""Flags of `tqcache serve` that a socket shows, and what it says on a terminal.

usage: serve_flags_test.py TQCACHE
"""

import http.client
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import unittest

PROGRAM = None


class Served:
    """A proxy before nothing, whose standard error is a terminal or a file."""

    def __init__(self, *flags, is_terminal=False, n_files=None):
        # Nobody listens at port 1.
        command = [PROGRAM, "serve", "--upstream", "http://127.0.0.1:1", "--listen",
                   "127.0.0.1:0", *flags]
        self.log = os.pipe() if not is_terminal else pty.openpty()
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (n_files, n_files))) \
            if n_files else None
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=self.log[1],
                                        preexec_fn=limit)
        os.close(self.log[1])
        self.text = ""
        self.read_until(r"event=listening port=(\d+)")
        self.port = int(re.search(r"port=(\d+)", self.text)[1])

    def read_until(self, pattern):
        while not re.search(pattern, self.text):
            self.text += self.read()

    def read(self):
        try:
            piece = os.read(self.log[0], 65536).decode()
        except OSError:  # the end of a terminal
            piece = ""
        if not piece:
            raise EOFError(self.text)
        return piece

    def ask(self, path, headers, method="GET"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=280)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), body

    def end(self):
        """All of the log."""
        self.process.terminate()
        try:
            while True:
                self.text += self.read()
        except EOFError:
            pass
        assert self.process.wait(280) == 0
        return self.text

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.log[0])


class ServeFlags(unittest.TestCase):

    def test_names_and_origins_are_allowed_by_flags(self):
        with Served("--allow-host", "box.example", "--allow-host", "second.example",
                    "--allow-origin", "https://chat.example") as served:
            for host in "box.example:80", "second.example":
                self.assertEqual(served.ask("/metrics", {"Host": host})[0], 200)
            status, _, body = served.ask("/metrics", {"Host": "third.example"})
            self.assertEqual(status, 403)
            self.assertIn(b"--allow-host third.example", body)
            status, headers, _ = served.ask(
                "/v1/models", {"Host": "box.example", "Origin": "https://chat.example",
                               "Access-Control-Request-Method": "POST"}, "OPTIONS")
            self.assertEqual(status, 204)
            self.assertEqual(headers["Access-Control-Allow-Origin"], "https://chat.example")

    def test_values_that_no_browser_sends_are_refused(self):
        for flags in (("--allow-origin", "chat.example"), ("--allow-origin", "https://a.example/"),
                      ("--allow-origin", ""), ("--allow-host", "http://a"), ("--allow-host", "")):
            done = subprocess.run([PROGRAM, "serve", "--upstream", "http://127.0.0.1:1", *flags],
                                  capture_output=True, text=True, timeout=280)
            self.assertEqual(done.returncode, 2, flags)
            self.assertIn(flags[0], done.stderr)

    def test_a_terminal_is_told_the_addresses(self):
        with tempfile.TemporaryDirectory() as folder:
            flags = ("--slot-dir", folder, "--store", "dir:" + os.path.join(folder, "store"))
            with Served(*flags, is_terminal=True) as served:
                server = f"http://127.0.0.1:{served.port}"
                text = served.end().replace("\r\n", "\n")
                self.assertEqual(text.count(f"Kept prompts: {server}/tqcache\n"), 1)
                self.assertEqual(text.count(f"Base URL for clients: {server}/v1\n"), 1)
            with Served(*flags) as served:
                text = served.end()
                self.assertNotIn("http://127.0.0.1:%d" % served.port, text)
                for line in text.splitlines():
                    self.assertRegex(line, "^time=.* level=.* event=")
        # A proxy that keeps nothing has no page.
        with Served(is_terminal=True) as served:
            self.assertNotIn("/tqcache", served.end())

    def test_few_open_files_leave_health_an_answer(self):
        with Served(n_files=40) as served:
            held = [http.client.HTTPConnection("127.0.0.1", served.port, timeout=280)
                    for _ in range(100)]
            for connection in held:
                connection.connect()
                connection.sock.sendall(b"POST / HTTP/1.1\r\nHost: localhost\r\nX")
            # 503, because no llama-server is there; the answer is the server's own.
            status, _, body = served.ask("/health", {})
            self.assertEqual(status, 503)
            self.assertIn(b"the upstream server does not answer", body)
            self.assertEqual(served.ask("/metrics", {})[0], 200)
            for connection in held:
                connection.close()


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
