"""The page of kept prompts and its file, of the program itself.

usage: test_page_file.py TQCACHE MODEL
"""

import base64
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

PROGRAM, MODEL = sys.argv[1:3]
PROMPT = [5] * 600  # two whole token blocks


class Server:
    def __init__(self, folder, *flags):
        self.log_path = os.path.join(folder, "log")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TQCACHE_")}
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--threads", "1",
                 *flags], stderr=log, env=environment)
        found = None
        while not found:
            if self.process.poll() is not None:
                raise RuntimeError(self.log())
            found = re.search(r"event=listening port=(\d+)", self.log())
            time.sleep(0.02)
        self.port = int(found[1])

    def log(self):
        with open(self.log_path, encoding="utf-8") as file:
            return file.read()

    def ask(self, key=None):
        body = json.dumps({"prompt": PROMPT, "max_tokens": 1}).encode()
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body)
        if key:
            request.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["timings"]["cache_n"]

    def page(self, key=None, path="/tqcache"):
        """Status and text, as a browser gets them that knows this key."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}")
        if key:
            word = base64.b64encode(f"x:{key}".encode()).decode()
            request.add_header("Authorization", f"Basic {word}")
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(280) == 0, self.log()


def term(page, name):
    return re.search(rf"<dt>{name}</dt><dd>([^<]*)</dd>", page)[1]


class PageFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def secret(self, name, text):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write(text + "\n")
        return path

    def page_file_of(self, name, *flags):
        path = os.path.join(self.folder, name)
        store = "dir:" + os.path.join(self.folder, "store-of-" + name)
        with Server(self.folder, "--store", store, "--page-file", path, *flags) as server:
            server.ask()
        with open(path, encoding="utf-8") as file:
            return json.load(file)

    def test_equal_prompts_of_two_servers_cannot_be_compared(self):
        one = ["--key-file", self.secret("one.key", "1" * 64)]
        two = ["--key-file", self.secret("two.key", "2" * 64)]
        salted = [*one, "--salt-file", self.secret("salt", "our salt")]
        files = [self.page_file_of(name, *flags)
                 for name, flags in (("a", one), ("b", two), ("c", salted), ("d", []), ("e", []))]
        digests = []
        for file in files:
            (entry,) = file["entries"]
            self.assertEqual(file["tqcache_prompts"], 2)
            self.assertEqual(len(entry["chain"]), 2)
            digests += [*entry["chain"], entry["tenant"]]
        self.assertEqual(len(set(digests)), 15)
        # The key of the digests is in a file only if the store has the tokens in the clear.
        self.assertEqual(["key" in file for file in files], [False] * 3 + [True] * 2)
        # One key and salt give one digest, so the list goes on after a restart.
        self.assertEqual(self.page_file_of("a", *one)["entries"][0]["hits"], 1)
        self.assertEqual(self.page_file_of("e")["entries"][0]["hits"], 1)
        # Another key begins a new list. (The store of this server is new as well.)
        path = os.path.join(self.folder, "a")
        with Server(self.folder, "--page-file", path, *two) as server:
            self.assertIn("starting a new list", server.log())
            self.assertEqual(term(server.page()[1], "Prompts"), "0")

    def test_a_file_of_version_one_is_written_anew_at_once(self):
        path = os.path.join(self.folder, "page")
        entry = {"chain": [10895189164716788183, 16231168784244703093], "created": 10,
                 "hit_tokens": 512, "hits": 2, "model": "m", "saved_seconds": 1.5,
                 "stored_bytes": 77, "tenant": "ffac9b85fa4b8cea00f4127c4c92025a", "tokens": 600,
                 "used": 11}
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"entries": [entry], "tqcache_prompts": 1}, file)
        with Server(self.folder, "--page-file", path) as server:
            self.assertEqual(term(server.page()[1], "Tokens reused"), "512")
            with open(path, encoding="utf-8") as file:
                text = file.read()
        self.assertEqual(json.loads(text)["tqcache_prompts"], 2)
        for digest in (*entry["chain"], entry["tenant"]):
            self.assertNotIn(str(digest), text)

    def test_without_its_file_the_page_counts_what_the_store_gives(self):
        store = ["--store", "dir:" + os.path.join(self.folder, "store")]
        with Server(self.folder, *store) as server:
            server.ask()
        with Server(self.folder, *store) as server:
            n_cached = server.ask()
            self.assertGreaterEqual(n_cached, 512)
            page = server.page()[1]
            self.assertEqual((term(page, "Prompts"), term(page, "Hits")), ("1", "1"))
            self.assertEqual(term(page, "Tokens reused"), str(n_cached))

    def test_an_administrator_sees_the_sums_of_all_keys(self):
        keys = self.secret("keys", "key-of-ann\nkey-of-bob")
        admin = self.secret("admin", "key-of-root")
        with Server(self.folder, "--api-key-file", keys, "--admin-key-file", admin) as server:
            server.ask("key-of-ann")
            server.ask("key-of-bob")
            self.assertEqual(server.page()[0], 401)
            self.assertEqual(term(server.page("key-of-ann")[1], "Prompts"), "1")
            status, page = server.page("key-of-root")
            self.assertEqual(status, 200)
            self.assertEqual((term(page, "Tenants"), term(page, "Prompts")), ("2", "2"))
            server.process.send_signal(signal.SIGHUP)
            while "event=reload" not in server.log():
                time.sleep(0.02)
            self.assertEqual(server.page("key-of-root")[0], 200)
            self.assertEqual(server.page("key-of-eve")[0], 401)

    def test_the_sums_are_open_on_this_machine_alone(self):
        with Server(self.folder, "--page-all") as server:
            server.ask()
            self.assertEqual(term(server.page()[1], "Tenants"), "1")
        keys = self.secret("keys", "key-of-ann")
        for flags in (["--listen", "192.0.2.1:0"], ["--api-key-file", keys]):
            ended = subprocess.run([PROGRAM, "serve", "--model", MODEL, "--page-all", *flags],
                                   capture_output=True, text=True, timeout=280, check=False)
            self.assertEqual(ended.returncode, 2)
            self.assertIn("--page-all", ended.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
