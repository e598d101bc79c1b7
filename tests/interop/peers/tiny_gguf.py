"""Writes a tiny model of transformers as a GGUF file, as llama.cpp's converter would.

Names come from the gguf package, the changes of weights from convert_hf_to_gguf.py: rows of q and k
of Llama in pairs, norms with their 1 added, -exp(A_log), value heads of Qwen3.5 in tiles, RoPE's
factors as tensors.
"""

import math

import gguf
import numpy as np
import torch
import transformers

import tiny_models

ARCHITECTURES = {
    "llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe", "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3",
    "qwen3_next": "qwen3next", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe",
    "gemma": "gemma", "olmo2": "olmo2", "smollm3": "smollm3", "granite": "granite",
    "mixtral": "llama", "qwen2_moe": "qwen2moe", "glm4": "glm4", "gpt_oss": "gpt-oss",
    "olmo3": "olmo2", "seed_oss": "seed_oss", "ernie4_5": "ernie4_5",
    "hunyuan_v1_dense": "hunyuan-dense", "granitemoehybrid": "granite", "granitemoe": "granitemoe",
    "cohere": "command-r", "cohere2": "cohere2", "ministral3": "mistral3", "exaone4": "exaone4",
    "glm": "chatglm", "olmoe": "olmoe", "qwen3_vl_text": "qwen3vl", "qwen2_5_vl_text": "qwen2vl",
    "glm4_moe": "glm4moe", "deepseek_v2": "deepseek2", "deepseek_v3": "deepseek2",
}
# transformers has the rows in halves. Those of GLM, ERNIE and Cohere are in pairs there, too.
IN_PAIRS = {"llama", "mistral", "mixtral", "smollm3", "granite", "granitemoehybrid", "granitemoe",
            "ministral3"}
COHERE = {"cohere", "cohere2"}
LISTED_WINDOWS = {"olmo3", "exaone4"}
QWEN35 = {"qwen3_5_text", "qwen3_5_moe_text"}
HYBRID = {"qwen3_next", *QWEN35}
ZERO_CENTRED = {"gemma", "gemma2", "gemma3_text", *HYBRID}
EXPERTS = {"qwen3_moe", "qwen3_next", "qwen3_5_moe_text", "qwen2_moe", "mixtral", "gpt_oss",
           "granitemoe", "olmoe"}
# Chosen as in DeepSeek V3.
ROUTED = {"glm4_moe", "deepseek_v2", "deepseek_v3"}
LATENT = {"deepseek_v2", "deepseek_v3"}
# Without a width of their own: it is that of the feed-forward.
COMMON_WIDTH = {"mixtral", "granitemoe", "olmoe"}


def write(model, path, mxfp4=False):
    """With `mxfp4`, experts are written as MXFP4 blocks."""
    config = model.config.get_text_config()
    writer = gguf.GGUFWriter(path, ARCHITECTURES[config.model_type])
    _add_shape(writer, config)
    _add_family(writer, config)
    _add_tokenizer(writer)
    for name, values in _tensors(model):
        values = np.ascontiguousarray(values, dtype=np.float32)
        if mxfp4 and name.endswith("_exps.weight"):
            kind = gguf.GGMLQuantizationType.MXFP4
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _rope(config, kind="full_attention"):
    rope = config.rope_parameters
    return rope.get(kind, rope)


def _n_rot(config):
    if config.model_type in LATENT:
        return config.qk_rope_head_dim
    return int(config.head_dim * _rope(config).get("partial_rotary_factor", 1.0))


def _add_shape(writer, config):
    writer.add_name("tiny " + config.model_type)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    if getattr(config, "intermediate_size", None):
        writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    if config.model_type in LATENT:
        _add_latents(writer, config)
    else:
        writer.add_head_count_kv(config.num_key_value_heads)
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if config.model_type in COHERE:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    else:
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    n_rot, rope = _n_rot(config), _rope(config)
    writer.add_rope_dimension_count(n_rot)
    writer.add_rope_freq_base(rope["rope_theta"] * rope.get("alpha", 1) ** (n_rot / (n_rot - 2)))


def _add_latents(writer, config):
    writer.add_head_count_kv(1)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)


