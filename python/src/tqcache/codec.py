"""The codec for blocks of keys or values in memory, without a file.

    packed = tqcache.codec.encode(keys, "mse:4")          # [heads, tokens, dim] -> bytes
    again = tqcache.codec.decode(packed)                  # -> float32 [heads, tokens, dim]

What encode() makes describes itself (codec, shape, mean), carries checksums and is decoded without
anything else. It is a .tqkv file of one layer, whose other tensor is zeros. Any number of tokens is
accepted: those beyond whole blocks of 256 stay dense, in the dtype of the input.
"""

import copy

from . import _core
from ._arrays import BF16, NAMES, as_array, as_bytes, buffers, code_of, np, numpy_dtype, rooms

__all__ = ["encode", "encode_bound", "shape", "decode", "score", "Codec", "planes_encode", "planes_decode"]

_KINDS = {"keys": 0, "values": 1}


def _which(kind):
    try:
        return _KINDS[kind]
    except KeyError:
        raise ValueError(f"kind {kind!r}: keys or values") from None


def encode(array, config="mse:4", *, kind="keys", rope=None, bf16=False, threads=0):
    """Quantizes [heads, tokens, dim] to bytes."""
    from . import Identity

    array, bf16 = as_array(array, bf16)
    fields = None if rope is None else Identity(rope=rope)._fields()
    return _core.encode(array, config, _which(kind), fields, bf16, threads)


def encode_bound(heads, tokens, dim, config="mse:4", *, dtype="f16", kind="keys"):
    """At most this many bytes come out of encode()."""
    return _core.encode_bound(heads, tokens, dim, config, code_of(dtype), _which(kind))


def shape(packed):
    """((heads, tokens, dim), dtype) of packed bytes."""
    heads, tokens, dim, dtype, _ = _core.block_shape(as_bytes(packed))
    return (heads, tokens, dim), NAMES[dtype]


def decode(packed, *, dtype="f32", out=None, threads=0):
    """The array again, [heads, tokens, dim]."""
    packed = as_bytes(packed)
    bf16 = True
    if out is None:
        size, _ = shape(packed)
        out = np.empty(size, numpy_dtype(code_of(dtype)))
        bf16 = code_of(dtype) == BF16
    _core.decode(packed, as_array(out)[0], bf16, threads)
    return out


def score(packed, queries, *, threads=0):
    """Inner products of queries [n, dim] with encoded keys, [n, tokens] f32."""
    packed = as_bytes(packed)
    queries = np.ascontiguousarray(queries, np.float32)
    (heads, tokens, dim), _ = shape(packed)
    if queries.ndim != 2 or queries.shape[1] != dim or queries.shape[0] % heads != 0:
        raise ValueError(f"queries of shape {queries.shape}: [a multiple of {heads}, {dim}] is needed")
    scores = np.empty((queries.shape[0], tokens), np.float32)
    if scores.size:
        _core.score(packed, queries, scores, threads)
    return scores


class Codec:
    """The codec of the keys or values of one layer that grows."""

    def __init__(self, heads, dim, config="mse:4,sink=4", *, kind="keys", rope=None, dtype="f16",
                 layer=0):
        from . import Identity

        fields = None if rope is None else Identity(rope=rope)._fields()
        self.heads, self.dim, self.kind, self.dtype = heads, dim, kind, dtype
        self.config, self.is_fitted = config, False
        self._arguments = heads, dim, code_of(dtype), config, _which(kind), fields, layer
        self._core = _core.Codec(*self._arguments)

    def __deepcopy__(self, memo):
        copied = copy.copy(self)
        if not self.is_fitted:  # a fitted one does not change any more
            copied._core = _core.Codec(*self._arguments)
        return copied

    def fit(self, first_blocks, *, threads=0):
        """Computes the mean, once."""
        arrays = first_blocks if isinstance(first_blocks, (list, tuple)) else [first_blocks]
        self._core.fit([as_array(each, True)[0] for each in arrays], True, threads)
        self.is_fitted = True

    def block_bytes(self, block=0):
        """Bytes of packed block `block`."""
        return self._core.block_bytes(block)

    def encode(self, array, block=0, *, threads=0):
        """Packs whole blocks [heads, n * 256, dim], the first of which has the number `block`."""
        return self._core.encode(as_array(array, True)[0], block, True, threads)

    def decode(self, packed, block=0, *, out, threads=0):
        """Fills `out` [heads, n * 256, dim]."""
        self._core.decode(as_bytes(packed), block, as_array(out)[0], True, threads)
        return out

    def tables(self):
        """What the codec consists of: numbers, and arrays of the mean and its angles."""
        t = self._core.tables()
        shapes = {"mean": ("f4", (self.heads, self.dim)), "turns": ("f8", (-1,)),
                  "cos": ("f4", (256, t["n_pairs"])), "sin": ("f4", (256, t["n_pairs"])),
                  "factors": ("f4", (self.heads, self.dim)),
                  "inverses": ("f4", (self.heads, self.dim))}
        for name, (dtype, shape) in shapes.items():
            if t[name] is not None:
                t[name] = np.frombuffer(t[name], dtype).reshape(shape)
        return t


def planes_encode(data, element_size=2):
    """Lossless: numbers of 2 or 4 bytes as byte planes, compressed, with a checksum."""
    if element_size not in (2, 4):
        raise ValueError("element_size: 2 or 4")
    return _core.planes_encode(buffers(data), element_size, 0)


def planes_decode(packed, out=None):
    """The bytes again; with `out` their number."""
    packed = as_bytes(packed)
    size = _core.planes_size(packed)
    if out is not None:
        _core.planes_decode(packed, rooms(out), 0)
        return size
    room = np.empty(size, np.uint8)
    _core.planes_decode(packed, [room], 0)
    return room.tobytes()
