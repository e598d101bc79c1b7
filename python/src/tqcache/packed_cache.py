"""A cache for transformers that stays packed while a model generates.

    import tqcache.transformers as tq

    model.generate(ids, cache=tq.TqcacheCache(bits=4))

Layers of full attention hold packed blocks of 256 tokens, and 32 to 288 recent tokens densely. On
the CPU blocks are decoded for each update. On a GPU of NVIDIA they are packed there, and a decode
step attends to the packed codes: with the kernels of the wheel tqcache-cuda (tqcache.cuda.status())
and transformers' attention "sdpa". A prompt that comes in parts attends to some decoded blocks
after the other. What the kernels do not know (padding on the left, softcap, other attention
implementations) is done on decoded keys and values, which is right and slower. Without the kernels
blocks are packed and decoded by the CPU. The bytes are the same in all cases.
"""

import copy
import weakref

import torch
from transformers import AttentionInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from . import Rope, UnsupportedError, codec, cuda
from ._packed_blocks import BLOCK, CpuBlocks, GpuBlocks

PIECE = 32  # blocks that are decoded at a time for a prompt
DTYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def text_config(model):
    config = getattr(model, "config", model)
    return config.get_text_config(decoder=True)


def rope_of(config) -> Rope | None:
    """The rotary embedding of a model, where it is the usual one."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type", "default") != "default" or "rope_theta" not in parameters:
        return None
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    n_dims = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
    return Rope(n_dims=n_dims, base=float(parameters["rope_theta"]), style="half-split")


def check_bits(bits) -> None:
    if not isinstance(bits, int) or isinstance(bits, bool) or not 1 <= bits <= 8:
        raise ValueError(f"bits: {bits!r} is no whole number from 1 to 8")


class Workspace:
    """Memory of a GPU that the layers of a cache share, one after the other."""

    def __init__(self):
        self._memory = self._mask = None

    def address(self, n_bytes, device):
        if self._memory is None or self._memory.numel() < n_bytes or self._memory.device != device:
            self._memory = torch.empty(n_bytes, dtype=torch.uint8, device=device)
        return self._memory.data_ptr()

    def is_causal(self, mask):
        """Whether by transformers' mask, [..., queries, keys], each of the last tokens sees all
        before it. The layers of a call have the same mask."""
        if self._mask is None or self._mask() is not mask:
            self._mask, n = weakref.ref(mask), mask.shape[-2]
            self._is_causal = (
                mask.dtype == torch.bool and mask.shape[-1] >= n and bool(mask[..., :-n].all())
                and torch.equal(mask[..., -n:], torch.ones_like(mask[..., -n:]).tril()))
        return self._is_causal


class TqcacheLayer(DynamicLayer):
    """Full attention with packed keys and values. The newest tokens are dense: `recent` of them, and
    what does not fill a block of 256; the first 4 are, too, unless `keys` and `values` say "sink=".
    """

    is_croppable = True

    def __init__(self, bits: int = 4, keys: str | None = None, values: str | None = None,
                 recent: int = 32, rope: Rope | None = None, threads: int = 0, layer: int = 0,
                 workspace: Workspace | None = None, config=None, **kwargs):
        check_bits(bits)
        self._configs = tuple(text if "sink=" in text else text + ",sink=4"
                              for text in (keys or f"mse:{bits}", values or f"mse:{bits}"))
        self._recent, self._rope, self._threads, self._layer = recent, rope, threads, layer
        self._room = recent + BLOCK
        self._workspace, self._config = workspace or Workspace(), config
        super().__init__()
        self._clear()

    def __deepcopy__(self, memo):
        if self.is_on_gpu:
            raise NotImplementedError("a packed cache on a GPU cannot be copied")
        copied = memo[id(self)] = copy.copy(self)
        for name, value in vars(self).items():
            copied.__dict__[name] = copy.deepcopy(value, memo)
        return copied

    def _clear(self):
        self.blocks = self.codecs = self._tail = None
        self.n_tail, self._spare = 0, None
        self.is_initialized = False
        # Whether attention_forward() is what follows: it saw keys of this layer. And whether it has
        # yet to see those of a call, which are the new tokens alone; of several tokens _past is
        # what came before: a number of blocks, and dense keys and values. is_unmasked: every token
        # sees all before it, whatever mask transformers makes (it makes one while it is captured).
        self._is_seen = self._is_due = self.is_unmasked = False
        self._past = None

    # --- Sizes

    @property
    def keys(self):
        """The dense keys behind the packed ones."""
        return None if self._tail is None else self._tail[0][:, :, :self.n_tail]

    @property
    def values(self):
        return None if self._tail is None else self._tail[1][:, :, :self.n_tail]

    @keys.setter
    def keys(self, keys):
        self._refuse_assignment(keys)

    @values.setter
    def values(self, values):
        self._refuse_assignment(values)

    @staticmethod
    def _refuse_assignment(tensor):
        if tensor is not None:
            raise UnsupportedError("keys and values of a TqcacheLayer cannot be replaced")

    @property
    def n_packed(self) -> int:
        return 0 if self.blocks is None else self.blocks.n_blocks * BLOCK

    @property
    def nbytes(self) -> int:
        """Bytes that the layer keeps."""
        if not self.is_initialized:
            return 0
        return self.blocks.nbytes + sum(t.numel() * t.element_size() for t in self._tail)

    @property
    def is_on_gpu(self) -> bool:
        """Whether blocks are packed in the memory of a GPU."""
        return isinstance(self.blocks, GpuBlocks)

    def get_seq_length(self) -> int:
        return self.n_packed + self.n_tail

    # --- Making

    def lazy_initialization(self, key_states, value_states):
        if key_states.dtype not in DTYPES or value_states.dtype != key_states.dtype:
            raise UnsupportedError(f"keys of {key_states.dtype}, values of {value_states.dtype}")
        self.dtype, self.device = key_states.dtype, key_states.device
        batch, heads = key_states.shape[:2]
        shapes = [t.shape for t in (key_states, value_states)]
        self.codecs = tuple(
            codec.Codec(heads, shape[3], config, kind=kind, dtype=DTYPES[self.dtype],
                        rope=self._rope if kind == "keys" else None, layer=self._layer)
            for shape, config, kind in zip(shapes, self._configs, ("keys", "values")))
        self.blocks = None
        row_bytes = [shape[3] * key_states.element_size() for shape in shapes]
        if self.device.type == "cuda" and all(n % 16 == 0 for n in row_bytes):
            self.blocks = self._gpu_blocks(batch)
        if self.blocks is None:
            self.blocks = CpuBlocks(self.codecs, self._threads)
        # On a GPU the tail stays where it is, with room for all that it may become.
        self._tail = [torch.zeros((*shape[:2], self._room if self.is_on_gpu else 0, shape[3]),
                                  dtype=self.dtype, device=self.device) for shape in shapes]
        self.is_initialized = True

    def _gpu_blocks(self, batch):
        """None where there are no kernels for this GPU or for the codecs."""
        with torch.cuda.device(self.device):
            if not cuda.available():
                return None
            try:
                blocks = GpuBlocks(self.codecs, batch, self.dtype, self.device)
            except cuda.CudaError as error:
                if error.status != 2:
                    raise
                return None
        self._n_tail = torch.zeros(batch, dtype=torch.int32, device=self.device)
        self._token = None
        register_attention()
        return blocks

    # --- Tokens

    @torch.no_grad()
    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if key_states.shape[0] != self._tail[0].shape[0]:
            raise UnsupportedError(f"{key_states.shape[0]} rows, where the cache has "
                                   f"{self._tail[0].shape[0]}")
        if self._is_due:
            self._is_due = False
            raise RuntimeError("the attention implementation was changed while a cache was in use: "
                               "the last call saw its own tokens alone")
        keys, values = key_states.detach(), value_states.detach()
        if keys.shape[2] == 1:
            return self._add_token(keys, values)
        # The tokens of this call are used as they came, and packed afterwards.
        is_first = self.get_seq_length() == 0
        if self._can_be_due() and self.n_packed > 0 and self.dtype != torch.float32 \
                and keys.dtype == self.dtype and self.blocks.can_attend():
            self._past = (self.blocks.n_blocks,
                          [tail[:, :, :self.n_tail].clone() for tail in self._tail])
            self._add_tokens(keys, values)
            return self._due(keys, values)
        result = (keys, values) if is_first else self._dense_with(keys, values)
        self._add_tokens(keys, values)
        return self._shown(result)

    def _add_tokens(self, keys, values):
        """Packs whole blocks of the tail and these tokens; what is recent becomes the tail."""
        if self.n_tail > 0:
            keys, values = (torch.cat([tail[:, :, :self.n_tail], new], dim=2)
                            for tail, new in zip(self._tail, (keys, values)))
        n = max(0, keys.shape[2] - self._recent) // BLOCK * BLOCK
        if n > 0:
            self.blocks.append(keys[:, :, :n], values[:, :, :n])
        self._set_tail(keys[:, :, n:], values[:, :, n:])

    def _set_tail(self, keys, values):
        self.n_tail = keys.shape[2]
        if not self.is_on_gpu:  # copies, so that the memory of packed tokens is given back
            self._tail = [keys.clone(), values.clone()]
            return
        for tail, new in zip(self._tail, (keys, values)):
            tail[:, :, :self.n_tail] = new
        self._n_tail.fill_(self.n_tail)

    def make_room(self):
        """Packs the oldest block of a full tail, so that a token can be added."""
        if self.n_tail < self._room:
            return
        self.blocks.append(*(tail[:, :, :BLOCK] for tail in self._tail))
        self._set_tail(*(tail[:, :, BLOCK:].clone() for tail in self._tail))

    def _add_token(self, keys, values):
        self.make_room()
        if self.is_on_gpu:
            if self._token is None:
                self._token = cuda.prepare_append(*self._tail, self._n_tail)
            cuda.append_prepared(self._token[0], keys.to(self.dtype), values.to(self.dtype),
                                 torch.cuda.current_stream(self.device).cuda_stream)
            self.n_tail += 1
        else:
            self._set_tail(*(torch.cat([tail, new.to(self.dtype)], dim=2)
                             for tail, new in zip(self._tail, (keys, values))))
        if self._can_be_due():
            return self._due(keys, values)
        return self._shown(self.dense())

    def _can_be_due(self):
        """Whether attention_forward() follows. The model's config tells when that was changed."""
        return self._is_seen and getattr(self._config, "_attn_implementation", "sdpa") == "sdpa"

    def _due(self, keys, values):
        self._is_due = True
        keys.tqcache_layer = self
        return keys, values

    def _shown(self, result):
        """Keys and values of all tokens, by whose attention it becomes known which one it is."""
        if self.is_on_gpu and self.blocks.can_attend():
            result[0].tqcache_layer = self
        return result

    def dense(self):
        """All keys and values, [batch, heads, tokens, head_dim], on the layer's device. Raises
        tqcache.cuda.CudaError if a packed number on a GPU is not finite."""
        if not self.is_initialized:
            return None, None
        return self._dense_with(*(tail[:, :, :0] for tail in self._tail))

    def _dense_with(self, keys, values, past=None):
        """All keys and values, or those of the past, and then these, written once."""
        n_blocks, tails = past or (self.n_packed // BLOCK,
                                   [tail[:, :, :self.n_tail] for tail in self._tail])
        n, n_all = n_blocks * BLOCK, n_blocks * BLOCK + tails[0].shape[2]
        out = tuple(torch.empty((*tail.shape[:2], n_all + keys.shape[2], tail.shape[3]),
                                dtype=self.dtype, device=self.device) for tail in tails)
        if n > 0:
            self.blocks.decode(*(each[:, :, :n] for each in out))
        for each, tail, new in zip(out, tails, (keys, values)):
            each[:, :, n:n_all] = tail
            each[:, :, n_all:] = new
        return out

    def attend(self, queries, scaling=None):
        """Attention of one decode step: queries [batch, query heads, 1, head_dim], on a GPU."""
        q = queries[:, :, 0].detach().to(self.dtype).contiguous()
        out = self.blocks.attend(q, scaling, self._tail, self._n_tail, self._workspace)
        return out.to(queries.dtype)[:, :, None]

    def attend_prompt(self, queries, keys, values, past, scaling=None):
        """Attention of several new tokens to themselves and to the past, which is never decoded as
        a whole. Parts are joined by the sums of their weights, in f32."""
        n_blocks, tails = past

        def parts():
            if tails[0].shape[2] > 0:
                yield tails
            for first in range(0, n_blocks, PIECE):
                n = min(PIECE, n_blocks - first) * BLOCK
                room = [keys.new_empty((*x.shape[:2], n, x.shape[3])) for x in (keys, values)]
                self.blocks.decode(*room, first)
                yield room

        flash = torch.ops.aten._scaled_dot_product_flash_attention
        q = queries.detach().to(self.dtype)
        out, sums = flash(q, keys, values, 0.0, True, scale=scaling)[:2]
        out = out.float()
        for part in parts():
            other, weights = flash(q, *part, 0.0, False, scale=scaling)[:2]
            out.lerp_(other.float(), torch.sigmoid(weights - sums)[..., None])
            sums = torch.logaddexp(sums, weights)
        return out.to(queries.dtype)

    def write_to(self, writer):
        """Adds the layer to a tqcache.Writer: blocks as they are packed, of a batch of 1."""
        if self.get_seq_length() == 0 or self._tail[0].shape[0] != 1:
            raise UnsupportedError("a TqcacheLayer without tokens, or of a batch")
        packed = list(self.blocks.packed(0))
        tails = [tail[0, :, :self.n_tail].to("cpu").contiguous() for tail in self._tail]
        # In a file every full block is packed, also the recent one.
        n = self.n_tail // BLOCK * BLOCK
        for i, (each, tail) in enumerate(zip(self.codecs, tails)):
            if n > 0:
                if not each.is_fitted:
                    each.fit(tail[:, :BLOCK].contiguous())
                packed[i] += each.encode(tail[:, :n].contiguous(), self.blocks.n_blocks)
        writer.packed(self.codecs[0], packed[0], self.codecs[1], packed[1],
                      *(tail[:, n:].contiguous() for tail in tails))

    # --- What transformers calls

    def reset(self) -> None:
        self._clear()

    def crop(self, tokens_to_remove: int) -> None:
        """Whole blocks before the cut stay packed; the rest of the block that is cut becomes
        dense."""
        if tokens_to_remove > 0:
            raise ValueError(f"crop: {tokens_to_remove}, where a negative number is expected, of "
                             "tokens to remove")
        if tokens_to_remove == 0 or not self.is_initialized:
            return
        n = max(0, self.get_seq_length() + tokens_to_remove)
        if n >= self.n_packed:
            self._set_tail(*(tail[:, :, :n - self.n_packed].clone() for tail in self._tail))
            return
        n_blocks = n // BLOCK
        rest = [each[:, :, n_blocks * BLOCK:n].clone() for each in self.dense()]
        self.blocks.truncate(n_blocks)
        self._set_tail(*rest)

    def reorder_cache(self, beam_idx) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices) -> None:
        if not self.is_initialized:
            return
        rows = torch.arange(self._tail[0].shape[0])[indices.cpu()]
        self.blocks.select(rows)
        self._tail = [tail[rows.to(self.device)] for tail in self._tail]
        if self.is_on_gpu:
            self._n_tail = torch.full((len(rows),), self.n_tail, dtype=torch.int32,
                                      device=self.device)
            self._token = None

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.is_initialized:
            rows = torch.arange(self._tail[0].shape[0])
            self.batch_select_indices(rows.repeat_interleave(repeats))

    def offload(self):
        raise UnsupportedError("a TqcacheLayer is not moved to another device")

    prefetch = offload


