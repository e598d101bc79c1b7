"""Writes what tests/quality compares with: the loss of quality by a simulated TurboQuant.

The simulation shares no code with tqcache: transformers runs the bundled model in f32, and between
the projections and the attention the keys (after RoPE) and the values [1, heads, tokens, head_dim]
are replaced by their quantized ones. tests/data/README.md says what is simulated.

usage: make_quality_reference.py MODEL_FOLDER TEXT N_WINDOWS
prints JSON; N_WINDOWS windows of 2,048 tokens, 0 for the whole text. Needs torch and transformers.
"""

import json
import math
import sys

import torch
from transformers import AttentionInterface, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

WINDOW = 2048
# The bits of keys and values; None leaves them alone.
WAYS = {"k4v4": (4, 4), "kf_v4": (None, 4), "k3v3": (3, 3)}


def codebook(bits, dim):
    """The Lloyd-Max centroids of one coordinate of a random unit vector in `dim` dimensions."""
    x = torch.linspace(-1, 1, 100001, dtype=torch.float64)
    density = (1 - x * x).clamp(min=0) ** ((dim - 3) / 2)
    centroids = torch.linspace(-2, 2, 2**bits, dtype=torch.float64) / math.sqrt(dim)
    while True:
        cell = torch.bucketize(x, (centroids[1:] + centroids[:-1]) / 2)
        mass = torch.zeros_like(centroids).scatter_add_(0, cell, density)
        moment = torch.zeros_like(centroids).scatter_add_(0, cell, density * x)
        better = moment / mass
        if (better - centroids).abs().max() < 1e-10:
            return better.float()
        centroids = better


def rotation(dim):
    """A Walsh-Hadamard matrix [dim, dim] whose columns have random signs."""
    matrix = torch.ones(1, 1)
    while len(matrix) < dim:
        matrix = torch.cat([torch.cat([matrix, matrix], 1), torch.cat([matrix, -matrix], 1)])
    signs = torch.randint(0, 2, (dim,), generator=torch.Generator().manual_seed(20250428)) * 2 - 1
    return matrix / math.sqrt(dim) * signs


class Quantizer:
    def __init__(self, dim):
        self.rotation = rotation(dim)
        self.codebooks = {bits: codebook(bits, dim) for bits in (3, 4)}
        self.key_bits = self.value_bits = None

    def quantize(self, vectors, bits):
        if bits is None:
            return vectors
        centroids = self.codebooks[bits]
        norms = vectors.norm(dim=-1, keepdim=True)
        rotated = vectors / norms @ self.rotation.T
        codes = centroids[torch.bucketize(rotated, (centroids[1:] + centroids[:-1]) / 2)]
        # Such that the product of a vector and its quantized one is the square of its norm.
        scales = (norms / (rotated * codes).sum(-1, keepdim=True)).half().float()
        return (codes * scales) @ self.rotation


def main():
    folder, text, n_windows = sys.argv[1], sys.argv[2], int(sys.argv[3])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    quantizer = Quantizer(model.config.head_dim)
    plain = ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module, queries, keys, values, *args, **kwargs):
        return plain(module, queries, quantizer.quantize(keys, quantizer.key_bits),
                     quantizer.quantize(values, quantizer.value_bits), *args, **kwargs)

    AttentionInterface.register("quantized", attention)
    model.set_attn_implementation("quantized")
    ids = torch.tensor(AutoTokenizer.from_pretrained(folder)(
        open(text, encoding="utf-8").read(), add_special_tokens=False)["input_ids"])
    n_all = (len(ids) - 1) // WINDOW
    n_windows = min(n_windows or n_all, n_all)

    def log_probabilities(window, key_bits, value_bits):
        quantizer.key_bits, quantizer.value_bits = key_bits, value_bits
        return torch.log_softmax(model(window[None, :-1]).logits[0].float(), -1)

    losses = {name: [] for name in ("f32", *WAYS)}
    divergences = {name: [] for name in WAYS}
    agreements = {name: [] for name in WAYS}
    for i in range(n_windows):
        window = ids[i * WINDOW : (i + 1) * WINDOW + 1]
        dense = log_probabilities(window, None, None)
        losses["f32"].append(-dense.gather(1, window[1:, None]))
        for name, bits in WAYS.items():
            quantized = log_probabilities(window, *bits)
            losses[name].append(-quantized.gather(1, window[1:, None]))
            divergences[name].append((dense.exp() * (dense - quantized)).sum(-1))
            agreements[name].append((dense.argmax(-1) == quantized.argmax(-1)).float())
    result = {"windows": n_windows, "tokens": len(ids)}
    for name, all_losses in losses.items():
        result[name] = {"ppl": math.exp(torch.cat(all_losses).double().mean().item())}
        if name == "f32":
            continue
        divergence = torch.cat(divergences[name])
        result[name] |= {
            "kld_mean": divergence.mean().item(),
            "kld_median": divergence.median().item(),
            "kld_p99": divergence.quantile(0.99).item(),
            "top1": torch.cat(agreements[name]).mean().item(),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    with torch.inference_mode():
        main()
