"""Clients of tqcache serve that try to get at each other's prompts, before a real llama-server.

usage: test_llama_tenants.py --tqcache PROGRAM --source FOLDER [--models FOLDER] [TEST...]

llama-server reads paths and JSON in its own way, and knows nothing of tenants: what counts here is
what it makes of the bytes that the proxy forwards. Two API keys; alpha has asked something, and
beta must neither reuse a token of it nor see, save or erase a slot. Web pages of other sites must
reach nothing. Ends with 77 if xllamacpp is missing.
"""

import json
import random
import socket
import subprocess
import threading
import time

import test_llama_server as serve
from test_llama_turns import SECONDS_TO_SAVE, difference

ALPHA, BETA = "key-alpha-000001", "key-beta-0000002"


def raw(port, method, target, body=b"", key=None, headers=(), host=None):
    """Sends these very bytes. Returns (status, body)."""
    head = [f"{method} {target} HTTP/1.1", f"Host: {host or f'127.0.0.1:{port}'}",
            "Connection: close", *headers]
    if key:
        head.append(f"Authorization: Bearer {key}")
    if body:
        head.append(f"Content-Length: {len(body)}")
        if not any(h.lower().startswith("content-type") for h in headers):
            head.append("Content-Type: application/json")
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    head, _, rest = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest


class TenantCase(serve.ServeCase):
    def setUp(self):
        super().setUp()
        self.draw = random.Random(11)
        self.keys = self.folder / "keys"
        self.keys.write_text(f"{ALPHA}\n{BETA}\n")
        self.keys.chmod(0o600)

    def ids(self, n):
        return [self.draw.randrange(300, 4000) for _ in range(n)]

    def ask(self, port, key, prompt, n_predict=2, **more):
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "n_probs": 8,
                "ignore_eos": True, **more}
        headers = [("Authorization", f"Bearer {key}")] if key else []
        return serve.post(port, "/completion", body, headers)

    def slot_ids(self, llama):
        return [s["id"] for s in json.loads(serve.get(llama.port, "/slots"))]


