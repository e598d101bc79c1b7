"""Slots of llama-server with context checkpoints: of a hybrid and of a model with sliding windows.

The server runs in processes of its own, as after a restart: what it reuses then, it has from the
file. How many tokens that is was measured with the files as the server saves them.
"""

import json
import random
import sys
import urllib.error
from functools import lru_cache
from pathlib import Path

import numpy as np

import support

sys.path.insert(0, str(Path(__file__).parents[2] / "serve"))
import test_llama_server as llama_server

support.need("xllamacpp")
tiny_gguf = support.need("tiny_gguf")
tiny_models = support.need("tiny_models")
latent_gguf = support.need("latent_gguf")

N, N_MORE, N_BACK = 600, 50, 10
MODELS = {"qwen3_5": {}, "gemma3": {"sliding_window": 64}}

# What the next request takes from the file: (the prompt and more, the prompt, one that leaves it).
AS_SAVED = {"qwen3_5": (600, 596, 84), "gemma3": (595, 595, 83)}
WITHOUT_CHECKPOINTS = {"qwen3_5": (600, 0, 0), "gemma3": (599, 599, 0)}


def prompts():
    """The prompt, and the three requests."""
    draw = random.Random(5)
    ids = [draw.randrange(1, 256) for _ in range(N + 2 * N_MORE)]
    prompt, more, other = ids[:N], ids[N:N + N_MORE], ids[N + N_MORE:]
    return prompt, (prompt + more, prompt, prompt[:N - N_BACK] + other)


def serve(model, folder, requests, n_slots=1):
    """The answers of a new server to requests (path, body). Several slots have a stream each."""
    server = llama_server.Llama(model, folder, n_ctx=2048, n_parallel=n_slots, n_gpu_layers=0,
                                kv_unified=False, warmup=False)
    answers = []
    try:
        for path, body in requests:
            try:
                answers.append(llama_server.post(server.port, path, body))
            except urllib.error.HTTPError as error:
                answers.append({"status": error.code})
    finally:
        server.end()
    return answers


def complete(ids, count, from_cache=True, slot=0):
    return "/completion", {"prompt": ids, "n_predict": count, "temperature": 0, "id_slot": slot,
                           "cache_prompt": from_cache, "return_tokens": True}


def save(name, slot=0):
    return f"/slots/{slot}?action=save", {"filename": name}


def restore(name, slot=0):
    return f"/slots/{slot}?action=restore", {"filename": name}


@lru_cache
def cold(model):
    requests = [complete(ids, 8, from_cache=False) for ids in prompts()[1]]
    answers = serve(model, support.shared_folder(), requests)
    assert all(answer["timings"]["cache_n"] == 0 for answer in answers)
    return [answer["tokens"] for answer in answers]