class TqcacheCache(Cache):
    """A cache whose full-attention layers are TqcacheLayers.

    bits: of keys and values; or give `keys` and `values`, configurations of tqcache.codec as
    "mse:3". config: of the model; needed for models with sliding windows or linear attention, whose
    layers stay as they are, and lets keys be centered before their rotary embedding, which makes
    the error smaller. recent: so many newest tokens are dense at least. threads: of the codec on the
    CPU, 0: all processors.
    """

    def __init__(self, bits: int = 4, *, keys: str | None = None, values: str | None = None,
                 config=None, recent: int = 32, threads: int = 0):
        check_bits(bits)
        options = {"bits": bits, "keys": keys, "values": values, "recent": recent,
                   "threads": threads, "workspace": Workspace()}
        self.rope = None
        if config is None:
            super().__init__(layer_class_to_replicate=lambda: TqcacheLayer(
                **options, layer=len(self.layers)))
            return
        config = text_config(config)
        self.rope = options["rope"] = rope_of(config)
        options["config"] = config
        super().__init__(layers=[
            TqcacheLayer(**options, layer=i) if type(layer) is DynamicLayer else layer
            for i, layer in enumerate(DynamicCache(config=config).layers)])

    @property
    def nbytes(self) -> int:
        """Bytes that all layers keep."""
        return sum(bytes_of_layer(layer) for layer in self.layers)


