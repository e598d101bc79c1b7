"""Where tqcache.transformers keeps the packed token blocks of a layer: in the CPU's memory, or in a
GPU's. Both hold the same bytes, those of a .tqkv file (docs/reference/format.md, 6.2).

Shapes: keys and values [batch, kv heads, tokens, head_dim], tokens in whole blocks of 256. All rows
of a batch share the codec, which is fitted to their first blocks.
"""

import torch

from . import cuda
from ._errors import UnsupportedError

BLOCK = 256


def _on_cpu(tensor):
    return tensor.detach().to("cpu").contiguous()


def fit(codecs, keys, values):
    """Fits the codecs of keys and values to the first block of each row, once."""
    for codec, tensor in zip(codecs, (keys, values)):
        if not codec.is_fitted:
            codec.fit(list(_on_cpu(tensor[:, :, :BLOCK])))


def _is_row_aligned(tensor):
    """Whether kernels can read head vectors where they are: from multiples of 16 bytes."""
    size = tensor.element_size()
    return tensor.stride(3) == 1 and tensor.data_ptr() % 16 == 0 and all(
        stride * size % 16 == 0 for stride in tensor.stride()[:3])


class CpuBlocks:
    """Blocks that are packed and decoded by the CPU, wherever the tensors are."""

    def __init__(self, codecs, threads=0):
        self.codecs, self.threads, self.n_blocks = codecs, threads, 0
        # For each row of the batch the packed (keys, values) of one run of blocks after another.
        # Rows share them after beams were reordered: they never change.
        self._rows, self._runs = [], []

    @property
    def nbytes(self):
        """Packed runs that rows share are counted once."""
        parts = {id(part): len(part) for row in self._rows for pair in row for part in pair}
        return sum(parts.values())

    def append(self, keys, values):
        fit(self.codecs, keys, values)
        rows = list(zip(_on_cpu(keys), _on_cpu(values)))
        packed = [tuple(codec.encode(tensor, self.n_blocks, threads=self.threads)
                        for codec, tensor in zip(self.codecs, row)) for row in rows]
        self._rows = self._rows or [[] for _ in rows]
        for row, pair in zip(self._rows, packed, strict=True):
            row.append(pair)
        self._runs.append(keys.shape[2] // BLOCK)
        self.n_blocks += self._runs[-1]

    def decode(self, keys, values):
        """Fills both, which have room for all blocks."""
        for which, (codec, out) in enumerate(zip(self.codecs, (keys, values))):
            room = out if out.device.type == "cpu" else torch.empty(out.shape, dtype=out.dtype)
            for i, row in enumerate(self._rows):
                at = 0
                for pair, n in zip(row, self._runs, strict=True):
                    codec.decode(pair[which], at, out=room[i, :, at * BLOCK:(at + n) * BLOCK],
                                 threads=self.threads)
                    at += n
            if room is not out:
                out.copy_(room)

    def packed(self, row):
        """The bytes of all blocks of keys and of values of a row."""
        return tuple(b"".join(pair[which] for pair in self._rows[row]) if self._rows else b""
                     for which in (0, 1))

    def select(self, rows):
        """Keeps these rows, some perhaps more than once."""
        if self._rows:
            self._rows = [list(self._rows[i]) for i in rows.tolist()]

    def truncate(self, n_blocks):
        """Keeps the first blocks of each row."""
        whole = 0
        while whole < len(self._runs) and sum(self._runs[:whole + 1]) <= n_blocks:
            whole += 1
        n_rest = n_blocks - sum(self._runs[:whole])
        cut = [row[whole] for row in self._rows] if n_rest > 0 else []
        sizes = [sum(codec.block_bytes(sum(self._runs[:whole]) + i) for i in range(n_rest))
                 for codec in self.codecs]
        self._rows = [row[:whole] for row in self._rows]
        self._runs = self._runs[:whole]
        for row, pair in zip(self._rows, cut):
            row.append(tuple(part[:size] for part, size in zip(pair, sizes)))
        self._runs += [n_rest] if n_rest > 0 else []
        self.n_blocks = n_blocks


class _Side:
    """Pages of keys or of values: u8, the first of each row with its sink tokens behind it, then
    chunks of more. A page is named by its distance from the first one, in pages: so the cache grows
    without a copy, and the addresses in a captured graph stay true."""

    def __init__(self, codec, batch, device):
        tables = codec.tables()
        if tables["mode"] != 0 or tables["rotation"] != 0:
            raise cuda.CudaError(2, "no mode mse with a Hadamard rotation")
        self.codec, self.batch, self.device = codec, batch, device
        self.on_gpu = cuda.Codec(codec.dim, tables["bits"], codec.kind, rounds=tables["rounds"],
                                 seed=tables["seed"], scale=tables["scale"])
        self.page_bytes = self.on_gpu.page_bytes(codec.heads)
        self.sink_bytes = codec.block_bytes(0) - codec.block_bytes(1)
        self.first_pages = 1 + -(-self.sink_bytes // self.page_bytes)
        self.centering, self.chunks = None, []

    def prepare(self):
        """The mean, once the codec is fitted."""
        if self.centering is not None:
            return
        t = {name: None if array is None else torch.tensor(array, device=self.device)
             for name, array in self.codec.tables().items() if not isinstance(array, int)}
        if t["mean"] is not None:
            self.centering = cuda.Centering(t["mean"], t["turns"], t["cos"], t["sin"],
                                            t["factors"], t["inverses"])

    def grow(self, n_blocks):
        """Room for more blocks of all rows; returns the numbers of their pages, [rows, blocks]."""
        ids = []
        if not self.chunks:
            self.chunks.append(torch.empty(self.batch, self.first_pages, self.page_bytes,
                                           dtype=torch.uint8, device=self.device))
            ids.append(torch.arange(self.batch, dtype=torch.int32)[:, None] * self.first_pages)
            n_blocks -= 1
        if n_blocks > 0:
            base, n = self.chunks[0].data_ptr(), n_blocks * self.batch
            room = torch.empty((n + 1) * self.page_bytes, dtype=torch.uint8, device=self.device)
            skipped = (base - room.data_ptr()) % self.page_bytes
            at = (room.data_ptr() + skipped - base) // self.page_bytes
            if not -2**31 < at < 2**31 - n:
                raise UnsupportedError("pages that are too far apart in the memory of the GPU")
            chunk = room[skipped:skipped + n * self.page_bytes]
            self.chunks.append(chunk.view(n_blocks, self.batch, self.page_bytes))
            later = torch.arange(at, at + n, dtype=torch.int64).view(n_blocks, self.batch)
            ids.append(later.t().to(torch.int32))
        return torch.cat(ids, dim=1)

    def sinks(self, row):
        """The dense tokens of a row: [kv heads, sinks, head_dim] as bytes."""
        return self.chunks[0].view(self.batch, -1)[row, self.page_bytes:][:self.sink_bytes]

    @property
    def nbytes(self):
        return sum(chunk.numel() for chunk in self.chunks)


class GpuBlocks:
    """Blocks in the memory of a GPU, where they are packed, decoded and attended to."""

    def __init__(self, codecs, batch, dtype, device):
        self.codecs, self.batch, self.dtype, self.device = codecs, batch, dtype, device
        self.n_blocks = 0
        with torch.cuda.device(device):
            self.sides = [_Side(codec, batch, device) for codec in codecs]
            for side in self.sides:  # kernels want an address, also before there is a page
                side.none = torch.zeros(side.page_bytes, dtype=torch.uint8, device=device)
        self.n_sinks = codecs[0].tables()["n_sinks"]
        self.status = torch.full((1,), -1, dtype=torch.int32, device=device)
        self.n_packed = torch.zeros(batch, dtype=torch.int32, device=device)
        self._set_room(64)

    def _set_room(self, n_blocks):
        """Tables with room for so many blocks of each row. Captured graphs end here."""
        self.room = n_blocks
        self.tables = torch.zeros(2, self.batch, n_blocks, dtype=torch.int32, device=self.device)
        self.step = None

    @property
    def nbytes(self):
        return sum(side.nbytes for side in self.sides)

    def append(self, keys, values):
        fit(self.codecs, keys, values)
        n, first = keys.shape[2] // BLOCK, self.n_blocks
        if first + n > self.room:
            old = self.tables[:, :, :first]
            self._set_room(2 * (first + n))
            self.tables[:, :, :first] = old
        with torch.cuda.device(self.device):
            for which, (side, dense) in enumerate(zip(self.sides, (keys, values))):
                side.prepare()
                self.tables[which, :, first:first + n] = side.grow(n).to(self.device)
                if not _is_row_aligned(dense):
                    dense = dense.contiguous()
                stream, work = self._work(side, dense.shape[2])
                for row in range(self.batch):
                    ids = self.tables[which, row, first:first + n].contiguous()
                    side.on_gpu.encode(
                        dense[row], side.chunks[0].view(-1, side.page_bytes), page_ids=ids,
                        centering=side.centering, first_block=first, status=self.status,
                        n_skipped=self.n_sinks if first == 0 else 0, workspace=work, stream=stream)
                    if first == 0 and side.sink_bytes > 0:
                        sinks = dense[row, :, :self.n_sinks].contiguous()
                        side.sinks(row).copy_(sinks.view(-1).view(torch.uint8))
        self.n_blocks += n
        self.n_packed.fill_(self.n_blocks * BLOCK)
        if first == 0:
            self.step = None  # the pages have their address now

    def _work(self, side, n_tokens):
        stream = torch.cuda.current_stream(self.device).cuda_stream
        n = side.on_gpu.workspace_bytes(side.codec.heads, n_tokens, side.centering, stream)
        return stream, torch.empty(max(n, 16), dtype=torch.uint8, device=self.device)

    def check(self):
        """Waits for the GPU, and raises CudaError if a packed value was not finite."""
        cuda.check_status(self.status.item())

    def decode(self, keys, values, first=0):
        """Fills both, from the first of the blocks on for which they have room."""
        n = keys.shape[2] // BLOCK
        if n == 0:
            return
        self.check()
        with torch.cuda.device(self.device):
            for which, (side, out) in enumerate(zip(self.sides, (keys, values))):
                stream, work = self._work(side, n * BLOCK)
                for row in range(self.batch):
                    side.on_gpu.decode(
                        side.chunks[0].view(-1, side.page_bytes), out[row], workspace=work,
                        page_ids=self.tables[which, row, first:first + n].contiguous(),
                        centering=side.centering, first_block=first, stream=stream,
                        n_skipped=self.n_sinks if first == 0 else 0)
                    if first == 0 and side.sink_bytes > 0:
                        sinks = side.sinks(row).view(self.dtype)
                        out[row, :, :self.n_sinks] = sinks.view(side.codec.heads, self.n_sinks, -1)

    def packed(self, row):
        """The bytes of all blocks of keys and of values of a row, as the CPU packs them."""
        self.check()
        out = []
        for side in self.sides:
            if self.n_blocks == 0:
                out.append(b"")
                continue
            first = side.chunks[0][row, 0], side.sinks(row)
            later = [chunk[:, row].reshape(-1) for chunk in side.chunks[1:]]
            out.append(torch.cat([*first, *later]).cpu().numpy().tobytes())
        return tuple(out)

    def select(self, rows):
        """Keeps these rows, some perhaps more than once."""
        rows = rows.to(self.device)
        self.batch, n = rows.numel(), self.n_blocks
        self.n_packed = torch.full((self.batch,), n * BLOCK, dtype=torch.int32, device=self.device)
        self._set_room(self.room)
        for which, side in enumerate(self.sides):
            old, side.chunks, side.batch = side.chunks, [], self.batch
            if n == 0:
                continue
            ids = side.grow(n)
            side.chunks[0].copy_(old[0].index_select(0, rows))
            if n > 1:
                later = torch.cat([chunk.index_select(1, rows) for chunk in old[1:]])
                side.chunks[1].copy_(later[:n - 1])
            self.tables[which, :, :n] = ids.to(self.device)

    def truncate(self, n_blocks):
        """Keeps the first blocks of each row."""
        self.n_blocks = n_blocks
        self.n_packed.fill_(n_blocks * BLOCK)
        for side in self.sides:
            kept, left = side.chunks[:1] if n_blocks > 0 else [], n_blocks - 1
            for chunk in side.chunks[1:]:
                if left > 0:
                    kept.append(chunk[:left])
                    left -= kept[-1].shape[0]
            side.chunks = kept
        self.step = None

    # --- One token at a time

    def can_attend(self):
        """Whether there are kernels for attention to these blocks."""
        keys, values = self.codecs
        return keys.dim == values.dim and keys.dim in (64, 96, 128, 256)

    def _side_of(self, which):
        side = self.sides[which]
        pages = side.chunks[0].view(-1, side.page_bytes) if self.n_blocks else side.none[None]
        return cuda.Side(side.on_gpu, pages, side.centering, self.tables[which])

    def attend(self, queries, scale, tail, n_tail, workspace):
        """Attention of queries [batch, query heads, head_dim] to all blocks and the tail."""
        if self.step is None or self.step.key != (queries.shape, queries.dtype, scale):
            with torch.cuda.device(self.device):
                self.step = cuda.Step(
                    queries, self._side_of(0), self._side_of(1), scale=scale,
                    n_packed=self.n_packed, n_sinks=self.n_sinks, tail=tail, n_tail=n_tail)
            self.step.key = (queries.shape, queries.dtype, scale)
        out = torch.empty_like(queries)
        self.step(queries.data_ptr(), out.data_ptr(),
                  workspace.address(self.step.workspace_bytes, self.device),
                  torch.cuda.current_stream(self.device).cuda_stream)
        return out
