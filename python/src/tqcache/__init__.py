"""Prompt caches (KV caches) of language models as files that one can trust.

    import tqcache

    with tqcache.open("book.tqkv") as cache:
        keys = cache.layers[0].keys()                     # numpy [kv heads, tokens, head_dim]
    tqcache.convert("prompt.safetensors", "book.tqkv", "turbo4")
    tqcache.verify("book.tqkv")

Arrays go in as anything with DLPack or the buffer protocol (numpy, torch on the CPU, mlx, ...), and
come out as numpy arrays. The types and the full description of every function are in __init__.pyi.
"""

import builtins
import dataclasses
import json
import os
import threading
import time
import warnings

from . import _core, codec
from ._arrays import (BF16, F16, F32, NAMES, as_array, as_bytes, buffers, code_of, np,
                      numpy_dtype, rooms, token_list)
from ._errors import (BusyError, CorruptError, Error, Interrupted, MismatchError, NotFoundError,
                      SystemError, UnsupportedError, UsageError)
from ._program import eval, program, run

__version__ = _core.__version__
__all__ = ["BusyError", "Cache", "CorruptError", "Error", "Identity", "Interrupted", "Layer",
           "MediaSpan", "MismatchError", "NotFoundError", "Rope", "Store", "SystemError", "UnsupportedError",
           "UsageError", "Values", "Verified", "Writer", "codec", "convert", "eval", "open",
           "open_bytes", "presets", "program", "run", "tqdm_progress", "verify"]

_KEYS, _VALUES = 0, 1
_STYLES = ("none", "half-split", "interleaved")
_KINDS = ("attention", "window", "state")
_BLOCK = 256


def _path(path):
    return None if path is None else os.fsdecode(os.fspath(path))


def _needed_path(path, name):
    if path is None:
        raise TypeError(f"{name}: a path is needed, not None")
    return _path(path)


def _config_text(config):
    if config is not None and not isinstance(config, str):
        raise TypeError(f"config: a text such as 'turbo4', not {config!r}")
    return config


class _OutOfRange(UsageError, IndexError):
    """Tokens that a layer does not hold."""


# --- descriptions


class Rope:
    """The rotary embedding that the keys of a cache already have."""

    def __init__(self, n_dims=0, base=0.0, style="half-split", factors=()):
        if style not in _STYLES:
            raise ValueError(f"style {style!r}: {', '.join(_STYLES)}")
        self.n_dims, self.base, self.style = int(n_dims), float(base), style
        self.factors = [float(each) for each in factors]

    def __eq__(self, other):
        return isinstance(other, Rope) and vars(self) == vars(other)

    def __repr__(self):
        return f"Rope(n_dims={self.n_dims}, base={self.base}, style={self.style!r})"


# Model types whose keys transformers and mlx-lm have in pairs (0, 1), (2, 3), ..., and the decoder of
# tqcache in halves: caches of the one are not caches of the other.
KEYS_IN_PAIRS = frozenset({"glm4", "glm", "ernie4_5", "cohere", "cohere2", "helium"})

# Models whose latent attention has the rotated parts of keys in halves in transformers, and in pairs
# in the decoder, mlx-lm and llama.cpp.
LATENTS_IN_HALVES = frozenset({"deepseek_v3"})


