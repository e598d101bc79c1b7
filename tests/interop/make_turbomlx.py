#!/usr/bin/env python3
"""Makes tests/data/turbomlx: prompt caches as TurboMLX writes them, what is in them, and numbers of
NumPy that the importer must meet. Needs NumPy alone.

    python3 tests/interop/make_turbomlx.py tests/data/turbomlx

NAME.tqcache     a prompt cache
NAME.expected    its head vectors as f32: of each attention layer keys, then values, each
                 [n_kv_heads, n_tokens, head_dim]; of each other layer its arrays
numbers.json     random numbers, rotations and codebooks; f32 and f64 by their bits

The steps follow TurboMLX (alicankiraz1/Qwen3.5-TurboQuant-MLX-LM, src/turbomlx/core_ref and
prompt_cache.py), written anew.
"""

import io
import json
import math
import pickle
import struct
import sys
from pathlib import Path

import numpy as np

VERSION = "v1-lloyd-max-beta"
trapezoid = getattr(np, "trapezoid", None) or np.trapz


# --- what the quantizers share


def codebook(dim, bits):
    levels = 1 << bits
    grid = np.linspace(-1 + 1e-8, 1 - 1e-8, 32769)
    norm = math.lgamma(dim / 2) - 0.5 * math.log(math.pi) - math.lgamma((dim - 1) / 2)
    pdf = np.exp(norm + (dim - 3) / 2 * np.log1p(-(grid * grid)))
    pdf = pdf / trapezoid(pdf, grid)
    cdf = np.concatenate([[0.0], np.cumsum((pdf[:-1] + pdf[1:]) * np.diff(grid) * 0.5)])
    cdf[-1] = 1.0
    centroids = np.interp(np.linspace(0, 1, levels + 2)[1:-1], cdf, grid)
    for _ in range(256):
        edges = np.concatenate([[-1.0], (centroids[:-1] + centroids[1:]) * 0.5, [1.0]])
        updated = np.empty_like(centroids)
        for i in range(levels):
            low, high = edges[i], edges[i + 1]
            inside = (grid >= low) & ((grid <= high) if i == levels - 1 else (grid < high))
            x, weight = grid[inside], pdf[inside]
            mass = float(trapezoid(weight, x)) if x.size else 0.0
            updated[i] = float(trapezoid(x * weight, x)) / mass if mass > 0 else (low + high) * 0.5
        done = np.max(np.abs(updated - centroids)) <= 1e-12
        centroids = updated
        if done:
            break
    return centroids.astype(np.float32)


def rotation(kind, dim, seed):
    random = np.random.default_rng(seed)
    if kind == "qr":
        q, r = np.linalg.qr(random.standard_normal((dim, dim), dtype=np.float64))
        signs = np.sign(np.diag(r))
        signs[signs == 0] = 1.0
        return (q * signs).astype(np.float32)
    hadamard = np.array([[1.0]])
    while hadamard.shape[0] < dim:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    signs = random.choice([-1.0, 1.0], size=(dim,))
    return (hadamard * signs[None, :] / np.sqrt(float(dim))).astype(np.float32)


def sketch(dim, seed):
    return np.random.default_rng(seed).standard_normal((dim, dim)).astype(np.float32)


# --- packing


def pack(codes, bits):
    flat = (codes[..., None] >> np.arange(bits)) & 1
    flat = flat.reshape(codes.shape[:-1] + (-1,)).astype(np.uint8)
    return np.packbits(flat, axis=-1, bitorder="little")


def words(codes, bits):
    return np.ascontiguousarray(pack(codes, bits)).view(np.uint32)


# --- one quantizer


def lengths_of(x):
    return np.sqrt(np.sum(np.square(x, dtype=np.float32), axis=-1, keepdims=True)).astype(np.float32)


