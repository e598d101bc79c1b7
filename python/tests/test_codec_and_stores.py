"""The codec for blocks, stores of prompts, and checked values."""

import os
import signal
import threading
import warnings

import numpy as np
import pytest

import tqcache

from processes import patiently, run_together
from test_cache import IDENTITY, N, values


@pytest.mark.parametrize("config, kind, tokens, bound", [
    ("mse:4", "keys", 600, 0.12), ("turbo4", "values", 512, 0.12), ("mse:8", "keys", 256, 0.02),
    ("affine:4", "values", 256, 0.2), ("trellis:0.25", "keys", 512, 0.2), ("mse:4", "keys", 3, 0)])
def test_blocks(config, kind, tokens, bound):
    array = values((4, tokens, 64), 1, np.float32)
    packed = tqcache.codec.encode(array, config, kind=kind, rope=tqcache.Rope(64, 10000.0))
    assert isinstance(packed, bytes)
    assert len(packed) <= tqcache.codec.encode_bound(4, tokens, 64, config, dtype="f32", kind=kind)
    assert tqcache.codec.shape(packed) == ((4, tokens, 64), "f32")
    decoded = tqcache.codec.decode(packed)
    assert np.linalg.norm(decoded - array) <= bound * np.linalg.norm(array)
    room = np.empty((4, tokens, 64), np.float16)
    assert tqcache.codec.decode(packed, out=room) is room
    np.testing.assert_array_equal(room, decoded.astype(np.float16))
    if kind == "keys":
        queries = values((8, 64), 2, np.float32)
        expected = np.einsum("hgd,htd->hgt", queries.reshape(4, 2, 64), decoded).reshape(8, tokens)
        np.testing.assert_allclose(tqcache.codec.score(packed, queries), expected, atol=2e-3)
    else:
        with pytest.raises(tqcache.UsageError):
            tqcache.codec.score(packed, values((4, 64), 2, np.float32))


