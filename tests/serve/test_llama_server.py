"""tqcache serve before a real llama-server, which is killed again and again.

usage: test_llama_server.py --tqcache PROGRAM --source FOLDER [--models FOLDER] [TEST...]

Answers are compared with those of a llama-server that is left alone. Ends with 77 if xllamacpp is
missing. TQCACHE_SERVE_LONG=1: with a system prompt of 4,000 tokens, and 50 conversations.
"""

import argparse
import atexit
import functools
import importlib.metadata
import json
import os
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request
from pathlib import Path

NOT_RUN = 77
IS_LONG = os.environ.get("TQCACHE_SERVE_LONG") == "1"
# Tokens of an answer. A resting slot is saved after a 64th of its tokens.
N_PREDICT = 96 if IS_LONG else 48
SMOL = "SmolLM2-135M-Instruct.Q4_1.gguf"
OPTIONS = None


class ReservedPort(socket.socket):
    """A port that no other program is given until this is closed, also while its server is killed
    and started again. Nothing listens before the server does."""

    def __init__(self):
        super().__init__()
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self.bind(("127.0.0.1", 0))
        self.port = self.getsockname()[1]


def post(port, path, body, headers=()):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json", **dict(headers)})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)


def stream(port, body):
    """Seconds to the first token, and to the last one, and the number of tokens."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}/completion",
                                     json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    begin, first, n = time.perf_counter(), None, 0
    with urllib.request.urlopen(request, timeout=3600) as answer:
        for line in answer:
            if line.startswith(b"data: ") and b'"content":' in line:
                first = first or time.perf_counter() - begin
                n += 1
    return first, time.perf_counter() - begin, n


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=3600) as answer:
        return answer.read().decode()


def wait_for(is_true, what, seconds=280):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if is_true():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"{what}: not within {seconds} s")


class Llama:
    def __init__(self, model, slots, **settings):
        self.reserved = ReservedPort()
        self.port = self.reserved.port
        self.settings = {"model": str(model), "slots": str(slots), "port": self.port,
                         **settings}
        self.log_path = Path(slots).parent / f"llama-{self.port}.log"
        self.start()

    def start(self):
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(Path(__file__).parent / "llama_server_process.py"),
                 json.dumps(self.settings)], stdout=log, stderr=log)
        try:
            wait_for(lambda: "ok" in get(self.port, "/health"), "llama-server")
        except AssertionError as error:
            self.kill()
            raise AssertionError(f"{error}: {self.log_path.read_text()[-2000:]}") from error

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        self.kill()
        self.reserved.close()


class Proxy:
    def __init__(self, upstream, slots, store, *flags):
        self.reserved = ReservedPort()
        self.port = self.reserved.port
        self.log_path = Path(slots).parent / "serve.log"
        self.command = [str(OPTIONS.tqcache), "serve", "--upstream",
                        f"http://127.0.0.1:{upstream}", "--slot-dir", str(slots), "--store",
                        f"dir:{store}", "--listen", f"127.0.0.1:{self.port}", *flags]
        self.start()

    def start(self):
        with open(self.log_path, "w") as log:
            self.process = subprocess.Popen(self.command, stderr=log)
        wait_for(self.is_listening, "tqcache serve")

    def is_listening(self):
        if self.process.poll() is not None:
            raise AssertionError(f"tqcache serve ended: {self.log()}")
        try:
            get(self.port, "/health")
        except urllib.error.HTTPError:
            pass  # llama-server is not there yet
        return True

    def log(self):
        return self.log_path.read_text()

    def events(self, name):
        """The fields of all events of that name."""
        return [dict(re.findall(r'(\w+)=("[^"]*"|\S+)', line))
                for line in self.log().splitlines() if f" event={name} " in line]

    def metric(self, name):
        found = re.search(rf"^{re.escape(name)} (\S+)$", get(self.port, "/metrics"), re.M)
        return float(found[1]) if found else 0.0

    def wait_for_save(self):
        """Returns the first save. Fails at once if the proxy gave a warning: then none may come."""
        def is_there():
            if " level=warning " in self.log():
                raise AssertionError(self.log())
            return self.events("keep")
        wait_for(is_there, "a save")
        return self.events("keep")[0]

    def saves_when_idle(self, timings, n_restored):
        """Whether a slot that rests is saved after this request."""
        n = timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"]
        return n - n_restored > min(256, n // 64 + 1) + 2

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self):
        self.kill()
        self.reserved.close()

    def stop(self):
        self.process.terminate()
        return self.process.wait(timeout=280)


@functools.cache
def demo(source):
    """The bundled model, or, in runs that are not long, its first two layers. Tests here ask who
    computes which tokens. Two layers show that as well as eight, in a quarter of the time."""
    if IS_LONG:
        return source / "models/demo/tqcache-demo-17m.q8_0.gguf"
    sys.path.insert(0, str(source / "models/demo"))
    import make_gguf
    folder = Path(tempfile.mkdtemp(prefix="tqcache-serve-model-"))
    atexit.register(shutil.rmtree, folder)
    path = folder / "demo-2-layers.gguf"
    path.write_bytes(make_gguf.model_bytes(source / "models/demo/hf", 2))
    return path


def system_prompt(n):
    return " ".join(f"Rule {i}: the answer to question {i} is {i * i + 7}." for i in range(n))


class ServeCase(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="tqcache-serve-"))
        self.addCleanup(shutil.rmtree, self.folder)
        self.slots = self.folder / "slots"
        self.slots.mkdir()
        self.store = self.folder / "store"

    def llama(self, model, **settings):
        server = Llama(model, self.slots, **settings)
        self.addCleanup(server.end)
        return server

    def proxy(self, upstream, *flags):
        server = Proxy(upstream.port, self.slots, self.store, *flags)
        self.addCleanup(server.end)
        return server

    def demo(self):
        return demo(OPTIONS.source)

    def smol(self):
        path = OPTIONS.models / SMOL if OPTIONS.models else None
        if path is None or not path.exists():
            self.skipTest(f"{SMOL} is not there")
        return path


class ServeTest(ServeCase):
    def ten_turns(self, model, make_request, add_answer, n_turns, *flags, is_chat=False,
                  **settings):
        """Kills both servers between every two turns. Answers of a chat with SmolLM2 are always
        those of the server that is left alone. Plain text may be cut into other tokens than were
        generated: then the tokens behind the cut are computed again, all in one batch, and
        llama.cpp's numbers depend on the batch. So there answers are compared where as much was
        reused."""
        alone = Llama(model, self.slots, **settings)
        self.addCleanup(alone.end)
        llama = self.llama(model, **settings)
        proxy = self.proxy(llama, "--save-idle", "1s", *flags)
        total = {"prompt": 0, "computed": 0}
        n_compared = 0
        for turn in range(n_turns):
            path, body = make_request(turn)
            expected = post(alone.port, path, body)
            answer = post(proxy.port, path, body)
            text, timings = add_answer(answer)
            restored = [int(e["tokens"]) for e in proxy.events("restore")]
            print(f"  turn {turn}: restored {restored}, {timings['cache_n']} reused, "
                  f"{timings['prompt_n']} computed", flush=True)
            alone_text, alone_timings = add_answer(expected, keep=False)
            if is_chat or timings["cache_n"] == alone_timings["cache_n"]:
                self.assertEqual(text, alone_text, f"turn {turn}")
                n_compared += 1
            self.assertEqual(proxy.events("bind"), [], proxy.log())
            total["prompt"] += timings["cache_n"] + timings["prompt_n"]
            total["computed"] += timings["prompt_n"]
            if turn == 0:
                stored = int(proxy.wait_for_save()["tokens"])
            else:
                if proxy.saves_when_idle(timings, restored[0] if restored else 0):
                    proxy.wait_for_save()
                self.assertEqual(len(restored), 1, proxy.log())
                self.assertGreaterEqual(restored[0], stored)
                self.assertGreaterEqual(timings["cache_n"], restored[0] - 1)
            proxy.kill()
            llama.kill()
            llama.start()
            proxy.start()
        print(f"  {total['prompt']} tokens of prompts, {total['computed']} computed, "
              f"{n_compared} answers compared", flush=True)
        self.assertGreater(n_compared, 1)
        self.assertEqual(list(self.slots.glob("tqcache-*")), [])

    def turns_of_a_chat(self, model, n_turns):
        messages = [{"role": "system", "content": system_prompt(220 if IS_LONG else 30)}]

        def make_request(turn):
            messages.append({"role": "user", "content": f"What is the answer to question {turn}?"})
            return "/v1/chat/completions", {"messages": messages, "max_tokens": N_PREDICT,
                                            "temperature": 0, "ignore_eos": IS_LONG}

        def add_answer(answer, keep=True):
            text = answer["choices"][0]["message"]["content"]
            if keep:
                messages.append({"role": "assistant", "content": text})
            return text, answer["timings"]

        self.ten_turns(model, make_request, add_answer, n_turns, is_chat=model != self.demo())

    def test_ten_turns_of_a_chat(self):
        self.turns_of_a_chat(self.smol(), 10 if IS_LONG else 3)

    def test_ten_turns_of_a_chat_with_the_bundled_model(self):
        self.turns_of_a_chat(self.demo(), 10 if IS_LONG else 2)

    def turns_of_a_text(self, n_turns, n_characters=6000, **settings):
        book = (OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()
        text = [book[:n_characters]]

        def make_request(turn):
            text.append(f"\n\nCHAPTER {turn}.\n")
            return "/completion", {"prompt": "".join(text), "n_predict": N_PREDICT,
                                   "temperature": 0, "ignore_eos": IS_LONG}

        def add_answer(answer, keep=True):
            if keep:
                text.append(answer["content"])
            return answer["content"], answer["timings"]

        self.ten_turns(self.demo(), make_request, add_answer, n_turns, **settings)

    def test_ten_turns_of_a_text(self):
        if IS_LONG:
            self.turns_of_a_text(10, 14_000)
        else:
            self.turns_of_a_text(5)

    def test_one_slot(self):
        self.turns_of_a_text(3, n_parallel=1)

    def test_two_slots_with_a_cache_each(self):
        self.turns_of_a_text(3, n_parallel=2, kv_unified=False)

    def test_conversations_over_two_slots(self):
        n, n_characters = (50, 4000) if IS_LONG else (5, 2500)
        book = (OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()
        prompts = [f"Reader {i}: " + book[i * 300:i * 300 + n_characters] for i in range(n)]

        def run(port):
            computed = 0
            for question in ("\nThe Queen said", "\nThe Queen said again"):
                for prompt in prompts:
                    answer = post(port, "/completion", {"prompt": prompt + question,
                                                        "n_predict": 4, "temperature": 0})
                    computed += answer["timings"]["prompt_n"]
            return computed

        settings = {"n_parallel": 2, "cache_ram_mib": 0}
        without = run(self.llama(self.demo(), **settings).port)
        llama = self.llama(self.demo(), **settings)
        proxy = self.proxy(llama)
        with_proxy = run(proxy.port)
        print(f"  {n} conversations, twice: {without} tokens computed without, {with_proxy} with",
              flush=True)
        self.assertLess(with_proxy, 0.75 * without)
        self.assertNotEqual(proxy.events("restore"), [])

    def test_overhead_of_a_warm_request(self):
        self.measure_overhead(self.demo())
        if IS_LONG:
            self.measure_overhead(self.smol())

    def measure_overhead(self, model):
        """Pairs of requests, to a llama-server without a proxy and through the proxy to another, in
        alternating order. Times are printed only: what else the machine does is in them, but not
        in the processor time."""
        (self.folder / "other").mkdir(exist_ok=True)
        alone = Llama(model, self.folder / "other")
        self.addCleanup(alone.end)
        llama = self.llama(model)
        proxy = self.proxy(llama)
        prompt = [(OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()[:6000]]

        def body_of(**more):
            return {"prompt": prompt[0], "temperature": 0, **more}

        def pairs(n, n_ignored, measure):
            """The results of n pairs: direct, and through the proxy."""
            results = {alone.port: [], proxy.port: []}
            for i in range(n_ignored + n):
                for port in sorted(results, reverse=i % 2 == 1):
                    result = measure(port)
                    if i >= n_ignored:
                        results[port].append(result)
                prompt[0] += f" {i}"
            return results[alone.port], results[proxy.port]

        def processor_ms():
            # The clock of another process: clock_getcpuclockid(3).
            clocks = [~server.process.pid << 3 | 2 for server in (alone, llama, proxy)]
            return sum(map(time.clock_gettime_ns, clocks)) / 1e6

        used = {alone.port: [], proxy.port: []}

        def request(port):
            before, begin = processor_ms(), time.perf_counter()
            post(port, "/completion", body_of(n_predict=1))
            took = 1000 * (time.perf_counter() - begin)
            used[port].append(processor_ms() - before)
            return took

        def rate(port):
            first, total, n = stream(port, body_of(n_predict=128, ignore_eos=True, stream=True))
            return (n - 1) / (total - first)

        direct, through = pairs(200 if IS_LONG else 30, 10, request)
        more = statistics.median(b - a for a, b in zip(direct, through))
        print(f"  {model.name}: median of {len(direct)} warm requests: "
              f"{statistics.median(direct):.1f} ms direct, {statistics.median(through):.1f} ms "
              f"through the proxy; median difference {more:.1f} ms", flush=True)
        direct, through = (statistics.median(used[p]) for p in (alone.port, proxy.port))
        print(f"  {model.name}: processor time of both servers per warm request: {direct:.2f} ms "
              f"direct, {through:.2f} ms through the proxy", flush=True)
        self.assertGreaterEqual(proxy.metric('tqcache_prompts_total{outcome="warm"}'), 30)
        direct, through = pairs(30 if IS_LONG else 2, 1, rate)
        ratio = statistics.median(b / a for a, b in zip(direct, through))
        print(f"  {model.name}: median of {len(direct)} streams: {statistics.median(direct):.1f} "
              f"tokens/s direct, {statistics.median(through):.1f} through the proxy; median ratio "
              f"{ratio:.3f}", flush=True)
        for server in (proxy, llama, alone):
            server.kill()

    def test_first_token(self):
        """From the store, and computed."""
        llama = self.llama(self.smol() if IS_LONG else self.demo())
        proxy = self.proxy(llama)
        book = (OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()
        cold, warm = [], []
        for i in range(5 if IS_LONG else 1):
            body = {"prompt": f"Copy {i}. " + book[:14000 if IS_LONG else 5000], "n_predict": 4,
                    "temperature": 0, "stream": True}
            cold.append(stream(proxy.port, body)[0])
            proxy.wait_for_save()
            proxy.kill()
            llama.kill()
            llama.start()
            proxy.start()
            stream(proxy.port, {**body, "prompt": "x"})  # binds, and reads the model's pages
            warm.append(stream(proxy.port, body)[0])
            self.assertEqual(len(proxy.events("restore")), 1, proxy.log())
            restored = proxy.events("restore")[0]
            print(f"  first token of {restored['of']} tokens: {cold[-1]:.2f} s computed, "
                  f"{warm[-1]:.2f} s from the store ({restored['tokens']} tokens in "
                  f"{restored['seconds']} s)", flush=True)
            # The next cold prompt is computed by processes that have just been started, too.
            proxy.kill()
            llama.kill()
            shutil.rmtree(self.store)
            llama.start()
            proxy.start()
            stream(proxy.port, {**body, "prompt": "x"})
        print(f"  medians: {statistics.median(cold):.2f} s computed, "
              f"{statistics.median(warm):.2f} s from the store", flush=True)

    def test_the_store_is_that_of_the_tool(self):
        """Serve finds what `generate` stored, and the other way round."""
        text = (OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()[:6000]
        prompt_file = self.folder / "prompt.txt"
        prompt_file.write_text(text)

        def tool(*arguments):
            done = subprocess.run([str(OPTIONS.tqcache), *map(str, arguments)],
                                  capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, done.stderr)
            return done.stdout

        def generate():
            return json.loads(tool("generate", "-m", self.demo(), "--store", f"dir:{self.store}",
                                   "--file", prompt_file, "-n", 1, "--temperature", 0, "--json"))

        llama = self.llama(self.demo())
        proxy = self.proxy(llama)
        post(proxy.port, "/completion", {"prompt": text, "n_predict": 4, "temperature": 0})
        n_tokens = int(proxy.wait_for_save()["tokens"])
        stats = json.loads(tool("store", "stats", "--store", f"dir:{self.store}", "--json"))
        self.assertGreater(stats["kinds"]["block"]["blobs"], n_tokens // 256 - 1)
        tool("store", "check", "--read-data", "--store", f"dir:{self.store}")
        self.assertGreaterEqual(generate()["cached_tokens"], n_tokens // 256 * 256 - 256)

        proxy.kill()
        llama.kill()
        shutil.rmtree(self.store)
        self.assertEqual(generate()["cached_tokens"], 0)
        llama.start()
        proxy.start()
        answer = post(proxy.port, "/completion", {"prompt": text, "n_predict": 4,
                                                  "temperature": 0})
        self.assertEqual(len(proxy.events("restore")), 1, proxy.log())
        self.assertGreaterEqual(answer["timings"]["cache_n"], n_tokens // 256 * 256 - 256)

    def test_quantized_keys_and_stored_forms(self):
        text = (OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()[:5000]
        for types, config in (({"cache_type_k": "GGML_TYPE_Q8_0", "cache_type_v": "GGML_TYPE_Q8_0"},
                               "lossless"), ({}, "turbo"), ({}, "archive")):
            with self.subTest(types=types, config=config):
                shutil.rmtree(self.store, ignore_errors=True)
                llama = self.llama(self.demo(), **types)
                proxy = self.proxy(llama, "--config", config)
                body = {"prompt": text, "n_predict": 16, "temperature": 0}
                first = post(proxy.port, "/completion", body)
                proxy.wait_for_save()
                proxy.kill()
                llama.kill()
                llama.start()
                proxy.start()
                again = post(proxy.port, "/completion", body)
                kept = proxy.events("restore")
                self.assertEqual(len(kept), 1, proxy.log())
                self.assertGreaterEqual(again["timings"]["cache_n"], int(kept[0]["tokens"]) - 1)
                print(f"  {config} {types or 'f16'}: {kept[0]['tokens']} tokens restored, the same "
                      f"text: {first['content'] == again['content']}", flush=True)
                if config == "lossless":
                    self.assertEqual(first["content"], again["content"])
                proxy.kill()
                llama.kill()

    def test_stopping_saves_the_slots(self):
        llama = self.llama(self.demo())
        proxy = self.proxy(llama, "--min-tokens", "300")
        text = (OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()
        body = {"prompt": text[:3000], "n_predict": 4, "temperature": 0}
        post(proxy.port, "/completion", body)
        proxy.wait_for_save()
        body["prompt"] = text[:5000]
        post(proxy.port, "/completion", body)
        self.assertEqual(proxy.stop(), 0, proxy.log())
        self.assertIn("reason=shutdown", proxy.log())
        stats = subprocess.run([OPTIONS.tqcache, "store", "check", "--read-data", "--store",
                                f"dir:{self.store}"], capture_output=True, text=True)
        self.assertEqual(stats.returncode, 0, stats.stdout + stats.stderr)

    def test_clients(self):
        llama = self.llama(self.smol())
        proxy = self.proxy(llama)
        url = f"http://127.0.0.1:{proxy.port}"
        question = [{"role": "user", "content": "What is the capital of France?"}]
        body = {"messages": question, "max_tokens": 8, "temperature": 0, "stream": True}
        lines = subprocess.run(["curl", "-sN", f"{url}/v1/chat/completions", "-d",
                                json.dumps(body)], capture_output=True, text=True,
                               check=True).stdout
        self.assertTrue(lines.endswith("data: [DONE]\n\n"), lines)
        expected = post(llama.port, "/v1/chat/completions", {**body, "stream": False})
        text = expected["choices"][0]["message"]["content"]
        try:
            import openai
            client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
            stream = client.chat.completions.create(model="any", messages=question, max_tokens=8,
                                                    temperature=0, stream=True)
            self.assertEqual("".join(c.choices[0].delta.content or "" for c in stream
                                     if c.choices), text)
            answer = client.responses.create(model="any", input="What is the capital of France?",
                                             max_output_tokens=8, temperature=0)
            self.assertEqual(answer.output_text, text)
            with self.assertRaises(openai.BadRequestError):
                client.chat.completions.create(model="any", messages="no list")
            print("  openai", importlib.metadata.version("openai"), flush=True)
        except ImportError:
            print("  openai: not there", flush=True)
        try:
            import anthropic
            client = anthropic.Anthropic(base_url=url, api_key="none")
            with client.messages.stream(model="any", messages=question, max_tokens=8,
                                        extra_body={"temperature": 0}) as stream:
                self.assertEqual("".join(stream.text_stream), text)
            print("  anthropic", importlib.metadata.version("anthropic"), flush=True)
        except ImportError:
            print("  anthropic: not there", flush=True)


def main():
    global OPTIONS
    parser = argparse.ArgumentParser()
    parser.add_argument("--tqcache", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    OPTIONS, rest = parser.parse_known_args()
    try:
        import xllamacpp  # noqa: F401
    except (ImportError, OSError) as error:
        print(f"NOT RUN: xllamacpp: {error}", flush=True)
        sys.exit(NOT_RUN)
    unittest.main(argv=[sys.argv[0], "-v", *rest])


if __name__ == "__main__":
    main()
