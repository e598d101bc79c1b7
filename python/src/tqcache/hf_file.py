"""Files of Hugging Face transformers: safetensors of the schema "tqcache-hf-1".

    from tqcache import hf_file
    hf_file.save(outputs.cache, "prompt.safetensors", input_ids, model.config)
    cache = hf_file.load("prompt.safetensors")     # a DynamicCache

tqcache.transformers.save() and the script tools/tqcache_hf.py call this. Needs torch, safetensors
and, for load() and pickled caches, transformers (4.45 and later). The schema is described in
docs/reference/interop.md. Paths that end in .tqkv are left to tqcache.transformers.
"""
import argparse
import json
import re
import sys

import torch
from safetensors import safe_open
from safetensors.torch import save_file

FORMAT = "tqcache-hf-1"
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
F8_DTYPES = tuple(getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2")
                  if hasattr(torch, name))  # tqcache reads them as f16
CACHES = ("Cache", "DynamicCache", "StaticCache", "QuantizedCache", "MiniMaxCache")


class Unsupported(ValueError):
    """A cache, or a file, that this module does not know how to keep."""


def _package(path):
    """The module for .tqkv files; None for another file. It needs a newer transformers."""
    if not str(path).endswith(".tqkv"):
        return None
    try:
        from . import transformers
    except ImportError as error:
        raise Unsupported(f"a .tqkv file needs transformers 5: {error}") from error
    return transformers


def _tensor(tensor, what, row=None):
    if tensor.dtype not in DTYPES + F8_DTYPES:
        raise Unsupported(f"{what} is of {tensor.dtype}")
    if row is not None:
        if not 0 <= row < tensor.shape[0]:
            raise Unsupported(f"{what} is of a batch of {tensor.shape[0]}, which has no row {row}")
        tensor = tensor[row:row + 1]
    if tensor.dim() > 0 and tensor.shape[0] != 1:
        raise Unsupported(f"{what} is of a batch of {tensor.shape[0]}: save one of its prompts, row=N")
    return tensor.detach().to("cpu").contiguous().clone()


def _states(states):
    """Conv or recurrent states by number: transformers keeps them in dicts, and once did in one tensor."""
    if not isinstance(states, dict):
        states = {0: states}
    return {i: state for i, state in states.items() if state is not None and state.numel() > 0}


def _linear_layer(layer):
    parts = {}
    for i, state in _states(layer.conv_states).items():
        kernel = getattr(layer, "conv_kernel_size", None)
        kernel = kernel.get(i) if isinstance(kernel, dict) else kernel
        parts[f"conv_states.{i}"] = state[..., -kernel:] if kernel else state
    for i, state in _states(layer.recurrent_states).items():
        parts[f"recurrent_states.{i}"] = state
    if not parts:
        raise Unsupported("a linear-attention layer that has no state yet")
    return "linear_attention", None, parts, None


def _key_value_layer(layer, kind, window=None, n_tokens=None):
    if layer.keys is None or layer.keys.numel() == 0:
        raise Unsupported("a layer without keys")
    return _key_values(layer.keys, layer.values, kind, window, n_tokens)


def _key_values(keys, values, kind, window=None, n_tokens=None):
    if window is not None:  # more rows are there only while past states are recorded
        keys, values = keys[:, :, -(window - 1):], values[:, :, -(window - 1):]
    elif n_tokens is not None:  # the rest of a static layer is zeros
        keys, values = keys[:, :, :n_tokens], values[:, :, :n_tokens]
    return kind, window, {"key": keys, "value": values}, n_tokens or keys.shape[2]


def _static_window_layer(layer, window):
    """The ring of a StaticSlidingWindowLayer is in the order of positions; behind the tokens it is empty."""
    n_tokens = int(layer.get_seq_length())
    if window is None:
        window = layer.max_cache_len
    if layer.max_cache_len < min(n_tokens, window - 1):
        raise Unsupported(f"a window of {window} of which {layer.max_cache_len} tokens are kept")
    n_held = min(n_tokens, layer.max_cache_len)
    if window < 2:
        raise Unsupported(f"a window of {window}")
    if layer.keys is None or layer.keys.numel() == 0:
        raise Unsupported("a layer without keys")
    return _key_values(layer.keys[:, :, :n_held], layer.values[:, :, :n_held], "sliding_attention", window,
                       n_tokens)


