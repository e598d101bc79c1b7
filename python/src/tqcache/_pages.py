"""Pages of keys and values, quantized: common to the plug-ins for SGLang and vLLM.

A page is the numbers of some tokens of all layers and heads, in a known order. Pages are short (16
to 256 tokens), so that the vectors of all heads and layers are quantized together, each without the
mean of its head in this page. The means are kept in f16.
"""

import math
import struct
from typing import NamedTuple

import torch

from . import codec
from ._errors import CorruptError, UsageError

# A packed page: this head, the means of keys and values, the two encoded blocks. A page that cannot
# be quantized (its numbers are not finite, or beyond f16) is kept without loss, as one block.
_HEAD = struct.Struct("<4sQQ")  # magic, bytes of the two blocks
_QUANTIZED, _LOSSLESS = b"TQP1", b"TQL1"

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class Layout(NamedTuple):
    """shape: of the numbers of a page. order: the axes that are (K or V), layer, head, then those of
    the tokens, and the components of a vector."""
    shape: tuple[int, ...]
    order: tuple[int, ...]


class PageCodec:
    """Packs pages of one layout. keys, values: configurations of tqcache.codec. Threads: any."""

    def __init__(self, layout: Layout, dtype: torch.dtype, keys: str = "mse:4",
                 values: str = "mse:4"):
        if dtype not in DTYPES.values():
            raise ValueError(f"{dtype}: pages of f16, bf16 and f32 can be quantized")
        self.layout, self.dtype, self._configs = layout, dtype, (("keys", keys), ("values", values))
        sizes = [layout.shape[axis] for axis in layout.order]
        self._dims = (2, sizes[1], sizes[2], math.prod(sizes[3:-1]), sizes[-1])
        if sizes[0] != 2 or sorted(layout.order) != list(range(len(layout.shape))):
            raise ValueError(f"not a layout of keys and values: {layout}")
        self.n_bytes = math.prod(layout.shape) * dtype.itemsize
        _, layers, heads, tokens, dim = self._dims
        try:
            for kind, config in self._configs:
                codec.encode_bound(1, layers * heads * tokens, dim, config, dtype="f16", kind=kind)
        except UsageError as error:
            raise ValueError(f"pages cannot be quantized: {error}") from None

    def identity(self) -> list:
        """What a packed page depends on."""
        return ["quantized pages 1", list(self.layout.shape), list(self.layout.order),
                str(self.dtype), *self._configs]

    def _view(self, page):
        """The numbers [K or V, layers, heads, tokens..., components] of the bytes of a page."""
        numbers = torch.frombuffer(page, dtype=self.dtype, count=math.prod(self.layout.shape))
        return numbers.view(self.layout.shape).permute(self.layout.order)

    def encode(self, page) -> list:
        """The parts of the packed page. `page`: its bytes, perhaps with room behind them."""
        numbers = self._view(page).reshape(self._dims).float()
        means = numbers.mean(dim=3, keepdim=True).half()
        rest = (numbers - means.float()).half()
        if not (torch.isfinite(means).all() and torch.isfinite(rest).all()):
            size = self.dtype.itemsize
            packed = codec.planes_encode(memoryview(page).cast("B")[:self.n_bytes], size)
            return [_HEAD.pack(_LOSSLESS, len(packed), 0), packed]
        blocks = [codec.encode(rest[i].reshape(1, -1, self._dims[4]).numpy(), config, kind=kind)
                  for i, (kind, config) in enumerate(self._configs)]
        return [_HEAD.pack(_QUANTIZED, *map(len, blocks)), means.reshape(-1).numpy(), *blocks]

    def decode(self, packed: bytes, page) -> None:
        """Fills the page. Errors: CorruptError; then nothing was written."""
        data = memoryview(packed)
        if len(data) < _HEAD.size:
            raise CorruptError("a packed page that ends in its head")
        magic, first, second = _HEAD.unpack_from(data)
        if magic == _LOSSLESS and second == 0 and len(data) == _HEAD.size + first:
            room = torch.empty(self.n_bytes, dtype=torch.uint8)
            codec.planes_decode(data[_HEAD.size:], room.numpy())
            memoryview(page).cast("B")[:self.n_bytes] = memoryview(room.numpy())
            return
        _, layers, heads, tokens, dim = self._dims
        n_means = 2 * layers * heads * dim
        at = _HEAD.size + 2 * n_means
        if magic != _QUANTIZED or len(data) != at + first + second:
            raise CorruptError("a packed page of another layout")
        means = torch.frombuffer(bytearray(data[_HEAD.size:at]), dtype=torch.float16)
        numbers = torch.empty(2, 1, layers * heads * tokens, dim, dtype=torch.float16)
        for i, block in enumerate((data[at:at + first], data[at + first:])):
            if codec.shape(block)[0] != tuple(numbers.shape[1:]):
                raise CorruptError("a packed page of another layout")
            codec.decode(block, out=numbers[i].numpy())
        whole = numbers.view(self._dims).float() + means.view(2, layers, heads, 1, dim).float()
        into = self._view(page)
        into.copy_(whole.view(into.shape))
