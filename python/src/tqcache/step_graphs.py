"""Decode steps of a transformers model as CUDA graphs.

    with tq.step_graphs(model):
        model.generate(ids, cache=tq.TqcacheCache(bits=4, config=model.config))

A step of one token starts some twenty kernels for each layer, which takes the CPU longer than they
take the GPU. A graph starts all of them at once. That is possible with a TqcacheCache because its
tensors stay where they are while tokens come, and numbers of tokens are read on the GPU.
"""

import contextlib
import functools
import inspect

import torch

from .packed_cache import TqcacheCache, TqcacheLayer


@contextlib.contextmanager
def step_graphs(model):
    """While it lasts, steps of `model` with a TqcacheCache whose layers all are packed on a GPU run
    as a CUDA graph. All other calls are as before: prompts, padding, other caches, outputs of hidden
    states or attentions. The first step of a cache is a usual one, the second one is captured; so is
    a step that finds tensors elsewhere, which happens when the cache has doubled.

    The model may have nothing that depends on the CPU within a step (that of Llama, Qwen and other
    usual ones has not). Errors of the capture go on to the caller."""
    if "forward" in vars(model):
        raise ValueError("the forward() of this model is replaced already")
    graphs = _StepGraphs(model.forward)

    @functools.wraps(model.forward)  # generate() looks at the names of its parameters
    def forward(*args, **options):
        return graphs.forward(*args, **options)

    model.forward = forward
    try:
        yield graphs
    finally:
        del model.forward


class _StepGraphs:
    def __init__(self, forward):
        self._forward = forward
        # What the model calls its cache: transformers 5.24 gave it a new name.
        names = inspect.signature(forward).parameters
        self._name = "cache" if "cache" in names else "past_key_values"
        self._graph = self._key = self._warm = self._out = None
        self.n_replayed = 0

    def forward(self, input_ids=None, attention_mask=None, position_ids=None, **options):
        cache = options.pop("past_key_values", None)
        cache = options.pop("cache", cache)
        key = None
        if _is_step(input_ids, attention_mask, position_ids, cache, options):
            for layer in cache.layers:
                layer.make_room()
            key = _key_of(cache, input_ids)
        if key is None or key != self._warm:
            self._graph = self._key = None
            out = self._forward(input_ids=input_ids, attention_mask=attention_mask,
                                position_ids=position_ids, **{self._name: cache}, **options)
            is_graph_next = input_ids is not None and isinstance(cache, TqcacheCache)
            self._warm = _key_of(cache, input_ids[:, :1]) if is_graph_next else None
            return out
        position = cache.get_seq_length()
        if self._key != key:
            self._capture(cache, input_ids, position, options)
            self._key = key
        else:
            for layer in cache.layers:
                layer.n_tail += 1
        self._ids.copy_(input_ids)
        self._position.fill_(position)
        self._graph.replay()
        self.n_replayed += 1
        return type(self._out)(logits=self._out.logits.clone(), **{self._name: cache})

    def _capture(self, cache, input_ids, position, options):
        self._graph = torch.cuda.CUDAGraph()
        self._ids = input_ids.clone()
        self._position = torch.full_like(self._ids, position)
        for layer in cache.layers:
            layer.is_unmasked = True
        try:
            with torch.no_grad(), torch.cuda.graph(self._graph):
                self._out = self._forward(input_ids=self._ids, position_ids=self._position,
                                          **{self._name: cache}, **options)
        finally:
            for layer in cache.layers:
                layer.is_unmasked = False


def _is_step(input_ids, attention_mask, position_ids, cache, options):
    """Whether a call is a step of one token without padding, and asks for logits only."""
    if not isinstance(cache, TqcacheCache) or input_ids is None or input_ids.shape[1] != 1:
        return False
    if torch.is_grad_enabled() or not cache.layers or not all(
            isinstance(layer, TqcacheLayer) and layer.is_on_gpu for layer in cache.layers):
        return False
    if any(options.get(name) for name in ("output_hidden_states", "output_attentions", "labels")) \
            or options.get("return_dict") is False \
            or any(isinstance(option, torch.Tensor) for option in options.values()):
        return False
    n = cache.get_seq_length()
    is_whole = attention_mask is None or (attention_mask.shape == (input_ids.shape[0], n + 1)
                                          and bool(attention_mask.all()))
    return is_whole and (position_ids is None or bool((position_ids == n).all()))


def _key_of(cache, input_ids):
    """What a graph depends on, which it keeps alive; None where a step is still to be made ready."""
    parts = [cache, input_ids.shape, input_ids.dtype]
    for layer in cache.layers:
        if not isinstance(layer, TqcacheLayer) or not layer.is_on_gpu or layer.blocks.step is None \
                or not layer._is_seen:
            return None
        parts += [layer.blocks.step, layer._tail[0].data_ptr(),
                  layer._workspace.address(layer.blocks.step.workspace_bytes, layer.device)]
    return parts
