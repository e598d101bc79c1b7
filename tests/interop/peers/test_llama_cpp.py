"""State files that llama.cpp writes and reads itself: sessions, sequences, and slots of its server.

The model is the demo's with its weights in f32: then llama.cpp computes in f32 as tqcache does, but
for the cache's type, to which it rounds what is new, and queries with it. How far that moves the
logits is in docs/reference/interop.md; a token's loss is a difference of two.
"""

import json
import urllib.request
from functools import lru_cache

import support

peer = support.need("llama_peer")
wide_gguf = support.need("wide_gguf")
try:
    library = peer.library()
except (ImportError, OSError, AttributeError) as reason:
    support.not_run(f"llama.cpp: {reason}")

N = 600
DENSE = ("--bits", 16)
VERSIONS = {"llama-session": 11, "llama-seq": 4}  # those that this llama.cpp reads

# Of each kind of context: what llama.cpp calls it, what tqcache does, and the bound.
LAYOUTS = {
    "f16": (dict(kv_type=peer.F16), (), 0.05),
    "by columns": (dict(kv_type=peer.F16, flash=False), ("--llama-flash-attention", "off"), 0.05),
    "bf16": (dict(kv_type=peer.BF16), ("--llama-k-type", "bf16", "--llama-v-type", "bf16"), 0.2),
    "q8_0": (dict(kv_type=peer.Q8_0), ("--llama-k-type", "q8_0", "--llama-v-type", "q8_0"), 0.3),
    "q4_0": (dict(kv_type=peer.Q4_0), ("--llama-k-type", "q4_0", "--llama-v-type", "q4_0"), 0.5),
}

@lru_cache
def gguf():
    path = support.shared_folder() / "wide.gguf"
    wide_gguf.write(support.gguf(), path)
    return path


@lru_cache
def model():
    return peer.Model(library, gguf())


def logits_along(context, tokens):
    start = context.n_positions()
    return [context.decode([token], start + i) for i, token in enumerate(tokens)]


def greedy(context, first, count):
    tokens = []
    for _ in range(count):
        row = logits_along(context, [tokens[-1] if tokens else first])[0]
        tokens.append(max(range(len(row)), key=row.__getitem__))
    return tokens


class LlamaCpp(support.PeerTest):
    def saved(self, kind, **layout):
        path = self.folder / "saved.bin"
        with peer.Context(model(), **layout) as llama:
            llama.decode(support.alice()[:N], 0)
            save = llama.save_session if kind == "llama-session" else llama.save_sequence
            save(path, support.alice()[:N])
        return path

    def loaded(self, llama, kind, path):
        """The context with what the file holds, which must be the prompt's cache."""
        load = llama.load_session if kind == "llama-session" else llama.load_sequence
        self.assertEqual(load(path), support.alice()[:N])
        self.assertEqual(llama.n_positions(), N)
        return llama

    def import_(self, path):
        return self.convert(path, "imported.tqkv", *DENSE, "--model", gguf())

    def export(self, tqkv, kind, *flags):
        return self.convert(tqkv, "exported.bin", "--to", kind, "--llama-version", VERSIONS[kind],
                            "--model", gguf(), *flags)

    def prefilled(self):
        path = support.shared_folder() / "prefilled.tqkv"
        if not path.exists():
            ids = ",".join(str(token) for token in support.alice()[:N])
            self.tqcache("prefill", "--model", gguf(), "--ids", ids, "-o", path)
        return path

    def assert_continues(self, kind, path, tqkv, bound, layout, what):
        first = support.alice()[N]
        tokens = self.generate(gguf(), tqkv, first)
        with peer.Context(model(), **layout) as llama:
            rows = logits_along(self.loaded(llama, kind, path), [first, *tokens[:-1]])
        self.assert_agrees(rows, tokens, bound, what)