def _quantized_layer(layer):
    """What the layer gives to attention: its codes decoded, and the newest tokens."""
    if getattr(layer, "_pending_beam_idx", None) is not None:
        raise Unsupported("a quantized layer whose beams are reordered at its next update")
    parts = []
    for codes, newest in ((layer._quantized_keys, layer.keys), (layer._quantized_values, layer.values)):
        if codes is None:
            raise Unsupported("a layer without keys")
        decoded = layer._dequantize(codes)
        has_newest = newest is not None and newest.numel() > 0
        parts.append(torch.cat([decoded, newest], dim=-2) if has_newest else decoded)
    return _key_values(*parts, "full_attention")


def _hybrid_layer(layer, attention):
    """A layer with recurrent state beside its attention."""
    kind, window, parts, n_tokens = attention
    kinds = {"full_attention": "hybrid", "sliding_attention": "hybrid_sliding"}
    return kinds[kind], window, {**_linear_layer(layer)[2], **parts}, n_tokens


def layer_of(layer, window=None):
    """(type, window, tensors by name, tokens seen) of one layer of transformers. Names count, and not what
    classes inherit: one that is not known here may keep something besides. `window`: of the model's config,
    for layers that do not say it."""
    name = type(layer).__name__
    if name.startswith("LinearAttentionAnd"):
        attention = {"FullAttentionLayer": "DynamicLayer",
                     "SlidingWindowAttentionLayer": "DynamicSlidingWindowLayer",
                     "StaticFullAttentionLayer": "StaticLayer",
                     "StaticSlidingWindowAttentionLayer": "StaticSlidingWindowLayer"}.get(name[18:])
        if attention is None:
            raise Unsupported(f"a layer of class {name}")
        return _hybrid_layer(layer, _attention_layer(layer, attention, window))
    return _attention_layer(layer, name, window)


def _attention_layer(layer, name, window):
    if name == "DynamicLayer":
        return _key_value_layer(layer, "full_attention")
    if name == "StaticLayer":
        return _key_value_layer(layer, "full_attention", n_tokens=int(layer.get_seq_length()))
    if name == "DynamicSlidingWindowLayer":
        if layer.sliding_window < 2:
            raise Unsupported(f"a window of {layer.sliding_window}")
        return _key_value_layer(layer, "sliding_attention", layer.sliding_window, layer.cumulative_length)
    if name == "StaticSlidingWindowLayer":
        return _static_window_layer(layer, window)
    if name in ("Fp8QuantizedLayer", "QuantoQuantizedLayer", "HQQQuantizedLayer"):
        return _quantized_layer(layer)
    if name == "LinearAttentionLayer":
        return _linear_layer(layer)
    if name == "DummyLayer":
        return "dummy", None, {}, None
    raise Unsupported(f"a layer of class {name}")


def _minimax_layers(cache):
    """A MiniMaxCache has its recurrent states in a list beside the layers."""
    layers = []
    for i in range(len(cache)):
        state = cache.linear_cache[i] if i < len(cache.linear_cache) else []
        if isinstance(state, torch.Tensor):
            layers.append(("linear_attention", None, {"recurrent_states.0": state}, None))
        else:
            layers.append(layer_of(cache.layers[i]))
    return layers


def window_of(config, i):
    """The window of layer i in a config of transformers; None: unknown."""
    text = config.get_text_config() if config is not None else None
    types = getattr(text, "layer_types", None)
    chunk = getattr(text, "attention_chunk_size", None)
    if types is not None and i < len(types) and types[i] == "chunked_attention":
        return chunk
    return getattr(text, "sliding_window", None)


class _Old:
    """One layer of a cache that has lists instead of layers."""

    def __init__(self, keys=None, values=None, conv_states=None, recurrent_states=None):
        self.keys, self.values = keys, values
        self.conv_states, self.recurrent_states = conv_states, recurrent_states


def _old_layer(layer):
    if layer.conv_states is not None or layer.recurrent_states is not None:
        return _linear_layer(layer)
    return _key_value_layer(layer, "full_attention")


def _layers(cache, config=None):
    if isinstance(cache, (tuple, list)):  # legacy: ((keys, values), ...)
        for pair in cache:
            is_pair = isinstance(pair, (tuple, list)) and len(pair) == 2
            if not is_pair or not all(isinstance(tensor, torch.Tensor) for tensor in pair):
                raise Unsupported("a tuple of other things than pairs of keys and values")
        return [_old_layer(_Old(*pair)) for pair in cache]
    name = type(cache).__name__
    if hasattr(cache, "layers"):
        if name not in CACHES:
            raise Unsupported(f"a cache of class {name}")
        if name == "MiniMaxCache":
            return _minimax_layers(cache)
        return [layer_of(layer, window_of(config, i)) for i, layer in enumerate(cache.layers)]
    if name == "DynamicCache" or name.endswith("NextDynamicCache"):  # before 4.54; Qwen3-Next in 4.57
        none = [None] * len(cache.key_cache)
        lists = zip(cache.key_cache, cache.value_cache, getattr(cache, "conv_states", none),
                    getattr(cache, "recurrent_states", none))
        return [_old_layer(_Old(*layer)) for layer in lists]
    raise Unsupported(f"a cache of class {name}")


