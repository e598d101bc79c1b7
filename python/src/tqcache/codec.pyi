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

class Codec:
    """The codec of the keys or values of one layer that grows, for caches in a program's memory.

    Whole blocks of 256 tokens are packed as in a .tqkv file (docs/reference/format.md, 6.2), all
    with the mean of the first one; Writer.packed() writes them as they are. rope, kind: as of
    encode(). config: as of encode(); the first tokens stay dense as "sink=N" says. dtype: of the
    arrays, and of dense tokens. layer: which one of a profile's ("mse:4,profile=FILE")."""

    heads: int
    dim: int
    kind: str
    dtype: str
    config: str
    is_fitted: bool
    def __init__(self, heads: int, dim: int, config: str = "mse:4,sink=4", *, kind: str = "keys",
                 rope: Rope | None = None, dtype: str = "f16", layer: int = 0) -> None: ...
    def fit(self, first_blocks: Any, *, threads: int = 0) -> None:
        """Computes the mean from a first block [heads, 256, dim], or from those of several prompts,
        a list. Later calls change nothing."""

    def block_bytes(self, block: int = 0) -> int:
        """Bytes of a packed block: the first one has the dense tokens as well."""

    def encode(self, array: Any, block: int = 0, *, threads: int = 0) -> bytes:
        """Packs whole blocks [heads, n * 256, dim], the first of which has the number `block`."""

    def decode(self, packed: Any, block: int = 0, *, out: Any, threads: int = 0) -> Any:
        """Fills `out` [heads, n * 256, dim] (any dtype) and returns it."""

    def tables(self) -> dict[str, Any]:
        """What the codec consists of, for code that computes the same elsewhere: bits, rounds,
        scale, seed, n_sinks; mean, factors and inverses [heads, dim]; turns [n_pairs], cos and sin
        [256, n_pairs] of a mean that turns with the position. None: there is none."""

def planes_encode(data: Any, element_size: int = 2) -> bytes:
    """Lossless: numbers of 2 or 4 bytes as byte planes, each compressed by zstd, with a checksum. The
    length of `data` (any buffer or a list of them, joined) is a multiple of element_size."""

def planes_decode(packed: Any, out: Any = None) -> bytes | int:
    """The bytes again; with `out` (a writable buffer of exactly that length) their number. Raises
    CorruptError for damage, and UsageError if `out` has another length."""
