"""mlx-lm and mlx-vlm: prompt caches in files, and a disk tier for the server of mlx-lm.

    import tqcache.mlx as tq

    tq.save("prompt.tqkv", cache, tokens, model_path="hf")    # 4 bits
    cache = tq.load("prompt.tqkv", model)                     # a list of caches, as mlx-lm has them

The server: python -m tqcache.mlx_server --store dir:prompts --model hf

Images, with mlx-vlm: media=tq.media_of(model, inputs) in save(). Both ways go through files of
mlx-lm, which tqcache reads and writes in C++. Needs mlx-lm 0.32; docs/guide/plugins.md.
"""

import hashlib
import importlib
import json
import logging
import os
import queue
import tempfile
import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.models import cache as caches
from mlx_lm.models.cache import LRUPromptCache

import tqcache
from tqcache import Identity, MediaSpan, MismatchError, UnsupportedError, UsageError, _media

_logger = logging.getLogger("tqcache.mlx")


# --- Identity

def _folder_fingerprint(*folders) -> bytes:
    """SHA-256 of a sample of a model's files: names, sizes, and the ends of each."""
    digest = hashlib.sha256(b"tqcache mlx folder 1")
    for folder in folders:
        digest.update(b"folder")
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix not in (".safetensors", ".json", ".npz") or not path.is_file():
                continue
            size = path.stat().st_size
            digest.update(f"{path.relative_to(folder)}\0{size}\0".encode())
            with open(path, "rb") as file:
                digest.update(file.read(1 << 16))
                file.seek(max(0, size - (1 << 16)))
                digest.update(file.read(1 << 16))
    return digest.digest()


def identity_of(model_path, adapter_path=None) -> Identity:
    """The identity of a model folder: that of tqcache for families that it knows, otherwise a
    fingerprint of the folder. Raises UnsupportedError if there is no such folder."""
    folder = Path(model_path)
    if not (folder / "config.json").is_file():
        raise UnsupportedError(f"{model_path}: no folder with config.json")
    adapter = _folder_fingerprint(adapter_path) if adapter_path else None
    model_type = json.loads((folder / "config.json").read_text()).get("model_type", "unknown")
    if model_type not in tqcache.KEYS_IN_PAIRS:
        try:
            identity = Identity.of_model(folder)
            identity.adapter_fingerprint = adapter
            return identity
        except UnsupportedError:
            pass
    return Identity(f"mlx-{model_type}", folder.resolve().name, adapter_fingerprint=adapter,
                    weights_fingerprint=_folder_fingerprint(folder), source_format="mlx-lm")


# --- Files

def _flat(cache) -> list:
    return [part for layer in cache
            for part in (layer.caches if isinstance(layer, caches.CacheList) else [layer])]


def n_tokens_of(cache) -> int | None:
    """Number of tokens that a cache has seen; None if no layer says."""
    found = {int(layer.offset) for layer in _flat(cache)
             if isinstance(getattr(layer, "offset", None), int)}
    return max(found) if found else None


def _check_tokens(cache, tokens) -> list[int] | None:
    if tokens is None:
        return None
    tokens = [int(token) for token in tokens]
    seen = n_tokens_of(cache)
    if seen is not None and seen != len(tokens):
        raise UnsupportedError(f"{len(tokens)} tokens for a cache of {seen}")
    return tokens


def _is_of_mlx_vlm(thing) -> bool:
    return type(thing).__module__.split(".")[0] == "mlx_vlm"


# mlx-vlm has classes of its own with the names and the arrays of those of mlx-lm, and another state.
_ATTRIBUTES = {"KVCache": (), "RotatingKVCache": ("max_size", "keep"),
               "QuantizedKVCache": ("group_size", "bits")}


