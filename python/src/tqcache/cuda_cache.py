"""A cache for transformers whose keys and values stay packed in the memory of a GPU.

    from tqcache.cuda_cache import CudaCache, register_attention

    register_attention()                                        # once in a process
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="tqcache").cuda()
    model.generate(**inputs, past_key_values=CudaCache(model.config, bits=4))

Layers of full attention hold pages of 256 packed tokens, and up to 256 recent tokens densely. A
decode step attends to the packed codes themselves (attention "tqcache"). Prompts are attended to
densely, as transformers does it, and packed afterwards. Whatever the kernels cannot do (padding on
the left, masks, other attention implementations, windows within a layer) is done on decoded keys
and values, so results are right, only slower. Layers with sliding windows or recurrent state stay
as transformers has them.
"""

import math
import threading

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from . import cuda

_DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}
_pending = threading.local()  # the layer whose attention call is still to come


def _stream(device):
    return torch.cuda.current_stream(device).cuda_stream


class CudaLayer(DynamicLayer):
    """Packed keys and values of one layer of full attention.

    Shapes: key_pages, value_pages u8 [pages, page_bytes]; table i32 [batch, blocks]: the page of
    each block. tail_keys, tail_values [batch, kv heads, 256, head_dim]: the n_tail newest tokens.
    The first n_sinks tokens are dense. They begin where the first page of their sequence ends, in
    pages that no block uses, so that other pages have no room for sink tokens.
    """

    is_croppable = False

    def __init__(self, bits=4, value_bits=None, n_sinks=4, inv_freq=None, is_packed_read=None):
        """inv_freq: RoPE's frequencies, if the mean of keys is to be taken before RoPE; None: after
        it. is_packed_read(): whether the attention that follows is tqcache's."""
        super().__init__()
        self.bits, self.value_bits = bits, value_bits or bits
        self.n_sinks, self.inv_freq = n_sinks, inv_freq
        self.is_packed_read = is_packed_read or (lambda: False)
        self._clear()

    def _clear(self):
        self.n_packed = self.n_tail = self.n_blocks = 0
        self.key_pages = self.value_pages = self.tail_keys = self.tail_values = None
        self.key_center = self.value_center = None
        self.is_initialized = False

    # --- Making

    def lazy_initialization(self, key_states, value_states):
        if not key_states.is_cuda:
            raise ValueError("CudaLayer: keys are not on a GPU")
        if key_states.dtype not in _DTYPES or key_states.shape != value_states.shape:
            raise ValueError("CudaLayer: f32, f16 or bf16 keys and values of one shape are needed")
        self.dtype, self.device = key_states.dtype, key_states.device
        self.batch, self.n_kv_heads, _, self.head_dim = key_states.shape
        shape = (self.batch, self.n_kv_heads, cuda.BLOCK, self.head_dim)
        with torch.cuda.device(self.device):
            self.key_codec = cuda.Codec(self.head_dim, self.bits, "keys")
            self.value_codec = cuda.Codec(self.head_dim, self.value_bits, "values")
        sizes = [c.page_bytes(self.n_kv_heads) for c in (self.key_codec, self.value_codec)]
        sink_bytes = self.n_kv_heads * self.n_sinks * self.head_dim * key_states.element_size()
        self.first_pages = 1 + -(-sink_bytes // min(sizes))  # of a sequence: its first, its sinks
        make = {"device": self.device}
        self.key_pages, self.value_pages = (
            torch.empty(0, size, dtype=torch.uint8, **make) for size in sizes)
        self.tail_keys = torch.zeros(shape, dtype=self.dtype, **make)
        self.tail_values = torch.zeros(shape, dtype=self.dtype, **make)
        self.table = torch.zeros(self.batch, 1, dtype=torch.int32, **make)
        self.counts = torch.zeros(2, self.batch, dtype=torch.int32, **make)  # packed, tail
        self.status = torch.full((1,), -1, dtype=torch.int32, **make)
        self.attention = cuda.Attention(lambda n: torch.empty(n, dtype=torch.uint8, **make))
        self.is_initialized = True

    def _choose_centers(self, keys, values):
        """The means of the first token block, without sink tokens: of values, and of keys before
        RoPE (docs/reference/codec.md, 8)."""
        first = slice(self.n_sinks, cuda.BLOCK)
        keys, values = keys[:, :, first], values[:, :, first]
        mean = keys.float().mean(dim=(0, 2))
        if self.inv_freq is not None:
            # Keys are turned back in f32: positions are exact integers, angles are in f64.
            frequency = self.inv_freq.to(self.device, torch.float64)
            n = frequency.numel()
            position = torch.arange(self.n_sinks, cuda.BLOCK, device=self.device,
                                    dtype=torch.float64)
            angle = position[:, None] * frequency
            cos, sin = angle.cos().float(), angle.sin().float()
            low, high = keys[..., :n].float(), keys[..., n:2 * n].float()
            mean = torch.cat([(low * cos + high * sin).mean(dim=(0, 2)),
                              (high * cos - low * sin).mean(dim=(0, 2)), mean[:, 2 * n:]], dim=-1)
            place = torch.arange(cuda.BLOCK, device=self.device, dtype=torch.float64)
            angle = place[:, None] * frequency
            self.key_center = cuda.Centering(
                mean.contiguous(), frequency / (2 * math.pi), angle.cos().float().contiguous(),
                angle.sin().float().contiguous())
        else:
            self.key_center = cuda.Centering(mean.contiguous())
        self.value_center = cuda.Centering(values.float().mean(dim=(0, 2)).contiguous())

    # --- Packing and decoding

    def _sinks(self, pages, sequence):
        """The sink tokens [kv heads, n_sinks, head_dim] within the first page of a sequence."""
        begin = (sequence * self.first_pages + 1) * pages.shape[1]
        n = self.n_kv_heads * self.n_sinks * self.head_dim * self.tail_keys.element_size()
        return pages.view(-1)[begin:begin + n].view(self.dtype).view(
            self.n_kv_heads, self.n_sinks, self.head_dim)

    def _pack(self, keys, values):
        """Packs whole blocks of dense tokens, [batch, kv heads, n * 256, head_dim], behind the
        packed ones."""
        n_blocks = keys.shape[2] // cuda.BLOCK
        first = self.n_packed // cuda.BLOCK
        if self.key_center is None:
            self._choose_centers(keys, values)
        if first + n_blocks > self.n_blocks:
            # Behind a prompt a little more than needed: not each block copies all pages.
            self.n_blocks = first + n_blocks + (first // 32 if n_blocks == 1 else 0)
            n_pages = self.batch * (self.first_pages + self.n_blocks - 1)
            for name in ("key_pages", "value_pages"):
                old = getattr(self, name)
                new = torch.empty(n_pages, old.shape[1], dtype=torch.uint8, device=self.device)
                new[:old.shape[0]] = old
                setattr(self, name, new)
            sequence = torch.arange(self.batch, dtype=torch.int32, device=self.device)[:, None]
            block = torch.arange(self.n_blocks, dtype=torch.int32, device=self.device)
            later = self.batch * (self.first_pages + block - 1) + sequence
            self.table = torch.where(block == 0, sequence * self.first_pages, later).contiguous()
        stream = _stream(self.device)
        for dense, pages, codec, center in (
            (keys, self.key_pages, self.key_codec, self.key_center),
            (values, self.value_pages, self.value_codec, self.value_center),
        ):
            dense = dense.contiguous()
            n = codec.workspace_bytes(self.n_kv_heads, dense.shape[2], center, stream)
            work = torch.empty(max(n, 16), dtype=torch.uint8, device=self.device)
            for s in range(self.batch):
                ids = self.table[s, first:first + n_blocks].contiguous()
                codec.encode(dense[s], pages, page_ids=ids, centering=center, first_block=first,
                             n_skipped=self.n_sinks if first == 0 else 0, workspace=work,
                             status=self.status, stream=stream)
                if first == 0 and self.n_sinks > 0:
                    self._sinks(pages, s).copy_(dense[s, :, :self.n_sinks])
        self.n_packed += n_blocks * cuda.BLOCK
        self.counts[0].fill_(self.n_packed)

    def dense(self):
        """Keys and values of all tokens, [batch, kv heads, tokens, head_dim]: the packed ones
        decoded. Waits for the GPU, and raises CudaError if a packed value was not finite."""
        if not self.is_initialized:
            raise ValueError("CudaLayer: no tokens yet")
        cuda.check_status(self.status.item())
        shape = (self.batch, self.n_kv_heads, self.get_seq_length(), self.head_dim)
        stream, out = _stream(self.device), []
        for pages, tail, codec, center in (
            (self.key_pages, self.tail_keys, self.key_codec, self.key_center),
            (self.value_pages, self.tail_values, self.value_codec, self.value_center),
        ):
            rows = torch.empty(shape, dtype=self.dtype, device=self.device)
            rows[:, :, self.n_packed:] = tail[:, :, :self.n_tail]
            if self.n_packed > 0:
                n = codec.workspace_bytes(self.n_kv_heads, self.n_packed, center, stream)
                work = torch.empty(max(n, 16), dtype=torch.uint8, device=self.device)
                for s in range(self.batch):
                    ids = self.table[s, :self.n_packed // cuda.BLOCK].contiguous()
                    codec.decode(pages, rows[s, :, :self.n_packed], page_ids=ids, centering=center,
                                 n_skipped=self.n_sinks, workspace=work, stream=stream)
                    rows[s, :, :self.n_sinks] = self._sinks(pages, s)
            out.append(rows)
        return out[0], out[1]

    # --- What transformers calls

    @torch.no_grad()
    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if key_states.shape[0] != self.batch:
            raise ValueError("CudaLayer: the number of sequences changed")
        key_states, value_states = key_states.detach(), value_states.detach()
        n_new = key_states.shape[2]
        is_first = self.get_seq_length() == 0
        is_step = n_new == 1 and not is_first and self.is_packed_read()
        _pending.layer = None
        if n_new == 1:
            # A full tail is packed before the next token comes, so recent tokens are dense.
            if self.n_tail == cuda.BLOCK:
                self._pack(self.tail_keys, self.tail_values)
                self.n_tail = 0
            self.tail_keys[:, :, self.n_tail] = key_states[:, :, 0]
            self.tail_values[:, :, self.n_tail] = value_states[:, :, 0]
            self.n_tail += 1
        else:
            keys = torch.cat([self.tail_keys[:, :, :self.n_tail], key_states], dim=2)
            values = torch.cat([self.tail_values[:, :, :self.n_tail], value_states], dim=2)
            # The newest 1 to 256 tokens stay dense.
            n_pack = max(0, keys.shape[2] - 1) // cuda.BLOCK * cuda.BLOCK
            before = None if is_first else self.dense()
            if n_pack > 0:
                self._pack(keys[:, :, :n_pack], values[:, :, :n_pack])
            self.n_tail = keys.shape[2] - n_pack
            self.tail_keys[:, :, :self.n_tail] = keys[:, :, n_pack:]
            self.tail_values[:, :, :self.n_tail] = values[:, :, n_pack:]
        self.counts[1].fill_(self.n_tail)
        if is_step:
            _pending.layer = self
            key_states.tqcache_layer = self
            return key_states, value_states
        if n_new == 1:
            return self.dense()
        if is_first:
            return key_states, value_states
        return (torch.cat([before[0], key_states], dim=2),
                torch.cat([before[1], value_states], dim=2))

    def attend(self, queries, scale=None):
        """Attention of one decode step: queries [batch, query heads, 1, head_dim]."""
        q = queries[:, :, 0].detach().contiguous()
        if q.dtype != self.dtype:
            q = q.to(self.dtype)
        out = torch.empty_like(q)
        with torch.cuda.device(self.device):
            self.attention(
                q, out, cuda.Side(self.key_codec, self._some(self.key_pages), self.key_center),
                cuda.Side(self.value_codec, self._some(self.value_pages), self.value_center),
                page_table=self.table, n_packed=self.counts[0], n_sinks=self.n_sinks,
                sink_dtype=_DTYPES[self.dtype], scale=scale,
                tail=(self.tail_keys, self.tail_values, self.counts[1]),
                stream=_stream(self.device))
        return out.to(queries.dtype)[:, :, None]

    def _some(self, pages):
        """Pages, or one without meaning while nothing is packed: the kernels want an address."""
        return pages if pages.shape[0] > 0 else torch.zeros(
            1, pages.shape[1], dtype=torch.uint8, device=self.device)

    def get_seq_length(self):
        return self.n_packed + self.n_tail

    def get_mask_sizes(self, query_length):
        return self.get_seq_length() + query_length, 0

    @property
    def nbytes(self):
        """Bytes of GPU memory that hold keys and values, unused ones included."""
        tensors = (self.key_pages, self.value_pages, self.tail_keys, self.tail_values)
        return sum(t.numel() * t.element_size() for t in tensors if t is not None)

    def reset(self):
        self._clear()

    def reorder_cache(self, beam_idx):
        if not self.is_initialized:
            return
        index = beam_idx.to(self.device)
        for name in ("key_pages", "value_pages"):
            pages = getattr(self, name)
            n_first = min(self.batch * self.first_pages, pages.shape[0])
            first = pages[:n_first].view(-1, self.first_pages, pages.shape[1])
            later = pages[n_first:].view(-1, self.batch, pages.shape[1])
            if n_first > 0:
                setattr(self, name, torch.cat([
                    first.index_select(0, index).flatten(0, 1),
                    later.index_select(1, index).flatten(0, 1)]))
        self.tail_keys = self.tail_keys.index_select(0, index)
        self.tail_values = self.tail_values.index_select(0, index)

    def _refuse(self, *args, **kwargs):
        raise NotImplementedError(
            "CudaLayer: packed tokens cannot be cropped, copied between sequences or offloaded; "
            "use to_dynamic_cache()")

    crop = batch_repeat_interleave = batch_select_indices = offload = prefetch = _refuse


class CudaCache(Cache):
    """A transformers cache with CudaLayer for every layer of full attention.

    bits, value_bits: 2, 3, 4 or 8 for keys and values (kernels exist for 2/2, 3/3, 4/4, 8/8, 8/4,
    4/3, 4/2 and 3/4). n_sinks: first tokens that stay dense. center: "rope" subtracts the mean of
    keys before RoPE where the model's RoPE is known ("default" type), "mean" after RoPE.

    Packed decode steps need attn_implementation="tqcache" and head_dim 64, 128 or 256; without them
    keys and values are decoded for each step, which is slow and right.
    """

    def __init__(self, config, bits=4, value_bits=None, n_sinks=4, center="rope"):
        if center not in ("rope", "mean"):
            raise ValueError('center: "rope" or "mean"')
        text = config.get_text_config(decoder=True)
        inv_freq = _inv_freq(text) if center == "rope" else None

        def is_packed_read():
            return text._attn_implementation == "tqcache"

        layers = [
            CudaLayer(bits, value_bits, n_sinks, inv_freq, is_packed_read)
            if type(layer) is DynamicLayer else layer
            for layer in DynamicCache(config=config).layers
        ]
        super().__init__(layers=layers)

    def to_dynamic_cache(self):
        """A DynamicCache with the same tokens, decoded. Layers of other kinds are shared."""
        out = DynamicCache()
        out.layers, out.layer_class_to_replicate = [], None
        for layer in self.layers:
            if isinstance(layer, CudaLayer):
                plain = DynamicLayer()
                plain.update(*layer.dense())
                layer = plain
            out.layers.append(layer)
        return out

    @property
    def nbytes(self):
        """Bytes of GPU memory of the layers of full attention."""
        return sum(layer.nbytes for layer in self.layers if isinstance(layer, CudaLayer))


def _inv_freq(config):
    """Frequencies of plain RoPE (no scaling) in f64, or None."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type", "default") != "default" or "rope_theta" not in rope:
        return None  # a scaling, or one RoPE for each kind of layer
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    n_dims = int(head_dim * rope.get("partial_rotary_factor", 1.0))
    exponent = torch.arange(0, n_dims, 2, dtype=torch.float64) / n_dims
    return rope["rope_theta"] ** -exponent


def attention_forward(module, query, key, value, attention_mask, dropout=0.0, scaling=None,
                      **kwargs):
    """The attention function "tqcache" of transformers."""
    layer = getattr(key, "tqcache_layer", None)
    waiting, _pending.layer = getattr(_pending, "layer", None), None
    if layer is None:
        if waiting is not None:
            # The model changed the keys between cache and attention, or left out an attention call.
            raise RuntimeError(
                f"{type(module).__name__} does not hand the keys of its cache to the attention "
                'function unchanged; use another attn_implementation than "tqcache"')
        return sdpa_attention_forward(module, query, key, value, attention_mask, dropout=dropout,
                                      scaling=scaling, **kwargs)
    needs_dense = attention_mask is not None or layer.head_dim not in (64, 128, 256) or any(
        kwargs.get(name) is not None for name in ("softcap", "s_aux", "sliding_window",
                                                  "position_bias"))
    if not needs_dense:
        try:
            return layer.attend(query, scaling).transpose(1, 2).contiguous(), None
        except cuda.CudaError as error:
            if error.status != 2:  # 2: no kernel for these widths or this GPU
                raise
    keys, values = layer.dense()
    return sdpa_attention_forward(module, query, keys, values, attention_mask, dropout=dropout,
                                  scaling=scaling, **kwargs)


def register_attention():
    """Registers the attention function "tqcache" with transformers."""
    AttentionInterface.register("tqcache", attention_forward)
    AttentionMaskInterface.register("tqcache", sdpa_mask)
