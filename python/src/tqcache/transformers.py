"""Hugging Face transformers: caches in files, and a cache that stays packed while generating.

    import tqcache.transformers as tq

    tq.save(out.cache, "prompt.tqkv", model, tokenizer, input_ids=ids)   # 4 bits
    cache = tq.load("prompt.tqkv", model)                                # DynamicCache
    model.generate(ids, cache=cache)

    model.generate(ids, cache=tq.TqcacheCache(bits=4))

Kept are full attention, sliding windows and linear attention, of one prompt (a batch of 1).
Needs transformers 5; before 5.24 `cache` is named past_key_values. See docs/guide/plugins.md.
"""

import contextlib
import inspect
import os
import tempfile

import torch
from transformers import cache_utils

import tqcache
from tqcache import (Identity, MediaSpan, MismatchError, UnsupportedError, UsageError, _media, _ranks,
                     hf_file)
from tqcache.packed_cache import DTYPES as _DTYPES
from tqcache.packed_cache import TqcacheCache, TqcacheLayer, bytes_of_layer
from tqcache.packed_cache import rope_of as _rope
from tqcache.packed_cache import text_config as _text_config
from tqcache.step_graphs import step_graphs

__all__ = ["TqcacheCache", "TqcacheLayer", "bytes_of_layer", "identity_of", "load", "media_of",
           "positions", "save", "step_graphs", "tokens"]


# --- What is known of a model

def identity_of(model, tokenizer=None) -> Identity:
    """The identity of a model that transformers loaded. With fingerprints if it came from a folder
    of a family that tqcache knows, otherwise by its type and name only."""
    if getattr(model, "peft_config", None):
        raise UnsupportedError("a model with adapters: its caches look like those without")
    name = str(getattr(model, "name_or_path", "") or "")
    config = _text_config(model)
    is_same = config.model_type not in tqcache.KEYS_IN_PAIRS | tqcache.LATENTS_IN_HALVES
    if is_same and os.path.isfile(os.path.join(name, "config.json")):
        try:
            return Identity.of_model(name)
        except UnsupportedError:
            pass
    return Identity(config.model_type, os.path.basename(name.rstrip("/")), rope=_rope(config),
                    source_format="transformers")


def _check_identity(found: Identity, model) -> None:
    expected = identity_of(model)
    if (expected.architecture in tqcache.KEYS_IN_PAIRS
            and not found.source_format.startswith("transformers")):
        raise MismatchError(f"the cache was made by {found.source_format or 'another program'}, where "
                            f"the keys of {expected.architecture} have another order")
    if (expected.architecture in tqcache.LATENTS_IN_HALVES
            and (found.rope.style == "interleaved"
                 or not found.source_format.startswith("transformers"))):
        raise MismatchError(f"the cache has the rotated parts of {expected.architecture}'s keys in "
                            "another order: tqcache convert --to hf, and load that file")
    # A fingerprint of zeros is an unknown one.
    if any(found.weights_fingerprint) and any(expected.weights_fingerprint):
        if found.weights_fingerprint != expected.weights_fingerprint:
            raise MismatchError("the cache is of another model: its weights differ")
    elif found.architecture and found.architecture != expected.architecture:
        raise MismatchError(f"the cache is of a model of type {found.architecture}, "
                            f"and not {expected.architecture}")


# --- Media

def _as_array(tensor):
    return torch.as_tensor(tensor).detach().to("cpu", torch.float32).numpy()


def media_of(model, inputs, *, position_ids=None, ids=None) -> list[MediaSpan]:
    """The images, sounds and videos among the tokens of a prompt, for save().

    inputs: what the model's processor returned for one prompt. Runs of the config's image, video
    and audio tokens are media. position_ids: those of the prompt, [3, n] or [3, 1, n], for models
    with M-RoPE; without them the model's get_rope_index() makes them, if it has one.
    ids: names of the media in their order, such as digests of their files; without them, digests
    of what the processor made of them.

    Errors: UsageError if there are no names and the parts of `inputs` cannot be told apart.
    """
    return _media.spans(getattr(model, "config", model), inputs, _as_array,
                        lambda: _coordinates(model, inputs, position_ids), ids)


