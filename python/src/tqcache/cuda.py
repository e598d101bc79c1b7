"""Packed keys and values in the memory of an NVIDIA GPU.

    codec = tqcache.cuda.Codec(head_dim=128, bits=4, side="keys")
    pages = torch.zeros(4, codec.page_bytes(8), dtype=torch.uint8, device="cuda")
    status = torch.full((1,), -1, dtype=torch.int32, device="cuda")
    codec.encode(keys, pages, status=status)       # keys [8, 1024, 128]; nothing waits
    codec.decode(pages, keys)

Token blocks of 256 tokens are encoded, decoded and scored on the GPU; nothing is copied to the CPU.
The bytes are those of the file format: a page is a packed section of a .tqkv file
(docs/reference/cuda.md, "Pages"). tqcache.transformers.TqcacheCache uses this.

The kernels are in the wheel tqcache-cuda (python/build_cuda_wheel.sh). status() says whether they
and a GPU were found. libtqcache_cuda.so is looked for in the environment variable
TQCACHE_CUDA_LIBRARY, in that wheel, beside this file, and where the system looks. Tensors are any
objects with __dlpack__ on a GPU; this file imports no torch.
"""

import ctypes
import math
import os
import threading
from ctypes import POINTER, Structure, byref, c_double, c_float, c_int, c_int32, c_int64, c_size_t
from ctypes import c_uint8, c_uint16, c_uint32, c_uint64, c_void_p
from pathlib import Path

BLOCK = 256
"""Tokens of a page."""


class CudaError(RuntimeError):
    """A kernel or its arguments failed. `status` is that of the C interface (tqcache_cuda.h)."""

    def __init__(self, status, message):
        super().__init__(message)
        self.status = status


# --- The C interface (cuda/tqcache/cuda/tqcache_cuda.h)


class _Spec(Structure):
    _fields_ = [
        ("head_dim", c_int), ("mode", c_int), ("bits", c_int), ("is_values", c_int),
        ("seed", c_uint64), ("rotation", c_int), ("rounds", c_int), ("scale", c_int),
        ("residual", c_int), ("outlier_channels", c_int), ("outlier_bits", c_int),
        ("group_size", c_int),
    ]


class _Centering(Structure):
    _fields_ = [
        ("mean", c_void_p), ("n_pairs", c_int), ("turns", c_void_p), ("cos", c_void_p),
        ("sin", c_void_p), ("factors", c_void_p), ("inverses", c_void_p),
    ]


class _Rows(Structure):
    _fields_ = [
        ("data", c_void_p), ("dtype", c_int), ("token_stride", c_int64), ("head_stride", c_int64),
    ]


class _Pages(Structure):
    _fields_ = [("data", c_void_p), ("page_bytes", c_int64), ("page_ids", c_void_p)]


class _Run(Structure):
    _fields_ = [
        ("n_tokens", c_int64), ("first_block", c_int64), ("n_kv_heads", c_int),
        ("n_skipped", c_int), ("channel_order", c_void_p),
    ]


class _AttentionPages(Structure):
    _fields_ = [
        ("codec", c_void_p), ("data", c_void_p), ("page_bytes", c_int64), ("page_table", c_void_p),
        ("mean", c_void_p), ("n_pairs", c_int), ("sinusoids", c_void_p), ("inverses", c_void_p),
    ]


class _Attention(Structure):
    _fields_ = [
        ("n_sequences", c_int), ("n_query_heads", c_int), ("n_kv_heads", c_int),
        ("head_dim", c_int), ("max_blocks", c_int), ("scale", c_float), ("queries", c_void_p),
        ("output", c_void_p), ("dtype", c_int), ("n_packed", c_void_p), ("n_sinks", c_int),
        ("sink_dtype", c_int), ("keys", _AttentionPages), ("values", _AttentionPages),
        ("tail_keys", c_void_p), ("tail_values", c_void_p), ("tail_dtype", c_int),
        ("tail_capacity", c_int), ("tail_tokens", c_void_p),
    ]


