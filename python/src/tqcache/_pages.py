"""Pages of keys and values, quantized: common to the plug-ins for LMCache, SGLang and vLLM.

A page is the numbers of some tokens of all layers and heads, in a known order. Pages are short (16
to 256 tokens), so that the vectors of all heads and layers are quantized together, each without the
mean of its head in this page. The means are kept in f16.

A packed page of mode mse holds blocks as they stand in a .tqkv file (docs/reference/format.md, 6.2),
so the CPU and a GPU of NVIDIA make and read the same ones. With device="cuda" the page is packed and
unpacked on the GPU, each thread on a stream of its own: a page in the CPU's memory crosses PCIe once
more, one in the GPU's memory leaves it packed.
"""

import math
import struct
import threading
from typing import NamedTuple

import torch

from . import _core, codec, cuda
from ._errors import CorruptError, UnsupportedError, UsageError

# A packed page: this head, and what it says.
#   TQPB: one envelope with a checksum (tqcache_planes_encode, planes 0) of the means of keys and
#         values in f16, and for both their packed blocks of 256 vectors, then the remaining vectors
#         in f16.
#   TQP1: the means, then two encoded blocks (tqcache.codec): modes other than mse, and pages that
#         were written before there was TQPB.
#   TQL1: a page that cannot be quantized (its numbers are not finite, or beyond f16), without loss.
_HEAD = struct.Struct("<4sQQ")  # magic, bytes of the two parts
_BLOCKS, _ENCODED, _LOSSLESS = b"TQPB", b"TQP1", b"TQL1"
_BLOCK = 256

DTYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


class Layout(NamedTuple):
    """shape: of the numbers of a page. order: the axes that are (K or V), layer, head, then those of
    the tokens, and the components of a vector."""
    shape: tuple[int, ...]
    order: tuple[int, ...]


def _bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


class _Lane(threading.local):
    """The stream of a thread, and memory of the CPU that the GPU reads and writes by itself."""

    stream = None
    room = None

    def on(self, device: torch.device, n_bytes: int):
        """(stream, pinned memory of n_bytes), which are this thread's until its next call."""
        if self.stream is None or self.stream.device != device:
            self.stream = torch.cuda.Stream(device)
        if self.room is None or self.room.numel() < n_bytes:
            self.room = torch.empty(n_bytes, dtype=torch.uint8, pin_memory=True)
        return self.stream, self.room[:n_bytes]


_lane = _Lane()