def _padding(attention_mask, row):
    """Tokens before the first real one of a row: batches of generate() are padded on the left."""
    if attention_mask is None:
        return 0
    mask = torch.as_tensor(attention_mask)[row].to("cpu", torch.bool)
    n_pad = int((~mask).sum())
    if bool(mask[:n_pad].any()):
        raise Unsupported(f"row {row} is padded elsewhere than on the left")
    return n_pad


def save(cache, path, input_ids=None, config=None, row=None, attention_mask=None, media=()):
    """Writes a cache of one prompt. `input_ids`: the tokens it holds, [n] or [1, n]; without them tqcache
    cannot tell which prompt this is. `config`: of the model; its model_type and text are kept, and its
    window for a StaticCache.

    `row`: of a batch, counted from 0; `input_ids` may then be those of the batch, [batch, n].
    `attention_mask` [batch, n] tells which tokens are padding, on the left; these are left out.

    `media`: what is no text among the tokens, tqcache.MediaSpan each, as tqcache.transformers.media_of()
    finds it; needs `input_ids`.

    Values of a QuantizedCache are saved decoded. A cache that generate() returns lacks the token generated
    last, so cut `input_ids` accordingly."""
    if (package := _package(path)) is not None:
        package.save(cache, path, config, input_ids=input_ids, row=row, attention_mask=attention_mask,
                     media=media)
        return
    n_pad = _padding(attention_mask, row or 0)
    tensors, types, windows, n_seen = {}, [], [], set()
    for i, (kind, window, parts, n_tokens) in enumerate(_layers(cache, config)):
        types.append(kind)
        windows.append(window)
        if n_tokens is not None:
            n_seen.add(n_tokens - n_pad)
        for name, tensor in parts.items():
            if n_pad > 0 and name in ("key", "value"):  # a window may have left the padding
                n_real = min(n_tokens - n_pad, tensor.shape[2])
                tensor = tensor[:, :, tensor.shape[2] - n_real:]
            tensors[f"model.layers.{i}.{name}"] = _tensor(tensor, f"layer {i}: {name}", row)
    if input_ids is not None:
        ids = torch.as_tensor(input_ids).to("cpu", torch.int64)
        if row is not None and ids.dim() == 2:
            ids = ids[row]
        ids = ids.reshape(-1)[n_pad:]
        tensors["tokens"] = ids.clone()
        n_seen.add(len(ids))
    if len(n_seen) != 1:
        raise Unsupported(f"layers or input_ids of different numbers of tokens: {sorted(n_seen)}")
    metadata = {"format": FORMAT, "n_tokens": str(n_seen.pop()), "layer_types": json.dumps(types)}
    if media:
        if n_pad > 0:
            raise Unsupported("media in a row that is padded")
        from tqcache import _media  # the rest of this module needs no tqcache

        metadata["media"] = _media.as_json(media)
    if any(windows):
        metadata["sliding_window"] = json.dumps(windows)
    if type(cache).__name__ == "MiniMaxCache":
        metadata["model_type"] = "minimax"  # load() makes the same class
    if config is not None:
        metadata["model_type"] = config.get_text_config().model_type
        metadata["config"] = json.dumps(config.to_dict(), default=str)
    if "transformers" in sys.modules:
        metadata["transformers_version"] = sys.modules["transformers"].__version__
    save_file(tensors, path, metadata)


def _batched(tensor):
    return tensor if tensor.dim() == 4 else tensor.unsqueeze(0)


def _load_states(layer, states):
    for name, state in states.items():
        kind, number = name.split(".")
        update = layer.update_conv_state if kind == "conv_states" else layer.update_recurrent_state
        update(state, **({"state_idx": int(number)} if int(number) > 0 else {}))


