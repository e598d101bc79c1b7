"""Writes a tiny encoder of images for llama.cpp (libmtmd) of random weights, as a GGUF file, and images
for it. It belongs to a text model of tiny_models: Gemma 3, or Qwen2-VL whose images have rows and
columns."""

import struct
import zlib

import gguf
import numpy as np

N_WIDTH, N_HEADS, N_LAYERS, PATCH, IMAGE = 32, 2, 2, 4, 64
PROJECTORS = {"gemma3": "gemma3", "qwen2_5_vl": "qwen2vl_merger"}


def write(family, d_model, path):
    writer = gguf.GGUFWriter(path, "clip")
    random = np.random.default_rng(1)

    def tensor(name, *shape):
        writer.add_tensor(name, (random.standard_normal(shape) * 0.1).astype(np.float32))

    writer.add_bool("clip.has_vision_encoder", True)
    writer.add_bool("clip.use_gelu", True)
    writer.add_string("clip.projector_type", PROJECTORS[family])
    for key, value in (("image_size", IMAGE), ("patch_size", PATCH), ("embedding_length", N_WIDTH),
                       ("feed_forward_length", 2 * N_WIDTH), ("projection_dim", d_model),
                       ("block_count", N_LAYERS), ("attention.head_count", N_HEADS)):
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-6)
    for key in ("image_mean", "image_std"):
        writer.add_array(f"clip.vision.{key}", [0.5, 0.5, 0.5])
    tensor("v.patch_embd.weight", N_WIDTH, 3, PATCH, PATCH)
    for layer in range(N_LAYERS):
        for name, rows, columns in (("attn_q", N_WIDTH, N_WIDTH), ("attn_k", N_WIDTH, N_WIDTH),
                                    ("attn_v", N_WIDTH, N_WIDTH), ("attn_out", N_WIDTH, N_WIDTH),
                                    ("ffn_up", 2 * N_WIDTH, N_WIDTH),
                                    ("ffn_down", N_WIDTH, 2 * N_WIDTH)):
            tensor(f"v.blk.{layer}.{name}.weight", rows, columns)
            tensor(f"v.blk.{layer}.{name}.bias", rows)
        for name in ("ln1", "ln2"):
            tensor(f"v.blk.{layer}.{name}.weight", N_WIDTH)
            tensor(f"v.blk.{layer}.{name}.bias", N_WIDTH)
    tensor("v.post_ln.weight", N_WIDTH)
    tensor("v.post_ln.bias", N_WIDTH)
    if family == "gemma3":
        tensor("v.patch_embd.bias", N_WIDTH)
        tensor("v.position_embd.weight", (IMAGE // PATCH) ** 2, N_WIDTH)
        tensor("mm.input_projection.weight", N_WIDTH, d_model)
        tensor("mm.soft_emb_norm.weight", N_WIDTH)
    else:
        tensor("v.patch_embd.weight.1", N_WIDTH, 3, PATCH, PATCH)
        tensor("mm.0.weight", 4 * N_WIDTH, 4 * N_WIDTH)
        tensor("mm.0.bias", 4 * N_WIDTH)
        tensor("mm.2.weight", d_model, 4 * N_WIDTH)
        tensor("mm.2.bias", d_model)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def png(width, height, seed):
    """The bytes of a picture of noise."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    rows = b"".join(b"\0" + row.tobytes() for row in pixels)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows))
            + chunk(b"IEND", b""))