def _copied(layer, i: int, module):
    """The same cache as a class of another module."""
    name = type(layer).__name__
    if name not in _ATTRIBUTES:
        raise UnsupportedError(f"layer {i}: a {name} of mlx-vlm; those which go from mlx-vlm to mlx-lm "
                               f"and back are {', '.join(_ATTRIBUTES)}")
    made = getattr(module, name)(*(getattr(layer, of) for of in _ATTRIBUTES[name]))
    for of in ("keys", "values", "offset", "_idx"):
        if hasattr(layer, of):
            setattr(made, of, getattr(layer, of))
    return made


# --- Media

def _as_array(values):
    if isinstance(values, mx.array):
        values = values.astype(mx.float32)
    return np.array(values, dtype=np.float32)


def media_of(model, inputs, *, ids=None) -> list[MediaSpan]:
    """The images, sounds and videos among the tokens of a prompt of mlx-vlm, for save().

    inputs: what prepare_inputs() of mlx-vlm returned for one prompt. ids: names of the media in their
    order, such as digests of their files; without them, digests of what the processor made of them.
    The same as tqcache.transformers.media_of(), with the same names for the same pixels.

    Errors: UsageError if there are no names and the parts of `inputs` cannot be told apart.
    """
    return _media.spans(model.config, inputs, _as_array, lambda: _coordinates(model, inputs), ids)


def _coordinates(model, inputs):
    """Time, row and column of each token, [3, n]; None for models that count tokens."""
    find = getattr(getattr(model, "language_model", model), "get_rope_index", None)
    grids = [inputs.get(name) for name in ("image_grid_thw", "video_grid_thw")]
    if find is None or all(grid is None for grid in grids):
        return None
    grids = [grid if grid is None else mx.array(grid) for grid in grids]
    positions, _ = find(mx.array(inputs["input_ids"]).reshape(1, -1), *grids)
    if positions.ndim != 3 or positions.shape[0] < 3:
        return None
    return np.array(positions[-3:, 0]).astype(np.int32)


class _File:
    """A file of mlx-lm that is removed at the end."""

    def __enter__(self) -> str:
        self._folder = tempfile.TemporaryDirectory(prefix="tqcache-mlx-")
        return os.path.join(self._folder.name, "cache.safetensors")

    def __exit__(self, *_):
        self._folder.cleanup()


def save(path, cache, tokens=None, *, model_path=None, adapter_path=None,
         config: str | None = "turbo4", identity: Identity | None = None, media=(),
         **options) -> None:
    """Writes a prompt cache of mlx-lm, of any class but with one prompt, as a .tqkv file; or one of
    mlx-vlm with the classes KVCache, RotatingKVCache and QuantizedKVCache.

    tokens: those that the cache holds; without them nobody can tell later which prompt this is.
    media: what is no text among them, as media_of() finds it. Without it a cache that has seen an
    image says that it is of a text of placeholders.
    model_path, adapter_path: folders that give the identity. config: a preset or a configuration
    ("turbo4": 4 bits, the first 4 tokens dense); None keeps every number as it is. options:
    of tqcache.convert().
    """
    tokens = _check_tokens(cache, tokens)
    if identity is None and model_path is not None:
        identity = identity_of(model_path, adapter_path)
    if media and tokens is None:
        raise UsageError("media, but no tokens")
    cache = [_copied(layer, i, caches) if _is_of_mlx_vlm(layer) else layer
             for i, layer in enumerate(cache)]
    with _File() as file:
        caches.save_prompt_cache(file, cache, {"tqcache.media": _media.as_json(media)} if media else None)
        with tqcache.open(file, tokens=tokens, identity=identity) as opened:
            opened.save(path, config, **options)