class Quantizer:
    def __init__(self, dim, bits_total, config):
        self.prod = config["mode"] == "prod"
        self.bits = bits_total - 1 if self.prod else bits_total
        self.centroids = codebook(dim, self.bits)
        self.matrix = rotation(config["rotation_kind"], dim, config["rotation_seed"])
        self.sketch = sketch(dim, config["qjl_seed"])
        self.factor = np.float32(np.sqrt(np.pi / 2) / float(dim))

    # Its four arrays, and what is decoded from them.
    def quantize(self, x):
        lengths = lengths_of(x)
        unit = x / np.maximum(lengths, 1e-8)
        boundaries = (self.centroids[:-1] + self.centroids[1:]) * np.float32(0.5)
        codes = np.searchsorted(boundaries, unit @ self.matrix.T, side="right").astype(np.int64)
        decoded = self.centroids[codes] @ self.matrix
        if not self.prod:
            empty = np.zeros((0,), np.uint8), np.zeros((0,), np.float32)
            return (pack(codes, self.bits), lengths) + empty, decoded * lengths
        residual = unit - decoded
        gamma = lengths_of(residual)
        signs = np.where((residual / np.maximum(gamma, 1e-8)) @ self.sketch.T >= 0, 1.0, -1.0)
        signs = signs.astype(np.float32)
        decoded = decoded + gamma * self.factor * (signs @ self.sketch)
        packed = np.packbits(signs > 0, axis=-1, bitorder="little")
        return (pack(codes, self.bits), lengths, packed, gamma[..., 0]), decoded * lengths


# --- layers: an entry of the file, and the arrays expected of it


def config_of(**changes):
    config = {
        "mode": "mse", "bits_total": 4, "rotation_kind": "qr", "rotation_seed": 0, "qjl_seed": 1,
        "values_mode": "dense", "value_bits": 4, "mixed": None,
    }
    config.update(changes)
    return config


def meta_of(config, heads, dim, tokens, group_size):
    bits_mse = config["bits_total"] - (config["mode"] == "prod")
    mixed = config["mixed"]
    profile = "disabled"
    if mixed:
        profile = "%s:outliers=%d,hi=%d,lo=%d" % (
            mixed["outlier_selection_policy"], mixed["outlier_channels"],
            mixed["outlier_high_bits"], mixed["regular_bits"])
    return (json.dumps({
        "schema_version": 1, "quantizer_version": "turbomlx-v0.1", "mode": config["mode"],
        "bits_total": config["bits_total"], "bits_mse": bits_mse,
        "value_bits": config["value_bits"], "head_dim": dim, "num_kv_heads": heads,
        "rotation_kind": config["rotation_kind"], "rotation_seed": config["rotation_seed"],
        "qjl_seed": config["qjl_seed"], "codebook_version": VERSION,
        "codebook_id": "%s-d%d-b%d" % (VERSION, dim, bits_mse),
        "packing_layout": "little_endian_compact", "values_mode": config["values_mode"],
        "value_group_size": group_size, "quantized_kv_start": 0,
        "mixed_precision_profile": profile, "mixed_precision": mixed,
        "scorer_mode": "oracle_preview", "offset": tokens,
    }, sort_keys=True),)


def entry_of(path, state, meta, extra=None, type_id=None):
    return {"cache_type_id": type_id or path, "class_path": path, "state": state,
            "meta_state": meta, "extra_state": extra or {}}


def turbo_entry(state, meta, extra):
    return entry_of("turbomlx.mlx_runtime.cache.TurboQuantKVCache", state, meta, extra,
                    "turbomlx.cache.turboquant_kv.v1")


