"""Prompt caches (KV caches) of language models as files that one can trust.

    import tqcache

    with tqcache.open("book.tqkv") as cache:
        keys = cache.layers[0].keys()                     # numpy [kv heads, tokens, head_dim]
    tqcache.convert("prompt.safetensors", "book.tqkv", "turbo4")
    tqcache.verify("book.tqkv")

Arrays go in as anything with DLPack or the buffer protocol (numpy, torch on the CPU, mlx, ...), and
come out as numpy arrays. bf16, which numpy lacks, comes out as f32 unless it is asked for: then as
uint16 with the same bits, or, with dlpack=True, as an object for torch.from_dlpack() and the like.
The GIL is released while a call works. Nothing here imports torch.
"""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, overload

import numpy as np

from . import codec as codec

__version__: str
"""The version of the package, which is that of the library and of the program."""

Path = str | os.PathLike[str]
DtypeName = Literal["f32", "f16", "bf16"]
Progress = Callable[[int, int], object]
"""Called with the work done and the total work, of which 0 is unknown. Returning False stops the
work with Interrupted; an exception stops it, too, and goes on to the caller. A tqdm object `bar`
fits as `tqcache.tqdm_progress(bar)`."""

# --- Errors

class Error(Exception):
    """A failure. `code` is the exit code of the program, `file` the file it concerns, or None."""
    code: int
    message: str
    file: str | None

class UsageError(Error, ValueError):
    """2: the caller asked for something impossible."""
class NotFoundError(Error, FileNotFoundError):
    """10: no such file, or no such prompt."""
class BusyError(Error):
    """11: another process is writing the file, or the store cannot answer now."""
class CorruptError(Error):
    """20: the bytes contradict the format or a checksum."""
class UnsupportedError(Error):
    """21: a version, kind or size that is not supported."""
class MismatchError(Error):
    """22: a good file, but of another model, or without its key."""
class SystemError(Error, OSError):
    """1: the operating system or a server reports a failure."""
class Interrupted(Error, KeyboardInterrupt):
    """130: a progress callback stopped the work."""

# --- Descriptions

class Rope:
    """The rotary embedding that the keys of a cache already have.

    style: "none", "half-split" (component i turns with i + n_dims / 2) or "interleaved". Keys in a
    cache are always in half-split order; the style says what the model itself does. `base` is the
    theta, `factors` one divisor per pair of components (an empty list: all 1).
    """
    def __init__(self, n_dims: int = 0, base: float = 0.0, style: str = "half-split",
                 factors: Sequence[float] = ()) -> None: ...
    n_dims: int
    base: float
    style: str
    factors: list[float]

class Identity:
    """The model that a cache belongs to. Without an architecture the origin is unknown: the cache
    can be read and converted, but is not accepted by a model, or by Store.put().

    Fingerprints are 32 bytes (docs/reference/format.md, "Fingerprints").
    """
    def __init__(self, architecture: str = "", model_name: str = "", *, rope: Rope | None = None,
                 weights_fingerprint: bytes = b"", tokenizer_fingerprint: bytes = b"",
                 adapter_fingerprint: bytes | None = None, source_format: str = "") -> None: ...
    architecture: str
    model_name: str
    rope: Rope
    weights_fingerprint: bytes
    tokenizer_fingerprint: bytes
    adapter_fingerprint: bytes | None
    source_format: str
    model_fingerprint: bytes | None
    """The newer digest of all that changes values, or None (read only; of_model() sets it)."""
    @staticmethod
    def of_model(path: Path) -> "Identity":
        """The identity of a model on disk: a GGUF file, or a Hugging Face folder. Errors:
        UnsupportedError for families that the reference decoder does not know."""
    @property
    def is_known(self) -> bool: ...

# --- Reading

