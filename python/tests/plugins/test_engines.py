"""What every plug-in for an engine has to do: keep blocks over a restart, notice damage, keep
identities apart, share a store. Run through the real base classes of LMCache, SGLang and vLLM."""

import logging
import subprocess
import sys
from pathlib import Path

import engines
import numpy as np
import pytest

pytestmark = pytest.mark.interop


@pytest.fixture(params=list(engines.ENGINES))
def engine(request):
    engines.need(request.param)
    return request.param


@pytest.fixture
def store(tmp_path):
    return f"dir:{tmp_path}/store"


def make(engine, store, **identity):
    return engines.ENGINES[engine](store, **identity)


def got(engine, store, names, **identity):
    made = make(engine, store, **identity)
    try:
        return made.get(names)
    finally:
        made.close()


def put(engine, store, names, seed=0, **identity):
    made = make(engine, store, **identity)
    try:
        return made.put({name: engines.block(name, seed) for name in names})
    finally:
        made.close()


def run(engine, *arguments):
    """What processes of their own print: engines.main()."""
    done = subprocess.run([sys.executable, engines.__file__, engine, *arguments],
                          stdout=subprocess.PIPE, text=True, check=True)
    return [line for line in done.stdout.split("\n")
            if line.endswith((" right", " miss", " WRONG"))]


def blobs(store):
    """The files of the store that hold values."""
    folder = Path(store.removeprefix("dir:"))
    return [path for path in sorted((folder / "blobs").rglob("*")) if path.is_file()]


def warnings_of(caplog, capfd, engine):
    if engines.ENGINES[engine].logger is None:
        return [line for line in capfd.readouterr().err.split("\n") if line.startswith("tqcache: ")]
    return [record for record in caplog.records
            if record.name == engines.ENGINES[engine].logger and record.levelno >= logging.WARNING]


@pytest.fixture(autouse=True)
def hear_loggers(caplog):
    """Engines turn propagation off for loggers; these are ours."""
    caplog.set_level(logging.WARNING)


def test_blocks_survive_a_restart(engine, store):
    assert run(engine, "put,get", "1", store, "a", "b", "c") == ["a right", "b right", "c right"]


def test_blocks_leave_the_memory_of_the_engine_and_come_back(engine, store):
    names = [f"block{i}" for i in range(6)]
    assert put(engine, store, names)
    for name, data in zip(names, got(engine, store, names)):
        assert np.array_equal(data, engines.expected(engine, name)), name


def test_a_flipped_bit_anywhere_is_a_miss_and_one_warning(engine, store, caplog, capfd):
    put(engine, store, ["a"])
    path, = blobs(store)
    whole = path.read_bytes()
    for at in sorted({*range(0, len(whole), len(whole) // 40), 0, 4, 8, 40, len(whole) - 1}):
        path.chmod(0o600)
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1:])
        caplog.clear()
        capfd.readouterr()
        made = make(engine, store)
        for _ in range(2):  # one warning, however often it is asked for
            assert made.get(["a"])[0] is None, at
        made.close()
        assert len(warnings_of(caplog, capfd, engine)) == 1, at
    path.write_bytes(whole[:-7])
    assert got(engine, store, ["a"])[0] is None
    path.write_bytes(whole)
    assert np.array_equal(got(engine, store, ["a"])[0], engines.expected(engine, "a"))


def test_a_damaged_block_is_replaced_by_the_next_put(engine, store):
    put(engine, store, ["a"])
    path, = blobs(store)
    path.chmod(0o600)
    whole = bytearray(path.read_bytes())
    whole[len(whole) // 2] ^= 4
    path.write_bytes(whole)
    assert got(engine, store, ["a"])[0] is None
    assert put(engine, store, ["a"])
    assert np.array_equal(got(engine, store, ["a"])[0], engines.expected(engine, "a"))


OTHERS = {
    "vllm": [{"model": "other"}, {"dtype": "bfloat16"}, {"layers": 2}, {"tp_size": 2},
             {"salt": "s"}],
    "sglang": [{"model": "other"}, {"dtype": "bfloat16"}, {"tp_rank": 1, "tp_size": 2},
               {"tp_size": 2}, {"layout": "page_first"}, {"salt": "s"}],
    "lmcache": [{"model": "other"}, {"dtype": "bfloat16"}, {"shape": (2, 3, 64, 64)},
                {"tp_rank": 1, "tp_size": 2}, {"tp_size": 2}, {"salt": "s"}, {"cache_salt": "t"}],
    "lmcache-native": [{"model": "other"}, {"tp_rank": 1, "tp_size": 2}, {"salt": "s"},
                       {"cache_salt": "t"}],
}
OTHERS["sglang-v1"] = OTHERS["sglang"]
OTHERS["lmcache-cpp"] = OTHERS["lmcache-native"]
OTHERS["sglang-quantized"] = [*OTHERS["sglang"], {"layout": "page_head"}]
OTHERS["vllm-quantized"] = [{"model": "other"}, {"dtype": "bfloat16"}, {"tp_size": 2},
                            {"salt": "s"}, {"layout": "LBNHC"}]


@pytest.mark.parametrize("engine, other", [(name, other) for name, others in OTHERS.items()
                                           for other in others])
def test_another_identity_is_a_miss(engine, other, store):
    engines.need(engine)
    put(engine, store, ["a"])
    assert got(engine, store, ["a"], **other)[0] is None
    put(engine, store, ["a"], seed=1, **other)
    theirs = engines.expected(engine, "a", 1, **other)
    assert np.array_equal(got(engine, store, ["a"], **other)[0], theirs)
    mine, = got(engine, store, ["a"])  # LMCache keeps one of two geometries of a key
    assert mine is None or np.array_equal(mine, engines.expected(engine, "a"))


def test_a_block_under_another_key_is_a_miss(engine, store):
    put(engine, store, ["a"])
    first, = blobs(store)
    put(engine, store, ["b"])
    second, = set(blobs(store)) - {first}
    second.chmod(0o600)
    second.write_bytes(first.read_bytes())
    assert got(engine, store, ["b"])[0] is None


def test_a_store_that_fails_is_a_miss(engine, tmp_path, caplog, capfd):
    made = make(engine, f"dir:{tmp_path}/store")
    folder = tmp_path / "store"
    made.put({"a": engines.block("a")})
    folder.rename(tmp_path / "gone")
    folder.write_text("no folder")
    try:
        fresh = made.get(["b", "c"])
        assert fresh == [None, None]
    finally:
        made.close()
    assert len(warnings_of(caplog, capfd, engine)) <= 2


def test_eight_processes_on_one_store(engine, store):
    names = [f"block{i}" for i in range(5)]
    lines = run(engine, "both", "8", store, *names)
    assert all(line.endswith(" right") for line in lines)
    # Each process asks for each block three times; how often it finds it is a matter of time.
    assert {line.split()[0] for line in lines} == set(names)