def load(source, model=None, *, model_path=None, kv_bits: int | None = None,
         kv_group_size: int = 64, key_file=None) -> list:
    """A list of caches as mlx-lm has them, from a file of any program that tqcache reads, or from a
    tqcache.Cache.

    model: its layers are compared, and caches that belong together become a CacheList again; a
    language_model of mlx-vlm gets that program's classes.
    model_path: the folder whose identity is compared. kv_bits: keys and values of full attention
    are quantized as mlx-lm does it.

    Errors: MismatchError for a cache of another model.
    """
    is_path = not isinstance(source, tqcache.Cache)
    opened = tqcache.open(source, key_file=key_file) if is_path else None
    try:
        cache = opened if opened is not None else source
        if model_path is not None:
            expected = identity_of(model_path)
            found = cache.identity.weights_fingerprint
            if any(found) and found != expected.weights_fingerprint:  # zeros: unknown
                raise MismatchError("the cache is of another model: its weights differ")
        with _File() as file:
            tqcache.convert(cache, file, None, to="mlx-lm")
            # mlx maps the file lazily: the numbers have to be here before it is removed.
            flat = caches.load_prompt_cache(file)
            mx.eval([layer.state for layer in flat])
    finally:
        if opened is not None:
            opened.close()
    made = _as_in_model(flat, model) if model is not None else flat
    if kv_bits is not None:
        made = [layer.to_quantized(group_size=kv_group_size, bits=kv_bits)
                if type(layer) is caches.KVCache else layer for layer in made]
    if model is not None and _is_of_mlx_vlm(model):
        module = importlib.import_module("mlx_vlm.models.cache")
        made = [_copied(layer, i, module) for i, layer in enumerate(made)]
    return made


def _as_in_model(flat: list, model) -> list:
    """The same caches, in the structure and the classes of a model's own."""
    rest = _flat(flat)  # a file says which caches belong together, or not
    made = []
    for i, wanted in enumerate(caches.make_prompt_cache(model)):
        if _is_of_mlx_vlm(wanted):
            wanted = _copied(wanted, i, caches)
        parts = wanted.caches if isinstance(wanted, caches.CacheList) else [wanted]
        if len(rest) < len(parts):
            raise MismatchError(f"the cache has {len(flat)} layers, and the model more")
        found = [_as_class(rest.pop(0), part, i) for part in parts]
        made.append(caches.CacheList(*found) if isinstance(wanted, caches.CacheList) else found[0])
    if rest:
        raise MismatchError(f"the cache has {len(flat)} layers, and the model fewer")
    return made


def _as_class(found, wanted, i: int):
    if type(found) is type(wanted):
        if isinstance(found, caches.RotatingKVCache) and (
                (found.max_size, found.keep) != (wanted.max_size, wanted.keep)):
            raise MismatchError(f"layer {i}: a window of {found.max_size} tokens of which "
                                f"{found.keep} stay, and the model's is {wanted.max_size} and "
                                f"{wanted.keep}")
        return found
    if isinstance(wanted, caches.ConcatenateKVCache) and type(found) is caches.KVCache:
        made = type(wanted)()
        made.update_and_fetch(*found.keys_and_values())
        return made
    if isinstance(wanted, caches.ChunkedKVCache) and type(found) is caches.KVCache:
        made = caches.ChunkedKVCache(wanted.chunk_size)
        made.update_and_fetch(*found.keys_and_values())
        return made
    raise MismatchError(f"layer {i}: a {type(found).__name__}, and the model has a "
                        f"{type(wanted).__name__}")


# --- The server