class TenantTest(TenantCase):
    def servers(self, *flags, **settings):
        llama = self.llama(self.demo(), **settings)
        return llama, self.proxy(llama, "--api-key-file", str(self.keys), *flags)

    def assert_refused(self, proxy, statuses, method, target, body=b"", key=BETA):
        with self.subTest(method=method, target=target, body=body[-80:]):
            status, answer = raw(proxy.port, method, target, body, key)
            self.assertIn(status, statuses, answer[:120])

    def test_no_spelling_of_a_path_reaches_the_slots(self):
        llama, proxy = self.servers()
        self.ask(proxy.port, ALPHA, self.ids(900))
        save = b'{"filename":"stolen.bin"}'
        for path in ("/slots", "/%73lots", "/%u0073lots", "/%U0073lots", "//slots", "/./slots",
                     "/v1/../slots", "/slots/", "/slots%2f", "/%2fslots", "/slots%00", "/sl%6fts",
                     "/%-1slots", "/slots%", "/slots?model=x", "/slots#x", "/slots;x", "/\\slots",
                     "http://x/slots"):
            self.assert_refused(proxy, (400, 403, 404), "GET", path)
        for path in ("/slots/0", "/%u0073lots/0", "/slots%2f0", "/slots%u002f0", "/slots/%30",
                     "//slots/0", "/slots/0/"):
            for action in ("save", "restore", "erase"):
                self.assert_refused(proxy, (400, 403, 404), "POST", f"{path}?action={action}", save)
        self.assertFalse((self.slots / "stolen.bin").exists())
        # None of them was erased.
        prompts = [s.get("n_prompt_tokens", 0) for s in
                   json.loads(serve.get(llama.port, "/slots"))]
        self.assertGreaterEqual(max(prompts), 900)

    def test_no_spelling_of_a_path_is_answered_unsteered(self):
        llama, proxy = self.servers(n_parallel=2, kv_unified=False, cache_ram_mib=0)
        prompt = self.ids(900)
        self.ask(proxy.port, ALPHA, prompt)
        for path in ("/%u0063ompletion", "/%63ompletion", "//completion", "/./completion",
                     "/completion/", "/v1/../completion", "/%u0063ompletions", "/completion%00"):
            for slot in self.slot_ids(llama):
                body = json.dumps({"prompt": prompt, "id_slot": slot, "cache_prompt": True,
                                   "n_predict": 1}).encode()
                with self.subTest(path=path, slot=slot):
                    status, answer = raw(proxy.port, "POST", path, body, BETA)
                    if status == 200:
                        self.assertEqual(json.loads(answer)["timings"]["cache_n"], 0)
                    else:
                        self.assertIn(status, (400, 403, 404), answer)

    def test_a_slot_of_another_key_is_never_reused(self):
        for settings in ({}, {"n_parallel": 2, "kv_unified": False, "cache_ram_mib": 0}):
            llama, proxy = self.servers(**settings)
            more = [{}, {"cache_prompt": True}, {"cache_prompt": False}]
            more += [{"id_slot": slot, "cache_prompt": True} for slot in self.slot_ids(llama)]
            for fields in more:
                with self.subTest(settings=settings, fields=fields):
                    prompt = self.ids(900)
                    self.ask(proxy.port, ALPHA, prompt)
                    guess = prompt[:600] + self.ids(300)
                    self.assertEqual(self.ask(proxy.port, BETA, guess, **fields)["timings"]
                                     ["cache_n"], 0)
                    again = self.ask(proxy.port, ALPHA, prompt + self.ids(10))["timings"]
                    self.assertGreaterEqual(again["cache_n"], 880, "alpha's own prompt")
            proxy.end()
            llama.end()

    def test_a_body_is_one_object_to_its_very_end(self):
        llama, proxy = self.servers()
        prompt = self.ids(900)
        self.ask(proxy.port, ALPHA, prompt)
        guess = json.dumps(prompt)
        wanted = '"id_slot":0,"cache_prompt":true,"n_predict":1'
        plain = f'{{"prompt":{guess},{wanted}}}'.encode()
        for body in (plain + b"\0}", plain + b"\0", plain + b"}", plain + b" {}",
                     plain + b"\0" + plain,
                     f'{{"cache_prompt":false,"prompt":{guess},{wanted}}}'.encode(),
                     f'{{"prompt":"other",{wanted},"prompt":{guess}}}'.encode(),
                     f'{{"id_slot":-1,"prompt":{guess},{wanted}}}'.encode(),
                     plain.replace(b"cache_prompt", b"cache_\\u0070rompt", 1)[:-1] +
                     b',"cache_prompt":false}',
                     b"[" + plain + b"]", b"\xef\xbb\xbf" + plain + b"\0}",
                     plain[:-1] + b',"x":"\xff"}'):
            for path in ("/completion", "/v1/completions", "/infill"):
                self.assert_refused(proxy, (400,), "POST", path, body)

    def test_what_others_ask_at_the_same_time_is_not_kept_for_the_attacker(self):
        """Requests that are not steered wait for a slot behind those that are."""
        llama, proxy = self.servers(n_parallel=1, cache_ram_mib=0)
        self.ask(proxy.port, BETA, "warm up")
        for fields, is_restarted in (({"cache_prompt": False}, False), ({"id_slot": 0}, False),
                                     ({}, False), ({"cache_prompt": False}, True)):
            with self.subTest(fields=fields, is_restarted=is_restarted):
                secret = self.ids(900)
                attack = threading.Thread(target=self.ask, args=(proxy.port, ALPHA, self.ids(600),
                                                                 200))
                attack.start()
                serve.wait_for(lambda: '"is_processing":true' in serve.get(llama.port, "/slots"),
                               "the attacker's request", 20)
                self.ask(proxy.port, BETA, secret, **fields)
                attack.join()
                time.sleep(SECONDS_TO_SAVE)
                if is_restarted:
                    proxy.kill()
                    llama.kill()
                    llama.start()
                    proxy.start()
                guess = self.ask(proxy.port, ALPHA, secret + self.ids(10))["timings"]
                self.assertEqual(guess["cache_n"], 0, proxy.log())

    def test_tenants_are_apart_without_a_slot_folder(self):
        """Or the proxy does not start, and says why."""
        llama = self.llama(self.demo())
        command = [str(serve.OPTIONS.tqcache), "serve", "--upstream",
                   f"http://127.0.0.1:{llama.port}", "--api-key-file", str(self.keys), "--listen"]
        reserved = serve.ReservedPort()
        self.addCleanup(reserved.close)
        process = subprocess.Popen([*command, f"127.0.0.1:{reserved.port}"],
                                   stderr=subprocess.PIPE, text=True)
        self.addCleanup(lambda: (process.kill(), process.communicate()))

        def is_there():
            if process.poll() is not None:
                return True
            with socket.create_connection(("127.0.0.1", reserved.port)):
                return True

        serve.wait_for(is_there, "the proxy", 20)
        time.sleep(0.2)
        if process.poll() is not None:
            self.assertIn("slot-dir", process.stderr.read())
            return
        self.assertEqual(raw(reserved.port, "GET", "/slots", key=BETA)[0], 403)
        self.assertIn(raw(reserved.port, "POST", "/slots/0?action=save", b'{"filename":"a"}',
                          BETA)[0], (400, 403))
        prompt = self.ids(900)
        self.ask(reserved.port, ALPHA, prompt)
        for slot in self.slot_ids(llama):
            for fields in ({}, {"id_slot": slot, "cache_prompt": True}):
                timings = self.ask(reserved.port, BETA, prompt[:600] + self.ids(50),
                                   **fields)["timings"]
                self.assertLess(timings["cache_n"], 600)

    def test_no_tenant_changes_the_server_of_all(self):
        _, proxy = self.servers(endpoint_props=True)
        for target, body in (("/props", b'{"chat_template":"x"}'),
                             ("/lora-adapters", b'[{"id":0,"scale":9}]'),
                             ("/models/load", b'{"model":"x"}'),
                             ("/models/unload", b'{"model":"x"}')):
            self.assert_refused(proxy, (400, 403, 404), "POST", target, body)
        for target in ("/unknown", "/v2/completion", "/v1/chat/completions/control"):
            self.assert_refused(proxy, (400, 403, 404), "POST", target, b"{}")

    def test_what_tenants_may_ask_is_answered(self):
        _, proxy = self.servers()
        for method, target, body in (
                ("GET", "/v1/models", b""), ("GET", "/health", b""), ("GET", "/props", b""),
                ("POST", "/tokenize", b'{"content":"a word"}'),
                ("POST", "/detokenize", b'{"tokens":[400,401]}'),
                ("POST", "/apply-template", b'{"messages":[{"role":"user","content":"a"}]}'),
                ("POST", "/completion?x=%20y", b'{"prompt":"a","n_predict":1}'),
                ("POST", "/v1/completions", b'{"prompt":"a","max_tokens":1} \r\n'),
                ("POST", "/v1/chat/completions",
                 b'{"messages":[{"role":"user","content":"\\u0000 {\\"a\\":1}"}],"max_tokens":1}')):
            with self.subTest(target=target):
                self.assertEqual(raw(proxy.port, method, target, body, BETA)[0], 200)


