#!/usr/bin/env python3
"""Makes tqcache-demo-17m.q8_0.gguf from hf/: the bundled model in Q8_0, for llama.cpp and tqcache.

usage: models/demo/make_gguf.py [OUTPUT]

The repository holds the model once, in bf16. The build runs this; the bytes are the same everywhere,
and their SHA-256 is checked, because fingerprints in files of the tests name them. Needs nothing but
Python's own library, and takes some seconds.
"""

import array
import hashlib
import json
import os
import pathlib
import struct
import sys

FOLDER = pathlib.Path(__file__).resolve().parent
NAME = "tqcache-demo-17m.q8_0.gguf"
SHA256 = "5aeec8bab0d095a36f5ef3c3d096d85978d12ecff3583d7ce901655326021820"

ALIGNMENT = 32
F32, Q8_0 = 0, 8  # types of tensors
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9  # types of metadata
NORMAL, CONTROL = 1, 3  # types of tokens


def text(value):
    encoded = value.encode()
    return struct.pack("<Q", len(encoded)) + encoded


def metadata(config, tokenizer, template):
    """Yields (key, type, bytes) in the order of the file."""
    def of(key, kind, value):
        packed = {UINT32: "<I", FLOAT32: "<f", BOOL: "<?"}
        return key, kind, text(value) if kind == STRING else struct.pack(packed[kind], value)

    def array_of(key, kind, values):
        body = [struct.pack("<i", value) if kind == INT32 else text(value) for value in values]
        return key, ARRAY, struct.pack("<IQ", kind, len(body)) + b"".join(body)

    tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    merges = [merge if isinstance(merge, str) else " ".join(merge)
              for merge in tokenizer["model"]["merges"]]
    yield of("general.architecture", STRING, "qwen3")
    yield of("general.name", STRING, "tqcache demo 17M")
    yield of("general.file_type", UINT32, 7)  # mostly Q8_0
    yield of("general.alignment", UINT32, ALIGNMENT)
    yield of("general.license", STRING, "cc-by-sa-4.0")
    yield of("qwen3.block_count", UINT32, config["num_hidden_layers"])
    yield of("qwen3.context_length", UINT32, config["max_position_embeddings"])
    yield of("qwen3.embedding_length", UINT32, config["hidden_size"])
    yield of("qwen3.feed_forward_length", UINT32, config["intermediate_size"])
    yield of("qwen3.attention.head_count", UINT32, config["num_attention_heads"])
    yield of("qwen3.attention.head_count_kv", UINT32, config["num_key_value_heads"])
    yield of("qwen3.attention.key_length", UINT32, config["head_dim"])
    yield of("qwen3.attention.value_length", UINT32, config["head_dim"])
    yield of("qwen3.rope.freq_base", FLOAT32, config["rope_theta"])
    yield of("qwen3.attention.layer_norm_rms_epsilon", FLOAT32, config["rms_norm_eps"])
    yield of("tokenizer.ggml.model", STRING, "gpt2")
    yield of("tokenizer.ggml.pre", STRING, "qwen2")
    yield array_of("tokenizer.ggml.tokens", STRING, tokens)
    yield array_of("tokenizer.ggml.token_type", INT32,
                   [CONTROL if token in special else NORMAL for token in tokens])
    yield array_of("tokenizer.ggml.merges", STRING, merges)
    yield of("tokenizer.ggml.eos_token_id", UINT32, config["eos_token_id"])
    yield of("tokenizer.ggml.padding_token_id", UINT32, config["pad_token_id"])
    yield of("tokenizer.ggml.bos_token_id", UINT32, config["bos_token_id"])
    yield of("tokenizer.ggml.add_bos_token", BOOL, False)
    yield of("tokenizer.chat_template", STRING, template)


def names(n_layers):
    """Yields (name here, name in Hugging Face's folder)."""
    yield "token_embd", "model.embed_tokens"
    yield "output_norm", "model.norm"
    for layer in range(n_layers):
        for here, there in (("attn_norm", "input_layernorm"), ("attn_q", "self_attn.q_proj"),
                            ("attn_k", "self_attn.k_proj"), ("attn_v", "self_attn.v_proj"),
                            ("attn_output", "self_attn.o_proj"), ("attn_q_norm", "self_attn.q_norm"),
                            ("attn_k_norm", "self_attn.k_norm"),
                            ("ffn_norm", "post_attention_layernorm"), ("ffn_gate", "mlp.gate_proj"),
                            ("ffn_up", "mlp.up_proj"), ("ffn_down", "mlp.down_proj")):
            yield f"blk.{layer}.{here}", f"model.layers.{layer}.{there}"


def floats(bf16):
    """bf16 are the upper halves of f32."""
    wide = bytearray(2 * len(bf16))
    wide[2::4], wide[3::4] = bf16[0::2], bf16[1::2]
    values = array.array("f", bytes(wide))
    if sys.byteorder == "big":
        values.byteswap()
    return values


def q8_0(bf16):
    """Blocks of 32 values: a scale in f16, and a byte for each value, rounded half to even."""
    values = floats(bf16)
    blocks = []
    for first in range(0, len(values), 32):
        block = values[first:first + 32]
        scale = struct.pack("<e", max(max(block), -min(block)) / 127)
        divisor = struct.unpack("<e", scale)[0]
        blocks.append(scale)
        blocks.append(struct.pack("32b", *([round(value / divisor) for value in block]
                                           if divisor else [0] * 32)))
    return b"".join(blocks)


def model_bytes(folder, n_layers=None):
    """The file; with n_layers, that of a model which has only so many of the layers (for tests)."""
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = n_layers or config["num_hidden_layers"]
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    template = json.loads((folder / "tokenizer_config.json").read_text())["chat_template"]
    weights = (folder / "model.safetensors").read_bytes()
    n_header = struct.unpack_from("<Q", weights)[0]
    header = json.loads(weights[8:8 + n_header])

    entries, data = [], []
    offset = 0
    for here, there in names(config["num_hidden_layers"]):
        tensor = header[there + ".weight"]
        begin, end = (8 + n_header + at for at in tensor["data_offsets"])
        bf16 = weights[begin:end]
        is_matrix = len(tensor["shape"]) == 2
        values = q8_0(bf16) if is_matrix else struct.pack(f"<{len(bf16) // 2}f", *floats(bf16))
        shape = tensor["shape"][::-1]  # the innermost dimension first
        entries.append(text(here + ".weight") + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape, Q8_0 if is_matrix else F32, offset))
        padding = -len(values) % ALIGNMENT
        data += [values, bytes(padding)]
        offset += len(values) + padding
    keys = [text(key) + struct.pack("<I", kind) + value
            for key, kind, value in metadata(config, tokenizer, template)]
    head = b"".join([b"GGUF", struct.pack("<IQQ", 3, len(entries), len(keys)), *keys, *entries])
    return b"".join([head, bytes(-len(head) % ALIGNMENT), *data])


def main():
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER / NAME
    made = model_bytes(FOLDER / "hf")
    found = hashlib.sha256(made).hexdigest()
    if found != SHA256:
        sys.exit(f"{sys.argv[0]}: expected {NAME} with the SHA-256 {SHA256}, made {found}: "
                 "a file of hf/ differs from the repository's")
    new = output.with_name(f"{output.name}.{os.getpid()}")  # whole, or not at all
    new.write_bytes(made)
    new.replace(output)


if __name__ == "__main__":
    main()