class TqcachePromptCache(LRUPromptCache):
    """The prompt caches of mlx_lm.server in memory, with a store below them.

    What is inserted goes to the store as well, in a thread of its own. What is asked for comes from
    the store where that has a longer prefix of at least `least_gain` tokens. A store that fails and
    damaged blocks mean that less is found there, and are logged.

    store: URL. config: of the stored caches ("turbo4"), or None for all bits.
    model_provider: of mlx_lm.server; its model says which classes its caches have. Prompts with
    images and caches with those of a draft model stay in memory only.
    """

    def __init__(self, store: str, model_provider, max_size: int = 10, max_bytes: int = 1 << 63, *,
                 config: str | None = "turbo4", least_tokens: int = 256,
                 least_gain: int = 64, key_file=None, salt: str = ""):
        super().__init__(max_size, max_bytes)
        # One to read and one to write, so that a request does not wait for the writing of another.
        self._store, self._sink = (tqcache.Store(store, key_file=key_file, salt=salt,
                                                 on_warning=self._warn) for _ in range(2))
        self._provider, self._config = model_provider, config
        self._least_tokens, self._least_gain = least_tokens, least_gain
        self._identities: dict = {}
        self._jobs: queue.Queue = queue.Queue(maxsize=16)
        self._thread = threading.Thread(target=self._write, name="tqcache-mlx", daemon=True)
        self._thread.start()

    @staticmethod
    def _warn(message: str) -> None:
        _logger.warning("%s", message)

    def _identity(self, model_key) -> Identity | None:
        if model_key not in self._identities:
            path, adapter, draft = model_key
            identity = None
            try:
                if path is not None and draft is None:
                    from mlx_lm.utils import _download

                    folder = path if os.path.isdir(path) else _download(path)
                    identity = identity_of(folder, adapter)
            except Exception as error:
                _logger.warning("%s: its prompts are not stored: %s", path, error)
            self._identities[model_key] = identity
        return self._identities[model_key]

    # --- Reading

    def fetch_nearest_cache(self, model, tokens):
        cache, rest = super().fetch_nearest_cache(model, tokens)
        n_here = len(tokens) - len(rest)
        try:
            stored = self._fetch(model, tokens, n_here)
        except Exception as error:
            _logger.warning("nothing is taken from the store: %s", error)
            stored = None
        return stored if stored is not None else (cache, rest)

    def _fetch(self, model, tokens, n_here: int):
        if len(tokens) - 1 < n_here + self._least_gain or not _are_ids(tokens):
            return None
        identity = self._identity(model)
        # The last token has to be computed, for its logits.
        if identity is None or self._store.find(
                identity, tokens, max_tokens=len(tokens) - 1) < n_here + self._least_gain:
            return None
        found = self._store.get(identity, tokens, max_tokens=len(tokens) - 1)
        if found is None or found.n_tokens < n_here + self._least_gain:
            return None
        if model != self._provider.model_key:
            return None
        cache = load(found, self._provider.model)
        n_found = found.n_tokens
        seen = n_tokens_of(cache)
        if seen is not None and seen != n_found:
            raise MismatchError(f"a cache of {seen} tokens, which should be {n_found}")
        _logger.info("%d of %d tokens come from the store", n_found, len(tokens))
        return cache, tokens[n_found:]

    # --- Writing

    def insert_cache(self, model, tokens, prompt_cache, *, cache_type: str = "assistant"):
        super().insert_cache(model, tokens, prompt_cache, cache_type=cache_type)
        try:
            self._insert(model, tokens, prompt_cache)
        except Exception as error:
            _logger.warning("a prompt is not stored: %s", error)

    def _insert(self, model, tokens, prompt_cache) -> None:
        if len(tokens) < self._least_tokens or not _are_ids(tokens):
            return
        identity = self._identity(model)
        seen = n_tokens_of(prompt_cache)
        if identity is None or (seen is not None and seen != len(tokens)):
            return
        if self._jobs.full():
            _logger.info("the store is busy: a prompt of %d tokens stays in memory", len(tokens))
            return
        # The arrays are written by the thread that owns them; the rest is done behind its back.
        file = _File()
        path = file.__enter__()
        caches.save_prompt_cache(path, prompt_cache)
        self._jobs.put((identity, [int(token) for token in tokens], file, path))

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            identity, tokens, file, path = job
            try:
                if self._sink.find(identity, tokens) < len(tokens):
                    with tqcache.open(path, tokens=tokens, identity=identity) as cache:
                        self._sink.put(cache, config=self._config)
            except Exception as error:
                _logger.warning("a prompt is not stored: %s", error)
            finally:
                file.__exit__(None, None, None)
                self._jobs.task_done()
        self._jobs.task_done()

    def flush(self) -> None:
        """Returns when everything that was inserted is in the store."""
        self._jobs.join()

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()
        self._store.close()
        self._sink.close()


def _are_ids(tokens) -> bool:
    """Prompts with images have other things among their tokens."""
    return all(isinstance(token, int) for token in tokens)