class Layer:
    """One layer of a cache that is read. Arrays are read from the file when they are asked for."""
    index: int
    kind: str
    """"attention" (a key and a value for every token), "window" (for the last `window` tokens) or
    "state" (recurrent state: arrays that are only valid after the cache's last token)."""
    n_kv_heads: int
    head_dim: int
    """Of keys; 0 for recurrent state."""
    value_dim: int
    """Of values: head_dim, or another size, where a model keeps latents (MLA)."""
    window: int | None
    """Maximum number of tokens held, of "window"; `keep` first tokens never leave it."""
    keep: int
    first_token: int
    """The first token of the newest consecutive ones that are held; 0 for full attention."""
    n_tokens: int
    """Number of tokens whose keys and values are held. Those of a window are the first min(keep, n)
    tokens, and then the newest ones; 0 for recurrent state."""
    key_dtype: DtypeName
    value_dtype: DtypeName
    """Of values that are not quantized, and the default dtype when quantized ones are decoded."""
    key_codec: str
    value_codec: str
    """"dense", or how they are quantized: "mse:4", "trellis:0.25", ... ("" for state)."""

    def keys(self, begin: int = 0, end: int | None = None, *, dtype: str | None = None,
             out: Any = None, dlpack: bool = False) -> Any:
        """The keys of the held tokens [begin, end), as [n_kv_heads, tokens, head_dim]: after RoPE,
        components in half-split order.

        dtype: None (as stored; bf16 becomes f32), "f32", "f16" or "bf16" (uint16 with its bits).
        out: a writable array of that shape that is filled and returned, with any strides; its dtype
        counts (uint16 counts as bf16). dlpack: the result has __dlpack__ and not numpy's interface,
        and the stored dtype also for bf16: torch.from_dlpack(layer.keys(dlpack=True)).

        This always copies; key_views() does not, where the file is mapped."""
    def values(self, begin: int = 0, end: int | None = None, *, dtype: str | None = None,
               out: Any = None, dlpack: bool = False) -> Any:
        """As keys()."""
    def key_views(self) -> list[Any]:
        """The dense token blocks of the keys, [n_kv_heads, up to 256, head_dim] each, as read-only
        numpy views without a copy where the file is mapped and stores them uncompressed, else as
        copies. bf16: uint16. Quantized blocks are left out; a dense window is one block."""
    def value_views(self) -> list[Any]: ...
    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of recurrent state by name, in their own dtype (bf16: uint16), and of a dense
        window "keys" and "values". Views where key_views() has them."""
    def array_dtypes(self) -> dict[str, DtypeName]: ...

class Cache:
    """A cache file that is open for reading: of tqcache, llama.cpp, mlx-lm, transformers (schema
    tqcache-hf-1), NumPy or TurboMLX. Made by tqcache.open(); a context manager.

    Blocks are read and their checksums compared when they are asked for. Threads: any number.
    """
    path: str
    kind: str
    """"tqkv", "mlx-lm", "llama", "hf", "npz", "turbomlx", "store" or "memory"."""
    n_tokens: int
    tokens: np.ndarray | None
    """Token ids [n_tokens] int32; None if the file hides them or does not know them."""
    identity: Identity
    layers: Sequence[Layer]
    @property
    def media(self) -> list[MediaSpan]:
        """The images, sounds and videos, in order. Their tokens have ids below -1 in `tokens`."""
    @property
    def next_position(self) -> int:
        """The position of the next token: n_tokens, but behind media with coordinates (M-RoPE)."""
    content_digest: str | None
    """Of a .tqkv file, in hexadecimal."""
    encrypted: bool
    notes: list[str]
    """What the content of another program's file implies, and what a .tqkv file cannot keep of it."""
    def info(self) -> dict[str, Any]:
        """The description as `tqcache info --json` has it, in short: sizes, layers, codecs."""
    def save(self, path: Path, config: str | None = None, *, compress: str = "zstd",
             force: bool = False, hide_tokens: bool = False, key_file: Path | None = None,
             threads: int = 0, progress: Progress | None = None) -> None:
        """As convert(), from this cache."""
    def to_bytes(self, config: str | None = None, *, compress: str = "zstd") -> bytes:
        """The bytes of the .tqkv file that save() writes."""
    def close(self) -> None: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> "Cache": ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None: ...

def open(path: Path, *, key_file: Path | None = None, map: bool = False,
         first_tokens: int | None = None, tokens: Any = None, identity: Identity | None = None,
         model: Path | None = None, verify: bool = True) -> Cache:
    """Opens a cache of any known kind, and checks everything but the blocks, which are checked as
    they are read.

    map: the file is mapped, so that dense uncompressed blocks are read without a copy. Only for
    files that no program shortens in place: then the process would die. verify=False: blocks of a
    mapped file are not compared with their checksums. first_tokens: only that many tokens. tokens,
    identity: what another program's file leaves out. model: the GGUF file that a file of llama.cpp
    needs for its shapes; also gives the identity.
    """

def open_bytes(data: Any, *, key_file: Path | None = None) -> Cache:
    """Opens the bytes of a file, which are copied."""

# --- Writing

@dataclasses.dataclass
class MediaSpan:
    """Tokens that hold an image, a sound or a video in place of text: what an encoder made of it.

    id: names what was shown, such as a digest: 1 to 256 printable ASCII characters. coordinates:
    positions for M-RoPE, [3, n_tokens]: time, row, column; None: they count on by one.
    next_position: of the text behind it, needed with coordinates. placeholder: the token id that
    programs write in its place; -1: none. Spans of caches have all fields."""
    kind: str  # "image", "audio" or "video"
    begin: int
    n_tokens: int
    id: str
    coordinates: Array | None = None
    next_position: int | None = None
    placeholder: int = -1