def test_damaged_blocks():
    packed = bytearray(tqcache.codec.encode(values((2, 256, 64), 1)))
    packed[len(packed) // 4] ^= 1
    with pytest.raises(tqcache.CorruptError):
        tqcache.codec.decode(packed)
    with pytest.raises(tqcache.Error):
        tqcache.codec.decode(b"nothing")


def test_planes():
    data = (values(200_000, 1, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    packed = tqcache.codec.planes_encode(data)
    assert len(packed) < data.nbytes * 0.75
    assert tqcache.codec.planes_decode(packed) == data.tobytes()
    room = np.empty_like(data)
    assert tqcache.codec.planes_decode(packed, room) == data.nbytes
    np.testing.assert_array_equal(room, data)
    assert tqcache.codec.planes_decode(tqcache.codec.planes_encode([data[:9], data[9:]], 2)) == \
        data.tobytes()
    with pytest.raises(tqcache.UsageError):
        tqcache.codec.planes_decode(packed, np.empty(3, np.uint8))
    with pytest.raises(tqcache.CorruptError):
        tqcache.codec.planes_decode(packed[:-1] + bytes([packed[-1] ^ 1]))
    with pytest.raises(tqcache.UsageError):
        tqcache.codec.planes_encode(b"odd")


def test_prompts_in_a_store(tmp_path):
    k, v = values((2, N, 64), 1), values((2, N, 64), 2)
    writer = tqcache.Writer(None, tokens=range(N), identity=IDENTITY)
    writer.attention(k, v)
    with tqcache.Store(f"dir:{tmp_path / 'store'}") as store:
        report = store.put(writer.cache(), "book", config="turbo4")
        assert report["n_tokens"] == N and report["new_blocks"] == report["blocks"]
        assert store.names() == ["book"]
        assert store.find(IDENTITY, range(N)) == N
        assert store.find(IDENTITY, [5, 6]) == 0
        assert store.get(IDENTITY, [5, 6]) is None
        prefix = store.get(IDENTITY, list(range(300)) + [9, 9])
        assert prefix.n_tokens == 256 and prefix.kind == "store"
        whole = store.get_named("book")
        np.testing.assert_array_equal(whole.layers[0].values(512), v[:, 512:])
        np.testing.assert_array_equal(whole.layers[0].keys(0, 256), prefix.layers[0].keys())
        whole.save(tmp_path / "a.tqkv")
        assert tqcache.verify(tmp_path / "a.tqkv")
        store.put(tmp_path / "a.tqkv", "again")
        assert store.remove("book") and not store.remove("book")
        assert store.get_named("book") is None
    with pytest.raises(tqcache.UsageError):
        store.names()


def in_a_child(work):
    """Runs it in a forked process; 0 is success. A hang ends after 30 s."""
    pid = os.fork()
    if pid == 0:
        signal.alarm(30)
        try:
            work()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001
            print(f"child: {error!r}", flush=True)
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_forked_process_opens_its_own_store(tmp_path):
    """Of one connection or one SQLite database, two processes would read each other's answers."""
    path, url = tmp_path / "a.tqkv", f"dir:{tmp_path}/store"
    identity = tqcache.Identity("qwen3", weights_fingerprint=b"w" * 32,
                                tokenizer_fingerprint=b"t" * 32)
    with tqcache.Writer(path, tokens=range(600), identity=identity) as out:
        out.attention(np.ones((1, 600, 32), np.float16), np.ones((1, 600, 32), np.float16))
    with tqcache.Store(url) as store, tqcache.Values(url, "mine") as values:
        store.put(path, "one")
        values.put("key", b"value")

        def use():
            store.put(path, "two")
            assert sorted(store.names()) == ["one", "two"]
            assert values.get("key") == b"value"
            values.put("child", b"more")

        holder = store._handle.lock  # as a thread that works at the moment of the fork
        with holder:
            assert in_a_child(use) == 0
        assert sorted(store.names()) == ["one", "two"]
        assert values.get("child") == b"more"

        def use_as_it_is():
            with pytest.raises(tqcache.UsageError, match="opened before fork"):
                store._handle._opened.names()

        assert in_a_child(use_as_it_is) == 0
    with pytest.raises(tqcache.UsageError):
        store.names()


def test_forked_processes_convert_though_their_parent_has_threads(tmp_path):
    """As workers of multiprocessing: the library's threads are not in the child."""
    def convert(name):
        with tqcache.Writer(tmp_path / name, tokens=range(2000), config="turbo4") as out:
            for i in range(6):
                out.attention(values((2, 2000, 64), i), values((2, 2000, 64), 10 + i))

    convert("parent.tqkv")
    for name in ("a.tqkv", "b.tqkv", "c.tqkv"):
        assert in_a_child(lambda: convert(name)) == 0
        assert (tmp_path / name).read_bytes() == (tmp_path / "parent.tqkv").read_bytes()


def test_values(tmp_path):
    url = f"dir:{tmp_path / 'store'}"
    with tqcache.Values(url, "vllm") as store:
        block = values((2, 16, 64), 1)
        assert store.get("a", b"f16") is None
        assert store.put("a", block, b"f16") is True
        assert store.put("a", block, b"f16") is False
        assert store.get("a", b"f16") == block.tobytes()
        room = np.zeros_like(block)
        assert store.get("a", b"f16", room) == block.nbytes
        np.testing.assert_array_equal(room, block)
        halves = [bytearray(block.nbytes // 2), memoryview(bytearray(block.nbytes // 2))]
        assert store.get("a", b"f16", halves) == block.nbytes
        assert bytes(halves[0]) + bytes(halves[1]) == block.tobytes()
        assert store.get("a", b"f16", np.zeros(3, np.uint8)) is None
        assert store.put_many(["b", "c"], [b"1", [b"2", b"3"]]) == [True, True]
        assert store.get_many(["b", "c", "d"]) == [b"1", b"23", None]
        assert store.exists(["a", "d"]) == [True, False]
        n, size = store.total()
        assert n == 3 and size > block.nbytes
        assert store.delete("a") and not store.delete("a")
        assert store.trim(1 << 30) == (0, 0)
        assert store.clear() == 2
        with pytest.raises(ValueError):
            store.get("a", b"", b"read-only")
    with pytest.raises(tqcache.UsageError):
        tqcache.Values(url, "Not/A/Name")


def value_file(folder):
    for root, _, names in os.walk(folder):
        for name in names:
            if name.startswith("v,"):
                return os.path.join(root, name)


def test_damage_is_a_miss_with_one_warning(tmp_path):
    url = f"dir:{tmp_path / 'store'}"
    store = tqcache.Values(url, "vllm")
    store.put("a", b"some bytes of a value", b"meta")
    path = value_file(tmp_path / "store")
    with open(path, "rb") as file:
        whole = file.read()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for bit in range(0, 8 * len(whole), 3):
            damaged = bytearray(whole)
            damaged[bit // 8] ^= 1 << bit % 8
            with open(path, "wb") as file:
                file.write(damaged)
            assert store.get("a", b"meta") is None
    assert len(caught) == 1
    assert store.put("a", b"some bytes of a value", b"meta")  # takes the damaged one's place
    assert store.get("a", b"meta") == b"some bytes of a value"
    messages = []
    other = tqcache.Values(url, "vllm", on_warning=messages.append)
    assert other.get("a", b"another geometry") is None and len(messages) == 1


def test_planes_of_values_are_smaller(tmp_path):
    data = (values(100_000, 1, np.float32).view(np.uint32) >> 16).astype(np.uint16)
    store = tqcache.Values(f"dir:{tmp_path / 'store'}", "sglang", compress="planes")
    assert store.put("a", data)
    assert store.total()[1] < data.nbytes * 0.75
    assert store.get("a") == data.tobytes()


def work(url, seed):
    """Puts, gets and deletes values, and returns the numbers of the wrong ones."""
    store = tqcache.Values(url, "many")
    rng = np.random.default_rng(seed)
    wrong = []
    for _ in range(60):
        i = int(rng.integers(10))
        expected = bytes([i]) * (1000 + i)
        patiently(store.put, f"key {i}", expected, b"m")
        found = patiently(store.get, f"key {i}", b"m")
        if found is not None and found != expected:
            wrong.append(i)
        if rng.integers(8) == 0:
            patiently(store.delete, f"key {i}")
    return str(wrong)


def test_eight_processes_read_no_wrong_value(tmp_path):
    url = f"dir:{tmp_path / 'store'}"
    assert run_together(work, [(url, i) for i in range(8)], tmp_path) == ["[]"] * 8


def fail_or_wait(fails):
    if fails:
        raise ValueError("broken on purpose")
    threading.Event().wait()


def test_a_process_that_fails_ends_the_others(tmp_path):
    with pytest.raises(AssertionError, match="broken on purpose"):
        run_together(fail_or_wait, [(i == 3,) for i in range(5)], tmp_path)
    with pytest.raises(AssertionError, match="process 1 ended with status -9"):
        run_together(end_or_wait, [(i == 1,) for i in range(3)], tmp_path)


def end_or_wait(ends):
    if ends:
        os.kill(os.getpid(), signal.SIGKILL)
    threading.Event().wait()