class BrowserTest(TenantCase):
    """Without keys only programs of this machine may ask, and no web page of another site."""

    def setUp(self):
        super().setUp()
        self.upstream = self.llama(self.demo())
        self.body = b'{"prompt":"a","n_predict":1}'

    def statuses(self, proxy, **how):
        yield raw(proxy.port, "POST", "/completion", self.body, **how)[0]
        for target in ("/tqcache", "/metrics", "/v1/models", "/slots", "/"):
            yield raw(proxy.port, "GET", target, **how)[0]

    def test_a_name_that_was_rebound_reaches_nothing(self):
        proxy = self.proxy(self.upstream)
        for host in ("evil.example", f"evil.example:{proxy.port}", "localhost.evil.example",
                     "127.0.0.1.evil.example", "evil.example.", "127.0.0.1@evil.example",
                     "[::1].x"):
            for headers in ((), ("x-api-key: x",), ("Authorization: Bearer x",),
                            ("Origin: http://evil.example",)):
                with self.subTest(host=host, headers=headers):
                    self.assertLessEqual(set(self.statuses(proxy, host=host, headers=headers)),
                                         {403, 400})

    def test_pages_of_other_sites_run_nothing(self):
        proxy = self.proxy(self.upstream)
        for headers in (("Origin: http://evil.example", "Content-Type: text/plain"),
                        ("Origin: null", "Content-Type: text/plain"),
                        ("Origin: http://localhost.evil.example",),
                        ("Sec-Fetch-Site: cross-site", "Content-Type: text/plain"),
                        ("Origin: https://evil.example", "x-api-key: x")):
            for target in ("/completion", "/v1/completions", "/slots/0?action=erase", "/tokenize"):
                with self.subTest(headers=headers, target=target):
                    status, _ = raw(proxy.port, "POST", target, self.body, headers=headers)
                    self.assertEqual(status, 403)

    def test_local_programs_are_answered(self):
        proxy = self.proxy(self.upstream)
        for host in (f"127.0.0.1:{proxy.port}", f"localhost:{proxy.port}", "localhost", "[::1]",
                     f"[::1]:{proxy.port}", "LOCALHOST"):
            with self.subTest(host=host):
                self.assertEqual(raw(proxy.port, "POST", "/completion", self.body, host=host)[0],
                                 200)
        own = f"http://127.0.0.1:{proxy.port}"
        self.assertEqual(raw(proxy.port, "POST", "/completion", self.body,
                             headers=(f"Origin: {own}", "Sec-Fetch-Site: same-origin"))[0], 200)

    def test_names_and_sites_that_are_allowed_are_answered(self):
        proxy = self.proxy(self.upstream, "--allow-host", "models.example", "--allow-origin",
                           "https://chat.example")
        self.assertEqual(raw(proxy.port, "POST", "/completion", self.body,
                             host="models.example")[0], 200)
        self.assertEqual(raw(proxy.port, "POST", "/completion", self.body,
                             headers=("Origin: https://chat.example",))[0], 200)
        self.assertEqual(raw(proxy.port, "POST", "/completion", self.body,
                             headers=("Origin: https://evil.example",))[0], 403)
        self.assertEqual(raw(proxy.port, "GET", "/metrics", host="other.example")[0], 403)