class FromLlamaCpp(LlamaCpp):
    def test_continues(self):
        for kind in VERSIONS:
            for name, (layout, _, bound) in LAYOUTS.items():
                with self.subTest(kind=kind, layout=name):
                    saved = self.saved(kind, **layout)
                    self.assert_continues(kind, saved, self.import_(saved), bound, layout,
                                          f"{kind}, {name}")

    def test_another_cache_is_noticed(self):
        first = support.alice()[N]
        tokens = self.generate(gguf(), self.prefilled(), first)
        with peer.Context(model()) as llama:
            llama.decode(support.alice()[N:2 * N], 0)
            rows = logits_along(llama, [first, *tokens[:-1]])
        self.assert_disagrees(rows, tokens, 0.3, "the prompt after this one")


class ToLlamaCpp(LlamaCpp):
    def test_continues(self):
        tqkv = self.prefilled()
        for kind in VERSIONS:
            for name, (layout, flags, bound) in LAYOUTS.items():
                with self.subTest(kind=kind, layout=name):
                    exported = self.export(tqkv, kind, *flags)
                    again = self.import_(exported)  # with what the type cost
                    self.assert_continues(kind, exported, again, bound, layout, f"{kind}, {name}")

    def test_turbo(self):
        packed = self.convert(self.prefilled(), "turbo.tqkv", "--config", "turbo4")
        exported = self.export(packed, "llama-session")
        self.assert_continues("llama-session", exported, self.import_(exported),
                              LAYOUTS["f16"][2], LAYOUTS["f16"][0], "turbo4")

    def test_same_bytes(self):
        """A file of llama.cpp's, taken in and written again, is the file."""
        for kind in VERSIONS:
            for name, (layout, flags, _) in LAYOUTS.items():
                if name in ("q8_0", "q4_0"):
                    continue  # their values are rounded twice
                with self.subTest(kind=kind, layout=name):
                    saved = self.saved(kind, **layout)
                    again = self.export(self.import_(saved), kind, *flags)
                    self.assertTrue(saved.read_bytes() == again.read_bytes(), "other bytes")


class Server(LlamaCpp):
    """llama-server, whose slots are sequences with a token list of their own kind."""

    def setUp(self):
        super().setUp()
        import xllamacpp

        params = xllamacpp.CommonParams()
        params.model.path = str(gguf())
        params.n_ctx, params.n_parallel, params.n_gpu_layers = 1024, 1, 0
        params.slot_save_path = f"{self.folder}/"
        params.cpuparams.n_threads = 1
        params.warmup = False
        self.server = xllamacpp.Server(params)

    def post(self, path, question):
        request = urllib.request.Request(
            self.server.listening_address + path, json.dumps(question).encode(),
            {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)

    def complete(self, ids, count):
        return self.post("/completion", {
            "prompt": ids, "n_predict": count, "temperature": 0, "cache_prompt": True, "id_slot": 0,
            "return_tokens": True})

    def test_slot_saved(self):
        ids = support.alice()
        self.complete(ids[:N], 1)
        self.post("/slots/0?action=save", {"filename": "slot.bin"})
        tqkv = self.import_(self.folder / "slot.bin")
        tokens = self.generate(gguf(), tqkv, ids[N])
        with peer.Context(model()) as llama:
            llama.decode(ids[:N], 0)
            rows = logits_along(llama, [ids[N], *tokens[:-1]])
        self.assert_agrees(rows, tokens, LAYOUTS["f16"][2], "a slot of llama-server")

    def test_slot_restored(self):
        first = support.alice()[N]
        exported = self.export(self.prefilled(), "llama-seq", "--llama-server-tokens")
        restored = self.post("/slots/0?action=restore", {"filename": exported.name})
        self.assertEqual(restored["n_restored"], N)
        answer = self.complete(support.alice()[:N + 1], support.N_CONTINUED)
        self.assertEqual(answer["timings"]["cache_n"], N, "the prompt was computed again")
        plain = self.export(self.prefilled(), "llama-seq")
        with peer.Context(model()) as llama:
            expected = greedy(self.loaded(llama, "llama-seq", plain), first, support.N_CONTINUED)
        self.assertEqual(answer["tokens"], expected)


if __name__ == "__main__":
    print(f"xllamacpp {peer.VERSION}", flush=True)
    support.main()
