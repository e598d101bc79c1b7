"""tqcache serve --model as real clients see it: the packages openai and anthropic, curl, sockets.

usage: openai_client_test.py TQCACHE MODEL

Exits with 77, which ctest shows as skipped, where the openai package or curl is missing. Without
the anthropic package its tests alone are skipped.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

SKIPPED = 77
PROGRAM, MODEL = sys.argv[1:3]
SYSTEM = "You are a librarian. " + " ".join(
    f"Shelf {i} holds the books of author number {i * 7 % 101}." for i in range(45))

try:
    import openai
except ImportError:
    print("NOT RUN: the Python package openai is not installed")
    sys.exit(SKIPPED)
try:
    import anthropic
except ImportError:
    anthropic = None
if shutil.which("curl") is None:
    print("NOT RUN: curl is not installed")
    sys.exit(SKIPPED)


class Server:
    def __init__(self, *flags):
        self.log = tempfile.TemporaryFile("w+")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TQCACHE_")}
        self.process = subprocess.Popen(
            [PROGRAM, "serve", "--model", MODEL, "--listen", "127.0.0.1:0", "--threads", "1",
             *flags], stderr=self.log, env=environment)
        self.port = None
        while self.port is None:
            if self.process.poll() is not None:
                raise RuntimeError(self.text())
            found = re.search(r"event=listening port=(\d+)", self.text())
            self.port = int(found[1]) if found else None
            time.sleep(0.02)

    def text(self):
        self.log.seek(0)
        return self.log.read()

    def url(self, path=""):
        return f"http://127.0.0.1:{self.port}{path}"

    def client(self, key="none"):
        return openai.OpenAI(base_url=self.url("/v1"), api_key=key, max_retries=0, timeout=280)

    def anthropic_client(self, key="none"):
        return anthropic.Anthropic(base_url=self.url(), api_key=key, max_retries=0, timeout=280)

    def peak_memory(self):
        """In bytes."""
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as file:
            return 1024 * int(re.search(r"^VmHWM:\s+(\d+) kB$", file.read(), re.M)[1])

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        status = self.process.wait(280)
        self.log.close()
        return status

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.end()


def curl(*arguments):
    return subprocess.run(["curl", "-sS", "--max-time", "280", *arguments], check=True,
                          capture_output=True).stdout.decode("utf-8")


def greedy(client, messages, **more):
    settings = {"model": client.models.list().data[0].id, "temperature": 0, "max_tokens": 16}
    return client.chat.completions.create(messages=messages, **{**settings, **more})


class OpenAiClient(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--queue", "3")
        cls.client = cls.server.client()

    @classmethod
    def tearDownClass(cls):
        cls.status = cls.server.end()

    def test_a_chat_is_that_of_the_program(self):
        command = [PROGRAM, "chat", "-m", MODEL, "--temperature", "0", "--top-k", "0", "--top-p", "1",
                   "--min-p", "0", "-n", "16", "-q"]
        turns = ["What is your name?", "And who am I?", "Thank you."]
        shown = subprocess.run(command, input="\n".join(turns) + "\n", text=True, check=True,
                               capture_output=True).stdout
        messages, answers = [], ""
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            answer = greedy(self.client, messages)
            message = answer.choices[0].message
            # What the package gives back is sent again as it is.
            messages.append(message.model_dump())
            answers += message.content + "\n"
            self.assertEqual(answer.usage.total_tokens,
                             answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(answers, shown)
        self.assertGreater(answer.usage.prompt_tokens_details.cached_tokens, 40)

    def test_a_text_is_that_of_generate(self):
        prompt = "Alice was beginning to get very tired"
        shown = subprocess.run([PROGRAM, "generate", "-m", MODEL, "-p", prompt, "-n", "12", "-q"],
                               text=True, check=True, capture_output=True).stdout
        model = self.client.models.list().data[0].id
        answer = self.client.completions.create(model=model, prompt=prompt, max_tokens=12,
                                                temperature=0)
        self.assertEqual(answer.choices[0].text + "\n", shown)
        self.assertEqual(answer.choices[0].finish_reason, "length")

    def test_a_stream_is_the_same_text(self):
        messages = [{"role": "user", "content": "Tell me about Alice."}]
        whole = greedy(self.client, messages).choices[0].message.content
        pieces, usage = [], None
        for chunk in greedy(self.client, messages, stream=True,
                            stream_options={"include_usage": True}):
            if chunk.choices:
                pieces.append(chunk.choices[0].delta.content or "")
            usage = chunk.usage or usage
        self.assertEqual("".join(pieces), whole)
        self.assertGreater(len(pieces), 4)
        self.assertGreater(usage.completion_tokens, 4)

    def test_any_name_of_a_model_is_taken(self):
        messages = [{"role": "user", "content": "Hi"}]
        answer = greedy(self.client, messages, model="gpt-4", max_tokens=2)
        self.assertEqual(answer.model, self.client.models.list().data[0].id)

    def test_usage_comes_where_it_is_asked_for(self):
        messages = [{"role": "user", "content": "Tell me about Alice."}]
        for stream_options in (None, {"include_usage": False}, {"include_usage": True}):
            is_asked = bool(stream_options and stream_options["include_usage"])
            more = {} if stream_options is None else {"stream_options": stream_options}
            chunks = list(greedy(self.client, messages, stream=True, **more))
            self.assertTrue(all(chunk.id == chunks[0].id for chunk in chunks))
            self.assertEqual([bool(chunk.usage) for chunk in chunks],
                             [False] * (len(chunks) - 1) + [is_asked])
            self.assertEqual([bool(chunk.choices) for chunk in chunks],
                             [True] * (len(chunks) - 1) + [not is_asked])

    def test_a_response_is_the_answer_of_a_chat(self):
        text = "Tell me about Alice."
        chat = greedy(self.client, [{"role": "user", "content": text}])
        settings = {"model": "gpt-5", "temperature": 0, "max_output_tokens": 16}
        whole = self.client.responses.create(input=text, **settings)
        self.assertEqual(whole.output_text, chat.choices[0].message.content)
        self.assertEqual(whole.usage.input_tokens, chat.usage.prompt_tokens)
        self.assertEqual(whole.usage.total_tokens, chat.usage.total_tokens)
        # The package puts the response together from its events, and refuses those out of order.
        with self.client.responses.stream(input=text, **settings) as stream:
            deltas = [event.delta for event in stream if event.type == "response.output_text.delta"]
            final = stream.get_final_response()
        self.assertEqual("".join(deltas), whole.output_text)
        self.assertEqual(final.output_text, whole.output_text)
        self.assertEqual(final.status, whole.status)
        self.assertGreater(final.usage.input_tokens_details.cached_tokens, -1)
        # What the package gives back is sent again as it is.
        more = self.client.responses.create(
            input=[{"role": "user", "content": text}, *[item.model_dump() for item in whole.output],
                   {"role": "user", "content": "Thank you."}], **settings)
        messages = [{"role": "user", "content": text}, chat.choices[0].message.model_dump(),
                    {"role": "user", "content": "Thank you."}]
        self.assertEqual(more.output_text,
                         greedy(self.client, messages).choices[0].message.content)
        for field in ({"previous_response_id": whole.id}, {"store": True}):
            with self.assertRaises(openai.BadRequestError) as caught:
                self.client.responses.create(input=text, **settings, **field)
            self.assertEqual([caught.exception.param], list(field))

    def test_responses_take_tools_calls_and_results(self):
        tool = {"type": "function", "name": "weather", "description": "The weather of a place.",
                "parameters": {"type": "object", "properties": {"place": {"type": "string"}}}}
        settings = {"model": "gpt-5", "temperature": 0, "max_output_tokens": 16, "tools": [tool]}
        items = [{"role": "user", "content": "Is it raining in Rome?"},
                 {"type": "function_call", "call_id": "call_1", "name": "weather",
                  "arguments": '{"place": "Rome"}'},
                 {"type": "function_call_output", "call_id": "call_1", "output": "Rain."}]
        template = Path(__file__).resolve().parents[2] / "data/chat_templates/qwen-3.jinja"
        with Server("--template", str(template)) as server:
            client = server.client()
            whole = client.responses.create(input=items, **settings)
            with client.responses.stream(input=items, **settings) as stream:
                pieces = [event.delta for event in stream
                          if event.type == "response.output_text.delta"]
                final = stream.get_final_response()
            self.assertEqual("".join(pieces), whole.output_text)
            self.assertEqual(final.output_text, whole.output_text)
            self.assertEqual(final.status, whole.status)
            # Tools, calls and results are in the prompt: it is that of a chat with the same.
            chat = client.chat.completions.create(
                model="gpt-5", temperature=0, max_tokens=16,
                tools=[{"type": "function", "function": {
                    "name": "weather", "description": "The weather of a place.",
                    "parameters": tool["parameters"]}}],
                messages=[items[0],
                          {"role": "assistant", "content": None, "tool_calls": [
                              {"id": "call_1", "type": "function", "function": {
                                  "name": "weather", "arguments": '{"place": "Rome"}'}}]},
                          {"role": "tool", "tool_call_id": "call_1", "content": "Rain."}])
            self.assertEqual(whole.usage.input_tokens, chat.usage.prompt_tokens)
            self.assertEqual(whole.output_text, chat.choices[0].message.content)
            fewer = client.responses.create(input=items[0]["content"],
                                            **{**settings, "tool_choice": "none"})
            self.assertLess(fewer.usage.input_tokens, whole.usage.input_tokens - 40)
            for field, value in (("tool_choice", "required"), ("tools", [{"type": "web_search"}])):
                with self.assertRaises(openai.BadRequestError) as caught:
                    client.responses.create(input="Hi", **{**settings, field: value})
                self.assertTrue(caught.exception.param.startswith(field))

    @unittest.skipIf(anthropic is None, "the Python package anthropic is not installed")
    def test_anthropics_messages_are_the_answer_of_a_chat(self):
        messages = [{"role": "user", "content": "Tell me about Alice."}]
        chat = greedy(self.client, messages)
        text = chat.choices[0].message.content
        client = self.server.anthropic_client()
        # The package sends other parameters as they are.
        settings = {"model": "claude", "max_tokens": 16, "extra_body": {"temperature": 0}}
        whole = client.messages.create(messages=messages, **settings)
        self.assertEqual(whole.content[0].text, text)
        self.assertEqual(whole.usage.input_tokens + whole.usage.cache_read_input_tokens,
                         chat.usage.prompt_tokens)
        self.assertEqual(whole.usage.output_tokens, chat.usage.completion_tokens)
        with client.messages.stream(messages=messages, **settings) as stream:
            pieces = list(stream.text_stream)
            final = stream.get_final_message()
        self.assertEqual("".join(pieces), text)
        self.assertGreater(len(pieces), 4)
        self.assertEqual(final.stop_reason, whole.stop_reason)
        self.assertEqual(final.usage.output_tokens, whole.usage.output_tokens)
        stopped = client.messages.create(messages=messages, stop_sequences=[text[5:12]], **settings)
        self.assertEqual((stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence),
                         (text[:text.find(text[5:12])], "stop_sequence", text[5:12]))
        self.assertEqual(client.messages.count_tokens(model="x", messages=messages).input_tokens,
                         chat.usage.prompt_tokens)
        system = [{"type": "text", "text": SYSTEM, "cache_control": {"type": "ephemeral"}}]
        client.messages.create(messages=messages, system=system, **settings)
        again = client.messages.create(messages=[{"role": "user", "content": "Why?"}],
                                       system=system, **settings)
        self.assertGreaterEqual(again.usage.cache_read_input_tokens, 512)
        with self.assertRaises(anthropic.BadRequestError) as caught:
            client.messages.create(messages=messages, tools=[
                {"name": "f", "input_schema": {"type": "object"}}], **settings)
        self.assertEqual(caught.exception.body["error"]["type"], "invalid_request_error")
        self.assertIn("tools", caught.exception.message)

    def test_a_stop_string_ends_an_answer(self):
        messages = [{"role": "user", "content": "Tell me about Alice."}]
        whole = greedy(self.client, messages).choices[0].message.content
        stop = whole[5:12]
        for stream in (False, True):
            answer = greedy(self.client, messages, stop=[stop], stream=stream)
            if stream:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in answer)
            else:
                text = answer.choices[0].message.content
            self.assertEqual(text, whole[:whole.find(stop)])

    def test_errors_are_those_of_openai(self):
        messages = [{"role": "user", "content": "Hi"}]
        with self.assertRaises(openai.BadRequestError) as caught:
            greedy(self.client, messages, n=2)
        self.assertEqual(caught.exception.param, "n")
        with self.assertRaises(openai.BadRequestError):
            greedy(self.client, [])
        with self.assertRaises(openai.BadRequestError) as caught:  # its template knows no tools
            greedy(self.client, messages, tools=[
                {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}])
        self.assertEqual(caught.exception.param, "tools")
        with self.assertRaises(openai.BadRequestError):
            greedy(self.client, [{"role": "user", "content": "word " * 40_000}])

    def test_curl_streams(self):
        shown = curl("-N", self.server.url("/v1/chat/completions"), "-d", json.dumps(
            {"messages": [{"role": "user", "content": "Hi"}], "stream": True, "max_tokens": 4}))
        self.assertTrue(shown.startswith("data: {"))
        self.assertTrue(shown.endswith("data: [DONE]\n\n"))

    def test_hostile_bodies_get_a_status(self):
        many_keys = b",".join(b"\"%d\": 0" % i for i in range(90_000))
        for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses",
                     "/v1/messages/count_tokens", "/tokenize", "/apply-template"):
            for body in (b"", b"{", b"[" * 200_000, b"\xff\xfe", b"{\"messages\": 1e999}", b"null",
                         b"{\"prompt\": \"a\", \"max_tokens\": 1e30}", b"{\"content\": [[]]}",
                         b"{\"messages\": [" + b"{}," * 50_000 + b"{}]}",
                         b"{\"a\": {" + many_keys + b"}}"):
                status = subprocess.run(
                    ["curl", "-sS", "-o", os.devnull, "-w", "%{http_code}", "--data-binary", "@-",
                     self.server.url(path)], input=body, check=True, capture_output=True).stdout
                self.assertEqual(status, b"400", (path, body[:30]))
        self.assertEqual(json.loads(curl(self.server.url("/health")))["status"], "ok")

    def test_a_client_that_leaves_frees_the_server(self):
        body = json.dumps({"messages": [{"role": "user", "content": "Count."}], "stream": True,
                           "temperature": 0, "logit_bias": {"2": -100, "0": -100},
                           "max_tokens": 10_000})
        before = self.generated_tokens()
        with socket.create_connection(("127.0.0.1", self.server.port)) as connection:
            connection.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\n"
                               f"Content-Length: {len(body)}\r\n\r\n{body}".encode())
            while b"content" not in connection.recv(4096):
                pass
        # This is answered when the first answer has ended, which is counted then.
        greedy(self.client, [{"role": "user", "content": "Hi"}], max_tokens=1)
        self.assertLess(self.generated_tokens() - before, 10_000)

    def generated_tokens(self):
        found = re.search(r"^tqcache_generated_tokens_total (\d+)$",
                          curl(self.server.url("/metrics")), re.M)
        return int(found[1])

    def test_a_full_queue_says_so(self):
        body = {"messages": [{"role": "user", "content": "Count."}], "temperature": 0,
                "logit_bias": {"2": -100, "0": -100}, "max_tokens": 400}
        statuses = []

        def ask():
            # The queue has four places. Twice as many clients ask until one is refused.
            while not any(status.startswith("429") for status in statuses):
                connection = http.client.HTTPConnection("127.0.0.1", self.server.port)
                connection.request("POST", "/v1/chat/completions", json.dumps(body))
                answer = connection.getresponse()
                answer.read()
                connection.close()
                statuses.append(f"{answer.status} {answer.headers['Retry-After']}")
        threads = [threading.Thread(target=ask) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        kinds = {status[:3] for status in statuses}
        self.assertEqual(kinds, {"200", "429"}, statuses)
        self.assertTrue(all(re.fullmatch(r"200 None|429 [1-9]\d*", each) for each in statuses),
                        statuses)
        self.assertGreaterEqual(sum(status[:3] == "200" for status in statuses), 4)


class LongBodies(unittest.TestCase):
    def ask(self, server, body, n, path):
        """The statuses of `n` requests at a time."""
        statuses = []

        def one():
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=280)
            connection.request("POST", path, body)
            statuses.append(connection.getresponse().status)
            connection.close()
        threads = [threading.Thread(target=one) for _ in range(n)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return statuses

    def test_texts_that_cannot_fit_take_no_more_than_their_bytes(self):
        # By default the body is refused by its length alone; the small model needs 1.5 MiB.
        with Server() as server:
            for size, status in ((1_400_000, 400), (1_600_000, 413)):
                body = b'{"prompt":"' + b"a " * (size // 2) + b'"}'
                self.assertEqual(self.ask(server, body, 1, "/v1/completions"), [status])
        # With a larger limit they are received, but neither parsed nor made into tokens.
        n_bytes = 45_000_000
        text = b"a b " * (n_bytes // 4)
        for path, body in (("/v1/completions", b'{"prompt":"' + text + b'"}'),
                           ("/tokenize", b'{"content":"' + text + b'"}'),
                           ("/v1/chat/completions",
                            b'{"messages":[{"role":"user","content":"' + text + b'"}]}')):
            with Server("--max-body", "64MiB") as server:
                before = server.peak_memory()
                self.assertEqual(self.ask(server, body, 3, path), [413] * 3)
                # Three bodies at a time, in buffers that grow. Their tokens alone would be more.
                self.assertLess(server.peak_memory() - before, 6 * n_bytes)


class KeptPrompts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.store = "dir:" + os.path.join(folder.name, "store")

    def talk(self, client, turns, messages, answers):
        for turn in turns:
            messages.append({"role": "user", "content": turn})
            answer = greedy(client, messages)
            messages.append({"role": "assistant", "content": answer.choices[0].message.content})
            answers.append((answer.choices[0].message.content,
                            answer.usage.prompt_tokens_details.cached_tokens))

    def test_a_conversation_survives_kills(self):
        turns = ["Who are you?", "Which shelf is best?", "Why?", "Thank you."]
        system = [{"role": "system", "content": SYSTEM}]
        with Server() as server:
            undisturbed, messages = [], list(system)
            self.talk(server.client(), turns, messages, undisturbed)
        killed, messages = [], list(system)
        for turn in turns:
            server = Server("--store", self.store)
            self.talk(server.client(), [turn], messages, killed)
            self.wait_for_blocks()
            self.assertEqual(server.end(signal.SIGKILL), -signal.SIGKILL)
        self.assertEqual([text for text, _ in killed], [text for text, _ in undisturbed])
        self.assertEqual(killed[0][1], 0)
        for _, n_cached in killed[1:]:
            self.assertGreaterEqual(n_cached, 512)

    def wait_for_blocks(self):
        """Until both blocks of the system text are in the store."""
        while True:
            listed = subprocess.run([PROGRAM, "store", "stats", "--store", self.store, "--json"],
                                    capture_output=True, text=True)
            if listed.returncode == 0 and '"block"' in listed.stdout:
                if json.loads(listed.stdout)["kinds"]["block"]["blobs"] >= 2:
                    return
            time.sleep(0.1)

    def test_the_page_survives_a_restart(self):
        flags = ["--store", self.store, "--page-file", os.path.join(self.folder, "page.json")]
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}]
        with Server(*flags) as server:
            greedy(server.client(), messages, max_tokens=2)
        with Server(*flags) as server:
            for path in ("/", "/tqcache"):
                page = curl(server.url(path))
                self.assertEqual(page.count("<tr>"), 2)
                self.assertNotIn("librarian", page)
            greedy(server.client(), messages, max_tokens=2)
            hits = re.search(r"<dt>Hits</dt><dd>(\d+)</dd>", curl(server.url("/")))
            self.assertEqual(hits[1], "1")
            # A name that a page elsewhere has given this address.
            self.assertIn("403", curl("-i", "-H", "Host: evil.example", server.url("/"))
                          .splitlines()[0])

    def test_the_page_counts_what_the_store_gave_after_a_restart(self):
        """Without --page-file, so that the new server knows nothing of the first prompt."""
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hi"}]
        for hits in ("0", "1"):
            with Server("--store", self.store) as server:
                usage = greedy(server.client(), messages, max_tokens=2).usage
                page = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", curl(server.url("/"))))
            self.assertEqual(page["Hits"], hits)
            self.assertEqual(page["Tokens reused"],
                             str(usage.prompt_tokens_details.cached_tokens))

    def test_sigterm_ends_a_stream_and_keeps_its_blocks(self):
        server = Server("--store", self.store, "--grace", "1s")
        messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Count."}]
        stream = greedy(server.client(), messages, stream=True, max_tokens=10_000,
                        logit_bias={"2": -100, "0": -100})
        next(stream)
        server.process.send_signal(signal.SIGTERM)
        # The stream ends without [DONE]; what the client makes of that is its own.
        with self.assertRaises(Exception):
            for _ in stream:
                pass
            raise EOFError
        self.assertEqual(server.process.wait(280), 0)
        self.assertIn("event=stopped", server.text())
        server.log.close()
        with Server("--store", self.store) as again:
            usage = greedy(again.client(), messages, max_tokens=1).usage
            self.assertGreaterEqual(usage.prompt_tokens_details.cached_tokens, 512)

    def test_keys_are_tenants(self):
        keys = os.path.join(self.folder, "keys")
        with open(keys, "w", encoding="ascii", opener=lambda p, f: os.open(p, f, 0o600)) as file:
            file.write("key-of-ann\nkey-of-bob\n")
        with Server("--store", self.store, "--api-key-file", keys, "--show-prompts") as server:
            messages = [{"role": "system", "content": SYSTEM + " <script>alert(1)</script>"},
                        {"role": "user", "content": "Hi"}]
            ann, bob = server.client("key-of-ann"), server.client("key-of-bob")
            cached = [greedy(client, messages, max_tokens=2).usage.prompt_tokens_details.cached_tokens
                      for client in (ann, bob, ann, bob)]
            self.assertEqual(cached[:2], [0, 0])
            self.assertGreaterEqual(min(cached[2:]), 512)
            with self.assertRaises(openai.AuthenticationError):
                server.client("key-of-eve").models.list()

            page = curl("-u", "any:key-of-ann", server.url("/"))
            self.assertIn("librarian", page)
            self.assertNotIn("<script", page)
            self.assertEqual(page.count("<tr>"), 2)
            self.assertNotIn("librarian", curl("-u", "any:key-of-eve", server.url("/")))
            head = curl("-i", server.url("/"))
            self.assertIn("401", head.splitlines()[0])
            self.assertIn("WWW-Authenticate: Basic", head)
            # A browser sends such a password by itself, so it opens the page alone.
            self.assertIn("401", curl("-i", "-u", "x:key-of-ann", server.url("/v1/models"))
                          .splitlines()[0])
            self.assertNotIn("key-of", server.text())
            self.assertNotIn("librarian", server.text())


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
