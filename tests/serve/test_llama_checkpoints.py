"""tqcache serve before a real llama-server whose model cannot go back: through context checkpoints.

usage: test_llama_checkpoints.py --tqcache PROGRAM --source FOLDER [--models FOLDER] [TEST...]

A conversation is killed with SIGKILL between its turns, both programs. Its answers are those of a
llama-server that is left alone. Ends with 77 if xllamacpp is missing. Tiny models with random
weights are made where transformers, torch and gguf are there; Gemma 3 270M is used where it is.
TQCACHE_SERVE_LONG=1: ten turns.
"""

import random
import sys
from pathlib import Path

import test_llama_server as serve

GEMMA = "gemma-3-270m.Q4_K_M.gguf"
N_TURNS = 10 if serve.IS_LONG else 3


class CheckpointTest(serve.ServeCase):
    def tiny(self, name, **settings):
        """A tiny model of this family as a GGUF file."""
        sys.path.insert(0, str(serve.OPTIONS.source / "tests/interop/peers"))
        try:
            import tiny_gguf
            import tiny_models
        except ImportError as error:
            self.skipTest(f"tiny models: {error}")
        path = self.folder / f"{name}.gguf"
        if name == "deepseek2":
            import latent_gguf
            latent_gguf.write(path)
            return path
        tiny_models.FAMILIES[name][1].update(settings)
        tiny_gguf.write(tiny_models.make(name), path)
        return path

    def turns(self, model, first, more, n_predict=24, **settings):
        """A conversation of N_TURNS turns: `first` and `more(turn)` are lists of tokens, or texts.
        Kills both programs after each turn."""
        alone = serve.Llama(model, self.slots, **settings)
        self.addCleanup(alone.end)
        llama = self.llama(model, **settings)
        proxy = self.proxy(llama, "--save-idle", "1s")
        prompt, stored, is_text = first, 0, isinstance(first, str)
        totals = [0, 0]
        for turn in range(N_TURNS):
            prompt = prompt + more(turn)
            body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0,
                    "return_tokens": True, "ignore_eos": True}
            expected = serve.post(alone.port, "/completion", body)
            answer = serve.post(proxy.port, "/completion", body)
            timings, restored = answer["timings"], proxy.events("restore")
            print(f"  turn {turn}: restored {[int(e['tokens']) for e in restored]}, "
                  f"{timings['cache_n']} reused, {timings['prompt_n']} computed; alone "
                  f"{expected['timings']['cache_n']} reused", flush=True)
            # Where as much was reused, both computed the same batches.
            if not is_text or timings["cache_n"] == expected["timings"]["cache_n"]:
                self.assertEqual(answer["tokens"], expected["tokens"], f"turn {turn}")
            if turn > 0:
                # Not even the first turn's prompt is read again.
                self.assertEqual(len(restored), 1, proxy.log())
                self.assertGreaterEqual(int(restored[0]["tokens"]), stored)
                self.assertGreaterEqual(timings["cache_n"], int(restored[0]["tokens"]) - 5)
                self.assertEqual(proxy.events("reuse"), [], proxy.log())
            totals[0] += timings["cache_n"] + timings["prompt_n"]
            totals[1] += timings["prompt_n"]
            if proxy.saves_when_idle(timings, int(restored[0]["tokens"]) if restored else 0):
                stored = max(stored, min(int(proxy.wait_for_save()["tokens"]),
                                         timings["cache_n"] + timings["prompt_n"] - 5))
            prompt = prompt + (answer["content"] if is_text else answer["tokens"])
            proxy.kill()
            llama.kill()
            llama.start()
            proxy.start()
        print(f"  {totals[0]} tokens of prompts, {totals[1]} computed", flush=True)
        self.assertLess(totals[1], totals[0] / 2)

    def turns_of_tokens(self, model):
        draw = random.Random(5)
        ids = [draw.randrange(1, 256) for _ in range(900 + 60 * N_TURNS)]
        self.turns(model, ids[:900], lambda turn: ids[900 + 60 * turn:960 + 60 * turn])

    def turns_of_a_text(self, model):
        text = (serve.OPTIONS.source / "models/demo/alice-excerpt.txt").read_text()
        self.turns(model, text[:16000 if serve.IS_LONG else 3000],
                   lambda turn: f"\n\nCHAPTER {turn + 2}\n\n",
                   n_predict=96 if serve.IS_LONG else 24, n_ctx=16384)

    def shared_beginning(self, model, **settings):
        """Three conversations with the same first 900 tokens. Kills both programs before the last
        one, which goes on from there: the second one has left a state where it parts."""
        alone = serve.Llama(model, self.slots, **settings)
        self.addCleanup(alone.end)
        llama = self.llama(model, **settings)
        proxy = self.proxy(llama, "--save-idle", "1s")
        draw = random.Random(6)
        common = [draw.randrange(1, 256) for _ in range(900)]
        n_computed = []
        for n in range(3):
            body = {"prompt": common + [draw.randrange(1, 256) for _ in range(700)],
                    "n_predict": 8, "temperature": 0, "return_tokens": True, "ignore_eos": True}
            expected = serve.post(alone.port, "/completion", {**body, "cache_prompt": False})
            answer = serve.post(proxy.port, "/completion", body)
            self.assertEqual(answer["tokens"], expected["tokens"], f"conversation {n}")
            timings = answer["timings"]
            # What was computed ahead of the prompt looks reused to llama-server.
            n_computed.append(timings["prompt_n"] + proxy.metric("tqcache_common_tokens_total"))
            event = proxy.events("prompt")[-1]
            self.assertEqual(int(event["reused"]), 1600 - n_computed[-1], proxy.log())
            serve.wait_for(lambda: any(int(e["tokens"]) >= 1600 for e in proxy.events("keep")),
                           "a save", 60)
            proxy.kill()
            llama.kill()
            llama.start()
            proxy.start()
        print(f"  {n_computed} tokens computed of 1600", flush=True)
        self.assertEqual(n_computed[0], 1600)
        self.assertLessEqual(n_computed[1], 1600)
        self.assertLessEqual(n_computed[2], 1600 - 768 + 16)

    def test_hybrid_shares_a_beginning(self):
        self.shared_beginning(
            serve.OPTIONS.source / "models/hybrid/tqcache-hybrid-19m.q8_0.gguf")

    def test_windows_share_a_beginning(self):
        self.shared_beginning(self.tiny("gemma3", sliding_window=64))

    def test_trained_hybrid(self):
        self.turns_of_a_text(serve.OPTIONS.source / "models/hybrid/tqcache-hybrid-19m.q8_0.gguf")

    def test_hybrid(self):
        self.turns_of_tokens(self.tiny("qwen3_5"))

    def test_sliding_windows(self):
        self.turns_of_tokens(self.tiny("gemma3", sliding_window=64))

    def test_latent_attention(self):
        """No checkpoints, but rows of keys alone."""
        self.turns_of_tokens(self.tiny("deepseek2"))

    def test_gemma(self):
        path = serve.OPTIONS.models / GEMMA if serve.OPTIONS.models else None
        if path is None or not path.exists():
            self.skipTest(f"{GEMMA} is not there")
        self.turns_of_a_text(path)


if __name__ == "__main__":
    serve.main()