class AdapterTest(TenantCase):
    """Values that were computed with an adapter are not the plain model's."""

    def adapter(self):
        try:
            import gguf
            import numpy as np
        except ImportError as error:
            self.skipTest(f"adapters: {error}")
        path = self.folder / "adapter.gguf"
        writer = gguf.GGUFWriter(str(path), "qwen3")
        writer.add_type(gguf.GGUFType.ADAPTER)
        writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
        writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, 8.0)
        draw = np.random.default_rng(1)
        for name, n_in, n_out in (("attn_k", 384, 256), ("attn_v", 384, 256)):
            for layer in range(2):
                stem = f"blk.{layer}.{name}.weight"
                writer.add_tensor(f"{stem}.lora_a",
                                  draw.normal(0, 0.1, (8, n_in)).astype(np.float32))
                writer.add_tensor(f"{stem}.lora_b",
                                  draw.normal(0, 0.1, (n_out, 8)).astype(np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    def servers_with_adapter(self):
        (self.folder / "other").mkdir()
        path = str(self.adapter())
        alone = serve.Llama(self.demo(), self.folder / "other", lora=path)
        self.addCleanup(alone.end)
        llama = self.llama(self.demo(), lora=path)
        for server in (alone, llama):
            serve.post(server.port, "/lora-adapters", [{"id": 0, "scale": 0.0}])
        return alone, llama, self.proxy(llama)

    def restart(self, proxy, llama, scale=0.0):
        time.sleep(SECONDS_TO_SAVE)
        proxy.kill()
        llama.kill()
        llama.start()
        serve.post(llama.port, "/lora-adapters", [{"id": 0, "scale": scale}])
        proxy.start()

    def assert_as(self, answer, expected, what):
        wrong, _ = difference(answer, expected, 0.5)
        self.assertIsNone(wrong, what)

    def test_a_request_with_an_adapter_is_not_kept_for_requests_without(self):
        alone, llama, proxy = self.servers_with_adapter()
        prompt = self.ids(1200)
        plain = self.ask(alone.port, None, prompt, 8)
        tuned = self.ask(alone.port, None, prompt, 8, lora=[{"id": 0, "scale": 4.0}])
        self.assertIsNotNone(difference(tuned, plain, 0.5)[0], "the adapter changes the answer")
        self.assert_as(self.ask(proxy.port, None, prompt, 8, lora=[{"id": 0, "scale": 4.0}]), tuned,
                       "with the adapter")
        self.ask(proxy.port, None, self.ids(600))
        self.assert_as(self.ask(proxy.port, None, prompt, 8), plain, "without it")
        self.restart(proxy, llama)
        self.assert_as(self.ask(proxy.port, None, prompt, 8), plain, "after the restart")
        self.assert_as(self.ask(proxy.port, None, prompt, 8, lora=[{"id": 0, "scale": 4.0}]), tuned,
                       "with the adapter, after the restart")

    def test_adapters_that_are_set_for_all_are_another_model(self):
        alone, llama, proxy = self.servers_with_adapter()
        prompt = self.ids(1200)
        # llama-server itself reuses what its slots hold of other adapters.
        plain = self.ask(alone.port, None, prompt, 8, cache_prompt=False)
        self.ask(proxy.port, None, self.ids(600))
        for server in (alone, proxy):
            serve.post(server.port, "/lora-adapters", [{"id": 0, "scale": 4.0}])
        tuned = self.ask(alone.port, None, prompt, 8, cache_prompt=False)
        self.assertIsNotNone(difference(tuned, plain, 0.5)[0], "the adapter changes the answer")
        self.assert_as(self.ask(proxy.port, None, prompt, 8), tuned, "with the adapter")
        self.restart(proxy, llama)
        self.assert_as(self.ask(proxy.port, None, prompt, 8), plain, "without it")
        self.restart(proxy, llama, 4.0)
        self.assert_as(self.ask(proxy.port, None, prompt, 8), tuned, "with it again")


if __name__ == "__main__":
    serve.main()
