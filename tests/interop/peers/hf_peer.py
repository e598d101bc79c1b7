"""transformers itself, on PyTorch's CPU backend."""

import importlib.util
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")

import torch  # noqa: E402: after what it reads from the environment
import transformers  # noqa: E402
from transformers import AutoModelForCausalLM, cache_utils  # noqa: E402,F401

transformers.utils.logging.disable_progress_bar()


def versions():
    return f"transformers {transformers.__version__}, torch {torch.__version__}"


def tool(source):
    """tools/tqcache_hf.py, which calls the Python package tqcache."""
    spec = importlib.util.spec_from_file_location("tqcache_hf", source / "tools/tqcache_hf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


@torch.no_grad()
def prefill(model, ids):
    return model(torch.tensor([ids]), use_cache=True).past_key_values


@torch.no_grad()
def logits_along(model, cache, tokens):
    """Logits after each of the tokens, taken one at a time after what the cache holds."""
    rows = []
    for token in tokens:
        answer = model(torch.tensor([[token]]), past_key_values=cache, use_cache=True)
        rows.append(answer.logits[0, -1].float().numpy())
    return rows


def tensors_of(cache):
    """Every tensor of a cache, by layer and name."""
    found = {}
    for i, layer in enumerate(cache.layers):
        for name in ("keys", "values"):
            if getattr(layer, name, None) is not None:
                found[f"{i}.{name}"] = getattr(layer, name)
        for name in ("conv_states", "recurrent_states"):
            for number, state in (getattr(layer, name, None) or {}).items():
                if state is not None:
                    found[f"{i}.{name}.{number}"] = state
    return found
