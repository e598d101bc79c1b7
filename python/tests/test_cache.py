"""Caches in and out of files: every kind of layer, dtypes, views, conversions, errors."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import tqcache

N = 600


def values(shape, seed, dtype=np.float16):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


@pytest.fixture
def layers():
    return {"k": values((2, N, 64), 1), "v": values((2, N, 64), 2),
            "wk": values((2, 100, 64), 3, np.float32), "wv": values((2, 100, 64), 4, np.float32),
            "conv": values((1, 4, 8), 5, np.float32)}


IDENTITY = tqcache.Identity("qwen3", "a model", rope=tqcache.Rope(64, 10000.0),
                            weights_fingerprint=b"w" * 32, tokenizer_fingerprint=b"t" * 32)


def write(path, layers, **options):
    with tqcache.Writer(path, tokens=range(N), identity=IDENTITY, **options) as out:
        out.attention(layers["k"], layers["v"])
        out.window(layers["wk"], layers["wv"], 100)
        out.state({"conv": layers["conv"]})


def test_every_kind_of_layer_comes_back(tmp_path, layers):
    path = tmp_path / "a.tqkv"
    write(path, layers)
    with tqcache.open(path) as cache:
        assert len(cache) == N and cache.kind == "tqkv"
        assert cache.tokens.tolist() == list(range(N))
        assert cache.identity == IDENTITY
        full, window, state = cache.layers
        assert (full.kind, window.kind, state.kind) == ("attention", "window", "state")
        assert (full.key_dtype, window.value_dtype) == ("f16", "f32")
        np.testing.assert_array_equal(full.keys(), layers["k"])
        np.testing.assert_array_equal(full.values(250, 260), layers["v"][:, 250:260])
        np.testing.assert_array_equal(window.keys(), layers["wk"])
        assert (window.window, window.n_tokens, window.first_token) == (100, 100, N - 100)
        assert list(state.arrays()) == ["conv"]
        np.testing.assert_array_equal(state.arrays()["conv"], layers["conv"])
        assert state.array_dtypes() == {"conv": "f32"}
        assert cache.info()["layers"][0]["n_kv_heads"] == 2
        assert len(cache.content_digest) == 64
        with pytest.raises(tqcache.UsageError):
            state.keys()
    with pytest.raises(ValueError):
        full.keys()  # the cache is closed


def test_quantized_layers_are_decoded(tmp_path, layers):
    path = tmp_path / "a.tqkv"
    write(path, layers, config="turbo4")
    size = os.path.getsize(path)
    write(tmp_path / "dense.tqkv", layers)
    assert size < os.path.getsize(tmp_path / "dense.tqkv") * 0.6
    with tqcache.open(path) as cache:
        layer = cache.layers[0]
        assert layer.key_codec == "mse:4"
        keys = layer.keys()
        error = np.linalg.norm(keys[:, :512].astype(np.float32) - layers["k"][:, :512])
        assert 0.01 < error / np.linalg.norm(layers["k"][:, :512].astype(np.float32)) < 0.15
        np.testing.assert_array_equal(keys[:, 512:], layers["k"][:, 512:])
        assert len(layer.key_views()) == 1  # the dense tail


def test_dtypes_and_outputs(tmp_path, layers):
    path = tmp_path / "a.tqkv"
    bf16 = (layers["wk"].view(np.uint32) >> 16).astype(np.uint16)
    with tqcache.Writer(path, n_tokens=100) as out:
        out.attention(bf16, bf16, bf16=True)
    with tqcache.open(path) as cache:
        assert cache.tokens is None and not cache.identity.is_known
        layer = cache.layers[0]
        assert layer.key_dtype == "bf16"
        wide = (bf16.astype(np.uint32) << 16).view(np.float32)
        assert layer.keys().dtype == np.float32
        np.testing.assert_array_equal(layer.keys(), wide)
        np.testing.assert_array_equal(layer.keys(dtype="bf16"), bf16)
        np.testing.assert_array_equal(layer.keys(dtype="f16"), wide.astype(np.float16))
        room = np.zeros((100, 2, 128), np.float32)  # any strides
        assert layer.keys(out=room.transpose(1, 0, 2)[:, :, ::2]) is not None
        np.testing.assert_array_equal(room.transpose(1, 0, 2)[:, :, ::2], wide)
        assert not room[:, :, 1::2].any()
        shared = layer.keys(dlpack=True)
        assert shared.__dlpack_device__()[0] == 1
        layer.keys(out=room.transpose(1, 0, 2)[:, :, ::2])
        fixed = room[:, :, ::2].copy()
        fixed.setflags(write=False)
        with pytest.raises(ValueError, match="read-only"):
            layer.keys(out=fixed.transpose(1, 0, 2))
        with pytest.raises(TypeError):
            layer.keys(out=np.zeros((2, 100, 64)))  # f64
        with pytest.raises(ValueError):
            layer.keys(dtype="f64")


def test_dlpack_of_every_version(tmp_path, layers):
    """As numpy and torch ask for it: old and versioned capsules, a device, a copy."""
    path = tmp_path / "a.tqkv"
    with tqcache.Writer(path, n_tokens=N) as out:
        out.attention(layers["k"], layers["v"])
    with tqcache.open(path) as cache:
        shared = cache.layers[0].keys(dlpack=True)
        for options in ({}, {"stream": None}, {"max_version": (1, 0)}, {"dl_device": (1, 0)},
                        {"copy": False}, {"copy": True, "max_version": (1, 0), "stream": None}):
            assert "dltensor" in repr(shared.__dlpack__(**options)), options
        first, second = np.from_dlpack(shared), np.from_dlpack(shared)
        np.testing.assert_array_equal(first, layers["k"])
        first[:] = 0  # the same memory
        assert not second.any()
        if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
            copied = np.from_dlpack(shared, copy=True)
            copied[:] = 1
            assert not second.any()


def test_inputs_with_strides_and_a_batch_dimension(tmp_path, layers):
    path = tmp_path / "a.tqkv"
    tokens_first = np.ascontiguousarray(layers["k"].transpose(1, 0, 2))
    with tqcache.Writer(path, n_tokens=N) as out:
        out.attention(tokens_first.transpose(1, 0, 2), layers["v"][None])
    with tqcache.open(path) as cache:
        np.testing.assert_array_equal(cache.layers[0].keys(), layers["k"])
        np.testing.assert_array_equal(cache.layers[0].values(), layers["v"])


def test_views_of_a_mapped_file_are_zero_copy(tmp_path, layers):
    path = tmp_path / "a.tqkv"
    write(path, layers, compress="none")

    def ranges():
        with __import__("builtins").open("/proc/self/maps") as maps:
            lines = [line.split() for line in maps if line.rstrip().endswith(str(path))]
        return [tuple(int(end, 16) for end in line[0].split("-")) for line in lines]

    cache = tqcache.open(path, map=True)
    mapped = ranges()
    assert mapped
    full, window, state = cache.layers
    views = full.key_views()
    assert [view.shape for view in views] == [(2, 256, 64), (2, 256, 64), (2, 88, 64)]
    np.testing.assert_array_equal(np.concatenate(views, axis=1), layers["k"])
    for view in [*views, *full.value_views(), *window.key_views(), state.arrays()["conv"]]:
        address = view.__array_interface__["data"][0]
        assert any(begin <= address and address + view.nbytes <= end for begin, end in mapped)
        assert not view.flags.writeable
    cache.close()
    del cache, full, window, state
    np.testing.assert_array_equal(np.concatenate(views, axis=1), layers["k"])  # keep the file mapped
    with tqcache.open(path) as copied:
        address = copied.layers[0].key_views()[0].__array_interface__["data"][0]
        assert not any(begin <= address < end for begin, end in mapped)


def test_conversions(tmp_path, layers):
    write(tmp_path / "a.tqkv", layers)
    seen = []
    tqcache.convert(tmp_path / "a.tqkv", tmp_path / "b.tqkv", "k8v4",
                    progress=lambda done, total: seen.append((done, total)))
    assert seen and seen[-1][0] == seen[-1][1]
    assert tqcache.verify(tmp_path / "b.tqkv").damage == []
    tqcache.convert(tmp_path / "a.tqkv", tmp_path / "a.npz", to="npz")
    with tqcache.open(tmp_path / "a.npz") as cache:
        assert cache.kind == "npz"
        np.testing.assert_array_equal(cache.layers[0].keys(), layers["k"])
        again = cache.to_bytes(compress="none")
    with tqcache.open_bytes(again) as cache:
        np.testing.assert_array_equal(cache.layers[1].values(), layers["wv"])
    with pytest.raises(tqcache.UsageError, match="exists"):
        tqcache.convert(tmp_path / "a.tqkv", tmp_path / "b.tqkv")
    assert "turbo4" in tqcache.presets()


def test_progress_can_stop_and_raise(tmp_path, layers):
    write(tmp_path / "a.tqkv", layers)
    with pytest.raises(tqcache.Interrupted):
        tqcache.convert(tmp_path / "a.tqkv", tmp_path / "b.tqkv", progress=lambda *_: False)

    def fail(done, total):
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        tqcache.convert(tmp_path / "a.tqkv", tmp_path / "b.tqkv", progress=fail)
    assert not (tmp_path / "b.tqkv").exists()

    class Bar:
        n, total = 0, None

        def update(self, n):
            self.n += n

    bar = Bar()
    tqcache.convert(tmp_path / "a.tqkv", tmp_path / "b.tqkv", progress=tqcache.tqdm_progress(bar))
    assert bar.n == bar.total > 0


def test_errors_have_a_class_for_each_code(tmp_path, layers):
    with pytest.raises(tqcache.NotFoundError) as missing:
        tqcache.open(tmp_path / "none")
    assert missing.value.code == 10 and missing.value.file == str(tmp_path / "none")
    assert isinstance(missing.value, FileNotFoundError)
    path = tmp_path / "a.tqkv"
    write(path, layers)
    data = bytearray(path.read_bytes())
    data[700] ^= 1
    path.write_bytes(data)
    with pytest.raises(tqcache.CorruptError):
        tqcache.verify(path)
    found = tqcache.verify(path, check=False)
    assert not found and len(found.damage) >= 1
    path.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(tqcache.UnsupportedError, match="GGUF file, which holds a model"):
        tqcache.open(path)
    with pytest.raises(tqcache.UsageError):
        tqcache.Writer(None)
    with pytest.raises(tqcache.UsageError):
        write(tmp_path / "b.tqkv", layers, config="turbo99")
    with pytest.raises(TypeError):
        tqcache.Writer(None, n_tokens=1).attention(np.zeros((1, 1, 64)), np.zeros((1, 1, 64)))
    with pytest.raises(tqcache.UsageError):
        tqcache.Writer(None, n_tokens=2).attention(layers["k"], layers["v"])
    for call in (lambda: tqcache.open(None), lambda: tqcache.verify(None),
                 lambda: tqcache.convert(tmp_path / "none", None)):
        with pytest.raises(TypeError, match="a path is needed"):
            call()
    with pytest.raises(TypeError, match="config: a text"):
        write(tmp_path / "b.tqkv", layers, config=4)
    write(tmp_path / "c.tqkv", layers)
    with tqcache.open(tmp_path / "c.tqkv") as cache:
        with pytest.raises(IndexError, match=f"of {N}"):
            cache.layers[0].values(99999)
    broken = layers["k"].copy()
    broken[0, 3, 5] = np.nan
    with pytest.raises(tqcache.CorruptError, match="finite"):
        write(tmp_path / "b.tqkv", {**layers, "k": broken})
    assert not (tmp_path / "b.tqkv").exists()


def test_an_exception_in_the_block_writes_nothing(tmp_path, layers):
    with pytest.raises(KeyError):
        with tqcache.Writer(tmp_path / "a.tqkv", n_tokens=N) as out:
            out.attention(layers["k"], layers["v"])
            raise KeyError("stop")
    assert os.listdir(tmp_path) == []


def test_the_writer_keeps_its_arrays(layers):
    writer = tqcache.Writer(None, n_tokens=N)
    writer.attention(layers["k"].copy(), layers["v"].copy())
    cache = writer.cache()
    del writer
    np.testing.assert_array_equal(cache.layers[0].keys(), layers["k"])


def test_strides_of_zero_read_and_write_nothing_beside_an_array(tmp_path, layers):
    one = np.broadcast_to(np.float32(1), (2, N, 64))
    with tqcache.Writer(None, n_tokens=N) as writer:
        with pytest.raises(ValueError, match="strides of 0"):
            writer.attention(one, one)
        # A number for each head is read as such.
        heads = np.broadcast_to(np.arange(2, dtype=np.float32)[:, None, None], (2, N, 64))
        writer.attention(heads, heads)
        np.testing.assert_array_equal(writer.cache().layers[0].keys(), heads)
    write(tmp_path / "a.tqkv", layers)
    with tqcache.open(tmp_path / "a.tqkv") as cache:
        memory = np.zeros(N * 64 + 64, np.float16)
        overlapping = [np.lib.stride_tricks.as_strided(memory, (2, N, 64), strides)
                       for strides in ((0, 0, 0), (0, 128, 2), (128, 128, 2), (2, 128, 2))]
        for out in overlapping:
            with pytest.raises(ValueError, match="overlaps itself"):
                cache.layers[0].keys(out=out)
        assert not memory.any()
        # Axes in another order, and backwards, have memory of their own.
        out = np.zeros((64, N, 2), np.float16).transpose(2, 1, 0)[:, ::-1]
        np.testing.assert_array_equal(cache.layers[0].keys(out=out), layers["k"])


def test_threads_take_turns_with_a_writer(layers):
    for _ in range(5):
        writer = tqcache.Writer(None, n_tokens=N)

        def add():
            for _ in range(50):
                writer.attention(layers["k"], layers["v"])
                writer.cache()

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        cache = writer.cache()
        assert len(cache.layers) == 200
        np.testing.assert_array_equal(cache.layers[199].keys(), layers["k"])


def test_arguments_that_would_be_cut(tmp_path, layers):
    for ids in ([1.5, 2], np.array([1.0, 2.0]), ["1"]):
        with pytest.raises(TypeError):
            tqcache.Writer(None, tokens=ids)
    with pytest.raises(ValueError, match="32 bits"):
        tqcache.Writer(None, tokens=[1, 2**31])
    write(tmp_path / "a.tqkv", layers)
    with pytest.raises(ValueError, match="null character"):
        tqcache.open(f"{tmp_path}/a.tqkv\0.other")
    with tqcache.Writer(None, n_tokens=N) as writer:
        with pytest.raises(ValueError, match="null character"):
            writer.state({"a\0b": layers["conv"]})
    with tqcache.Store(f"dir:{tmp_path}/store") as store:
        with tqcache.open(tmp_path / "a.tqkv") as cache:
            with pytest.raises(ValueError, match="null character"):
                store.put(cache, "a\0b")


def test_encryption(tmp_path, layers):
    key = tmp_path / "key"
    key.write_text("c" * 64 + "\n")
    key.chmod(0o600)
    write(tmp_path / "a.tqkv", layers, key_file=key)
    with pytest.raises(tqcache.MismatchError):
        tqcache.open(tmp_path / "a.tqkv")
    with tqcache.open(tmp_path / "a.tqkv", key_file=key) as cache:
        assert cache.encrypted
        np.testing.assert_array_equal(cache.layers[0].keys(), layers["k"])


def test_the_gil_is_released(tmp_path):
    """With this switch interval a thread gets the interpreter only when another one releases it:
    this thread runs inside of the other one's call only if that call releases it."""
    some = values((2, 2048, 64), 1)
    with tqcache.Writer(tmp_path / "a.tqkv", n_tokens=2048, compress="none") as out:
        out.attention(some, some)
    is_inside, is_seen = [False], [False]

    def work():
        with tqcache.open(tmp_path / "a.tqkv") as cache:
            for _ in range(1000):
                is_inside[0] = True
                cache.to_bytes("turbo4")  # without a callback
                is_inside[0] = False
                if is_seen[0]:
                    return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive():
            is_seen[0] = is_seen[0] or is_inside[0]
            time.sleep(0)
        thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert is_seen[0]