class Identity:
    """The model that a cache belongs to."""

    def __init__(self, architecture="", model_name="", *, rope=None, weights_fingerprint=b"",
                 tokenizer_fingerprint=b"", adapter_fingerprint=None, source_format=""):
        self.architecture, self.model_name = architecture, model_name
        self.rope = Rope(style="none") if rope is None else rope
        self.weights_fingerprint = bytes(weights_fingerprint) or bytes(32)
        self.tokenizer_fingerprint = bytes(tokenizer_fingerprint) or bytes(32)
        self.adapter_fingerprint = adapter_fingerprint
        self.source_format = source_format
        self._model_fingerprint = (None, 0)

    @property
    def model_fingerprint(self):
        return self._model_fingerprint[0]

    @property
    def is_known(self):
        return bool(self.architecture)

    @staticmethod
    def of_model(path):
        """The identity of a model on disk: a GGUF file, or a Hugging Face folder."""
        return Identity._of(_core.identify_model(_path(path)))

    @staticmethod
    def _of(fields):
        (architecture, name, source, weights, tokenizer, adapter, model, version, style, dims, base,
         factors) = fields
        identity = Identity(architecture, name, rope=Rope(dims, base, _STYLES[style], factors),
                            weights_fingerprint=weights, tokenizer_fingerprint=tokenizer,
                            adapter_fingerprint=adapter, source_format=source)
        identity._model_fingerprint = (model, version)
        return identity

    def _fields(self):
        rope = self.rope
        return (self.architecture, self.model_name, self.source_format, self.weights_fingerprint,
                self.tokenizer_fingerprint, self.adapter_fingerprint, *self._model_fingerprint,
                _STYLES.index(rope.style), rope.n_dims, rope.base, list(rope.factors))

    def __eq__(self, other):
        return isinstance(other, Identity) and self._fields() == other._fields()

    def __repr__(self):
        return f"Identity({self.architecture!r}, {self.model_name!r})"


def _fields_of(identity):
    return None if identity is None else identity._fields()


# --- reading


@dataclasses.dataclass
class MediaSpan:
    """Tokens that hold an image, a sound or a video in place of text."""
    kind: str
    begin: int
    n_tokens: int
    id: str
    coordinates: "np.ndarray | None" = None  # numpy is imported late
    next_position: int | None = None
    placeholder: int = -1

    @classmethod
    def _of(cls, fields):
        coordinates = np.array(fields["coordinates"], np.int32).reshape(3, -1)
        return cls(fields["kind"], fields["begin"], fields["n_tokens"], fields["id"],
                   coordinates if coordinates.size else None, fields["next_position"],
                   fields["placeholder"])


_MEDIA_KINDS = ("image", "audio", "video")


class _Shared:
    """Keys or values for from_dlpack(): with __dlpack__ and not numpy's interface, since numpy has
    no bf16."""

    def __init__(self, array, code):
        self._array, self._code = array, code

    def __dlpack_device__(self):
        return _core.as_dlpack(self._array, self._code).__dlpack_device__()

    def __dlpack__(self, *, copy=None, **options):
        array = self._array.copy() if copy else self._array
        options = {name: value for name, value in options.items() if value is not None}
        return _core.as_dlpack(array, self._code).__dlpack__(**options)


