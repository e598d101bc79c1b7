"""tqcache.mlx with mlx-lm itself, on mlx's CPU backend, and the demo model of this project."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import SimpleNamespace

import pytest

pytestmark = pytest.mark.interop
mx = pytest.importorskip("mlx.core", reason="mlx is missing")
pytest.importorskip("mlx_lm", reason="mlx-lm is missing")
import numpy as np  # noqa: E402
from mlx_lm.models import cache as caches  # noqa: E402
from mlx_lm.utils import load_model  # noqa: E402

import tqcache  # noqa: E402
import tqcache.mlx as tq  # noqa: E402

mx.set_default_device(mx.cpu)
ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "models/demo/hf"


@pytest.fixture(scope="module")
def model():
    return load_model(DEMO)[0]


def ids(n, seed=0):
    return [int(i) for i in np.random.default_rng(seed).integers(10, 8000, n)]


def prefilled(model, tokens):
    cache = caches.make_prompt_cache(model)
    mx.eval(model(mx.array([tokens]), cache=cache))
    return cache


def numpy(array):
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def contents(layer):
    """What queries can see of a layer: class, numbers, arrays."""
    name = type(layer).__name__
    if name == "CacheList":
        return [name, *(contents(part) for part in layer.caches)]
    if name == "ArraysCache":
        return [name, *(None if slot is None else numpy(slot) for slot in layer.cache)]
    keys, values = layer.keys, layer.values
    numbers = [int(layer.offset)]
    if name == "RotatingKVCache":
        numbers += [layer.keep, layer.max_size]
        keys, values = (layer._temporal_order(side) for side in (keys, values))
        n = min(layer.offset, layer.max_size)
        keys, values = ([*side[:, :, :layer.keep].swapaxes(1, 2)[0],
                         *side[:, :, side.shape[2] - (n - layer.keep):].swapaxes(1, 2)[0]]
                        if side.shape[2] > n else [*side.swapaxes(1, 2)[0]]
                        for side in (keys, values))
        return [name, numbers, *(numpy(row) for row in [*keys, *values])]
    return [name, numbers, numpy(keys[:, :, :layer.offset]), numpy(values[:, :, :layer.offset])]


def same(a, b):
    if isinstance(a, list):
        assert len(a) == len(b)
        for one, other in zip(a, b):
            same(one, other)
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype
        assert np.array_equal(a, b)
    else:
        assert a == b


def random_kv(n, heads=2, dim=64, dtype=mx.bfloat16):
    return [mx.random.normal((1, heads, n, dim)).astype(dtype) for _ in range(2)]


def filled(cache, n, step=None):
    for begin in range(0, n, step or n):
        cache.update_and_fetch(*random_kv(min(step or n, n - begin)))
    return cache


def arrays(n_slots=2):
    cache = caches.ArraysCache(n_slots)
    for i in range(n_slots):
        cache[i] = mx.random.normal((1, 3, 16 + i)).astype(mx.float32 if i else mx.bfloat16)
    return cache


class Model:
    """As much of a model as make_prompt_cache() asks of it."""

    def __init__(self, make):
        self.make_cache = make


N = 40
CASES = {
    "KVCache": lambda: [caches.KVCache(), caches.KVCache()],
    "RotatingKVCache": lambda: [caches.RotatingKVCache(max_size=24), caches.KVCache()],
    "RotatingKVCache with first tokens": lambda: [caches.RotatingKVCache(max_size=24, keep=4)],
    "ArraysCache": lambda: [arrays(), caches.KVCache()],
    "CacheList": lambda: [caches.CacheList(arrays(), caches.KVCache()),
                          caches.CacheList(caches.KVCache(), caches.RotatingKVCache(max_size=24))],
    "ConcatenateKVCache": lambda: [caches.ConcatenateKVCache(), caches.KVCache()],
    "ChunkedKVCache": lambda: [caches.ChunkedKVCache(64)],
}


def fill(cache):
    for layer in cache:
        for part in layer.caches if isinstance(layer, caches.CacheList) else [layer]:
            if not isinstance(part, caches.ArraysCache):
                filled(part, N, step=1 if isinstance(part, caches.RotatingKVCache) else None)
    return cache


@pytest.mark.parametrize("case", CASES)
def test_every_class_comes_back_bit_by_bit(case, tmp_path):
    cache = fill(CASES[case]())
    tq.save(tmp_path / "a.tqkv", cache, ids(N), config=None)
    again = tq.load(tmp_path / "a.tqkv", Model(CASES[case]))
    assert [type(layer) for layer in cache] == [type(layer) for layer in again]
    for layer, other in zip(cache, again):
        same(contents(layer), contents(other))


def test_quantized(tmp_path):
    cache = [filled(caches.KVCache(), N).to_quantized(group_size=64, bits=4) for _ in range(2)]
    tq.save(tmp_path / "a.tqkv", cache, ids(N), config=None)
    again = tq.load(tmp_path / "a.tqkv", kv_bits=4)
    for layer, other in zip(cache, again):
        assert type(other) is caches.QuantizedKVCache
        assert (layer.offset, layer.bits, layer.group_size) == \
            (other.offset, other.bits, other.group_size)
        # The numbers are quantized a second time, which moves some by a part of a step.
        for a, b in zip(layer.keys_and_values(), other.keys_and_values()):
            a, b = (mx.dequantize(*(part.astype(mx.float32) if part.dtype != mx.uint32 else part
                                    for part in side), group_size=64, bits=4) for side in (a, b))
            assert float(((a - b) ** 2).mean() / (a ** 2).mean()) < 0.01


def test_another_structure_is_refused(tmp_path):
    tq.save(tmp_path / "a.tqkv", fill(CASES["KVCache"]()), ids(N), config=None)
    for make in (CASES["RotatingKVCache"], CASES["ChunkedKVCache"],
                 lambda: [caches.KVCache() for _ in range(3)]):
        with pytest.raises(tqcache.MismatchError):
            tq.load(tmp_path / "a.tqkv", Model(make))
    tq.save(tmp_path / "b.tqkv", fill(CASES["RotatingKVCache"]()), ids(N), config=None)
    with pytest.raises(tqcache.MismatchError, match="window"):
        tq.load(tmp_path / "b.tqkv", Model(lambda: [caches.RotatingKVCache(max_size=25),
                                                    caches.KVCache()]))
    with pytest.raises(tqcache.UnsupportedError, match="39 tokens"):
        tq.save(tmp_path / "c.tqkv", fill(CASES["KVCache"]()), ids(39))


def test_generation_goes_on_alike(tmp_path, model):
    tokens = ids(300)
    cache = prefilled(model, tokens)
    tq.save(tmp_path / "a.tqkv", cache, tokens, model_path=DEMO, config=None)
    again = tq.load(tmp_path / "a.tqkv", model, model_path=DEMO)
    for token in (17, 23, 99):
        rows = [model(mx.array([[token]]), cache=one)[0, -1] for one in (cache, again)]
        assert mx.array_equal(*rows)


# --- The cache of the server

KEY = (str(DEMO), None, None)


def prompt_cache(store, model, **options):
    provider = SimpleNamespace(model=model, model_key=KEY)
    return tq.TqcachePromptCache(store, provider, **options)


def test_a_prompt_survives_a_restart(tmp_path, model):
    tokens = ids(700)
    first = prompt_cache(f"dir:{tmp_path}/store", model, config=None)
    kept = prefilled(model, tokens)
    first.insert_cache(KEY, tokens, kept)
    first.close()
    second = prompt_cache(f"dir:{tmp_path}/store", model, config=None)
    cache, rest = second.fetch_nearest_cache(KEY, tokens + ids(50, seed=1))
    n = 750 - len(rest)
    assert 512 <= n <= 700
    assert tq.n_tokens_of(cache) == n
    for layer, other in zip(kept, cache):
        for a, b in zip(layer.keys_and_values(), other.keys_and_values()):
            assert np.array_equal(numpy(a[:, :, :n]), numpy(b))
    assert second.fetch_nearest_cache(KEY, ids(700, seed=5)) == (None, ids(700, seed=5))
    assert second.fetch_nearest_cache((str(DEMO), None, str(DEMO)), tokens)[0] is None
    exact, rest = second.fetch_nearest_cache(KEY, tokens)
    assert len(rest) >= 1
    second.close()


def test_memory_is_asked_first(tmp_path, model):
    tokens = ids(400)
    made = prompt_cache(f"dir:{tmp_path}/store", model)
    made.insert_cache(KEY, tokens, prefilled(model, tokens))
    made.flush()
    cache, rest = made.fetch_nearest_cache(KEY, tokens + [5, 6, 7])
    assert rest == [5, 6, 7]
    made.close()


def test_damage_is_less_found_and_a_warning(tmp_path, model, caplog):
    tokens = ids(900)
    first = prompt_cache(f"dir:{tmp_path}/store", model)
    first.insert_cache(KEY, tokens, prefilled(model, tokens))
    first.close()
    for path in (tmp_path / "store").rglob("*"):
        if path.is_file() and path.stat().st_size > 2000:
            path.chmod(0o600)
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 2
            path.write_bytes(data)
    second = prompt_cache(f"dir:{tmp_path}/store", model)
    cache, rest = second.fetch_nearest_cache(KEY, tokens + [5])
    assert cache is None and rest == tokens + [5]
    second.close()
    assert any(record.name == "tqcache.mlx" for record in caplog.records)


def test_prompts_with_images_stay_in_memory(tmp_path, model):
    made = prompt_cache(f"dir:{tmp_path}/store", model)
    tokens = ids(400)
    tokens[7] = ("image", 3)
    made.insert_cache(KEY, tokens, prefilled(model, ids(400)))
    made.flush()
    assert made.fetch_nearest_cache(KEY, tokens + [5])[1] == [5]
    made.close()


def test_a_store_that_fails(tmp_path, model):
    made = prompt_cache(f"dir:{tmp_path}/store", model)
    (tmp_path / "store").rename(tmp_path / "gone")
    (tmp_path / "store").write_text("no folder")
    tokens = ids(400)
    made.insert_cache(KEY, tokens, prefilled(model, tokens))
    made.flush()
    assert made.fetch_nearest_cache(KEY, tokens + [5])[1] == [5]
    made.close()


class Server:
    """python -m tqcache.mlx_server as a program of its own."""

    def __init__(self, store, log):
        self.store, self.log = store, log
        self._start()

    def _start(self):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tqcache.mlx_server", "--store", self.store,
                 "--model", str(DEMO), "--port", str(self.port)], stdout=log, stderr=log,
                env={**os.environ, "MLX_DEFAULT_DEVICE": "cpu"})

    def ask(self, prompt):
        """The answer, however long it takes: only a server that has ended gives none."""
        body = json.dumps({"prompt": prompt, "max_tokens": 4, "temperature": 0}).encode()
        while True:
            request = urllib.request.Request(f"http://127.0.0.1:{self.port}/v1/completions", body,
                                             {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request) as answer:
                    return json.loads(answer.read())
            except (ConnectionError, urllib.error.URLError):
                if self.process.poll() is not None:
                    text = self.log.read_text()
                    # Somebody took the port between our look at it and the server's.
                    assert "Address already in use" in text, text
                    self._start()
                time.sleep(0.3)

    def stop(self):
        self.process.terminate()  # SIGINT may be ignored by what runs in the background
        self.process.wait()
        return self.log.read_text()


def test_the_server(tmp_path):
    text = (ROOT / "models/demo/alice-excerpt.txt").read_text()[:4000]
    store = f"dir:{tmp_path}/store"
    first = Server(store, tmp_path / "first.log")
    before = first.ask(text)
    first.stop()
    second = Server(store, tmp_path / "second.log")
    after = second.ask(text + " Alice said")
    log = second.stop()
    found = re.search(r"(\d+) of (\d+) tokens come from the store", log)
    assert found, log
    assert int(found[1]) >= 256
    assert after["usage"]["prompt_tokens_details"]["cached_tokens"] == int(found[1])
    assert before["choices"]
