"""The codec for blocks of keys or values in memory, without a file.

    packed = tqcache.codec.encode(keys, "mse:4")          # [heads, tokens, dim] -> bytes
    again = tqcache.codec.decode(packed)                  # -> float32 [heads, tokens, dim]

What encode() makes describes itself (codec, shape, mean), carries a checksum and is decoded without
anything else. Any number of tokens is accepted: those beyond whole blocks of 256 stay dense in the
dtype of the input.
"""

from typing import Any

import numpy as np

from . import Rope

def encode(array: Any, config: str = "mse:4", *, kind: str = "keys", rope: Rope | None = None,
           bf16: bool = False, threads: int = 0) -> bytes:
    """Quantizes [heads, tokens, dim] (any strides; f32, f16, bf16) to bytes.

    config: "mse:4", "prod:3", "mixed:3", "affine:4", or a preset ("turbo4"), or items as in the
    configurations of convert() without "k=" ("mse:4,center=none,sink=4"). kind: "keys" or "values",
    which are laid out differently and, by default, centered differently. rope: of keys that are
    after RoPE, for centering before it; without it keys are centered as they are. Positions count
    from the first token: a block from the middle of a prompt may be encoded as if it were the
    first, since its mean turns with it."""

def encode_bound(heads: int, tokens: int, dim: int, config: str = "mse:4", *, dtype: str = "f16",
                 kind: str = "keys") -> int:
    """At most this many bytes come out of encode()."""

def shape(packed: Any) -> tuple[tuple[int, int, int], str]:
    """Shape and dtype ("f32", "f16", "bf16": that of the array that was encoded) of packed bytes.
    Raises CorruptError."""

def decode(packed: Any, *, dtype: str = "f32", out: Any = None, threads: int = 0) -> np.ndarray:
    """The array again, [heads, tokens, dim]. `out`: as for Layer.keys(). Raises CorruptError for
    damaged bytes."""

def score(packed: Any, queries: Any, *, threads: int = 0) -> np.ndarray:
    """Inner products of queries [heads * r, dim] with encoded keys, [heads * r, tokens] f32: query
    head h belongs to kv head h // r. Not scaled, no softmax. Equal to those with decode(packed) but
    for rounding."""

def planes_encode(data: Any, element_size: int = 2) -> bytes:
    """Lossless: numbers of 2 or 4 bytes as byte planes, each compressed by zstd, with a checksum. The
    length of `data` (any buffer or a list of them, joined) is a multiple of element_size."""

def planes_decode(packed: Any, out: Any = None) -> bytes | int:
    """The bytes again; with `out` (a writable buffer of exactly that length) their number. Raises
    CorruptError for damage, and UsageError if `out` has another length."""
