#!/usr/bin/env python3
"""What quantized keys and values cost the bundled model, by transformers and a TurboQuant of its own.

usage: tests/quality/simulate.py FIELD [--windows N] [--seeds N] > fields.json

Prints the object that tests/data/reference.json holds at ["ppl"][FIELD]. TurboQuant here is: random
signs, Walsh-Hadamard, Lloyd-Max levels of one coordinate of a random unit vector, a scale that makes
products unbiased; no mean, no sink tokens; keys after RoPE. Windows of 2,048 tokens do not overlap,
and what is left of the text is dropped. With several seeds of the signs, the predictions of all of
them count, except for the perplexity of the dense model. Needs torch and transformers (tests/interop/peers/setup.sh).
"""
import argparse
import itertools
import json
import math
import pathlib
import sys

import numpy as np
import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.integrations.sdpa_attention import sdpa_attention_forward

ROOT = pathlib.Path(__file__).resolve().parents[2]
WINDOW = 2048
# Bits of keys and values; None: as they are.
CASES = {"k4v4": (4, 4), "kf_v4": (None, 4), "k3v3": (3, 3)}


def hadamard(dim):
    matrix = np.ones((1, 1))
    while len(matrix) < dim:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / math.sqrt(dim)


def levels(bits, dim):
    """Lloyd-Max for the density (1 - x^2)^((dim - 3) / 2)."""
    grid = np.linspace(-1, 1, 400001)[1:-1]
    weights = (1 - grid * grid) ** ((dim - 3) / 2)
    found = np.linspace(-2.5, 2.5, 2**bits) / math.sqrt(dim)
    while True:
        nearest = np.searchsorted((found[1:] + found[:-1]) / 2, grid)
        mass = np.bincount(nearest, weights, 2**bits)
        moved = np.bincount(nearest, weights * grid, 2**bits) / mass
        if np.abs(moved - found).max() < 1e-10:
            return torch.tensor(moved, dtype=torch.float32)
        found = moved


class Quantizer:
    def __init__(self, dim, seed):
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], dim)
        self.rotation = torch.tensor(hadamard(dim) * signs, dtype=torch.float32)
        self.levels = {bits: levels(bits, dim) for bits in (3, 4)}

    def __call__(self, x, bits):
        if bits is None:
            return x
        found = self.levels[bits]
        norm = x.norm(dim=-1, keepdim=True).clamp(min=1e-20)
        unit = (x / norm) @ self.rotation.T
        rounded = found[torch.bucketize(unit, (found[1:] + found[:-1]) / 2)]
        scale = norm / (unit * rounded).sum(-1, keepdim=True)
        return (rounded * scale.half().float()) @ self.rotation


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("field")
    parser.add_argument("--windows", type=int, default=0)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "models/demo/hf")
    model = AutoModelForCausalLM.from_pretrained(ROOT / "models/demo/hf", dtype=torch.float32).eval()
    text = (ROOT / "tests/data/alice.txt").read_text()
    ids = torch.tensor(tokenizer(text, add_special_tokens=False)["input_ids"])
    n_windows = (len(ids) - 1) // WINDOW
    if args.windows:
        n_windows = min(n_windows, args.windows)

    bits = (None, None)
    quantizer = None

    def attend(module, q, k, v, *rest, **options):
        if bits != (None, None):
            k, v = quantizer(k, bits[0]), quantizer(v, bits[1])
        return sdpa_attention_forward(module, q, k, v, *rest, **options)

    AttentionInterface.register("quantized", attend)
    model.set_attn_implementation("quantized")
    quantizers = [Quantizer(model.config.head_dim, 1234 + i) for i in range(args.seeds)]

    losses = {name: [] for name in ["f32", *CASES]}
    divergences = {name: [] for name in CASES}
    agreements = {name: [] for name in CASES}
    with torch.no_grad():
        for window in range(n_windows):
            tokens = ids[window * WINDOW : (window + 1) * WINDOW + 1]
            read, following = tokens[None, :-1], tokens[1:, None]
            bits = (None, None)
            dense = model(read).logits[0].log_softmax(-1)
            losses["f32"].append(-dense.gather(1, following))
            for quantizer, (name, bits) in itertools.product(quantizers, CASES.items()):
                packed = model(read).logits[0].log_softmax(-1)
                losses[name].append(-packed.gather(1, following))
                divergences[name].append((dense.exp() * (dense - packed)).sum(-1))
                agreements[name].append((dense.argmax(-1) == packed.argmax(-1)).float())
            print(f"window {window + 1} of {n_windows}", file=sys.stderr)

    result = {"tokens": len(ids), "windows": n_windows, "seeds": args.seeds}
    for name in losses:
        result[name] = {"ppl": math.exp(torch.cat(losses[name]).mean().item())}
    for name in CASES:
        divergence = torch.cat(divergences[name])
        result[name] |= {
            "kld_mean": divergence.mean().item(),
            "kld_median": divergence.median().item(),
            "kld_p99": divergence.quantile(0.99).item(),
            "top1": torch.cat(agreements[name]).mean().item(),
        }
    print(json.dumps({args.field: result}, indent=1))


main()
