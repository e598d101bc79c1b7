"""Writes a GGUF file of a tiny model of DeepSeek V3's kind with random weights: latent attention
(MLA), of which llama.cpp keeps one row a token, and no values.
"""

import gguf
import numpy as np

import tiny_gguf

N_LAYERS, N_HEADS, WIDTH = 2, 4, 64
Q_LORA, KV_LORA, N_ROT, NOPE, VALUE, FFN = 32, 128, 64, 32, 32, 96


def write(path):
    writer = gguf.GGUFWriter(path, "deepseek2")
    writer.add_name("tiny deepseek")
    writer.add_block_count(N_LAYERS)
    writer.add_context_length(4096)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(N_HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(KV_LORA + N_ROT)
    writer.add_value_length(KV_LORA)
    writer.add_key_length_mla(NOPE + N_ROT)
    writer.add_value_length_mla(VALUE)
    writer.add_q_lora_rank(Q_LORA)
    writer.add_kv_lora_rank(KV_LORA)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(N_ROT)
    writer.add_rope_freq_base(10000.0)
    writer.add_leading_dense_block_count(N_LAYERS)
    writer.add_expert_count(4)
    writer.add_expert_used_count(2)
    writer.add_expert_feed_forward_length(16)
    writer.add_expert_shared_count(1)
    writer.add_expert_weights_scale(1.0)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    tiny_gguf._add_tokenizer(writer)
    n_vocab = len(tiny_gguf.tiny_models.vocabulary()[0])
    draw = np.random.default_rng(17)

    def add(name, *shape):
        scale = 1.0 if len(shape) == 1 else shape[-1] ** -0.5
        values = draw.standard_normal(shape) * scale
        values = 1 + 0.1 * values if len(shape) == 1 else values
        writer.add_tensor(name + ".weight", values.astype(np.float32))

    add("token_embd", n_vocab, WIDTH)
    for i in range(N_LAYERS):
        of_layer = f"blk.{i}."
        add(of_layer + "attn_norm", WIDTH)
        add(of_layer + "attn_q_a", Q_LORA, WIDTH)
        add(of_layer + "attn_q_a_norm", Q_LORA)
        add(of_layer + "attn_q_b", N_HEADS * (NOPE + N_ROT), Q_LORA)
        add(of_layer + "attn_kv_a_mqa", KV_LORA + N_ROT, WIDTH)
        add(of_layer + "attn_kv_a_norm", KV_LORA)
        add(of_layer + "attn_k_b", N_HEADS, KV_LORA, NOPE)
        add(of_layer + "attn_v_b", N_HEADS, VALUE, KV_LORA)
        add(of_layer + "attn_output", WIDTH, N_HEADS * VALUE)
        add(of_layer + "ffn_norm", WIDTH)
        add(of_layer + "ffn_gate", FFN, WIDTH)
        add(of_layer + "ffn_up", FFN, WIDTH)
        add(of_layer + "ffn_down", WIDTH, FFN)
    add("output_norm", WIDTH)
    add("output", n_vocab, WIDTH)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def latents_of_layer_0(path, ids):
    """[number of ids, KV_LORA]: what every token leaves in layer 0 beside what turns."""
    weights = {each.name: each.data for each in gguf.GGUFReader(path).tensors}

    def norm(rows, name):
        return rows / np.sqrt((rows**2).mean(-1, keepdims=True) + 1e-6) * weights[name + ".weight"]

    rows = norm(weights["token_embd.weight"][ids], "blk.0.attn_norm")
    both = rows @ weights["blk.0.attn_kv_a_mqa.weight"].T
    return norm(both[:, :KV_LORA], "blk.0.attn_kv_a_norm")
