#!/usr/bin/env python3
"""Measures generation behind a long prompt with packed caches, against transformers' own.

usage: measure_transformers.py MODEL TEXT [--prompt 8192] [--tokens 256] [--device cpu]

Prints for each cache its bytes, their ratio to the dynamic cache, seconds, and how many of the
greedy tokens are the same at first. docs/guide/plugins.md has results.
"""

import argparse
import time

import torch
import transformers
from transformers import cache_utils

import tqcache.transformers as tq


@torch.no_grad()
def run(model, ids, cache, n):
    begin = time.perf_counter()
    for at in range(0, ids.shape[1] - 1, 1024):
        model(ids[:, at:min(at + 1024, ids.shape[1] - 1)], past_key_values=cache, use_cache=True)
    prefilled = time.perf_counter()
    out = model.generate(ids, past_key_values=cache, max_new_tokens=n, min_new_tokens=n,
                         do_sample=False, pad_token_id=0)
    end = time.perf_counter()
    n_bytes = sum(tq.bytes_of_layer(layer) for layer in cache.layers)
    return n_bytes, prefilled - begin, end - prefilled, out[0, ids.shape[1]:].tolist()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=torch.bfloat16).eval().to(options.device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    ids = tokenizer(open(options.text).read(), return_tensors="pt").input_ids
    ids = ids.repeat(1, -(-options.prompt // ids.shape[1]))[:, :options.prompt].to(options.device)
    base = None
    for name, cache in (("DynamicCache", cache_utils.DynamicCache()),
                        ("TqcacheCache(bits=4, config)", tq.TqcacheCache(4, config=model.config)),
                        ("TqcacheCache(bits=4)", tq.TqcacheCache(4)),
                        ("TqcacheCache(bits=3, config)", tq.TqcacheCache(3, config=model.config))):
        n_bytes, prefill, generate, tokens = run(model, ids, cache, options.tokens)
        base = base or (n_bytes, tokens)
        same = next((i for i, (a, b) in enumerate(zip(tokens, base[1])) if a != b), len(tokens))
        print(f"{name}: {n_bytes} bytes, {n_bytes / base[0]:.3f}, prefill {prefill:.1f} s, "
              f"{options.tokens} tokens {generate:.1f} s, first {same} tokens the same", flush=True)


if __name__ == "__main__":
    main()