def test_the_program_is_there(tmp_path, layers):
    write(tmp_path / "a.tqkv", layers)
    report = tqcache.run("verify", tmp_path / "a.tqkv")
    assert report
    with pytest.raises(tqcache.NotFoundError):
        tqcache.run("info", tmp_path / "none")
    with pytest.raises(tqcache.NotFoundError):
        tqcache.verify(tmp_path / "a.tqkv", model=tmp_path / "no.gguf")
    script = os.path.join(os.path.dirname(sys.executable), "tqcache")
    done = subprocess.run([script, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("tqcache " + tqcache.__version__)
    # The same bytes as the program's.
    tqcache.convert(tmp_path / "a.tqkv", tmp_path / "b.tqkv", "k4v3")
    subprocess.run([script, "convert", tmp_path / "a.tqkv", tmp_path / "c.tqkv", "--config", "k4v3",
                    "--quiet"], check=True)
    assert (tmp_path / "b.tqkv").read_bytes() == (tmp_path / "c.tqkv").read_bytes()


def test_torch_is_not_imported():  # and numpy only when it is needed
    code = "import tqcache, sys; assert not {'torch', 'mlx', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_torch_tensors(tmp_path):
    torch = pytest.importorskip("torch")
    keys = torch.randn(1, 2, 300, 64, dtype=torch.bfloat16)
    with tqcache.Writer(tmp_path / "a.tqkv", n_tokens=300) as out:
        out.attention(keys, keys.to(torch.float16))
        out.state({"s": keys[0, 0]})
    with tqcache.open(tmp_path / "a.tqkv") as cache:
        layer, state = cache.layers
        assert layer.key_dtype == "bf16" and state.array_dtypes() == {"s": "bf16"}
        assert torch.equal(torch.from_dlpack(layer.keys(dlpack=True)), keys[0])
        room = torch.zeros(2, 300, 64, dtype=torch.bfloat16)
        layer.keys(out=room)
        assert torch.equal(room, keys[0])
