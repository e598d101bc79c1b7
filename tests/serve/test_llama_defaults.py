"""tqcache serve before llama-server as people run it: with no flag but model, port and slot folder.

usage: test_llama_defaults.py --tqcache PROGRAM --source FOLDER [--models FOLDER] [TEST...]

Two conversations that take turns, two agents with one system prompt, restarts and kills between
turns, a server that sleeps. What is computed is compared with a llama-server that has no proxy and
is never restarted. Ends with 77 if xllamacpp is missing. test_llama_turns.py has random turns.
"""

import json
import random
import signal
import time
import urllib.error
import urllib.request

import test_llama_server as serve
from test_llama_turns import MIN_TOKENS, SECONDS_TO_SAVE, SLACK, abort, post_status


class DefaultsTest(serve.ServeCase):
    def setUp(self):
        super().setUp()
        self.book = (serve.OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()
        self.draw = random.Random(7)

    def ids(self, n):
        """A prompt as token ids, which no text cuts into other ones later."""
        return [self.draw.randrange(300, 4000) for _ in range(n)]

    def servers(self, *flags, **settings):
        """The reference, llama-server and the proxy before it."""
        (self.folder / "other").mkdir(exist_ok=True)
        alone = serve.Llama(self.demo(), self.folder / "other", **settings)
        self.addCleanup(alone.end)
        llama = self.llama(self.demo(), **settings)
        return alone, llama, self.proxy(llama, *flags)

    def ask(self, port, prompt, n_predict=8):
        """The timings of a completion, and its tokens."""
        answer = serve.post(port, "/completion",
                            {"prompt": prompt, "n_predict": n_predict, "temperature": 0,
                             "return_tokens": True, "ignore_eos": True})
        return answer["timings"], answer["tokens"]

    def ask_both(self, alone, proxy, prompt, what, n_predict=8):
        """Asserts that the proxy's side computes no more. Returns the tokens of the answer."""
        expected, _ = self.ask(alone.port, prompt, n_predict)
        timings, tokens = self.ask(proxy.port, prompt, n_predict)
        print(f"  {what}: {timings['cache_n']} reused, {timings['prompt_n']} computed; alone "
              f"{expected['cache_n']} and {expected['prompt_n']}", flush=True)
        self.assertLessEqual(timings["prompt_n"], expected["prompt_n"] + SLACK,
                             f"{what}\n{proxy.log()}")
        return tokens

    def kill_both(self, proxy, llama):
        """SIGKILL, so long after the last answer that it is in the store."""
        time.sleep(SECONDS_TO_SAVE)
        proxy.kill()
        llama.kill()

    def is_asleep(self, llama):
        return json.loads(serve.get(llama.port, "/props"))["is_sleeping"]

    def size_of_store(self):
        return sum(p.stat().st_size for p in self.store.rglob("*") if p.is_file())

    def test_two_conversations_that_take_turns_are_not_read_again(self):
        alone, llama, proxy = self.servers()
        texts = {"A": "Reader A. " + self.book[:4000], "B": "Reader B. " + self.book[6000:10000]}
        for turn in range(5):
            for name in texts:
                texts[name] += f"\nChapter {turn}.\n"
                body = {"prompt": texts[name], "n_predict": 8, "temperature": 0}
                expected = serve.post(alone.port, "/completion", body)
                answer = serve.post(proxy.port, "/completion", body)
                self.assertLessEqual(answer["timings"]["prompt_n"],
                                     expected["timings"]["prompt_n"] + SLACK,
                                     f"turn {turn} of {name}\n{proxy.log()}")
                texts[name] += answer["content"]
        # A was cleared when B was asked. A proxy that is asked to end has saved both.
        self.assertEqual(proxy.stop(), 0, proxy.log())
        llama.kill()
        llama.start()
        proxy.start()
        for name in texts:
            body = {"prompt": texts[name] + "\nThe end", "n_predict": 4, "temperature": 0}
            expected = serve.post(alone.port, "/completion", body)["timings"]
            timings = serve.post(proxy.port, "/completion", body)["timings"]
            self.assertLessEqual(timings["prompt_n"], expected["prompt_n"] + SLACK,
                                 f"{name} after the restart\n{proxy.log()}")

    def test_conversations_too_short_for_the_store_are_found_in_ram(self):
        alone, _, proxy = self.servers()
        prompts = [self.ids(MIN_TOKENS // 2) for _ in range(2)]
        for turn in range(3):
            for i in range(2):
                prompts[i] += self.ids(20)
                prompts[i] += self.ask_both(alone, proxy, prompts[i], f"turn {turn} of {i}")

    def test_agents_with_one_system_prompt_keep_a_slot_each(self):
        """llama-server alone gives both the same slot."""
        llama = self.llama(self.demo(), n_parallel=4, kv_unified=False, cache_ram_mib=0,
                           n_ctx=16384)
        proxy = self.proxy(llama)
        system = self.ids(1500)
        prompts = [system + self.ids(400) for _ in range(2)]
        n_before = [0, 0]
        for turn in range(5):
            for i in range(2):
                prompts[i] = prompts[i] + self.ids(20)
                timings, tokens = self.ask(proxy.port, prompts[i])
                if turn > 0:
                    self.assertGreaterEqual(timings["cache_n"], n_before[i] - SLACK,
                                            f"turn {turn} of {i}\n{proxy.log()}")
                n_before[i] = len(prompts[i])
                prompts[i] = prompts[i] + tokens
            if turn == 0:
                n_restored = proxy.metric("tqcache_restores_total")
        self.assertEqual(proxy.metric("tqcache_restores_total"), n_restored, proxy.log())
        self.assertEqual(proxy.metric('tqcache_saves_total{reason="evict"}'), 0, proxy.log())

    def test_what_ram_has_more_of_than_the_store_comes_from_ram(self):
        """The first save of a conversation is shorter than what it has grown to since."""
        alone, _, proxy = self.servers(n_parallel=1, cache_ram_mib=4096, n_ctx=16384)
        prompt = self.ids(2200)
        for turn in range(4):
            prompt = prompt + self.ask_both(alone, proxy, prompt, f"turn {turn}", 300)
            self.ask_both(alone, proxy, [5, 6, 7], "another client")
            prompt = prompt + self.ids(30)
        self.ask_both(alone, proxy, prompt, "at the end")

    def test_embeddings_between_two_turns_cost_nothing(self):
        alone, _, proxy = self.servers(embedding=True)
        prompt = self.ids(1200)
        for turn in range(3):
            prompt = prompt + self.ids(20)
            prompt = prompt + self.ask_both(alone, proxy, prompt, f"turn {turn}")
            for server in (alone, proxy):
                self.assertEqual(post_status(server.port, "/embedding", {"content": "a word"}), 200)

    def test_a_client_that_goes_ends_its_request_and_loses_nothing(self):
        alone, llama, proxy = self.servers()
        prompt = self.ids(1200)
        for turn in range(3):
            prompt = prompt + self.ids(20)
            body = {"prompt": prompt, "n_predict": 5000, "temperature": 0, "ignore_eos": True}
            for server in (alone, proxy):
                abort(server.port, "/completion", body, 3)
            for server in (alone, llama):
                serve.wait_for(lambda: '"is_processing":true' not in
                               serve.get(server.port, "/slots"), "an idle slot", 20)
            prompt = prompt + self.ask_both(alone, proxy, prompt, f"turn {turn}")
            self.ask_both(alone, proxy, [5, 6, 7], "another client")
        self.kill_both(proxy, llama)
        llama.start()
        proxy.start()
        self.ask_both(alone, proxy, prompt + self.ids(20), "after SIGKILL")

    def test_what_was_answered_three_seconds_before_a_kill_is_not_lost(self):
        _, llama, proxy = self.servers()
        prompts = [self.ids(n) for n in (700, 1500)]
        for turn in range(3):
            for i in range(2):
                prompts[i] = prompts[i] + self.ids(35)
                timings, tokens = self.ask(proxy.port, prompts[i])
                if turn > 0:
                    # The last token of the answer was never computed, nor are 35 new ones.
                    self.assertLessEqual(timings["prompt_n"], 35 + SLACK,
                                         f"turn {turn} of {i}\n{proxy.log()}")
                prompts[i] = prompts[i] + tokens
            self.kill_both(proxy, llama)
            llama.start()
            proxy.start()

    def test_a_killed_proxy_leaves_the_slots_of_a_server_that_goes_on(self):
        alone, _, proxy = self.servers()
        prompt = self.ids(1500)
        for how in (signal.SIGKILL, signal.SIGTERM):
            prompt = prompt + self.ask_both(alone, proxy, prompt, "before")
            proxy.process.send_signal(how)
            proxy.process.wait(timeout=60)
            proxy.start()
            prompt = prompt + self.ids(20)
            prompt = prompt + self.ask_both(alone, proxy, prompt, f"after {how.name}")

    def test_a_sleeping_server_is_woken_for_requests_only(self):
        llama = self.llama(self.demo(), sleep_idle_seconds=4)
        proxy = self.proxy(llama)
        prompt = self.ids(1500)

        def times_woken():
            return llama.log_path.read_text().count("server is exiting sleeping state")

        for turn in range(2):
            timings, tokens = self.ask(proxy.port, prompt)
            if turn > 0:
                # It has lost its slots while it slept.
                self.assertLessEqual(timings["prompt_n"], 30 + SLACK, proxy.log())
            prompt = prompt + tokens + self.ids(30)
            serve.wait_for(lambda: self.is_asleep(llama), "a sleeping server", 60)
            # What looks at the proxy is no request for the model.
            for path in ("/health", "/metrics", "/tqcache"):
                serve.get(proxy.port, path)
            time.sleep(4)
            self.assertTrue(self.is_asleep(llama), llama.log_path.read_text())
            self.assertEqual(times_woken(), turn, llama.log_path.read_text()[-3000:])
        self.assertEqual(proxy.stop(), 0, proxy.log())
        self.assertTrue(self.is_asleep(llama), llama.log_path.read_text())
        self.assertEqual(times_woken(), 1)
        proxy.start()
        time.sleep(2)
        self.assertEqual(times_woken(), 1, "woken when the proxy started")
        timings, _ = self.ask(proxy.port, prompt)
        self.assertLessEqual(timings["prompt_n"], 30 + SLACK, proxy.log())

    def test_a_quantized_store_grows_by_what_is_new(self):
        llama = self.llama(self.demo())
        proxy = self.proxy(llama, "--config", "turbo")
        prompt = self.ids(1500)
        sizes = []
        for turn in range(11):
            prompt = prompt + self.ids(35)
            _, tokens = self.ask(proxy.port, prompt, 4)
            prompt = prompt + tokens
            self.kill_both(proxy, llama)
            sizes.append(self.size_of_store())
            llama.start()
            proxy.start()
        growth = (sizes[-1] - sizes[0]) / sizes[0]
        print(f"  MB after each turn: {' '.join(f'{size / 1e6:.2f}' for size in sizes)}; grew by "
              f"{growth:.2f} times the first save", flush=True)
        self.assertLessEqual(growth, 1.2)

    def stream_messages(self, port, messages):
        """The usage of the first event of a stream of /v1/messages, and its text."""
        body = {"system": "You read a book. " + self.book[:4000], "messages": messages,
                "max_tokens": 8, "temperature": 0, "stream": True}
        request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/messages",
                                         json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=600) as answer:
            events = [json.loads(line[6:]) for line in answer if line.startswith(b"data: {")]
        text = "".join(e["delta"].get("text", "") for e in events
                       if e["type"] == "content_block_delta")
        self.assertEqual(events[0]["type"], "message_start")
        return events[0]["message"]["usage"], text

    def test_streamed_messages_tell_what_was_reused(self):
        proxy = self.proxy(self.llama(self.demo()))
        messages = [{"role": "user", "content": "What happens first?"}]
        n_before = 0
        for turn in range(3):
            usage, text = self.stream_messages(proxy.port, messages)
            n_prompt = usage["cache_read_input_tokens"] + usage["input_tokens"]
            serve.wait_for(lambda: len(proxy.events("prompt")) == turn + 1, "event=prompt", 20)
            told = proxy.events("prompt")[-1]
            self.assertEqual((int(told["tokens"]), int(told["reused"])),
                             (n_prompt, usage["cache_read_input_tokens"]))
            self.assertGreaterEqual(int(told["reused"]), n_before - SLACK, proxy.log())
            self.assertEqual(told["from"], "slot" if turn else "nothing", proxy.log())
            n_before = n_prompt
            messages += [{"role": "assistant", "content": text},
                         {"role": "user", "content": f"And then, in part {turn}?"}]

    def test_health_says_keeping_before_any_request(self):
        llama = self.llama(self.demo())
        proxy = self.proxy(llama)
        serve.wait_for(lambda: json.loads(serve.get(proxy.port, "/health")).get("keeping"),
                       '"keeping": true in /health', 20)

    def test_health_says_keeping_when_the_server_starts_later(self):
        llama = self.llama(self.demo())
        llama.kill()
        proxy = self.proxy(llama)
        with self.assertRaises(urllib.error.HTTPError):
            serve.get(proxy.port, "/health")
        llama.start()
        serve.wait_for(lambda: json.loads(serve.get(proxy.port, "/health")).get("keeping"),
                       '"keeping": true in /health', 60)

    def test_files_of_a_killed_proxy_are_removed_and_no_others(self):
        victim = self.folder / "victim"
        victim.write_text("precious")
        stem = "tqcache-0123456789abcdef-1.slot"
        ours = [stem, stem + ".ckpt", stem + ".checkpoints", "tqcache-0123456789abcdef-2.slot.tmp"]
        others = ["mine.bin", "tqcache.txt", "notes.slot", "notes.slot.ckpt"]
        for name in ours + others:
            (self.slots / name).write_bytes(b"x" * 100)
        (self.slots / "tqcache-0123456789abcdef-3.slot").symlink_to(victim)
        llama = self.llama(self.demo())
        proxy = self.proxy(llama)
        self.ask(proxy.port, self.ids(900))
        self.kill_both(proxy, llama)
        llama.start()
        proxy.start()
        self.ask(proxy.port, self.ids(900))
        self.assertEqual(proxy.stop(), 0, proxy.log())
        self.assertEqual(sorted(p.name for p in self.slots.iterdir()
                                if not p.name.startswith(".tqcache-serve.")), sorted(others))
        self.assertEqual(victim.read_text(), "precious")


if __name__ == "__main__":
    serve.main()
