#!/usr/bin/env python3
"""Measures generation behind a long prompt with packed caches, against transformers' own.

usage: measure_transformers.py MODEL TEXT [--prompt 8192] [--tokens 256] [--device cpu]
                               [--dtype bfloat16] [--threads 0] [--at-most 0.30] [--only 4-bit]...

MODEL is a folder, or a GGUF file that transformers reads. docs/guide/plugins.md says where to get
a real one, and has results. TEXT is repeated until it fills the prompt.

Prints for each cache its bytes, their ratio to the dynamic cache, seconds, and how many of the
greedy tokens are the same at first. Fails if a 4-bit cache takes more than --at-most of the bytes.
"""

import argparse
import os
import sys
import time

import torch
import transformers
from transformers import cache_utils

import tqcache.transformers as tq


@torch.no_grad()
def run(model, ids, cache, n):
    begin = time.perf_counter()
    for at in range(0, ids.shape[1] - 1, 1024):
        model(ids[:, at:min(at + 1024, ids.shape[1] - 1)], past_key_values=cache, use_cache=True,
              logits_to_keep=1)
    prefilled = time.perf_counter()
    out = model.generate(ids, past_key_values=cache, max_new_tokens=n, min_new_tokens=n,
                         do_sample=False, pad_token_id=0)
    end = time.perf_counter()
    n_bytes = sum(tq.bytes_of_layer(layer) for layer in cache.layers)
    return n_bytes, prefilled - begin, end - prefilled, out[0, ids.shape[1]:].tolist()


def main():
    caches = {
        "4-bit": lambda config, threads: tq.TqcacheCache(4, config=config, threads=threads),
        "4-bit-no-config": lambda config, threads: tq.TqcacheCache(4, threads=threads),
        "3-bit": lambda config, threads: tq.TqcacheCache(3, config=config, threads=threads)}
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--prompt", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="bfloat16", choices=["bfloat16", "float16", "float32"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--at-most", type=float, default=0.30)
    parser.add_argument("--only", action="append", choices=list(caches))
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    source, file = options.model, {}
    if source.endswith(".gguf"):
        source, file = os.path.dirname(os.path.abspath(source)), {
            "gguf_file": os.path.basename(source)}
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source, dtype=getattr(torch, options.dtype), **file).eval().to(options.device)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, **file)
    with open(options.text) as text:
        ids = tokenizer(text.read(), return_tensors="pt").input_ids
    ids = ids.repeat(1, -(-options.prompt // ids.shape[1]))[:, :options.prompt].to(options.device)
    made = {"dynamic": cache_utils.DynamicCache()}
    for name in options.only or caches:
        made[name] = caches[name](model.config, options.threads)
    base, failed = None, False
    for name, cache in made.items():
        n_bytes, prefill, generate, tokens = run(model, ids, cache, options.tokens)
        base = base or (n_bytes, tokens)
        ratio = n_bytes / base[0]
        failed = failed or name.startswith("4-bit") and ratio > options.at_most
        same = next((i for i, (a, b) in enumerate(zip(tokens, base[1])) if a != b), len(tokens))
        print(f"{name}: {n_bytes} bytes, {ratio:.3f}, prefill {prefill:.1f} s, "
              f"{options.tokens} tokens {generate:.1f} s, first {same} tokens the same", flush=True)
    if failed:
        sys.exit(f"a 4-bit cache takes more than {options.at_most} of the dynamic one")


if __name__ == "__main__":
    main()