class Slots(support.PeerTest):
    def model(self, name):
        path = support.shared_folder() / f"{name}.gguf"
        if not path.exists() and name == "deepseek2":
            latent_gguf.write(path)
        elif not path.exists():
            tiny_models.FAMILIES[name][1].update(MODELS.get(name, {}))
            tiny_gguf.write(tiny_models.make(name), path)
        return path

    def saved(self, name):
        path = support.shared_folder() / f"{name}.bin"
        if not path.exists():
            serve(self.model(name), path.parent, [complete(prompts()[0], 0), save(path.name)])
        return path

    def reused(self, name, file):
        """How many tokens each request takes from the file, and the tokens that follow."""
        requests = [request for ids in prompts()[1] for request in (restore(file.name),
                                                                   complete(ids, 8))]
        answers = serve(self.model(name), file.parent, requests)[1::2]
        return (tuple(answer["timings"]["cache_n"] for answer in answers),
                [answer["tokens"] for answer in answers])

    def export(self, name, tqkv, file, *flags):
        return self.convert(tqkv, file, "--to", "llama-seq", "--llama-server-tokens", "--model",
                            self.model(name), *flags)

    def test_there_and_back(self):
        for name in MODELS:
            with self.subTest(model=name):
                saved = self.saved(name)
                tqkv = self.convert(saved, "kept.tqkv", "--bits", 16, "--model", self.model(name))
                self.tqcache("verify", tqkv)
                info = json.loads(self.tqcache("info", "--json", tqkv))
                self.assertEqual([each["n_tokens"] for each in info["checkpoints"]], [84, 596])
                back = self.export(name, tqkv, "back.bin")
                self.assertEqual(back.read_bytes(), saved.read_bytes())
                cached, tokens = self.reused(name, back)
                self.assertEqual(cached, AS_SAVED[name])
                self.assertEqual(tokens, cold(self.model(name)))

    def test_a_cache_of_ours(self):
        """llama-server resumes from what tqcache computed, without any checkpoint of its own."""
        for name in MODELS:
            with self.subTest(model=name):
                tqkv = self.folder / "ours.tqkv"
                ids = ",".join(str(token) for token in prompts()[0])
                self.tqcache("prefill", "--model", self.model(name), "--ids", ids, "-o", tqkv,
                             "--force")
                cached, tokens = self.reused(name, self.export(name, tqkv, "ours.bin"))
                self.assertEqual(cached, WITHOUT_CHECKPOINTS[name])
                self.assertEqual(tokens, cold(self.model(name)))

    def test_resumes_from_a_checkpoint(self):
        """So does tqcache, from the last one before the prompt leaves the cache."""
        for name in MODELS:
            with self.subTest(model=name):
                tqkv = self.convert(self.saved(name), "kept.tqkv", "--bits", 16, "--model",
                                    self.model(name))
                ids = ",".join(str(token) for token in prompts()[1][2])
                generate = ("generate", "--model", self.model(name), "--ids", ids, "-n", 8,
                            "--temperature", 0, "--json")
                warm = json.loads(self.tqcache(*generate, "--cache", tqkv, "--reuse"))
                cold = json.loads(self.tqcache(*generate))
                self.assertEqual(warm["cached_tokens"], 84)
                self.assertEqual(warm["token_ids"], cold["token_ids"])

    def restored(self, name, file, n_slots, slot):
        """The number of restored tokens, or the status of the error, and what then follows."""
        requests = [restore(file.name, slot), complete(prompts()[1][0], 8, slot=slot)]
        first, answer = serve(self.model(name), file.parent, requests, n_slots)
        return first.get("n_restored", first.get("status")), answer["tokens"]

    def test_of_a_server_with_a_stream_for_each_slot(self):
        """Such a server reads only files with as many streams. The number is kept."""
        for name in ("qwen3", "gemma3"):
            for slot in (0, 1):
                with self.subTest(model=name, slot=slot):
                    model, file = self.model(name), self.folder / f"{name}-{slot}.bin"
                    serve(model, self.folder, [complete(prompts()[0], 0, slot=slot),
                                               save(file.name, slot)], n_slots=2)
                    tqkv = self.convert(file, "kept.tqkv", "--bits", 16, "--model", model)
                    info = json.loads(self.tqcache("info", "--json", tqkv))
                    self.assertEqual(info["identity"]["llama_streams"], 2)
                    back = self.export(name, tqkv, "back.bin")
                    tokens = cold(model)[0]
                    self.assertEqual(self.restored(name, back, 2, 1 - slot), (N, tokens))
                    if slot == 1:
                        continue  # its cells are in the second stream; ours are in the first
                    self.assertEqual(back.read_bytes(), file.read_bytes())
                    # For a server with one slot.
                    self.assertEqual(self.restored(name, back, 1, 0), (400, tokens))
                    one = self.export(name, tqkv, "one.bin", "--llama-streams", 1)
                    self.assertEqual(self.restored(name, one, 1, 0), (N, tokens))

    def test_latents(self):
        """A row of llama.cpp is the latent, then the part that rotates; it has no values."""
        model, saved = self.model("deepseek2"), self.saved("deepseek2")
        tqkv = self.convert(saved, "kept.tqkv", "--bits", 16, "--model", model)
        self.tqcache("verify", tqkv)
        back = self.export("deepseek2", tqkv, "back.bin")
        self.assertEqual(back.read_bytes(), saved.read_bytes())
        # K of layer 0 is the latent, which tokens alone give.
        arrays = np.load(self.convert(tqkv, "kept.npz"))
        expected = latent_gguf.latents_of_layer_0(model, prompts()[0])
        self.assertLess(np.abs(arrays["layer_0_key"][0] - expected).max(), 0.01)
        turbo = self.convert(tqkv, "turbo.tqkv", "--config", "turbo4")
        self.export("deepseek2", turbo, "turbo.bin")
        tokens = cold(model)[0]
        self.assertEqual(self.restored("deepseek2", back, 1, 0), (N, tokens))

    def test_a_cache_of_ours_for_a_server_with_a_stream_for_each_slot(self):
        for name in ("qwen3", "gemma3"):
            with self.subTest(model=name):
                tqkv = self.folder / "ours.tqkv"
                ids = ",".join(str(token) for token in prompts()[0])
                self.tqcache("prefill", "--model", self.model(name), "--ids", ids, "-o", tqkv,
                             "--force")
                tokens = cold(self.model(name))[0]
                two = self.export(name, tqkv, "two.bin", "--llama-streams", 2)
                for slot in (0, 1):
                    self.assertEqual(self.restored(name, two, 2, slot), (N, tokens))
                one = self.export(name, tqkv, "one.bin")
                self.assertEqual(self.restored(name, one, 2, 0), (400, tokens))


if __name__ == "__main__":
    support.main()
