#!/usr/bin/env python3
"""A prompt of 131,072 tokens with layers as wide as an 8B model's: kept, resumed, stored.

usage: long_prompt.py --tqcache PROGRAM [--tokens N] [--folder FOLDER]

The model has two layers with the widths of Llama 3 8B (4,096; 32 query heads, 8 kv heads of 128;
feed-forward 14,336) and a context of as many tokens as are asked for. Weights, keys and values are
random. The cache of another program (1 GiB in f16) is converted to a dense and to a 4-bit file; both
are verified and resumed, and go through a store. What is resumed from the store has to give the
tokens that the file gives.

Every resumption may take 300 MiB besides weights and cache, other steps 512 MiB, and a get from a
store the bytes of the file as well, since it reads all blobs before it writes. Takes 4 GB of disk.
Wants numpy.
"""

import argparse
import json
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

import large_files
from large_files import run

N_LAYERS, WIDTH, N_QUERY_HEADS, N_HEADS, HEAD_DIM, FEED_FORWARD = 2, 4096, 32, 8, 128, 14336
N_VOCAB = 256
MIB = 1 << 20


def write_safetensors(path, tensors, metadata):
    """tensors: name -> (dtype, shape, function that gives the bytes)."""
    header, end = {"__metadata__": metadata}, 0
    for name, (dtype, shape, _) in tensors.items():
        size = int(np.prod(shape)) * {"F16": 2, "BF16": 2, "I64": 8}[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data())
    return end


def write_model(folder, n_tokens, rng):
    """Returns the bytes of its weights."""
    large_files.N_LAYERS, large_files.WIDTH, large_files.N_VOCAB = N_LAYERS, 64, N_VOCAB
    large_files.write_model(folder, n_tokens)  # the tokenizer; the rest is written anew
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_size": WIDTH, "intermediate_size": FEED_FORWARD, "num_hidden_layers": N_LAYERS,
               "num_attention_heads": N_QUERY_HEADS, "num_key_value_heads": N_HEADS,
               "head_dim": HEAD_DIM, "rope_theta": 500000.0, "max_position_embeddings": n_tokens + 64}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}

    def add(name, *shape):
        def data():
            scale = 1.0 if len(shape) == 1 else shape[1] ** -0.5
            values = np.ones(shape, np.float32) if len(shape) == 1 else \
                rng.standard_normal(shape, np.float32) * np.float32(scale)
            return (values.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        tensors[name] = ("BF16", list(shape), data)

    add("model.embed_tokens.weight", N_VOCAB, WIDTH)
    add("model.norm.weight", WIDTH)
    for layer in range(N_LAYERS):
        block = f"model.layers.{layer}."
        add(block + "self_attn.q_proj.weight", N_QUERY_HEADS * HEAD_DIM, WIDTH)
        add(block + "self_attn.k_proj.weight", N_HEADS * HEAD_DIM, WIDTH)
        add(block + "self_attn.v_proj.weight", N_HEADS * HEAD_DIM, WIDTH)
        add(block + "self_attn.o_proj.weight", WIDTH, N_QUERY_HEADS * HEAD_DIM)
        add(block + "mlp.gate_proj.weight", FEED_FORWARD, WIDTH)
        add(block + "mlp.up_proj.weight", FEED_FORWARD, WIDTH)
        add(block + "mlp.down_proj.weight", WIDTH, FEED_FORWARD)
        add(block + "input_layernorm.weight", WIDTH)
        add(block + "post_attention_layernorm.weight", WIDTH)
    return write_safetensors(folder / "model.safetensors", tensors, {"format": "pt"})


def write_cache(path, n_tokens, rng):
    """Returns the bytes of keys and values."""
    shape = [1, N_HEADS, n_tokens, HEAD_DIM]
    tensors = {}
    for layer in range(N_LAYERS):
        for part in ("key", "value"):
            tensors[f"model.layers.{layer}.{part}"] = ("F16", shape, lambda: rng.standard_normal(
                shape, np.float32).astype(np.float16).tobytes())
    ids = rng.integers(0, N_VOCAB, n_tokens)
    tensors["tokens"] = ("I64", [n_tokens], lambda: ids.astype("<i8").tobytes())
    return write_safetensors(path, tensors, {
        "format": "tqcache-hf-1", "n_tokens": str(n_tokens),
        "layer_types": json.dumps(["full_attention"] * N_LAYERS)}) - 8 * n_tokens


def resume(options, model, cache, n_bytes):
    answer = json.loads(run(options.tqcache, "generate", "-m", model, "--cache", cache, "--ids",
                            "72,101", "-n", 8, "--json", "--quiet",
                            more_mib=n_bytes / MIB + 300 - large_files.MOST_MIB))
    print(f"    tokens {answer['token_ids']}")
    return answer["token_ids"]


def check(options, folder):
    rng = np.random.default_rng(1)
    model, foreign = folder / "model", folder / "in.safetensors"
    weights = write_model(model, options.tokens, rng)
    dense_bytes = write_cache(foreign, options.tokens, rng)
    print(f"{options.tokens} tokens, {dense_bytes} bytes; weights of {weights} bytes", flush=True)
    files = {"dense": folder / "dense.tqkv", "turbo": folder / "turbo.tqkv"}
    # A probe would compute tokens anew: random keys and values are of no tokens.
    common = ("-m", model, "--probe", 0)
    run(options.tqcache, "convert", foreign, files["dense"], "--bits", 16, *common)
    run(options.tqcache, "convert", foreign, files["turbo"], "--bits", 4, *common)
    foreign.unlink()
    store = f"dir:{folder / 'store'}"
    for name, file in files.items():
        run(options.tqcache, "verify", file)
        info = json.loads(run(options.tqcache, "info", file, "--json"))
        if info["n_tokens"] != options.tokens:
            sys.exit(f"info: {info['n_tokens']} tokens")
        n_bytes = weights + dense_bytes // (1 if name == "dense" else 3)
        tokens = resume(options, model, file, n_bytes)
        run(options.tqcache, "store", "put", file, "--store", store, "--name", name)
        stored = file.stat().st_size
        file.unlink()
        run(options.tqcache, "store", "get", name, "-o", file, "--store", store,
            more_mib=stored / MIB)
        if resume(options, model, file, n_bytes) != tokens:
            sys.exit("from the store other tokens follow")
    print("right")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tqcache", type=Path, required=True)
    parser.add_argument("--tokens", type=int, default=131072)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tqcache-long-", dir=options.folder))
    try:
        check(options, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
