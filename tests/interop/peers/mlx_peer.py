"""mlx-lm itself, on mlx's CPU backend."""

from importlib import metadata
from pathlib import Path

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models import cache as caches
from mlx_lm.utils import load_model

mx.set_default_device(mx.cpu)

VERSION = ".".join(mlx_lm.__version__.split(".")[:2])


def versions():
    return f"mlx-lm {mlx_lm.__version__}, mlx {metadata.version('mlx')}"


def load(folder, dtype=None):
    """The model of a Hugging Face folder, in its own dtype unless another is asked for."""
    model = load_model(Path(folder))[0]
    if dtype is not None:
        model.set_dtype(dtype)
    return model


def prefill(model, ids, singly=0, max_size=None):
    """A cache of all ids; the last `singly` ones taken one at a time, as in generation."""
    cache = caches.make_prompt_cache(model, max_size)
    together = len(ids) - singly
    if together:
        mx.eval(model(mx.array([ids[:together]]), cache=cache))
    for token in ids[together:]:
        mx.eval(model(mx.array([[token]]), cache=cache))
    return cache


def save(path, cache, user=None):
    caches.save_prompt_cache(str(path), cache, user or {})


def load_cache(path):
    return caches.load_prompt_cache(str(path))


def logits_along(model, cache, tokens):
    """Logits after each of the tokens, taken one at a time after what the cache holds."""
    rows = []
    for token in tokens:
        logits = model(mx.array([[token]]), cache=cache)
        rows.append(np.array(logits[0, -1].astype(mx.float32)))
    return np.stack(rows)


def dequantized(cache):
    """The same cache with what a QuantizedKVCache's values stand for, in f32."""
    plain = []
    for layer in cache:
        other = caches.KVCache()
        sides = [mx.dequantize(*(part[..., :layer.offset, :].astype(_wide(part)) for part in side),
                               group_size=layer.group_size, bits=layer.bits)
                 for side in (layer.keys, layer.values)]
        other.update_and_fetch(*sides)
        plain.append(other)
    return plain


def _wide(part):
    return part.dtype if part.dtype == mx.uint32 else mx.float32


def bits_of(array):
    """An array for comparison bit by bit: NumPy has no bf16."""
    return np.array(array.view(mx.uint16) if array.dtype == mx.bfloat16 else array)


def contents(layer):
    """A layer's class, its numbers, and its arrays without the room that buffers have to spare."""
    kind = type(layer).__name__
    if kind == "CacheList":
        return [kind, *(contents(part) for part in layer.caches)]
    if kind == "ArraysCache":
        return [kind, *(bits_of(slot) for slot in layer.cache)]
    numbers, sides = [], (layer.keys, layer.values)
    if kind == "RotatingKVCache":
        # A prefill leaves more than the window in the buffer, of which nothing is seen again.
        n = min(layer.offset, layer.max_size)
        numbers = [layer.keep, layer.max_size]
        sides = [_window(layer._temporal_order(side), layer.keep, n) for side in sides]
    else:
        sides = [side[..., :layer.offset, :] for side in sides]
    return [kind, layer.offset, *numbers, *(bits_of(side) for side in sides)]


def _window(side, keep, n):
    newest = side[..., side.shape[2] - (n - keep):, :]
    return side[..., :n, :] if side.shape[2] == n else mx.concatenate(
        [side[..., :keep, :], newest], axis=2)