def groups_of(random, heads, tokens, dim, bits, size, dtype):
    codes = random.integers(0, 1 << bits, size=(1, heads, tokens, dim))
    shape = (1, heads, tokens, dim // size)
    scales = random.standard_normal(shape).astype(dtype)
    biases = random.standard_normal(shape).astype(dtype)
    decoded = codes.astype(np.float32) * np.repeat(scales.astype(np.float32), size, axis=-1)
    decoded = decoded + np.repeat(biases.astype(np.float32), size, axis=-1)
    return (words(codes, bits), scales, biases), decoded


def turbo(random, heads, tokens, dim, dtype=np.float32, **changes):
    config = config_of(**changes)
    keys = random.standard_normal((1, heads, tokens, dim)).astype(np.float32)
    keys = keys * np.float32(10) * random.random((1, heads, tokens, 1)).astype(np.float32)
    values = random.standard_normal((1, heads, tokens, dim)).astype(dtype)
    expected_values, group_size = values, None
    if config["values_mode"] == "affine":
        group_size = 8
        values, expected_values = groups_of(random, heads, tokens, dim, config["value_bits"],
                                            group_size, np.float16)
    none = (np.zeros((0,), np.uint8), np.zeros((0,), np.float32)) * 2
    mixed = config["mixed"]
    if mixed is None:
        regular, expected = Quantizer(dim, config["bits_total"], config).quantize(keys)
        state = regular + none + (np.zeros((0,), bool), values)
    else:
        loud = np.argsort(np.var(keys.reshape(-1, dim), axis=0))[-mixed["outlier_channels"]:]
        mask = np.zeros((dim,), bool)
        mask[loud] = True
        expected = np.zeros_like(keys)
        regular, expected[..., ~mask] = Quantizer(
            int((~mask).sum()), mixed["regular_bits"], config).quantize(keys[..., ~mask])
        outlier, expected[..., mask] = Quantizer(
            int(mask.sum()), mixed["outlier_high_bits"], config).quantize(keys[..., mask])
        state = regular + outlier + (mask, values)
    extra = {"calibration_tokens_seen": 0, "outlier_mask_frozen": mixed is not None,
             "calibration_keys": None, "calibration_values": None}
    meta = meta_of(config, heads, dim, tokens, group_size)
    return turbo_entry(state, meta, extra), [expected, expected_values]


def calibrating(random, heads, tokens, dim, dtype, mixed):
    config = config_of(bits_total=3, mixed=mixed)
    keys = random.standard_normal((1, heads, tokens, dim)).astype(dtype)
    values = random.standard_normal((1, heads, tokens, dim)).astype(dtype)
    none = (np.zeros((0,), np.uint8), np.zeros((0,), np.float32)) * 4
    extra = {"calibration_tokens_seen": tokens, "outlier_mask_frozen": False,
             "calibration_keys": keys, "calibration_values": values}
    state = none + (np.zeros((0,), bool), values)
    return turbo_entry(state, meta_of(config, heads, dim, tokens, None), extra), [keys, values]


def dense(random, heads, tokens, dim, dtype):
    pair = tuple(random.standard_normal((1, heads, tokens, dim)).astype(dtype) for _ in range(2))
    return entry_of("mlx_lm.models.cache.KVCache", pair, ""), list(pair)


def quantized(random, heads, tokens, dim, bits, size):
    k, expected_k = groups_of(random, heads, tokens, dim, bits, size, np.float16)
    v, expected_v = groups_of(random, heads, tokens, dim, bits, size, np.float16)
    meta = (str(tokens), str(size), str(bits))
    return (entry_of("mlx_lm.models.cache.QuantizedKVCache", (k, v), meta),
            [expected_k, expected_v])


# A ring that has gone round: the first `keep` tokens, then the newest.
def rotating(random, heads, tokens, dim, keep, size):
    pair = [random.standard_normal((1, heads, tokens, dim)).astype(np.float16) for _ in range(2)]
    slot = keep + (tokens - keep) % (size - keep)
    ring = np.empty(size, int)
    for position in range(tokens):
        row = position if position < size else keep + (position - keep) % (size - keep)
        ring[row] = position
    state = tuple(x[:, :, ring] for x in pair)
    order = np.sort(ring)
    meta = (str(keep), str(size), str(tokens), str(slot))
    return (entry_of("mlx_lm.models.cache.RotatingKVCache", state, meta),
            [x[:, :, order] for x in pair])


def arrays(random, nested):
    slots = [random.standard_normal((1, 3, 6)).astype(np.float16),
             random.standard_normal((1, 2, 4, 4)).astype(np.float32)]
    empty = np.zeros((0,), np.float32)
    state = [slots, empty, empty] if nested else slots
    return entry_of("mlx_lm.models.cache.ArraysCache", state, ""), slots


# --- files


def save_pickle(path, entries, version, protocol):
    if version == 1:
        entries = [{k: v for k, v in entry.items() if k != "cache_type_id"} for entry in entries]
    text = pickle.dumps({"schema_version": version, "entries": entries}, protocol=protocol)
    path.write_bytes(text)


# The names that NumPy 2 writes, in the one frame of a small pickle.
def rename_modules(path):
    old, new = b"\x8c\x12numpy.core.numeric", b"\x8c\x13numpy._core.numeric"
    text = path.read_bytes()
    assert text.count(old) == 1 and text[2:3] == b"\x95"
    size = struct.unpack("<Q", text[3:11])[0]
    assert size == len(text) - 11
    path.write_bytes(text[:3] + struct.pack("<Q", size + 1) + text[11:].replace(old, new))


TYPES = {"uint8": "U8", "uint32": "U32", "bool": "BOOL", "float16": "F16", "float32": "F32"}


def save_v3(path, entries):
    tensors = {}

    def visit(prefix, node):
        if isinstance(node, np.ndarray):
            name = "%s.%06d" % (prefix, sum(key.startswith(prefix) for key in tensors))
            tensors[name] = np.ascontiguousarray(node)
            return {"__tq_array__": True, "tensor_id": name, "dtype": str(node.dtype),
                    "shape": list(node.shape)}
        if isinstance(node, tuple):
            return {"__tq_tuple__": True, "items": [visit(prefix, item) for item in node]}
        if isinstance(node, list):
            return [visit(prefix, item) for item in node]
        if isinstance(node, dict):
            return {key: visit(prefix, item) for key, item in node.items()}
        return node

    nodes = [visit("entry_%04d" % i, entry) for i, entry in enumerate(entries)]
    header = json.dumps({"schema_version": 3, "entries": nodes}).encode()
    blob, index = io.BytesIO(), {}
    for name, tensor in sorted(tensors.items(), key=lambda item: -item[1].itemsize):
        begin = blob.tell()
        blob.write(tensor.tobytes())
        index[name] = {"dtype": TYPES[str(tensor.dtype)], "shape": list(tensor.shape),
                       "data_offsets": [begin, blob.tell()]}
    text = json.dumps(index, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(b"TQS3" + struct.pack("<Q", len(header)) + header +
                     struct.pack("<Q", len(text)) + text + blob.getvalue())


def save(folder, name, layers, version, protocol=None):
    path = folder / (name + ".tqcache")
    entries = [entry for entry, _ in layers]
    if version == 3:
        save_v3(path, entries)
    else:
        save_pickle(path, entries, version, protocol)
    expected = [array.astype(np.float32).tobytes() for _, arrays in layers for array in arrays]
    (folder / (name + ".expected")).write_bytes(b"".join(expected))
    return path


MIXED = {"outlier_channels": 4, "outlier_high_bits": 3, "regular_bits": 2,
         "outlier_selection_policy": "calibration_variance", "calibration_prefix_tokens": 256}


def make_files(folder):
    random = np.random.default_rng(2026)
    mse = [turbo(random, 2, 5, 16), turbo(random, 2, 5, 16, bits_total=3, rotation_seed=7)]
    for protocol in (2, 3, 4, 5):
        save(folder, "v2_mse_p%d" % protocol, mse, 2, protocol)
    rename_modules(save(folder, "v2_mse_numpy2", mse, 2, 5))
    save(folder, "v1_prod_p4", [
        turbo(random, 1, 6, 32, mode="prod", bits_total=3),
        turbo(random, 1, 6, 16, np.float16, mode="prod", bits_total=2, rotation_kind="wht",
              rotation_seed=11, qjl_seed=5)], 1, 4)
    save(folder, "v2_mixed_p5", [
        turbo(random, 2, 4, 16, bits_total=3, mixed=MIXED),
        turbo(random, 2, 4, 16, mode="prod", bits_total=3, rotation_kind="wht",
              mixed=dict(MIXED, outlier_channels=8,
                         outlier_selection_policy="rolling_variance"))], 2, 5)
    save(folder, "v2_calibrating_p5", [calibrating(random, 2, 7, 16, np.float16, MIXED)], 2, 5)
    save(folder, "v2_long_p5", [turbo(random, 1, 300, 8, np.float16, bits_total=2, mode="mse")],
         2, 5)
    hybrid = [arrays(random, False), turbo(random, 2, 9, 16, values_mode="affine"),
              dense(random, 2, 9, 16, np.float16), arrays(random, True),
              quantized(random, 2, 9, 16, 8, 8), rotating(random, 2, 9, 16, 2, 6),
              quantized(random, 2, 9, 32, 3, 16)]
    save(folder, "v3_hybrid", hybrid, 3)
    save(folder, "v2_hybrid_p5", hybrid, 2, 5)
    save(folder, "v3_calibrating", [calibrating(random, 1, 3, 8, np.float32, dict(
        MIXED, outlier_channels=2))], 3)
    save(folder, "v3_prod", [turbo(random, 1, 2, 8, mode="prod", bits_total=2)], 3)
    save(folder, "v3_mixed", [turbo(random, 1, 2, 8, bits_total=2,
                                    mixed=dict(MIXED, outlier_channels=2))], 3)


# --- numbers


def bits_of(array):
    array = np.asarray(array)
    view = array.astype(array.dtype).view(np.uint32 if array.dtype == np.float32 else np.uint64)
    return ["%x" % v for v in view.reshape(-1)]


def make_numbers(path):
    seeds = list(range(24)) + [255, 256, 65537, 2**31, 2**32 - 1, 2**32, 2**53 + 1, 2**63 + 9,
                               2**64 - 1]
    numbers = {"seeds": [], "folded": [], "rotations": [], "samples": [], "codebooks": []}
    for seed in seeds:
        random = lambda: np.random.default_rng(seed)
        numbers["seeds"].append({
            "seed": seed,
            "state": ["%x" % v for v in np.random.SeedSequence(seed).generate_state(4, np.uint64)],
            "u64": ["%x" % v for v in random().integers(0, 2**64, size=4, dtype=np.uint64)],
            "double": bits_of(random().random(3)),
            "normal": bits_of(random().standard_normal(12)),
            "choice": "".join("+" if v > 0 else "-" for v in random().choice([-1.0, 1.0], size=70)),
        })
    for seed in (0, 1, 42):
        normal = np.random.default_rng(seed).standard_normal(200000)
        inside = np.abs(normal) < 3.65  # beyond, the last digit is the libm's
        folded = np.bitwise_xor.reduce(normal[inside].view(np.uint64))
        numbers["folded"].append({"seed": seed, "count": int(inside.sum()), "xor": "%x" % folded,
                                  "outside": bits_of(normal[~inside][:8])})
    for kind, dim, seed in (("qr", 2, 0), ("qr", 12, 3), ("qr", 16, 0), ("wht", 16, 4),
                            ("wht", 8, 9)):
        numbers["rotations"].append({"kind": kind, "dim": dim, "seed": seed,
                                     "matrix": bits_of(rotation(kind, dim, seed))})
    for kind, dim, seed in (("qr", 64, 1), ("qr", 96, 0), ("qr", 128, 0), ("qr", 128, 5),
                            ("qr", 256, 0), ("wht", 128, 0), ("qjl", 128, 1), ("qjl", 64, 8)):
        matrix = sketch(dim, seed) if kind == "qjl" else rotation(kind, dim, seed)
        places = np.random.default_rng(dim + seed).integers(0, dim * dim, size=40)
        numbers["samples"].append({"kind": kind, "dim": dim, "seed": seed,
                                   "places": [int(p) for p in places],
                                   "values": bits_of(matrix.reshape(-1)[places])})
    for dim, bits in ((2, 2), (4, 3), (16, 4), (32, 1), (64, 2), (96, 2), (128, 3), (128, 4),
                      (256, 4), (32, 3), (128, 5), (80, 8)):
        numbers["codebooks"].append({"dim": dim, "bits": bits,
                                     "centroids": bits_of(codebook(dim, bits))})
    path.write_text(json.dumps(numbers, separators=(",", ":")))


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    make_files(folder)
    make_numbers(folder / "numbers.json")
    artifacts = folder / "artifacts"
    for name in ("codebooks", "rotations", "qjl"):
        (artifacts / name).mkdir(parents=True, exist_ok=True)
    # Not what would be computed, so that a test can tell where a map came from.
    np.savez_compressed(artifacts / "rotations" / "qr-d16-s0.npz", head_dim=np.int32(16),
                        kind=np.array("qr"), seed=np.int32(0),
                        matrix=np.eye(16, dtype=np.float32))
    np.savez_compressed(artifacts / "codebooks" / (VERSION + "-d16-b4.npz"),
                        centroids=np.linspace(-0.75, 0.75, 16).astype(np.float32),
                        boundaries=np.zeros(15, np.float32), mse=np.float64(0))


main()