class Writer:
    """Makes a cache from arrays, layer by layer, and writes it as a .tqkv file.

        with tqcache.Writer("prompt.tqkv", tokens=ids, identity=identity, config="turbo4") as out:
            for k, v in layers:
                out.attention(k, v)            # [kv heads, tokens, head_dim], after RoPE

    Arrays have any strides, in dtype f32, f16 or bf16 (uint16 with bf16=True), on the CPU; a leading
    dimension of 1 is ignored. They are not copied: keep them unchanged until close(). Leaving the
    block with an exception writes nothing. Threads: any number; they take turns.
    """
    def __init__(self, path: Path | None, *, tokens: Any = None, n_tokens: int | None = None,
                 identity: Identity | None = None, config: str | None = None,
                 compress: str = "zstd", force: bool = False, hide_tokens: bool = False,
                 key_file: Path | None = None, threads: int = 0,
                 progress: Progress | None = None) -> None:
        """tokens: the ids of the tokens whose state the layers hold, [n] of integers; or n_tokens,
        if they are unknown. config: None leaves everything dense; else as convert(). compress:
        "zstd", "planes" (lossless, smaller dense values) or "none". path None: only cache() and
        to_bytes() are used."""
    def attention(self, keys: Any, values: Any, *, bf16: bool = False) -> None:
        """Adds a layer of full attention: [n_kv_heads, n_tokens, head_dim] each."""
    def packed(self, key_codec: codec.Codec, keys: Any, value_codec: codec.Codec, values: Any,
               key_tail: Any, value_tail: Any) -> None:
        """Adds a layer of full attention that codecs packed: the bytes of whole blocks of 256 tokens,
        and the dense tokens behind them, [n_kv_heads, n, head_dim] (uint16 is bf16). The identity has
        the Rope of the codec of the keys; config is None."""
    def window(self, keys: Any, values: Any, size: int, keep: int = 0, *, bf16: bool = False) -> None:
        """Adds a layer with a sliding window of `size` tokens: the min(n_tokens, size) tokens that it
        holds, the first `keep` of the cache and then the newest, in the order of positions."""
    def state(self, arrays: Mapping[str, Any] | Iterable[tuple[str, Any]], *,
              bf16: Iterable[str] = ()) -> None:
        """Adds a layer with recurrent state: named arrays of any shape, kept bit by bit. `bf16`: the
        names of uint16 arrays that are bf16."""
    def media(self, span: MediaSpan) -> None:
        """Marks tokens as those of an image, a sound or a video, in ascending order. Needs the ids
        of the text."""
    def close(self) -> None:
        """Quantizes, compresses and writes. The file is complete or absent."""
    def cache(self) -> Cache:
        """What was added so far, as a cache that is read from memory (for Store.put())."""
    def to_bytes(self) -> bytes:
        """The bytes of the file, instead of close()."""
    def __enter__(self) -> "Writer": ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None: ...

# --- Converting and verifying

def convert(source: Path | Cache, out: Path, config: str | None = "turbo4,sink=4", *,
            compress: str = "zstd", to: str = "tqkv", first_tokens: int | None = None,
            key_file: Path | None = None, hide_tokens: bool = False, force: bool = False,
            threads: int = 0, progress: Progress | None = None, tokens: Any = None,
            identity: Identity | None = None, model: Path | None = None) -> None:
    """Converts a cache file to another one, in bounded memory.

    config: a preset or a configuration as the program knows it ("turbo4", "k8v4",
    "k=mse:4,v=mse:3,sink=4", ...: docs/reference/cli.md); "f32" makes everything dense; None keeps
    every layer as it is. For .tqkv files alone: other programs get decoded values. to: "tqkv", "hf", "mlx-lm", "npz", "llama-session" or "llama-sequence"
    (the last two need `model`). Bytes are those of `tqcache convert`.
    """

class Verified:
    """What verify() found."""
    n_tokens: int
    sections: int
    bytes: int
    content_digest: str
    damage: list[str]
    """One line each; empty: the file is whole."""
    def __bool__(self) -> bool: ...

def verify(path: Path, *, model: Path | None = None, key_file: Path | None = None,
           check: bool = True, threads: int = 0, max_bytes: int = 0,
           progress: Progress | None = None) -> Verified:
    """Checks every byte of a .tqkv file. With check, damage raises CorruptError. max_bytes: the
    limit of the values' memory (0: three quarters of the machine's). model: a GGUF file or a
    Hugging Face folder; the program compares its fingerprints and computes the last tokens again
    (MismatchError)."""