class _Token(Structure):
    _fields_ = [
        ("n_sequences", c_int), ("n_kv_heads", c_int), ("head_dim", c_int), ("keys", c_void_p),
        ("values", c_void_p), ("key_sequence_stride", c_int64), ("key_head_stride", c_int64),
        ("value_sequence_stride", c_int64), ("value_head_stride", c_int64),
        ("tail_keys", c_void_p), ("tail_values", c_void_p), ("tail_dtype", c_int),
        ("tail_capacity", c_int), ("tail_tokens", c_void_p),
    ]


class _Device(Structure):
    _fields_ = [("name", ctypes.c_char * 256), ("capability", c_int), ("code", c_int),
                ("driver", c_int), ("runtime", c_int)]


_library = None
_library_lock = threading.Lock()


def _installed_library():
    """The library of the wheel tqcache-cuda, or one beside this file, or None."""
    try:
        import tqcache_cuda
    except ImportError:
        beside = Path(__file__).with_name("libtqcache_cuda.so")
        return beside if beside.exists() else None
    return tqcache_cuda.LIBRARY


def library():
    """The loaded shared library. Raises OSError, which says where it was looked for."""
    global _library
    with _library_lock:
        if _library is not None:
            return _library
        path = os.environ.get("TQCACHE_CUDA_LIBRARY") or _installed_library()
        try:
            loaded = ctypes.CDLL(str(path or "libtqcache_cuda.so"))
        except OSError as error:
            raise OSError(
                f"libtqcache_cuda.so cannot be loaded ({error}). It comes with the wheel "
                "tqcache-cuda; one that you built yourself is named in TQCACHE_CUDA_LIBRARY"
            ) from None
        loaded.tqcache_cuda_error.restype = ctypes.c_char_p
        loaded.tqcache_cuda_page_bytes.restype = c_int64
        loaded.tqcache_cuda_page_bytes.argtypes = [c_void_p, c_int, c_int, c_int]
        loaded.tqcache_cuda_codec_workspace_bytes.restype = c_size_t
        for name, arguments in {
            "codec_new": [POINTER(_Spec), POINTER(c_void_p)],
            "codec_workspace_bytes": [c_void_p, POINTER(_Centering), POINTER(_Run)],
            "encode": [c_void_p, POINTER(_Rows), POINTER(_Run), POINTER(_Centering),
                       POINTER(_Pages), c_void_p, c_void_p, c_void_p],
            "encode_status": [c_uint32],
            "decode": [c_void_p, POINTER(_Pages), POINTER(_Run), POINTER(_Centering),
                       POINTER(_Rows), c_void_p, c_void_p],
            "sinusoids_new": [POINTER(c_double), c_int, POINTER(c_void_p)],
            "attention_workspace_bytes": [POINTER(_Attention), POINTER(c_size_t)],
            "attend": [POINTER(_Attention), c_void_p, c_void_p],
            "append": [POINTER(_Token), c_void_p],
            "device": [POINTER(_Device)],
        }.items():
            getattr(loaded, f"tqcache_cuda_{name}").argtypes = arguments
        for name in ("codec_free", "sinusoids_free"):
            function = getattr(loaded, f"tqcache_cuda_{name}")
            function.argtypes, function.restype = [c_void_p], None
        _library = loaded
        return loaded


def status():
    """What was found: {"available", "library", "device", "capability", "code", "driver", "runtime",
    "reason"}. code: the compute capability that the kernels for this GPU were compiled for. reason:
    why the kernels cannot be used, or None. Waits for nothing; makes the CUDA context."""
    found = dict.fromkeys(("library", "device", "capability", "code", "driver", "runtime",
                           "reason"))
    found = {"available": False, **found}
    try:
        loaded = library()
    except OSError as error:
        return found | {"reason": str(error)}
    found["library"] = str(loaded._name)
    device = _Device()
    if loaded.tqcache_cuda_device(byref(device)) != 0:
        return found | {"reason": loaded.tqcache_cuda_error().decode(errors="replace")}

    def dotted(number, unit):  # of 90 or 13020
        return f"{number // unit}.{number % unit // (1 if unit == 10 else 10)}"

    return found | {
        "available": True, "device": device.name.decode(errors="replace"),
        "capability": dotted(device.capability, 10), "code": dotted(device.code, 10),
        "driver": dotted(device.driver, 1000), "runtime": dotted(device.runtime, 1000)}