def _make_layer(kind, window, parts, n_tokens):
    from transformers import cache_utils

    name = {"full_attention": "DynamicLayer", "sliding_attention": "DynamicSlidingWindowLayer",
            "linear_attention": "LinearAttentionLayer", "dummy": "DummyLayer",
            "hybrid": "LinearAttentionAndFullAttentionLayer",
            "hybrid_sliding": "LinearAttentionAndSlidingWindowAttentionLayer"}.get(kind)
    if name is None:
        raise Unsupported(f"a layer of type {kind}")
    if not hasattr(cache_utils, name):
        raise Unsupported(f"this transformers has no {name}")
    states = r"(conv|recurrent)_states\.\d+"
    known = {"linear_attention": states, "dummy": "(?!)", "hybrid": states + "|key|value",
             "hybrid_sliding": states + "|key|value"}.get(kind, "key|value")
    for part in parts:
        if not re.fullmatch(known, part):
            raise Unsupported(f"tensor {part} in a layer of type {kind}")
    if kind == "dummy":
        return cache_utils.DummyLayer()
    if kind == "linear_attention":
        layer = cache_utils.LinearAttentionLayer(
            number_of_states=1 + max(int(part.split(".")[1]) for part in parts))
        _load_states(layer, parts)
        return layer
    options = {} if window is None else {"sliding_window": window}
    states = {part: tensor for part, tensor in parts.items() if part not in ("key", "value")}
    if states:
        options["number_of_states"] = 1 + max(int(part.split(".")[1]) for part in states)
    layer = getattr(cache_utils, name)(**options)
    _load_states(layer, states)
    layer.update(_batched(parts["key"]), _batched(parts["value"]))
    if window is not None:
        layer.cumulative_length = n_tokens
    return layer


def _make_minimax(types, parts):
    """MiniMax keeps its recurrent states in a list of its own."""
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    cache = MiniMaxCache()
    for i, (kind, tensors) in enumerate(zip(types, parts)):
        if kind == "linear_attention" and set(tensors) == {"recurrent_states.0"}:
            cache.set_linear_cache(i, tensors["recurrent_states.0"])
        elif kind == "full_attention":
            cache.set_linear_cache(i, [])
            cache.update(_batched(tensors["key"]), _batched(tensors["value"]), i)
        else:
            raise Unsupported(f"a layer of type {kind} in a cache of MiniMax")
    return cache


def _read(path, device="cpu"):
    with safe_open(path, "pt", device=device) as file:
        metadata = file.metadata() or {}
        if metadata.get("format") != FORMAT:
            raise Unsupported(f"not a file of the schema {FORMAT}")
        return metadata, {name: file.get_tensor(name) for name in file.keys()}


def load(path, device="cpu"):
    """A DynamicCache with what the file holds."""
    if (package := _package(path)) is not None:
        return package.load(path, device=device)
    from transformers import DynamicCache

    metadata, tensors = _read(path, device)
    types = json.loads(metadata["layer_types"])
    windows = json.loads(metadata.get("sliding_window", "null")) or [None] * len(types)
    cache = DynamicCache()
    parts = []
    for i in range(len(types)):
        prefix = f"model.layers.{i}."
        parts.append({n[len(prefix):]: t for n, t in tensors.items() if n.startswith(prefix)})
    if metadata.get("model_type") == "minimax" and "linear_attention" in types:
        return _make_minimax(types, parts)
    if hasattr(cache, "layers"):
        cache.layers = [_make_layer(*layer, int(metadata["n_tokens"]))
                        for layer in zip(types, windows, parts)]
    elif set(types) == {"full_attention"}:  # before 4.54
        for i, layer in enumerate(parts):
            cache.update(_batched(layer["key"]), _batched(layer["value"]), i)
    else:
        raise Unsupported("this transformers has no layers but those of full attention")
    return cache


def tokens(path):
    """The ids that the file holds, [n], or None."""
    if (package := _package(path)) is not None:
        ids = package.tokens(path)
        return None if ids is None else ids[0]
    return _read(path)[1].get("tokens")


def main():
    parser = argparse.ArgumentParser(description="Caches of transformers as files for tqcache.")
    parser.add_argument("file")
    parser.add_argument("out", nargs="?")
    parser.add_argument("--trust", action="store_true", help="run the pickle in FILE")
    arguments = parser.parse_args()
    try:
        if arguments.out:
            save(torch.load(arguments.file, map_location="cpu", weights_only=not arguments.trust), arguments.out)
            return
        metadata, tensors = _read(arguments.file)
        for key, value in metadata.items():
            print(f"{key}: {value[:200]}")
        for name, tensor in tensors.items():
            print(f"{name}: {list(tensor.shape)} {tensor.dtype}")
    except Exception as error:
        sys.exit(f"tqcache_hf.py: {arguments.file}: {error}")