def _coordinates(model, inputs, position_ids):
    """Time, row and column of each token, [3, n]; None for models that count tokens."""
    if position_ids is None:
        find = getattr(getattr(model, "model", model), "get_rope_index", None)
        if find is None:
            return None
        known = inspect.signature(find).parameters
        given = {name: inputs[name] for name in known if name in inputs}
        if "mm_token_type_ids" in known and "mm_token_type_ids" not in given:
            ids = torch.as_tensor(inputs["input_ids"])
            kinds = torch.zeros_like(ids, dtype=torch.int32)
            for kind, begin, end, _ in _media.runs(model.config, ids.reshape(-1).tolist()):
                kinds.view(-1)[begin:end] = {"image": 1, "video": 2, "audio": 3}[kind]
            given["mm_token_type_ids"] = kinds
        position_ids, _ = find(**given)
    position_ids = torch.as_tensor(position_ids)
    if position_ids.dim() == 3:
        position_ids = position_ids[:, 0]
    if position_ids.dim() != 2 or position_ids.shape[0] < 3:
        return None
    return position_ids[-3:].to("cpu", torch.int32).numpy()


# --- Saving

def _on_cpu(tensor, what):
    if tensor.is_meta:
        raise UnsupportedError(f"{what} is on the device meta, which holds no numbers")
    if tensor.dtype in hf_file.F8_DTYPES:
        tensor = tensor.to(torch.float16)  # which holds each number of 8 bits
    if tensor.dtype not in _DTYPES:
        raise UnsupportedError(f"{what} is of {tensor.dtype}")
    if tensor.dim() > 0 and tensor.shape[0] != 1:
        raise UnsupportedError(f"{what} is of a batch of {tensor.shape[0]}")
    return tensor.detach().to("cpu").contiguous()


def _bits(tensor):
    """A numpy view of a CPU tensor, for bf16 of its bits."""
    if tensor.dtype == torch.bfloat16:
        return tensor.view(torch.int16).numpy().view("uint16")
    return tensor.numpy()


def _n_tokens(cache) -> int:
    counts = {int(layer.get_seq_length()) for layer in cache.layers
              if hasattr(layer, "get_seq_length") and hasattr(layer, "keys")}
    if len(counts) != 1:
        raise UnsupportedError(f"layers of different numbers of tokens: {sorted(counts)}")
    return counts.pop()


def _add_layer(out, layer, window) -> None:
    """What a layer holds is known in hf_file alone. `window`: of the model, where the layer does not
    say it."""
    if isinstance(layer, TqcacheLayer):
        layer.write_to(out)
        return
    try:
        kind, window, parts, _ = hf_file.layer_of(layer, window)
    except hf_file.Unsupported as error:
        raise UnsupportedError(str(error)) from None
    parts = {name: _on_cpu(tensor, {"key": "the keys", "value": "the values"}.get(name, name))
             for name, tensor in parts.items()}
    if kind in ("linear_attention", "dummy"):
        bf16 = [name for name, state in parts.items() if state.dtype == torch.bfloat16]
        out.state({name: _bits(state) for name, state in parts.items()}, bf16=bf16)
        return
    keys, values = parts["key"], parts["value"]
    bf16 = keys.dtype == torch.bfloat16
    if kind == "full_attention":
        out.attention(_bits(keys)[0], _bits(values)[0], bf16=bf16)
    else:  # transformers counts the token that is being computed
        out.window(_bits(keys)[0], _bits(values)[0], window - 1, bf16=bf16)


def _is_hybrid(cache) -> bool:
    """Whether a layer of the cache is two of a .tqkv file, or beside its layers."""
    names = [type(layer).__name__ for layer in getattr(cache, "layers", ())]
    return type(cache).__name__ == "MiniMaxCache" or any(
        name.startswith("LinearAttentionAnd") for name in names)