class PageCodec:
    """Packs pages of one layout. keys, values: configurations of tqcache.codec. device: "cpu", or
    the GPU that packs and unpacks. Threads: any."""

    def __init__(self, layout: Layout, dtype: torch.dtype, keys: str = "mse:4",
                 values: str = "mse:4", device: str = "cpu"):
        if dtype not in DTYPES.values():
            raise ValueError(f"{dtype}: pages of f16, bf16 and f32 can be quantized")
        self.layout, self.dtype, self._configs = layout, dtype, (("keys", keys), ("values", values))
        sizes = [layout.shape[axis] for axis in layout.order]
        self._dims = (2, sizes[1], sizes[2], math.prod(sizes[3:-1]), sizes[-1])
        if sizes[0] != 2 or sorted(layout.order) != list(range(len(layout.shape))):
            raise ValueError(f"not a layout of keys and values: {layout}")
        self.n_bytes = math.prod(layout.shape) * dtype.itemsize
        _, layers, heads, tokens, dim = self._dims
        self._n_vectors, self._n_means = layers * heads * tokens, 2 * layers * heads
        try:
            for kind, config in self._configs:
                codec.encode_bound(1, self._n_vectors, dim, config, dtype="f16", kind=kind)
        except UsageError as error:
            raise ValueError(f"pages cannot be quantized: {error}") from None
        self._codecs = self._block_codecs()
        self._device = torch.device(device)
        if self._device.type != "cpu":
            self._open_gpu()

    def _block_codecs(self):
        """Those of keys and values for whole blocks, or None: then pages are TQP1."""
        made = []
        for kind, config in self._configs:
            try:
                each = codec.Codec(1, self._dims[4], f"{config},center=none", kind=kind)
                each.encode(torch.zeros(1, _BLOCK, self._dims[4], dtype=torch.float16).numpy())
            except (UsageError, UnsupportedError):  # it has to be fitted, or says center= itself
                return None
            tables = each.tables()
            if tables["mode"] != 0 or tables["rotation"] != 0 or tables["n_sinks"] != 0:
                return None
            made.append(each)
        return made

    def _open_gpu(self):
        if self._device.type != "cuda":
            raise ValueError(f'device "{self._device}": "cpu", "cuda" or "cuda:1"')
        found = cuda.status()
        if not found["available"]:
            raise ValueError(f'device "{self._device}": {found["reason"]}')
        if self._codecs is None or self._dims[4] % 8 != 0:
            raise ValueError(f'device "{self._device}": the kernels encode mode mse, vectors of '
                             f"whole 16 bytes; {self._configs} for vectors of {self._dims[4]} "
                             'numbers needs "cpu"')
        if self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        with torch.cuda.device(self._device):
            self._kernels = []
            for each in self._codecs:
                t = each.tables()
                self._kernels.append(cuda.Codec(each.dim, t["bits"], each.kind, rounds=t["rounds"],
                                                seed=t["seed"], scale=t["scale"]))

    def identity(self) -> list:
        """What a packed page depends on."""
        return [f"quantized pages {1 if self._codecs is None else 2}", list(self.layout.shape),
                list(self.layout.order), str(self.dtype), *self._configs]

    @property
    def bound(self) -> int:
        """At most this many bytes come out of encode(), unless the page has to be kept without
        loss."""
        if self._codecs is not None:
            return _HEAD.size + self._layout_of_blocks()[-1] + 256
        _, layers, heads, tokens, dim = self._dims
        return _HEAD.size + 2 * self._n_means * dim + sum(
            32 + codec.encode_bound(1, self._n_vectors, dim, config, dtype="f16", kind=kind)
            for kind, config in self._configs)

    def _layout_of_blocks(self):
        """Where the parts of TQPB begin: packed keys, the rest of keys, the same of values, and the
        end; in bytes behind the means' begin."""
        n_blocks, n_rest = divmod(self._n_vectors, _BLOCK)
        at, places = 2 * self._n_means * self._dims[4], []
        for each in self._codecs:
            places += [at, at + n_blocks * each.block_bytes(0)]
            at = places[-1] + 2 * n_rest * self._dims[4]
        return [*places, at]

    def _view(self, page):
        """The numbers [K or V, layers, heads, tokens..., components] of a page: a tensor, or the
        bytes of one in the CPU's memory."""
        if isinstance(page, torch.Tensor):
            numbers = page.reshape(-1).view(self.dtype)
        else:
            numbers = torch.frombuffer(page, dtype=self.dtype, count=math.prod(self.layout.shape))
        return numbers.view(self.layout.shape).permute(self.layout.order)

    def _split(self, page):
        """Means and what is left, f16, and whether all of them are finite."""
        numbers = self._view(page).reshape(self._dims).contiguous()
        means = numbers.mean(dim=3, keepdim=True, dtype=torch.float32).half()
        rest = (numbers.float() - means.float()).half()
        return means, rest, torch.isfinite(means).all() & torch.isfinite(rest).all()

    def _join(self, means, rest):
        """The numbers of a page, [K or V, layers, heads, tokens, components]."""
        _, layers, heads, _, dim = self._dims
        return (rest.view(self._dims).float() +
                means.view(2, layers, heads, 1, dim).float()).to(self.dtype)

    # --- Packing

    def encode(self, page) -> list:
        """The parts of the packed page. `page`: its bytes in the CPU's memory, perhaps with room
        behind them, or a contiguous tensor. On a GPU the parts are this thread's until it calls
        again."""
        payload = self._pack_on_gpu(page) if self._device.type == "cuda" else self._pack(page)
        if payload is None:
            return self._keep(page)
        if self._codecs is None:
            means, blocks = payload
            return [_HEAD.pack(_ENCODED, *map(len, blocks)), means, *blocks]
        envelope = _core.planes_encode(payload, 0, 0)
        return [_HEAD.pack(_BLOCKS, len(envelope), 0), envelope]

    def _keep(self, page):
        if isinstance(page, torch.Tensor):
            page = _bytes_of(page.cpu()).numpy()
        packed = codec.planes_encode(memoryview(page).cast("B")[:self.n_bytes], self.dtype.itemsize)
        return [_HEAD.pack(_LOSSLESS, len(packed), 0), packed]

    def _pack(self, page):
        means, rest, is_finite = self._split(page.cpu() if isinstance(page, torch.Tensor) else page)
        if not is_finite:
            return None
        rows = rest.view(2, 1, -1, self._dims[4])
        if self._codecs is None:
            return means.reshape(-1).numpy(), [
                codec.encode(rows[i].numpy(), config, kind=kind)
                for i, (kind, config) in enumerate(self._configs)]
        parts, whole = [_bytes_of(means).numpy()], self._n_vectors // _BLOCK * _BLOCK
        for each, vectors in zip(self._codecs, rows):
            parts.append(codec.as_bytes(each.encode(vectors[:, :whole].numpy())))
            parts.append(_bytes_of(vectors[:, whole:]).numpy())
        return [part for part in parts if len(part) > 0]

    def _pack_on_gpu(self, page):
        places, whole = self._layout_of_blocks(), self._n_vectors // _BLOCK * _BLOCK
        dim, n_means = self._dims[4], 2 * self._n_means * self._dims[4]
        stream, room = _lane.on(self._device, places[-1] + 16)
        if not isinstance(page, torch.Tensor):
            page = torch.frombuffer(page, dtype=torch.uint8, count=self.n_bytes)
        if page.is_cuda:  # what fills it may still run
            stream.wait_stream(torch.cuda.current_stream(page.device))
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            there = _bytes_of(page).to(self._device, non_blocking=True)
            means, rest, is_finite = self._split(there)
            packed = torch.empty(places[-1] + 16, dtype=torch.uint8, device=self._device)
            packed[:n_means] = _bytes_of(means)
            packed[-16:] = is_finite.to(torch.uint8)
            status = torch.full((1,), -1, dtype=torch.int32, device=self._device)
            rows = rest.view(2, 1, -1, dim)
            for i, kernels in enumerate(self._kernels):
                first, behind, end = places[2 * i], places[2 * i + 1], places[2 * i + 2]
                if whole > 0:
                    pages = packed[first:behind].view(whole // _BLOCK, -1)
                    kernels.encode(rows[i, :, :whole], pages, status=status,
                                   stream=stream.cuda_stream)
                packed[behind:end] = _bytes_of(rows[i, :, whole:])
            room.copy_(packed, non_blocking=True)
            stream.synchronize()
        return [room[:-16].numpy()] if room[-1] else None

    # --- Unpacking

    def decode(self, packed, page) -> None:
        """Fills the page. Errors: CorruptError; then nothing was written."""
        data = memoryview(packed).cast("B")
        if len(data) < _HEAD.size:
            raise CorruptError("a packed page that ends in its head")
        magic, first, second = _HEAD.unpack_from(data)
        data = data[_HEAD.size:]
        if magic == _LOSSLESS and second == 0 and len(data) == first:
            room = torch.empty(self.n_bytes, dtype=torch.uint8)
            codec.planes_decode(data, room.numpy())
            if isinstance(page, torch.Tensor):
                _bytes_of(page).copy_(room)
            else:
                memoryview(page).cast("B")[:self.n_bytes] = memoryview(room.numpy())
            return
        if magic == _BLOCKS and second == 0 and len(data) == first and self._codecs is not None:
            if self._device.type == "cuda":
                return self._unpack_on_gpu(data, page)
            whole = self._unpack(data)
        elif magic == _ENCODED:
            whole = self._unpack_encoded(data, first, second)
        else:
            raise CorruptError("a packed page of another layout")
        into = self._view(page)
        into.copy_(whole.view(into.shape))

    def _unpack(self, data):
        places, whole = self._layout_of_blocks(), self._n_vectors // _BLOCK * _BLOCK
        dim = self._dims[4]
        room = torch.empty(places[-1], dtype=torch.uint8)
        _core.planes_decode(codec.as_bytes(data), [room.numpy()], 0)
        rest = torch.empty(2, 1, self._n_vectors, dim, dtype=torch.float16)
        for i, each in enumerate(self._codecs):
            first, behind, end = places[2 * i], places[2 * i + 1], places[2 * i + 2]
            each.decode(room[first:behind].numpy(), out=rest[i, :, :whole].numpy())
            _bytes_of(rest[i, :, whole:]).copy_(room[behind:end])
        return self._join(room[:2 * self._n_means * dim].view(torch.float16), rest)

    def _unpack_encoded(self, data, first, second):
        _, layers, heads, tokens, dim = self._dims
        at = 2 * self._n_means * dim
        if len(data) != at + first + second:
            raise CorruptError("a packed page of another layout")
        means = torch.frombuffer(bytearray(data[:at]), dtype=torch.float16)
        rest = torch.empty(2, 1, self._n_vectors, dim, dtype=torch.float16)
        for i, block in enumerate((data[at:at + first], data[at + first:])):
            if codec.shape(block)[0] != tuple(rest.shape[1:]):
                raise CorruptError("a packed page of another layout")
            codec.decode(block, out=rest[i].numpy())
        return self._join(means, rest)

    def _unpack_on_gpu(self, data, page):
        places, whole = self._layout_of_blocks(), self._n_vectors // _BLOCK * _BLOCK
        dim = self._dims[4]
        stream, room = _lane.on(self._device, places[-1])
        _core.planes_decode(codec.as_bytes(data), [room.numpy()], 0)
        if not isinstance(page, torch.Tensor):
            page = torch.frombuffer(page, dtype=torch.uint8, count=self.n_bytes)
        if page.is_cuda:
            stream.wait_stream(torch.cuda.current_stream(page.device))
        with torch.cuda.device(self._device), torch.cuda.stream(stream):
            packed = room.to(self._device, non_blocking=True)
            rest = torch.empty(2, 1, self._n_vectors, dim, dtype=torch.float16,
                               device=self._device)
            for i, kernels in enumerate(self._kernels):
                first, behind, end = places[2 * i], places[2 * i + 1], places[2 * i + 2]
                if whole > 0:
                    kernels.decode(packed[first:behind].view(whole // _BLOCK, -1),
                                   rest[i, :, :whole], stream=stream.cuda_stream)
                _bytes_of(rest[i, :, whole:]).copy_(packed[behind:end])
            numbers = self._join(packed[:2 * self._n_means * dim].view(torch.float16), rest)
            there = torch.empty(self.n_bytes, dtype=torch.uint8, device=self._device)
            into = self._view(there)
            into.copy_(numbers.view(into.shape))
            _bytes_of(page)[:self.n_bytes].copy_(there, non_blocking=True)
            stream.synchronize()