def bytes_of_layer(layer) -> int:
    """Bytes that a layer of any class keeps."""
    if isinstance(layer, TqcacheLayer):
        return layer.nbytes
    tensors = [getattr(layer, name, None) for name in ("keys", "values")]
    for name in ("conv_states", "recurrent_states"):
        tensors += (getattr(layer, name, None) or {}).values()
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


# --- Attention on a GPU

_sdpa = None  # what transformers did for "sdpa"


def register_attention():
    """Makes transformers' attention "sdpa" attend to packed blocks where keys are of a TqcacheLayer
    on a GPU, and do what it did before with all others. The first such layer calls it."""
    global _sdpa
    if _sdpa is None:
        _sdpa = ALL_ATTENTION_FUNCTIONS["sdpa"]
        AttentionInterface.register("sdpa", attention_forward)


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None,
                      **kwargs):
    layer = getattr(key, "tqcache_layer", None)
    if layer is not None:
        layer._is_seen = True
        if layer._is_due:
            layer._is_due = False
            is_plain = not dropout and not any(
                kwargs.get(name) is not None
                for name in ("softcap", "s_aux", "sliding_window", "position_bias"))
            if layer._past is not None:
                past, layer._past = layer._past, None
                if is_plain and attention_mask is not None \
                        and layer._workspace.is_causal(attention_mask):
                    return layer.attend_prompt(query, key, value, past,
                                               scaling).transpose(1, 2).contiguous(), None
                key, value = layer._dense_with(key, value, past)
            elif is_plain and (attention_mask is None or layer.is_unmasked):
                try:
                    return layer.attend(query, scaling).transpose(1, 2), None
                except cuda.CudaError as error:
                    if error.status != 2:  # 2: no kernel for these widths or this GPU
                        raise
                    key, value = layer.dense()
            else:
                key, value = layer.dense()
    return _sdpa(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling,
                 **kwargs)