@contextlib.contextmanager
def _beside(path):
    """The name of a .safetensors file in a private folder beside `path`, which is removed."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.TemporaryDirectory(prefix=".tqcache-", dir=folder) as own:
        yield os.path.join(own, "cache.safetensors")


def _save_by_file(cache, path, model, input_ids, row, attention_mask, config, identity, media,
                  options):
    """By way of a file of the schema tqcache-hf-1, which tqcache knows to be of hybrid layers."""
    ids = None if input_ids is None else torch.as_tensor(input_ids)
    for i, layer in enumerate(cache.layers):
        if isinstance(layer, TqcacheLayer):
            raise UnsupportedError(f"layer {i}: a TqcacheLayer in a batch or a hybrid cache")
    try:
        with _beside(path) as file:
            hf_file.save(cache, file, ids, getattr(model, "config", model), row, attention_mask, media)
            tqcache.convert(file, path, config, identity=identity, **options)
    except hf_file.Unsupported as error:
        raise UnsupportedError(str(error)) from None


def save(cache, path, model=None, tokenizer=None, *, input_ids=None, row=None, attention_mask=None,
         config: str | None = "turbo4", identity: Identity | None = None, media=(), rank=None,
         **options) -> None:
    """Writes a cache as a .tqkv file, or, if `path` ends in .safetensors, as a file of the schema
    tqcache-hf-1 (tqcache.hf_file), which keeps every number and takes `model`, `input_ids`, `row`
    and `attention_mask` only.

    input_ids: the tokens that the cache holds, [n] or [1, n]; without them nobody can tell later
    which prompt this is. What generate() returned has one more at its end, which is left out.
    row, attention_mask: one prompt of a batch, counted from 0, and which of its tokens are padding,
    on the left: [batch, n]. `input_ids` may then be those of the batch.
    model, tokenizer: give the identity that load() and tqcache compare; or give `identity`.
    config: a preset or a configuration ("turbo4": 4 bits, the first 4 tokens dense); None
    keeps every number as it is. A TqcacheCache is written as it is packed, without another loss:
    TqcacheCache(bits=4, config=...) gives the file that a DynamicCache gives with "turbo4".
    media: what is no text among the tokens, as media_of() finds it. Without it a cache that has seen
    an image says that it is of a text of placeholders.
    rank: (this process, number of processes), where a model's heads are split over processes
    (tensor parallelism). Each calls save() with the same `path` and writes its heads beside it,
    "prompt.rank-0-of-2.tqkv"; load() reads them with any number of processes.
    options: of tqcache.Writer (compress, force, hide_tokens, key_file, threads, progress).

    A row of a batch, hybrid layers (Falcon-H1) and MiniMax's caches are written by way of a file of
    the schema tqcache-hf-1 in a private folder beside `path`.

    Errors: UnsupportedError for layers of other kinds, and for batches without `row`; UsageError
    for a TqcacheCache that was made with the config of a model with another rotary embedding.
    """
    if rank is not None and (str(path).endswith(".safetensors") or row is not None
                             or attention_mask is not None or _is_hybrid(cache)):
        raise UnsupportedError("rank: with .tqkv files, one prompt, and no hybrid layers")
    if str(path).endswith(".safetensors"):
        hf_file.save(cache, path, input_ids, getattr(model, "config", model), row, attention_mask, media)
        return
    known = ("Cache", "DynamicCache", "StaticCache", "QuantizedCache", "TqcacheCache", "MiniMaxCache")
    if type(cache).__name__ not in known:
        raise UnsupportedError(f"a cache of class {type(cache).__name__}")
    packed = isinstance(cache, TqcacheCache)
    if identity is None:
        identity = identity_of(model, tokenizer) if model is not None else Identity(
            source_format="transformers", rope=cache.rope if packed else None)
    if packed and cache.rope is not None and identity.rope != cache.rope:
        raise UsageError(f"the keys were packed with {cache.rope}, and the model has "
                         f"{identity.rope}: make the TqcacheCache with the config of this model")
    if rank is not None:
        path, identity = _ranks.part_path(path, rank), _ranks.marked(identity, rank)
    if row is not None or attention_mask is not None or _is_hybrid(cache):
        _save_by_file(cache, path, model, input_ids, row, attention_mask, config, identity, media,
                      options)
        return
    n_tokens = _n_tokens(cache)
    ids = None
    if input_ids is not None:
        ids = torch.as_tensor(input_ids)
        if ids.dim() > 1 and ids.shape[0] != 1:
            raise UsageError(f"input_ids of a batch of {ids.shape[0]}: row= chooses one prompt")
        ids = ids.reshape(-1).to("cpu", torch.int64)
        if len(ids) == n_tokens + 1:
            ids = ids[:n_tokens]
        if len(ids) != n_tokens:
            raise UsageError(f"{len(ids)} input_ids for a cache of {n_tokens} tokens")
        ids = ids.numpy()
    with tqcache.Writer(path, tokens=ids, n_tokens=None if ids is not None else n_tokens,
                        identity=identity, config=None if packed else config, **options) as out:
        for span in media:
            out.media(span)
        for i, layer in enumerate(cache.layers):
            try:
                _add_layer(out, layer, hf_file.window_of(getattr(model, "config", model), i))
            except UnsupportedError as error:
                raise UnsupportedError(f"layer {i}: {error}") from None


# --- Loading

def _tensor(array, is_bf16: bool):
    tensor = torch.from_numpy(array.copy())
    return tensor.view(torch.bfloat16) if is_bf16 else tensor


def _keys_and_values(layer, dtype, device, first: int = 0):
    both = []
    for read, stored in ((layer.keys, layer.key_dtype), (layer.values, layer.value_dtype)):
        name = _DTYPES.get(dtype, stored) if dtype is not None else stored
        array = read(first, dtype=name)
        tensor = torch.from_numpy(array)
        if name == "bf16":
            tensor = tensor.view(torch.bfloat16)
        both.append(tensor.unsqueeze(0).to(device))
    return both


def _new_layer(layer, expected):
    """An empty layer of transformers for a layer of a file. `expected`: the one of the model's own
    cache, or None."""
    kind = type(expected).__name__ if expected is not None else None
    made = None
    if layer.kind == "attention":
        if kind == "DynamicSlidingWindowLayer":  # another program kept all of the tokens
            made = cache_utils.DynamicSlidingWindowLayer(sliding_window=expected.sliding_window)
        else:
            made = cache_utils.DynamicLayer()
    elif layer.kind == "window":
        if layer.keep:
            raise UnsupportedError("a window that keeps first tokens: transformers has none")
        made = cache_utils.DynamicSlidingWindowLayer(sliding_window=layer.window + 1)
        if kind == type(made).__name__ and expected.sliding_window != made.sliding_window:
            raise MismatchError(f"a window of {made.sliding_window} tokens, and the model's is "
                                f"{expected.sliding_window}")
    else:
        arrays = layer.arrays()
        if arrays:
            n_states = 1 + max(int(name.rpartition(".")[2]) for name in arrays)
            made = cache_utils.LinearAttentionLayer(number_of_states=n_states)
        else:
            made = cache_utils.DummyLayer()
    if kind is not None and kind != type(made).__name__:
        raise MismatchError(f"a layer of class {type(made).__name__}, and the model's is {kind}")
    return made


def _fill(made, layer, n_tokens: int, dtype, device) -> None:
    name = type(made).__name__
    if name == "DummyLayer":
        return
    if name == "LinearAttentionLayer":
        dtypes = layer.array_dtypes()
        for what, array in layer.arrays().items():
            kind, _, number = what.rpartition(".")
            if kind not in ("conv_states", "recurrent_states"):
                raise UnsupportedError(f"array {what}: not a state as transformers has them")
            state = _tensor(array, dtypes[what] == "bf16").to(device)
            if kind == "conv_states":
                made.update_conv_state(state, state_idx=int(number))
            else:
                made.update_recurrent_state(state, state_idx=int(number))
        return
    first = 0
    if name == "DynamicSlidingWindowLayer" and layer.kind == "attention":
        first = max(0, n_tokens - (made.sliding_window - 1))
    made.update(*_keys_and_values(layer, dtype, device, first))
    if name == "DynamicSlidingWindowLayer":
        made.cumulative_length = n_tokens


def load(path, model=None, *, device=None, dtype: torch.dtype | None = None, check: bool = True,
         key_file=None, rank=None):
    """A DynamicCache of what the file holds: a .tqkv file, or that of any program tqcache reads.

    model: a model or its config. The cache is compared with it (identity, layers, heads; without
    its identity if check is False), and goes to its device, in its dtype. Without a model it stays
    on the CPU, in the dtype of the file.

    rank: (this process, number of processes), as of save(): the heads of this process, from the
    file of a whole cache or from those that any number of processes wrote; (0, 1) is all heads.

    Errors: MismatchError for a cache of another model; those of tqcache.open().
    """
    if isinstance(model, (str, bytes, os.PathLike)):
        raise TypeError(f"model: a model or its config, not the path {model!r}")
    is_model = isinstance(model, torch.nn.Module)
    if is_model:
        device = device if device is not None else model.device
        dtype = dtype if dtype is not None else model.dtype
    device = device if device is not None else "cpu"
    opened = (tqcache.open(path, key_file=key_file) if rank is None
              else _ranks.open_heads(path, rank, key_file))
    with opened as file:
        if is_model and check:
            _check_identity(file.identity, model)
        if _came_from_hybrid(file):
            if rank is not None:
                raise UnsupportedError("rank: a cache of hybrid layers")
            return _load_by_file(file, path, model, device, dtype)
        expected = [None] * len(file.layers)
        if model is not None:
            config = _text_config(model)
            expected = cache_utils.DynamicCache(config=config).layers
            if len(expected) != len(file.layers):
                raise MismatchError(f"the cache has {len(file.layers)} layers, and the model "
                                    f"{len(expected)}")
        cache = cache_utils.DynamicCache()
        cache.layer_class_to_replicate = None
        for i, (layer, of_model) in enumerate(zip(file.layers, expected)):
            try:
                if model is not None:
                    _check_heads(layer, config, _ranks.checked(rank)[1])
                made = _new_layer(layer, of_model)
                _fill(made, layer, file.n_tokens, dtype, device)
            except (MismatchError, UnsupportedError) as error:
                raise type(error)(f"layer {i}: {error}") from None
            cache.layers.append(made)
        return cache


def _came_from_hybrid(file) -> bool:
    if file.info().get("source_layout", "").startswith("hybrid"):
        return True
    return file.identity.architecture == "minimax" and any(
        layer.kind == "state" for layer in file.layers)


def _load_by_file(file, path, model, device, dtype):
    """As _save_by_file(), the other way round."""
    with _beside(path) as beside:
        tqcache.convert(file, beside, None, to="hf")
        cache = hf_file.load(beside, device=device)
    if model is not None:
        n_layers = len(cache_utils.DynamicCache(config=_text_config(model)).layers)
        if n_layers != len(cache.layers):
            raise MismatchError(f"the cache has {len(cache.layers)} layers, and the model {n_layers}")
    for layer in cache.layers:
        if dtype is not None and getattr(layer, "keys", None) is not None:
            layer.keys, layer.values = layer.keys.to(dtype), layer.values.to(dtype)
    return cache


def _check_heads(layer, config, n_ranks=1) -> None:
    """Models whose layers differ in their heads are checked by themselves, when they are run."""
    n_heads = getattr(config, "num_key_value_heads", None)
    head_dim = getattr(config, "head_dim", None)
    if layer.kind == "state" or not isinstance(n_heads, int) or not isinstance(head_dim, int) \
            or getattr(config, "per_layer_attributes", None):
        return
    if layer.value_dim not in (0, layer.head_dim):  # latents: the config has no such sizes
        return
    if (layer.n_kv_heads * n_ranks, layer.head_dim) != (n_heads, head_dim):
        raise MismatchError(f"{layer.n_kv_heads * n_ranks} heads of {layer.head_dim}, and the model has "
                            f"{n_heads} of {head_dim}")


def tokens(path):
    """The ids of the tokens that a file holds, [1, n], or None. Media have their placeholders."""
    with tqcache.open(path) as file:
        if file.tokens is None:
            return None
        ids = file.tokens.astype("int64")
        for span in file.media:
            ids[span.begin:span.begin + span.n_tokens] = span.placeholder
        return torch.from_numpy(ids)[None]


def positions(path, n: int):
    """The positions of `n` tokens of text behind a file, [3, 1, n]: what forward() of models with
    M-RoPE takes as position_ids. A model finds them by itself only if it has read the media."""
    with tqcache.open(path) as file:
        first = file.next_position
    return torch.arange(first, first + n)[None, None].expand(3, 1, n)