class Layer:
    """One layer of a cache that is read."""

    def __init__(self, core, index):
        (kind, key_dtype, value_dtype, self._n_arrays, self.n_kv_heads, self.head_dim,
         self.n_tokens, self.first_token, window, self.keep, self.key_codec,
         self.value_codec, self.value_dim) = core.layer(index)
        self._core, self.index, self.kind = core, index, _KINDS[kind]
        self.window = window if self.kind == "window" else None
        self._dtypes = (key_dtype, value_dtype)
        self.key_dtype = NAMES[key_dtype] if self.kind != "state" else None
        self.value_dtype = NAMES[value_dtype] if self.kind != "state" else None

    def __repr__(self):
        if self.kind == "state":
            return f"<layer {self.index}: state>"
        return (f"<layer {self.index}: {self.kind}, {self.n_kv_heads} heads of {self.head_dim}, "
                f"{self.n_tokens} tokens, keys {self.key_codec}, values {self.value_codec}>")

    def keys(self, begin=0, end=None, *, dtype=None, out=None, dlpack=False):
        """The keys of the held tokens [begin, end), as [n_kv_heads, tokens, head_dim]."""
        return self._read(_KEYS, begin, end, dtype, out, dlpack)

    def values(self, begin=0, end=None, *, dtype=None, out=None, dlpack=False):
        """The values of the held tokens [begin, end), as [n_kv_heads, tokens, value_dim]."""
        return self._read(_VALUES, begin, end, dtype, out, dlpack)

    def _dim(self, which):
        return self.head_dim if which == _KEYS else self.value_dim

    def _read(self, which, begin, end, dtype, out, dlpack):
        if self.kind == "state":
            raise UsageError(f"layer {self.index} has recurrent state: arrays()")
        if out is not None:
            if getattr(getattr(out, "flags", None), "writeable", True) is False:
                raise ValueError("`out` is read-only")
            self._core.read(self.index, which, begin, as_array(out)[0], True, 0)
            return out
        stored = self._dtypes[which]
        if dtype is not None:
            code = code_of(dtype)
        else:
            code = F32 if stored == BF16 and not dlpack else stored
        end = self.n_tokens if end is None else end
        if not 0 <= begin <= end <= self.n_tokens:
            raise _OutOfRange(f"tokens {begin} to {end} of {self.n_tokens}")
        array = np.empty((self.n_kv_heads, end - begin, self._dim(which)), numpy_dtype(code))
        self._core.read(self.index, which, begin, array, code == BF16, 0)
        return _Shared(array, code) if dlpack else array

    def key_views(self):
        """The dense token blocks of the keys, as read-only arrays without a copy where possible."""
        return self._views(_KEYS)

    def value_views(self):
        """The dense token blocks of the values, as read-only arrays without a copy where possible."""
        return self._views(_VALUES)

    def _views(self, which):
        if self.kind == "state":
            return []
        dtype = numpy_dtype(self._dtypes[which])
        if self._n_arrays:  # a dense window
            return [self._array(which)]
        views = []
        last = self.first_token + self.n_tokens
        for block in range(self.first_token // _BLOCK, -(-last // _BLOCK)):
            raw, n = self._core.share_block(self.index, which, block)
            if raw is not None:
                views.append(raw.view(dtype).reshape(self.n_kv_heads, n, self._dim(which)))
        return views

    def _array(self, index):
        _, dtype, shape = self._core.array(self.index, index)
        return self._core.share_array(self.index, index).view(numpy_dtype(dtype)).reshape(shape)

    def arrays(self):
        """The arrays of recurrent state by name, and of a dense window "keys" and "values"."""
        return {self._core.array(self.index, i)[0]: self._array(i) for i in range(self._n_arrays)}

    def array_dtypes(self):
        """The dtypes of arrays() by name."""
        described = [self._core.array(self.index, i) for i in range(self._n_arrays)]
        return {name: NAMES[dtype] for name, dtype, _ in described}


class Cache:
    """A cache that is open for reading. Made by open(); a context manager."""

    def __init__(self, core, path=""):
        (self.kind, self.n_tokens, n_layers, tokens, digest, self.file_bytes, self.encrypted,
         notes) = core.info()
        self._core, self.path = core, path
        self._tokens = tokens
        self.identity = Identity._of(core.identity())
        self.layers = [Layer(core, i) for i in range(n_layers)]
        self.content_digest = digest or None
        self.notes = notes.splitlines()

    def __repr__(self):
        return f"<tqcache.Cache {self.path!r}: {self.n_tokens} tokens, {len(self.layers)} layers>"

    @property
    def tokens(self):
        """Token ids [n_tokens]; None if the file hides them or does not know them."""
        return None if self._tokens is None else np.frombuffer(self._tokens, np.int32)

    @property
    def media(self):
        """The images, sounds and videos, in order."""
        return [MediaSpan._of(fields) for fields in self.info().get("media", ())]

    @property
    def next_position(self):
        """The position of the next token: n_tokens, but behind media with coordinates."""
        return self.info()["next_position"]

    def __len__(self):
        return self.n_tokens

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def info(self):
        """The description of the cache."""
        return json.loads(self._core.describe())

    def save(self, path, config=None, *, compress="zstd", force=False, hide_tokens=False,
             key_file=None, threads=0, progress=None):
        """Writes the cache to a .tqkv file."""
        self._core.convert(_needed_path(path, "path"), _config_text(config), compress, "tqkv", None,
                           _path(key_file), hide_tokens, force, threads, progress)

    def to_bytes(self, config=None, *, compress="zstd"):
        """The bytes of the .tqkv file that save() writes."""
        return self._core.convert_bytes(_config_text(config), compress, 0)

    def close(self):
        """Frees the file. Arrays that were read stay."""
        self._core.close()


def open(path, *, key_file=None, map=False, first_tokens=None, tokens=None, identity=None,
         model=None, verify=True):
    """Opens a cache of any known kind."""
    path = _needed_path(path, "path")
    core = _core.open(path, _path(key_file), map, map and not verify, first_tokens or 0,
                      token_list(tokens), _fields_of(identity), _path(model))
    return Cache(core, path)


def open_bytes(data, *, key_file=None):
    """Opens the bytes of a file, which are copied."""
    return Cache(_core.open_bytes(as_bytes(data), _path(key_file)))


# --- writing


class Writer:
    """Makes a cache from arrays, layer by layer, and writes it as a .tqkv file."""

    def __init__(self, path, *, tokens=None, n_tokens=None, identity=None, config=None,
                 compress="zstd", force=False, hide_tokens=False, key_file=None, threads=0,
                 progress=None):
        tokens = token_list(tokens)
        if tokens is None and n_tokens is None:
            raise UsageError("tokens or n_tokens")
        if tokens is not None and n_tokens not in (None, len(tokens)):
            raise UsageError(f"{len(tokens)} token ids for {n_tokens} tokens")
        self.path, self.n_tokens = _path(path), len(tokens) if tokens is not None else int(n_tokens)
        self._writer = _core.Writer(tokens, self.n_tokens, _fields_of(identity))
        self._lock = threading.Lock()
        self._config, self._compress = _config_text(config), compress
        self._save = dict(compress=compress, force=force, hide_tokens=hide_tokens,
                          key_file=key_file, threads=threads, progress=progress)

    def attention(self, keys, values, *, bf16=False):
        """Adds a layer of full attention: [n_kv_heads, n_tokens, head_dim] each."""
        (keys, k16), (values, v16) = as_array(keys, bf16), as_array(values, bf16)
        with self._lock:
            self._open().attention(keys, values, k16 or v16)

    def packed(self, key_codec, keys, value_codec, values, key_tail, value_tail):
        """Adds a layer of full attention that codec.Codec packed already."""
        tails = [as_array(tail, True)[0] for tail in (key_tail, value_tail)]
        with self._lock:
            self._open().packed(key_codec._core, as_bytes(keys), value_codec._core,
                                as_bytes(values), *tails, True)

    def window(self, keys, values, size, keep=0, *, bf16=False):
        """Adds a layer with a sliding window of `size` tokens, of which it holds the newest."""
        (keys, k16), (values, v16) = as_array(keys, bf16), as_array(values, bf16)
        with self._lock:
            self._open().window(keys, values, size, keep, k16 or v16)

    def state(self, arrays, *, bf16=()):
        """Adds a layer with recurrent state: named arrays, kept bit by bit."""
        items = arrays.items() if hasattr(arrays, "items") else arrays
        described = [(name, *_state_array(array, name in bf16)) for name, array in items]
        with self._lock:
            self._open().state(described)

    def media(self, span):
        """Marks tokens as those of an image, a sound or a video (MediaSpan), in ascending order."""
        if span.kind not in _MEDIA_KINDS:
            raise UsageError(f"kind {span.kind!r}: image, audio or video")
        coordinates = span.coordinates
        if coordinates is not None:
            coordinates = np.asarray(coordinates, np.int32)
            if coordinates.shape != (3, span.n_tokens):
                raise UsageError(f"coordinates {list(coordinates.shape)} of {span.n_tokens} tokens: "
                                 "[3, n_tokens] is needed")
            if span.next_position is None:
                raise UsageError("coordinates without next_position")
            coordinates = coordinates.reshape(-1).tolist()
        with self._lock:
            self._open().media(_MEDIA_KINDS.index(span.kind), span.begin, span.n_tokens, span.id,
                               coordinates, span.next_position or 0, span.placeholder)

    def close(self):
        """Quantizes, compresses and writes. The file is complete or absent."""
        if self._writer is not None and self.path is not None:
            self.cache().save(self.path, self._config, **self._save)
        self._writer = None

    def cache(self):
        """What was added so far, as a cache that is read from memory."""
        with self._lock:
            cache = Cache(self._open().cache())
            cache._keep = self._writer  # the arrays that it reads
        return cache

    def to_bytes(self):
        """The bytes of the file, instead of close()."""
        return self.cache().to_bytes(self._config, compress=self._compress)

    def _open(self):
        if self._writer is None:
            raise UsageError("the writer is closed")
        return self._writer

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is None:
            self.close()
        self._writer = None


def _state_array(array, bf16):
    """(dtype, contiguous array) of recurrent state."""
    array, bf16 = as_array(array, bf16)
    if isinstance(array, np.ndarray):
        if array.dtype == np.uint16 and bf16:
            return BF16, np.ascontiguousarray(array)
        if array.dtype not in (np.float32, np.float16):
            raise TypeError(f"an array of {array.dtype}: f32, f16 or bf16 is needed")
        return F32 if array.dtype == np.float32 else F16, np.ascontiguousarray(array)
    name = str(array.dtype).rsplit(".", 1)[-1]
    code = {"float32": F32, "float16": 1, "bfloat16": BF16}.get(name)
    if code is None:
        raise TypeError(f"an array of {array.dtype}: f32, f16 or bf16 is needed")
    return code, array.contiguous() if hasattr(array, "contiguous") else array


# --- converting and verifying


def convert(source, out, config="turbo4", *, compress="zstd", to="tqkv", first_tokens=None,
            key_file=None, hide_tokens=False, force=False, threads=0, progress=None, tokens=None,
            identity=None, model=None):
    """Converts a cache file to another one, in bounded memory."""
    own, out = None, _needed_path(out, "out")
    config = _config_text(config)
    if not isinstance(source, Cache):
        source = own = open(source, key_file=key_file, first_tokens=first_tokens, tokens=tokens,
                            identity=identity, model=model)
    elif first_tokens is not None or tokens is not None or identity is not None:
        raise UsageError("first_tokens, tokens and identity are for open(), of a file")
    try:
        source._core.convert(out, config if to == "tqkv" else None, compress, to,
                             _path(model), _path(key_file), hide_tokens, force, threads, progress)
    finally:
        if own is not None:
            own.close()


class Verified:
    """What verify() found. True if the file is whole."""

    def __init__(self, n_tokens, sections, bytes, content_digest, damage):
        self.n_tokens, self.sections, self.bytes = n_tokens, sections, bytes
        self.content_digest, self.damage = content_digest, damage

    def __bool__(self):
        return not self.damage

    def __repr__(self):
        found = f"{len(self.damage)} damaged" if self.damage else "whole"
        return f"<{self.sections} sections, {self.bytes} bytes, {found}>"


def verify(path, *, model=None, key_file=None, check=True, threads=0, max_bytes=0, progress=None):
    """Checks every byte of a .tqkv file. With check, damage raises CorruptError. With a model, its
    fingerprints are compared, and the last tokens are computed again: MismatchError."""
    path = _needed_path(path, "path")
    *found, damage = _core.verify(path, _path(key_file), threads, max_bytes, progress)
    verified = Verified(*found, damage.splitlines())
    if check and verified.damage:
        raise CorruptError("; ".join(verified.damage[:3]), path)
    if model is not None and not verified.damage:
        key = [] if key_file is None else ["--key-file", key_file]
        run("verify", path, "-m", model, *key)
    return verified


def presets():
    """The names of the presets, the default first, with a line about each."""
    return dict(_core.presets())


# --- stores


def _warn(message):
    warnings.warn(message, RuntimeWarning, stacklevel=2)


# What a process had open when it was forked: the child must neither use nor close it.
_of_parents = []


class _Handle:
    """What make() opened. A process that is forked opens it anew when it uses it, with a lock of
    its own: another thread of its parent may have had the lock."""

    def __init__(self, make):
        self._make, self._opened = make, make()
        self._lock, self._process = threading.Lock(), os.getpid()

    def _renew(self):
        if self._process == os.getpid():
            return
        self._lock, self._process = threading.Lock(), os.getpid()
        _of_parents.append(self._opened)
        if self._opened is not None:
            self._opened = self._make()

    @property
    def lock(self):
        self._renew()
        return self._lock

    def get(self):
        self._renew()
        opened = self._opened
        if opened is None:
            raise UsageError("the store is closed")
        return opened

    def close(self):
        self._opened = None


class Store:
    """A library of prompts that are found by their longest prefix. A process that is forked opens
    the store anew when it uses it."""

    def __init__(self, url, *, key_file=None, salt="", threads=0, on_warning=None):
        arguments = (url, _path(key_file), salt, threads, on_warning or _warn)
        self._handle = _Handle(lambda: _core.Store(*arguments))

    def put(self, cache, name="", *, replace=False, config=None, progress=None):
        """Puts a prompt; without a name it is found by its tokens only."""
        own = None
        if not isinstance(cache, Cache):
            cache = own = open(cache)
        try:
            with self._handle.lock:
                report = self._handle.get().put(cache._core, name or None, replace,
                                                _config_text(config), int(time.time()), progress)
        finally:
            if own is not None:
                own.close()
        return dict(zip(("n_tokens", "blocks", "new_blocks", "bytes", "new_bytes"), report))

    def find(self, identity, tokens, *, max_tokens=0):
        """Number of tokens of the longest stored prefix, 0 if there is none."""
        with self._handle.lock:
            return self._handle.get().find(identity._fields(), token_list(tokens), max_tokens)

    def get(self, identity, tokens, *, max_tokens=0, progress=None):
        """The longest stored prefix as a cache; None if there is none."""
        with self._handle.lock:
            core = self._handle.get().get(identity._fields(), token_list(tokens), max_tokens,
                                          progress)
        return None if core is None else Cache(core)

    def get_named(self, name, *, progress=None):
        """The prompt of that name; None if there is none."""
        with self._handle.lock:
            core = self._handle.get().get_named(name, progress)
        return None if core is None else Cache(core)

    def names(self):
        """The names of the prompts."""
        with self._handle.lock:
            return json.loads(self._handle.get().names())

    def remove(self, name):
        """Forgets a name; gc then removes what only this prompt needed."""
        with self._handle.lock:
            return self._handle.get().remove(name)

    def close(self):
        """Closes the store."""
        with self._handle.lock:
            self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


class Values:
    """Checked values under keys of the caller's. Anything wrong is a miss."""

    def __init__(self, url, namespace, key_file=None, *, compress="none", element_size=2,
                 on_warning=None):
        if compress not in ("none", "planes") or element_size not in (2, 4):
            raise UsageError("compress: none or planes; element_size: 2 or 4")
        planes = element_size if compress == "planes" else 0
        arguments = (url, namespace, _path(key_file), planes, 0, on_warning or _warn)
        self._handle = _Handle(lambda: _core.Values(*arguments))

    def put(self, key, data, meta=b""):
        """Stores one buffer, or a list of buffers joined. False: the value existed."""
        return self._handle.get().put(key, bytes(meta), buffers(data))

    def put_many(self, keys, data, meta=b""):
        """put() for each key."""
        return [self.put(key, each, meta) for key, each in zip(keys, data, strict=True)]

    def get(self, key, meta=b"", out=None):
        """The value, or with `out` its length; None is a miss."""
        if out is None:
            return self._handle.get().get(key, bytes(meta))
        room = rooms(out)
        if not self._handle.get().read(key, bytes(meta), room):
            return None
        return builtins.sum(each.nbytes if hasattr(each, "nbytes") else memoryview(each).nbytes
                            for each in room)

    def get_many(self, keys, meta=b"", outs=None):
        """get() for each key."""
        outs = [None] * len(keys) if outs is None else outs
        return [self.get(key, meta, out) for key, out in zip(keys, outs, strict=True)]

    def exists(self, keys):
        """Whether there are values under the keys, without reading them."""
        return self._handle.get().exists(list(keys))

    def delete(self, key):
        """Removes a value; returns whether there was one."""
        return self._handle.get().remove(key)

    def clear(self):
        """Removes all values of the namespace; returns their number."""
        return self._handle.get().trim(0)[0]

    def total(self):
        """(number, bytes) of the values of the namespace."""
        return self._handle.get().total()

    def trim(self, max_bytes):
        """Removes the least recently used values until at most max_bytes remain; returns (number,
        bytes) of what it removed."""
        return self._handle.get().trim(max_bytes)

    def close(self):
        """Closes the store."""
        self._handle.close()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()


def tqdm_progress(bar):
    """A progress callback that moves a tqdm bar."""
    def update(done, total):
        if total:
            bar.total = total
        bar.update(done - bar.n)
    return update