def _add_family(writer, config):
    kind = config.model_type
    window = getattr(config, "sliding_window", None)
    if window:
        writer.add_sliding_window(window)
    if kind in LISTED_WINDOWS:
        writer.add_sliding_window_pattern([each == "sliding_attention"
                                           for each in config.layer_types])
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind in ("gemma2", "gemma3_text"):
        writer.add_float32(f"{ARCHITECTURES[kind]}.attention.scale",
                           config.query_pre_attn_scalar ** -0.5)
    if kind in EXPERTS:
        writer.add_expert_count(getattr(config, "num_experts", None) or config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        if kind not in COMMON_WIDTH:
            writer.add_expert_feed_forward_length(
                config.intermediate_size if kind == "gpt_oss" else config.moe_intermediate_size)
    if kind in ROUTED:
        writer.add_expert_count(config.n_routed_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
        writer.add_expert_shared_count(config.n_shared_experts)
        writer.add_expert_weights_scale(config.routed_scaling_factor)
        writer.add_expert_weights_norm(config.norm_topk_prob)
        functions = gguf.ExpertGatingFuncType
        writer.add_expert_gating_func(
            functions.SOFTMAX if kind == "deepseek_v2" else functions.SIGMOID)
        writer.add_leading_dense_block_count(config.first_k_dense_replace)
        if (config.n_group or 1) > 1:
            writer.add_expert_group_count(config.n_group)
            writer.add_expert_group_used_count(config.topk_group)
    if kind in COHERE:
        writer.add_logit_scale(config.logit_scale)
    if kind in ("qwen3_vl_text", "qwen2_5_vl_text"):
        writer.add_rope_dimension_sections([*_rope(config)["mrope_section"], 0])
    if kind in ("granite", "granitemoe", "granitemoehybrid"):
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if hasattr(config, "shared_expert_intermediate_size"):
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if kind in HYBRID:
        writer.add_ssm_conv_kernel(config.linear_conv_kernel_dim)
        writer.add_ssm_inner_size(config.linear_num_value_heads * config.linear_value_head_dim)
        writer.add_ssm_state_size(config.linear_key_head_dim)
        writer.add_ssm_time_step_rank(config.linear_num_value_heads)
        writer.add_ssm_group_count(config.linear_num_key_heads)
        writer.add_uint32(f"{ARCHITECTURES[kind]}.full_attention_interval", 4)
    if kind in QWEN35:
        # llama.cpp wants M-RoPE's sections, interleaved: of text the first three coordinates are
        # equal, and pairs that none of them has do not rotate.
        pairs = _n_rot(config) // 2
        writer.add_rope_dimension_sections([(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3, 0])
    _add_rope_scaling(writer, _rope(config), config)


def _add_rope_scaling(writer, rope, config):
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if config.model_type in LATENT and "mscale_all_dim" in rope:
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if "llama_4_scaling_beta" in rope:
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if rope["rope_type"] == "longrope":
        original = rope["original_max_position_embeddings"]
        stretch = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))


def _add_tokenizer(writer):
    tokens, merges = tiny_models.vocabulary()
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([1] * len(tokens))
    writer.add_token_merges(merges)


def _llama3_factors(rope, n_rot):
    frequencies = 1.0 / rope["rope_theta"] ** (np.arange(0, n_rot, 2) / n_rot)
    original = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    factors = []
    for length in 2 * math.pi / frequencies:
        if length < original / high:
            factors.append(1)
        elif length > original / low:
            factors.append(factor)
        else:
            smooth = (original / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors)


def _tensors(model):
    config = model.config.get_text_config()
    architecture = gguf.MODEL_ARCH_NAMES
    (arch,) = [each for each, word in architecture.items()
               if word == ARCHITECTURES[config.model_type]]
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tied = model.config.tie_word_embeddings
    for name, tensor in model.state_dict().items():
        if (tied and name == "lm_head.weight") or name.startswith("model.visual."):
            continue
        name = name.replace("model.language_model.", "model.")
        for new_name, values in _converted(name, tensor.float(), config):
            yield _gguf_name(names, new_name), values.numpy()
    rope = _rope(config)
    if rope["rope_type"] == "llama3":
        yield "rope_freqs.weight", _llama3_factors(rope, _n_rot(config))
    if rope["rope_type"] == "longrope":
        yield "rope_factors_long.weight", np.array(rope["long_factor"])
        yield "rope_factors_short.weight", np.array(rope["short_factor"])


def _gguf_name(names, name):
    if name.endswith("A_log"):
        return names.get_name(name, try_suffixes=(".weight",)) or name
    found = names.get_name(name, try_suffixes=(".weight", ".bias"))
    assert found, name
    return found


def _in_pairs(tensor, n_heads):
    """Halves of each head's rows to pairs."""
    rows = tensor.shape[0]
    return tensor.reshape(n_heads, 2, rows // n_heads // 2, *tensor.shape[1:]).swapaxes(1, 2) \
        .reshape(tensor.shape)


def _in_tiles(tensor, config, size, axis=0):
    """Value heads of one key head beside each other, to those of one number beside each other."""
    tensor = tensor.transpose(0, axis)
    n_key, n_value = config.linear_num_key_heads, config.linear_num_value_heads
    parts = tensor.reshape(n_key, n_value // n_key, size, *tensor.shape[1:])
    return parts.swapaxes(0, 1).reshape(tensor.shape).transpose(0, axis)


def _converted(name, tensor, config):
    kind = config.model_type
    if kind in ZERO_CENTRED and name.endswith("norm.weight") and "linear_attn.norm" not in name:
        tensor = tensor + 1
    if kind in IN_PAIRS:
        for part, n_heads in (("q_proj", config.num_attention_heads),
                              ("k_proj", config.num_key_value_heads)):
            if f"self_attn.{part}." in name:
                tensor = _in_pairs(tensor, n_heads)
    if "linear_attn" in name:
        return _converted_linear(name, tensor, config)
    if kind == "gpt_oss":
        return _converted_gpt_oss(name, tensor)
    if kind == "granitemoe":
        name = name.replace("block_sparse_moe.router", "block_sparse_moe.gate").replace(
            "block_sparse_moe.experts", "mlp.experts")
    if name.endswith("shared_mlp.input_linear.weight"):
        base = name.replace("shared_mlp.input_linear.weight", "mlp.")
        gate, up = tensor.chunk(2)
        return [(base + "gate_proj.weight", gate), (base + "up_proj.weight", up)]
    if name.endswith("shared_mlp.output_linear.weight"):
        name = name.replace("shared_mlp.output_linear", "mlp.down_proj")
    if name.endswith("experts.gate_up_proj"):
        base = name.removesuffix("gate_up_proj")
        gate, up = tensor.chunk(2, dim=1)
        return [(base + "gate_proj.weight", gate), (base + "up_proj.weight", up)]
    if name.endswith("experts.down_proj"):
        return [(name + ".weight", tensor)]
    if name.endswith("kv_b_proj.weight"):
        heads = tensor.reshape(config.num_attention_heads, -1, config.kv_lora_rank)
        keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        base = name.removesuffix("kv_b_proj.weight")
        return [(base + "k_b_proj.weight", keys.transpose(1, 2)),
                (base + "v_b_proj.weight", values)]
    if name.endswith("e_score_correction_bias"):
        return [(name.removesuffix("_bias") + ".bias", tensor)]
    if name.endswith("shared_expert_gate.weight"):
        tensor = tensor.reshape(-1)
    return [(name, tensor)]


def _converted_gpt_oss(name, tensor):
    """Experts: outputs before inputs; gate and up in turns."""
    if name.endswith("sinks"):
        return [(name + ".weight", tensor)]
    for part in ("experts.gate_up_proj", "experts.down_proj"):
        if not name.endswith((part, part + "_bias")):
            continue
        end = ".bias" if name.endswith("_bias") else ".weight"
        rows = tensor if end == ".bias" else tensor.transpose(1, 2)
        base = name[:name.index("experts.") + len("experts.")]
        if "gate_up" not in part:
            return [(base + "down_proj" + end, rows)]
        return [(base + "gate_proj" + end, rows[:, 0::2]), (base + "up_proj" + end, rows[:, 1::2])]
    return [(name, tensor)]


def _converted_linear(name, tensor, config):
    if name.endswith("A_log"):
        tensor = -torch.exp(tensor)
    if "conv1d" in name:
        tensor = tensor.squeeze(1)
    if name.endswith(".dt_bias"):
        name = name.removesuffix(".dt_bias") + ".dt_proj.bias"
    if "in_proj_qkvz" in name:
        return _apart(name, tensor, config)
    if config.model_type in QWEN35:
        tensor = _tiled(name, tensor, config)
    return [(name, tensor)]


def _apart(name, tensor, config):
    """q, k, v, z of a key head beside each other: all q, k, v, and all z."""
    n_key, size = config.linear_num_key_heads, config.linear_key_head_dim
    values = config.linear_num_value_heads // n_key * config.linear_value_head_dim
    heads = tensor.reshape(n_key, 2 * size + 2 * values, -1)
    q, k, v, z = torch.split(heads, [size, size, values, values], dim=1)
    flat = [part.reshape(-1, tensor.shape[-1]) for part in (q, k, v, z)]
    base = name.replace("in_proj_qkvz", "in_proj_qkv"), name.replace("in_proj_qkvz", "in_proj_z")
    return [(base[0], torch.cat(flat[:3])), (base[1], flat[3])]


def _tiled(name, tensor, config):
    size = config.linear_value_head_dim
    keys = 2 * config.linear_num_key_heads * config.linear_key_head_dim
    if "in_proj_qkv" in name or "conv1d" in name:
        return torch.cat([tensor[:keys], _in_tiles(tensor[keys:], config, size)])
    if "in_proj_z" in name:
        return _in_tiles(tensor, config, size)
    if any(part in name for part in ("in_proj_a", "in_proj_b", "A_log", "dt_proj")):
        return _in_tiles(tensor, config, 1)
    if "out_proj" in name:
        return _in_tiles(tensor, config, size, axis=1)
    return tensor
