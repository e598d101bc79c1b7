"""Slots of llama-server with images: what a cache says of them, the text behind them by tqcache's decoder,
and the same slot given back. Tiny models of random weights."""

import base64
import hashlib
import json
import subprocess
import urllib.request
from functools import lru_cache

import numpy as np

import support

support.need("hf_peer")
support.need("gguf")
xllamacpp = support.need("xllamacpp")
import tiny_gguf  # noqa: E402: after they are known to be there
import tiny_mmproj  # noqa: E402
import tiny_models  # noqa: E402

IMAGES = [tiny_mmproj.png(48, 32, 3), tiny_mmproj.png(32, 64, 4)]
# Tokens of these images, and positions that they take.
TAKES = {"gemma3": [(16, 16), (16, 16)], "qwen2_5_vl": [(24, 6), (32, 8)]}
N_MORE = 12
# How far below our best logit llama-server's token may be: its activations are rounded.
BOUND = 0.1


@lru_cache
def files(family):
    """The text model and the encoder."""
    folder = support.shared_folder()
    model = tiny_models.make(family)
    text, encoder = folder / f"{family}.gguf", folder / f"{family}-mmproj.gguf"
    tiny_gguf.write(model, text)
    tiny_mmproj.write(family, model.config.get_text_config().hidden_size, encoder)
    return text, encoder


class LlamaMedia(support.PeerTest):
    def start(self, family):
        text, encoder = files(family)
        params = xllamacpp.CommonParams()
        params.model.path, params.mmproj.path = str(text), str(encoder)
        params.mmproj_use_gpu = False
        params.n_ctx, params.n_parallel, params.n_gpu_layers = 1024, 1, 0
        params.slot_save_path = f"{self.folder}/"
        params.cpuparams.n_threads = 1
        params.warmup = False
        return xllamacpp.Server(params)

    def ask(self, server, path, question=None):
        data = None if question is None else json.dumps(question).encode()
        request = urllib.request.Request(server.listening_address + path, data,
                                         {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def complete(self, server, count):
        marker = self.ask(server, "/props")["media_marker"]
        prompt = f"Look at {marker} and then for a longer time at {marker}, and say what you see:"
        return self.ask(server, "/completion", {
            "prompt": {"prompt_string": prompt,
                       "multimodal_data": [base64.b64encode(image).decode() for image in IMAGES]},
            "n_predict": count, "temperature": 0, "cache_prompt": True, "id_slot": 0,
            "return_tokens": True})

    def slot_of(self, family):
        """A slot of a prompt with two images, and what llama-server answers to it."""
        server = self.start(family)
        first = self.complete(server, 1)
        saved = self.ask(server, "/slots/0?action=save", {"filename": "slot.bin"})
        answer = self.complete(server, N_MORE)["tokens"]
        self.assertEqual(answer[:1], first["tokens"])
        del server
        return self.folder / "slot.bin", saved["n_saved"], answer

    def logits(self, text, tqkv, steps):
        """Our decoder's, of every token that it takes behind a cache."""
        out = self.folder / "logits.f32"
        done = subprocess.run([support.options().logits, text, out, "--cache", tqkv,
                               "--steps", ",".join(map(str, steps))], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return np.fromfile(out, "<f4").reshape(len(steps), -1)

    def test_slots_there_and_back(self):
        for family, takes in TAKES.items():
            with self.subTest(family=family):
                text, _ = files(family)
                slot, n_tokens, answer = self.slot_of(family)
                tqkv = self.convert(slot, f"{family}.tqkv", "--bits", 16, "-m", text)
                info = json.loads(self.tqcache("info", tqkv, "--json"))
                spans = info["media"]
                self.assertEqual([span["id"] for span in spans],
                                 [f"sha256:{hashlib.sha256(image).hexdigest()}" for image in IMAGES])
                self.assertEqual([span["n_tokens"] for span in spans], [n for n, _ in takes])
                shift = sum(n - positions for n, positions in takes)
                self.assertEqual(info["next_position"], info["n_tokens"] - shift)
                self.tqcache("verify", tqkv, "-m", text, "--limit", 0.05)

                # The text behind the images, by our decoder.
                self.assert_agrees(self.logits(text, tqkv, answer[:-1]), answer[1:], BOUND, family)

                # The same bytes, and llama-server goes on from them.
                back = self.convert(tqkv, "back.bin", "--to", "llama-seq", "--llama-server-tokens",
                                    "-m", text)
                self.assertEqual(back.read_bytes(), slot.read_bytes())
                packed = self.convert(slot, "packed.tqkv", "--config", "k=mse:8,v=mse:8", "-m", text)
                self.convert(packed, "packed.bin", "--to", "llama-seq", "--llama-server-tokens", "-m", text)
                server = self.start(family)
                restored = self.ask(server, "/slots/0?action=restore", {"filename": "back.bin"})
                self.assertEqual(restored["n_restored"], n_tokens)
                again = self.complete(server, N_MORE)
                self.assertEqual(again["tokens"], answer)
                print(f"  {family}: {again['timings']['prompt_n']} of {n_tokens} tokens computed again",
                      flush=True)
                self.assertLess(again["timings"]["prompt_n"], 40)
                del server

    def test_another_image_is_another_prompt(self):
        text, _ = files("qwen2_5_vl")
        slot, _, _ = self.slot_of("qwen2_5_vl")
        first = self.convert(slot, "first.tqkv", "--bits", 16, "-m", text)
        raw = slot.read_bytes()
        wanted = hashlib.sha256(IMAGES[1]).hexdigest().encode()
        self.assertEqual(raw.count(wanted), 1)
        slot.write_bytes(raw.replace(wanted, hashlib.sha256(b"another").hexdigest().encode()))
        second = self.convert(slot, "second.tqkv", "--bits", 16, "-m", text)
        digests = [json.loads(self.tqcache("info", file, "--json"))["content_name"]
                   for file in (first, second)]
        self.assertNotEqual(*digests)


if __name__ == "__main__":
    support.main()