def available():
    """Whether kernels and a GPU that runs them were found; status() says why not."""
    return status()["available"]


def _check(status):
    if status != 0:
        raise CudaError(status, library().tqcache_cuda_error().decode(errors="replace"))


# --- Tensors through DLPack (dlpack.h of DLPack 0.8 and 1.0, unversioned capsules)


class _DLTensor(Structure):
    _fields_ = [
        ("data", c_void_p), ("device_type", c_int32), ("device_id", c_int32), ("ndim", c_int32),
        ("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16), ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)), ("byte_offset", c_uint64),
    ]


_DTYPES = {(2, 32): 0, (2, 16): 1, (4, 16): 2}  # (DLPack code, bits): f32, f16, bf16
_TORCH_DTYPES = {
    "torch.float32": (2, 32), "torch.float16": (2, 16), "torch.bfloat16": (4, 16),
    "torch.float64": (2, 64), "torch.uint8": (1, 8), "torch.int32": (0, 32),
    "torch.uint32": (1, 32),
}
_KDL_CUDA = 2
_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype, _capsule_pointer.argtypes = c_void_p, [ctypes.py_object, ctypes.c_char_p]


class _View:
    """Address, shape, strides (in elements) and dtype of a tensor on a GPU.

    Holds the tensor, or its capsule, whose destructor gives the memory back. `stream` is the number
    of the CUDA stream on which the memory will be used.
    """

    def __init__(self, tensor, stream, what):
        if getattr(tensor, "is_cuda", False) and str(tensor.dtype) in _TORCH_DTYPES:
            # A tensor of torch says the same a hundred times as fast. Its stream is the caller's.
            self.capsule = tensor
            self.address, self.kind = tensor.data_ptr(), _TORCH_DTYPES[str(tensor.dtype)]
            self.shape, self.strides = tuple(tensor.shape), tensor.stride()
            return
        if not hasattr(tensor, "__dlpack__"):
            raise TypeError(f"{what}: {type(tensor).__name__} has no __dlpack__")
        if tensor.__dlpack_device__()[0] != _KDL_CUDA:
            raise ValueError(f"{what}: not in the memory of a GPU")
        # DLPack's number of the default stream is 1; 0 is not allowed.
        self.capsule = tensor.__dlpack__(stream=stream or 1)
        view = ctypes.cast(_capsule_pointer(self.capsule, b"dltensor"), POINTER(_DLTensor)).contents
        self.shape = tuple(view.shape[i] for i in range(view.ndim))
        self.strides = tuple(view.strides[i] for i in range(view.ndim)) if view.strides else None
        if self.strides is None:
            self.strides = tuple(math.prod(self.shape[i + 1:]) for i in range(view.ndim))
        self.kind = (view.code, view.bits)
        self.address = (view.data or 0) + view.byte_offset

    def dtype(self, what):
        if self.kind not in _DTYPES:
            raise TypeError(f"{what}: neither f32, f16 nor bf16")
        return _DTYPES[self.kind]

    def expect(self, what, shape, kind=None):
        """Requires a contiguous tensor of this shape, and of this DLPack (code, bits)."""
        contiguous = tuple(math.prod(self.shape[i + 1:]) for i in range(len(self.shape)))
        dense = all(n == 1 or a == b for n, a, b in zip(self.shape, self.strides, contiguous))
        if self.shape != tuple(shape) or not dense:
            raise ValueError(f"{what}: shape {self.shape}, strides {self.strides}; a contiguous "
                             f"tensor of shape {tuple(shape)} is needed")
        if kind is not None and self.kind != kind:
            raise TypeError(f"{what}: another type of numbers")
        return self.address


_U8, _I32, _U32, _F32, _F64 = (1, 8), (0, 32), (1, 32), (2, 32), (2, 64)


def _address(tensor, stream, what, shape, kind):
    """The address of an optional tensor; the caller keeps `tensor` alive."""
    return None if tensor is None else _View(tensor, stream, what).expect(what, shape, kind)


# --- Codecs, encoding, decoding, attention


class Centering:
    """The mean that is subtracted before encoding (docs/reference/codec.md, section 8).

    mean: f32 [n_kv_heads, head_dim]. With turns, f64 [n_pairs], the full turns per token of each
    pair of components (RoPE's frequency / (2 pi)), the mean is one of keys before RoPE, and turns
    with them; cos and sin, f32 [256, n_pairs], are of 2 pi j turns for place j of a block. factors
    and inverses, f32 [n_kv_heads, head_dim], are those of keys with factors (the same section).
    """

    def __init__(self, mean, turns=None, cos=None, sin=None, factors=None, inverses=None):
        self.mean, self.turns, self.cos, self.sin = mean, turns, cos, sin
        self.factors, self.inverses = factors, inverses
        self.n_pairs = 0 if turns is None else int(turns.shape[0])
        self.sinusoids = None
        if self.n_pairs:
            host = (c_double * self.n_pairs)(*(float(turn) for turn in turns.tolist()))
            handle = c_void_p()
            _check(library().tqcache_cuda_sinusoids_new(host, self.n_pairs, byref(handle)))
            self.sinusoids = handle

    def __del__(self):
        if getattr(self, "sinusoids", None) and _library is not None:
            _library.tqcache_cuda_sinusoids_free(self.sinusoids)

    def _struct(self, n_kv_heads, head_dim, stream):
        n = self.n_pairs
        return _Centering(
            _address(self.mean, stream, "mean", (n_kv_heads, head_dim), _F32), n,
            _address(self.turns, stream, "turns", (n,), _F64),
            _address(self.cos, stream, "cos", (BLOCK, n), _F32),
            _address(self.sin, stream, "sin", (BLOCK, n), _F32),
            _address(self.factors, stream, "factors", (n_kv_heads, head_dim), _F32),
            _address(self.inverses, stream, "inverses", (n_kv_heads, head_dim), _F32),
        )


class Codec:
    """The tables of one codec on the current GPU: mode mse, Hadamard rotation.

    side: "keys" or "values" (the order of the codes differs). scale: what it preserves, 0 inner
    products, 1 the length (tqcache's choice below 4 bits), 2 neither. Making one waits for the GPU. It has
    to live until the work that uses it is done.
    """

    def __init__(self, head_dim, bits, side, *, rounds=1, seed=0, scale=0):
        if side not in ("keys", "values"):
            raise ValueError('side: "keys" or "values"')
        self.head_dim, self.bits, self.side = head_dim, bits, side
        self.handle = c_void_p()
        spec = _Spec(head_dim=head_dim, bits=bits, is_values=side == "values", rounds=rounds,
                     seed=seed, scale=scale)
        _check(library().tqcache_cuda_codec_new(byref(spec), byref(self.handle)))

    def __del__(self):
        if getattr(self, "handle", None) and _library is not None:
            _library.tqcache_cuda_codec_free(self.handle)

    def page_bytes(self, n_kv_heads, n_sinks=0, dtype=1):
        """Bytes of a page. dtype: of the dense sink tokens (0 f32, 1 f16, 2 bf16)."""
        return library().tqcache_cuda_page_bytes(self.handle, n_kv_heads, n_sinks, dtype)

    def encode(self, rows, pages, *, status, page_ids=None, centering=None, first_block=0,
               n_skipped=0, workspace=None, stream=0):
        """Packs rows [n_kv_heads, n_tokens, head_dim] into pages [n, page_bytes] of bytes.

        page_ids: i32, the page of each block. n_skipped: sink tokens of the first block.
        status: u32 or i32 [1], filled with 0xffffffff: see check_status(). The work is enqueued on
        `stream` (the number of a cudaStream_t); nothing waits. workspace: bytes, of
        workspace_bytes().
        """
        self._run(True, rows, pages, page_ids, centering, first_block, n_skipped, workspace,
                  status, stream)

    def decode(self, pages, rows, *, page_ids=None, centering=None, first_block=0, n_skipped=0,
               workspace=None, stream=0):
        """The inverse of encode(). Rows of skipped tokens stay as they are."""
        self._run(False, rows, pages, page_ids, centering, first_block, n_skipped, workspace,
                  None, stream)

    def workspace_bytes(self, n_kv_heads, n_tokens, centering=None, stream=0):
        """Bytes of workspace that encode() and decode() need."""
        run = _Run(n_tokens, 0, n_kv_heads, 0, None)
        center = None if centering is None else centering._struct(n_kv_heads, self.head_dim, stream)
        return library().tqcache_cuda_codec_workspace_bytes(
            self.handle, None if center is None else byref(center), byref(run))

    def _run(self, is_encode, rows, pages, page_ids, centering, first_block, n_skipped, workspace,
             status, stream):
        view = _View(rows, stream, "rows")
        if len(view.shape) != 3 or view.shape[2] != self.head_dim or view.strides[2] != 1:
            raise ValueError(f"rows: shape {view.shape}; [n_kv_heads, n_tokens, {self.head_dim}] "
                             "with contiguous components is needed")
        n_heads, n_tokens, _ = view.shape
        blocks = -(-n_tokens // BLOCK)
        page_view = _View(pages, stream, "pages")
        page_view.expect("pages", page_view.shape, _U8)
        if len(page_view.shape) != 2 or (page_ids is None and page_view.shape[0] < blocks):
            raise ValueError("pages: [n, page_bytes] with a page for each block is needed")
        need = self.workspace_bytes(n_heads, n_tokens, centering, stream)
        work_view = None if workspace is None else _View(workspace, stream, "workspace")
        if need > 0 and (work_view is None or work_view.shape[0] < need):
            raise ValueError(f"workspace: {need} bytes are needed")
        c_rows = _Rows(view.address, view.dtype("rows"), view.strides[1], view.strides[0])
        c_pages = _Pages(page_view.address, page_view.shape[1],
                         _address(page_ids, stream, "page_ids", (blocks,), _I32))
        run = _Run(n_tokens, first_block, n_heads, n_skipped, None)
        center = None if centering is None else centering._struct(n_heads, self.head_dim, stream)
        center = None if center is None else byref(center)
        work = None if work_view is None else work_view.address
        if is_encode:
            word = _View(status, stream, "status")
            if word.kind not in (_U32, _I32):
                raise TypeError("status: a word of 32 bits is needed")
            _check(library().tqcache_cuda_encode(
                self.handle, byref(c_rows), byref(run), center, byref(c_pages), work, word.address,
                stream))
        else:
            _check(library().tqcache_cuda_decode(
                self.handle, byref(c_pages), byref(run), center, byref(c_rows), work, stream))


def check_status(word):
    """Raises CudaError for a status word that encode() wrote, naming the token. word: its value."""
    _check(library().tqcache_cuda_encode_status(int(word) & 0xFFFFFFFF))


def append(keys, values, tail_keys, tail_values, n_tail, stream=0):
    """Puts a token of each sequence, [n_sequences, n_kv_heads, head_dim], behind its tail
    [n_sequences, n_kv_heads, capacity, head_dim]; n_tail, i32 [n_sequences], is one more then."""
    token, keep = prepare_append(tail_keys, tail_values, n_tail, stream)
    append_prepared(token, keys, values, stream)
    del keep


def prepare_append(tail_keys, tail_values, n_tail, stream=0):
    """The struct of append() without the token, and what has to live as long."""
    tail = _View(tail_keys, stream, "tail keys")
    if len(tail.shape) != 4:
        raise ValueError("tail keys: [n_sequences, n_kv_heads, capacity, head_dim] is needed")
    other = _View(tail_values, stream, "tail values")
    n_sequences, n_heads, capacity, dim = tail.shape
    token = _Token(n_sequences=n_sequences, n_kv_heads=n_heads, head_dim=dim,
                   tail_keys=tail.expect("tail keys", tail.shape),
                   tail_values=other.expect("tail values", tail.shape, tail.kind),
                   tail_dtype=tail.dtype("tail keys"), tail_capacity=capacity,
                   tail_tokens=_address(n_tail, stream, "tail tokens", (n_sequences,), _I32))
    return token, (tail, other, n_tail)


def append_prepared(token, keys, values, stream=0):
    """append() of tensors of torch, as prepare_append() prepared it. Nothing is checked but what the
    kernel cannot take."""
    token.keys, token.values = keys.data_ptr(), values.data_ptr()
    token.key_sequence_stride, token.key_head_stride = keys.stride(0), keys.stride(1)
    token.value_sequence_stride, token.value_head_stride = values.stride(0), values.stride(1)
    _check(library().tqcache_cuda_append(byref(token), stream))


class Side:
    """K or V of one layer for Step: codec, pages [n, page_bytes], centering or None, and page_table,
    i32 [n_sequences, max_blocks]: the page of each block, counted from the first of `pages`."""

    def __init__(self, codec, pages, centering, page_table):
        self.codec, self.pages, self.centering = codec, pages, centering
        self.page_table = page_table


class Step:
    """Attention of a decode step, softmax(scale * queries keys^T) values, prepared once for all steps
    whose tensors stay where they are.

    queries: [n_sequences, n_query_heads, head_dim], for their shape and dtype. n_packed: i32
    [n_sequences], tokens in pages; tail: (keys, values), dense [n_sequences, n_kv_heads, capacity,
    head_dim], and n_tail, i32 [n_sequences], behind them. n_sinks: dense tokens at the end of first
    pages, of the tail's dtype. Token i of a sequence has position i.
    """

    def __init__(self, queries, keys, values, *, n_packed, tail, n_tail, n_sinks=0, scale=None):
        q = _View(queries, 0, "queries")
        if len(q.shape) != 3:
            raise ValueError("queries: [n_sequences, n_query_heads, head_dim] is needed")
        n_sequences, n_query_heads, head_dim = q.shape
        tail_keys = _View(tail[0], 0, "tail keys")
        shape = tail_keys.shape
        if len(shape) != 4 or shape[0] != n_sequences or shape[3] != head_dim:
            raise ValueError("tail keys: [n_sequences, n_kv_heads, capacity, head_dim] is needed")
        n_kv_heads, max_blocks = shape[1], int(keys.page_table.shape[1])

        def pages(side):
            view, center = _View(side.pages, 0, "pages"), side.centering
            view.expect("pages", view.shape, _U8)
            struct = _AttentionPages(
                side.codec.handle, view.address, view.shape[1],
                _address(side.page_table, 0, "page_table", (n_sequences, max_blocks), _I32))
            if center is not None:
                heads = (n_kv_heads, head_dim)
                struct.mean = _address(center.mean, 0, "mean", heads, _F32)
                struct.n_pairs, struct.sinusoids = center.n_pairs, center.sinusoids
                struct.inverses = _address(center.inverses, 0, "inverses", heads, _F32)
            return struct

        dtype = tail_keys.dtype("tail keys")
        self.struct = _Attention(
            n_sequences=n_sequences, n_query_heads=n_query_heads, n_kv_heads=n_kv_heads,
            head_dim=head_dim, max_blocks=max_blocks,
            scale=1 / math.sqrt(head_dim) if scale is None else scale, dtype=q.dtype("queries"),
            n_packed=_address(n_packed, 0, "n_packed", (n_sequences,), _I32), n_sinks=n_sinks,
            sink_dtype=dtype, keys=pages(keys), values=pages(values),
            tail_keys=tail_keys.expect("tail keys", shape),
            tail_values=_address(tail[1], 0, "tail values", shape, tail_keys.kind),
            tail_dtype=dtype, tail_capacity=shape[2],
            tail_tokens=_address(n_tail, 0, "tail tokens", (n_sequences,), _I32))
        self._keep = (keys, values, n_packed, tail, n_tail)
        self._by_reference, self._library = byref(self.struct), library()
        need = c_size_t()
        _check(self._library.tqcache_cuda_attention_workspace_bytes(self._by_reference,
                                                                    byref(need)))
        self.workspace_bytes = max(need.value, 16)

    def __call__(self, queries, output, workspace, stream=0):
        """queries, output: addresses of tensors like the first queries; workspace: that of
        workspace_bytes bytes, which calls on one stream may share."""
        self.struct.queries, self.struct.output = queries, output
        _check(self._library.tqcache_cuda_attend(self._by_reference, workspace, stream))
