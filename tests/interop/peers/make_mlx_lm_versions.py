"""Prompt caches of many versions of mlx-lm, with the same values in each: tests/data/interop/mlx_lm_*.

Takes cache.py out of the wheel of each version (pip download --no-deps) and runs it with the mlx that
Python finds. Versions before 0.19.1 have no cache classes in their files.

usage: make_mlx_lm_versions.py FOLDER VERSION...        writes FOLDER/mlx_lm_VERSION.safetensors
"""

import importlib.util
import pathlib
import subprocess
import sys
import tempfile
import types
import zipfile

import mlx.core as mx
import numpy

N_TOKENS = 23
SHAPE = (2, 32)  # kv heads, head_dim


def cache_module(version, folder):
    """mlx_lm.models.cache of that version."""
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
                    "--no-deps", "-d", folder, "mlx-lm==" + version], check=True)
    name = "mlx_lm_" + version.replace(".", "_")
    package = types.ModuleType(name)
    package.__path__ = []
    sys.modules[name] = package
    module = None
    with zipfile.ZipFile(next(pathlib.Path(folder).glob("mlx_lm-%s-*.whl" % version))) as wheel:
        base = types.ModuleType(name + ".base")  # cache.py takes masks from it, which no file has
        base.create_causal_mask = None
        sys.modules[name + ".base"] = base
        spec = importlib.util.spec_from_loader(name + ".cache", loader=None)
        module = importlib.util.module_from_spec(spec)
        module.__package__ = name
        sys.modules[name + ".cache"] = module
        exec(compile(wheel.read("mlx_lm/models/cache.py"), "cache.py", "exec"), module.__dict__)
    for each in vars(module).values():
        if isinstance(each, type) and hasattr(each, "step"):
            each.step = 32  # since 0.32.0 files have the room to spare: 256 rows make them large
    return module


def values(layer, first, n):
    """Keys and values of tokens [first, first + n)."""
    whole = numpy.random.default_rng(layer).standard_normal((2, 1, SHAPE[0], N_TOKENS, SHAPE[1]))
    part = whole[:, :, :, first : first + n].astype(numpy.float32)
    return [mx.array(side).astype(mx.float16) for side in part]


def fill(cache, layer, steps=(14, 4, 1, 1, 1, 1, 1)):
    """A prompt in two parts, and tokens one by one."""
    first = 0
    for n in steps:
        cache.update_and_fetch(*values(layer, first, n))
        first += n
    assert first == N_TOKENS
    return cache


def state(cache, layer):
    source = numpy.random.default_rng(layer)
    cache[0] = mx.array(source.standard_normal((1, 3, 8)).astype(numpy.float32)).astype(mx.bfloat16)
    cache[1] = mx.array(source.standard_normal((1, 2, 4, 4)).astype(numpy.float32))
    return cache


def make(module):
    """KVCache, RotatingKVCache and arrays; then what the version has, in the order of their ages."""
    arrays = ((lambda: module.ArraysCache(2)) if hasattr(module, "ArraysCache") else module.MambaCache)
    caches = [fill(module.KVCache(), 0), fill(module.RotatingKVCache(max_size=16, keep=4), 1),
              state(arrays(), 2)]
    if hasattr(module, "QuantizedKVCache"):
        caches.append(fill(module.KVCache(), 3).to_quantized(group_size=32, bits=4))
    if hasattr(module, "ChunkedKVCache"):
        caches.append(fill(module.ChunkedKVCache(chunk_size=32), 4))
    if hasattr(module, "CacheList"):
        caches.append(module.CacheList(state(arrays(), 5), fill(module.KVCache(), 6)))
    if hasattr(module, "ConcatenateKVCache"):
        caches.append(fill(module.ConcatenateKVCache(), 7))
    return caches


def main():
    folder, *versions = sys.argv[1:]
    with tempfile.TemporaryDirectory() as wheels:
        for version in versions:
            module = cache_module(version, wheels)
            path = pathlib.Path(folder) / ("mlx_lm_%s.safetensors" % version)
            module.save_prompt_cache(str(path), make(module), {"model": "a/b"})
            print(path.name, path.stat().st_size)


if __name__ == "__main__":
    main()