def presets() -> dict[str, str]:
    """The names of the presets, the default first, with a line about each."""

# --- Stores

class Store:
    """A library of prompts that are found by their longest prefix (docs/reference/store.md).

    url: dir:PATH, redis://HOST, s3://BUCKET/PREFIX, memory:. Threads: one call at a time; others
    wait.
    """
    def __init__(self, url: str, *, key_file: Path | None = None, salt: str = "", threads: int = 0,
                 on_warning: Callable[[str], object] | None = None) -> None:
        """on_warning gets a message for each missing or damaged blob; by default warnings.warn()."""
    def put(self, cache: Cache | Path, name: str = "", *, replace: bool = False,
            config: str | None = None, progress: Progress | None = None) -> dict[str, Any]:
        """Puts a prompt; without a name it is found by its tokens only. config: quantizes it first.
        Returns "n_tokens", "blocks", "new_blocks", "bytes", "new_bytes". MismatchError if the store
        has prompts of another key, or plain ones although there is a key."""
    def find(self, identity: Identity, tokens: Any, *, max_tokens: int = 0) -> int:
        """Number of tokens of the longest stored prefix, 0 if there is none."""
    def get(self, identity: Identity, tokens: Any, *, max_tokens: int = 0,
            progress: Progress | None = None) -> Cache | None:
        """The longest stored prefix as a cache; None if there is none. max_tokens 0: all of them."""
    def get_named(self, name: str, *, progress: Progress | None = None) -> Cache | None: ...
    def names(self) -> list[str]: ...
    def remove(self, name: str) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> "Store": ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None: ...

class Values:
    """Checked values under keys of the caller's, for engines that keep blocks of their own.

    A value is bytes, with metadata (geometry, dtype, model, rank: whatever has to be equal) that is
    compared on read. Anything wrong is a miss: no value, other metadata, another length, a flipped
    bit; damage and other metadata are reported once for each key. So a reader never gets wrong
    bytes. Values are write-once: put() of an existing key keeps the old one if that is whole and has
    the same metadata, and replaces it otherwise.

    Threads: any number at once. Processes: any number. docs/reference/store.md, section 20.
    """
    def __init__(self, url: str, namespace: str, key_file: Path | None = None, *,
                 compress: str = "none", element_size: int = 2,
                 on_warning: Callable[[str], object] | None = None) -> None:
        """url: as Store. namespace: 1 to 64 bytes of a-z 0-9 _ . -, as "vllm". compress: "none", or
        "planes": values are stored as byte planes of numbers of element_size (2 or 4) bytes, each
        compressed by zstd, which is lossless. on_warning: by default warnings.warn()."""
    def put(self, key: str, data: Any, meta: bytes = b"") -> bool:
        """Stores one buffer, or a list of buffers joined. Returns whether it was stored now (False:
        it existed). Raises Error where the store fails."""
    def put_many(self, keys: Sequence[str], data: Sequence[Any], meta: bytes = b"") -> list[bool]: ...
    @overload
    def get(self, key: str, meta: bytes = b"") -> bytes | None: ...
    @overload
    def get(self, key: str, meta: bytes, out: Any) -> int | None:
        """None is a miss. With `out`, a writable buffer or a list of them, the value is copied there
        and its length returned; a value of another length than `out` is a miss, and `out` is then
        not changed."""
    def get_many(self, keys: Sequence[str], meta: bytes = b"",
                 outs: Sequence[Any] | None = None) -> list[bytes | int | None]: ...
    def exists(self, keys: Sequence[str]) -> list[bool]:
        """Whether there are values under the keys, without reading them."""
    def delete(self, key: str) -> bool:
        """Whether there was a value."""
    def clear(self) -> int:
        """Removes all values of the namespace; returns their number."""
    def total(self) -> tuple[int, int]:
        """Number and bytes of the values of the namespace."""
    def trim(self, max_bytes: int) -> tuple[int, int]:
        """Removes the least recently used values until at most max_bytes remain; returns number and
        bytes of what it removed."""
    def close(self) -> None: ...
    def __enter__(self) -> "Values": ...
    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None,
                 trace: TracebackType | None) -> None: ...

# --- Running the program

def eval(*arguments: str, check: bool = True) -> Any:
    """Runs `tqcache eval ARGUMENTS... --json` and returns its report: eval("kld", "-m", model, ...).
    Raises Error with the program's message and exit code."""

def run(*arguments: str, check: bool = True) -> Any:
    """The same for any verb that has --json."""

def program() -> str:
    """The path of the program `tqcache` that belongs to this package."""

def tqdm_progress(bar: Any) -> Progress:
    """A progress callback that moves a tqdm bar."""
