"""Writes the model of bench_model.h as a GGUF file: random weights of one type, Qwen3's architecture,
8 layers, 117 million weights. What they are does not matter to how long they take.

Wants the package gguf (tests/interop/peers/setup.sh installs it).

usage: make_model.py TYPE FILE      TYPE as GGUF has it: F16, Q8_0, Q4_K, ...
"""

import sys

import gguf
import numpy as np
from gguf import GGMLQuantizationType, quants

LAYERS, D_MODEL, D_FF, HEADS, KV_HEADS, HEAD_DIM = 8, 1024, 3072, 16, 4, 128
# Where the types that the package cannot make have their scales, and what their codes reach.
SCALES = {"Q2_K": ((80, 82), 24), "Q3_K": ((108,), 64), "Q4_K": ((0, 2), 256),
          "Q5_K": ((0, 2), 512), "Q6_K": ((208,), 2048), "IQ4_NL": ((0,), 64)}

random = np.random.default_rng(1)


def random_blocks(name, kind, values):
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, columns = values.shape
    blocks = random.integers(0, 256, (rows, columns // n_values, n_bytes), dtype=np.uint8)
    places, reach = SCALES[name]
    scale = np.frombuffer(np.float16(values.std() / reach).tobytes(), np.uint8)
    for place in places:
        blocks[..., place:place + 2] = scale
    return blocks.reshape(rows, -1)


def add_matrix(writer, name, rows, columns, kind):
    values = random.standard_normal((rows, columns), dtype=np.float32) / np.float32(columns**0.5)
    if kind.name in SCALES:
        data = random_blocks(kind.name, kind, values)
    else:
        data = quants.quantize(values, kind)
    if kind.name in ("F16", "F32"):
        writer.add_tensor(name, data)
    else:
        writer.add_tensor(name, data, raw_dtype=kind)


def add_norm(writer, name, size):
    writer.add_tensor(name, (1 + 0.1 * random.standard_normal(size)).astype(np.float32))


def byte_letters():
    """GPT-2's letters for the 256 bytes."""
    plain = [b for b in range(256) if 0x20 < b < 0x7F or 0xA0 < b != 0xAD]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def add_tokenizer(writer):
    tokens = byte_letters() + ["he"]
    kinds = [1] * len(tokens)
    while len(tokens) < 511:
        tokens.append(f"<x{len(tokens)}>")
        kinds.append(5)  # unused
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([*tokens, "<|im_end|>"])
    writer.add_token_types([*kinds, 3])  # control
    writer.add_token_merges(["h e"])
    writer.add_eos_token_id(511)


def add_config(writer):
    writer.add_context_length(131072)
    writer.add_embedding_length(D_MODEL)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(D_FF)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)


def add_tensors(writer, kind):
    add_matrix(writer, "token_embd.weight", 512, D_MODEL, kind)
    for layer in range(LAYERS):
        block = f"blk.{layer}."
        for name, rows, columns in [
                ("attn_q", HEADS * HEAD_DIM, D_MODEL), ("attn_k", KV_HEADS * HEAD_DIM, D_MODEL),
                ("attn_v", KV_HEADS * HEAD_DIM, D_MODEL), ("attn_output", D_MODEL, HEADS * HEAD_DIM),
                ("ffn_gate", D_FF, D_MODEL), ("ffn_up", D_FF, D_MODEL), ("ffn_down", D_MODEL, D_FF)]:
            add_matrix(writer, f"{block}{name}.weight", rows, columns, kind)
        for name, size in [("attn_norm", D_MODEL), ("ffn_norm", D_MODEL), ("attn_q_norm", HEAD_DIM),
                           ("attn_k_norm", HEAD_DIM)]:
            add_norm(writer, f"{block}{name}.weight", size)
    add_norm(writer, "output_norm.weight", D_MODEL)
    add_matrix(writer, "output.weight", 512, D_MODEL, kind)


def main(kind, path):
    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_name(f"bench {kind}")
    add_config(writer)
    add_tokenizer(writer)
    add_tensors(writer, GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
