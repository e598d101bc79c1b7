"""Tiny models of random weights, one of each family that the decoder runs, as transformers makes
and saves them. Norms and biases are random too, so that leaving one out shows."""

import json
import math

import torch
import transformers

N_VOCAB = 320
N_BYTES = 256

SHAPE = dict(vocab_size=N_VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=4,
             num_attention_heads=4, num_key_value_heads=2, head_dim=32,
             max_position_embeddings=4096, rms_norm_eps=1e-5)

EXPERTS = dict(num_experts=6, num_experts_per_tok=2, moe_intermediate_size=48, norm_topk_prob=True)

# More value heads than key heads, and keys and values of different sizes where GGUF allows it.
LINEAR = dict(linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=32,
              linear_value_head_dim=32, linear_conv_kernel_dim=4)

LLAMA3 = dict(rope_type="llama3", rope_theta=10000.0, factor=8.0, low_freq_factor=1.0,
              high_freq_factor=4.0, original_max_position_embeddings=64)

NO_SPECIAL = dict(pad_token_id=0, bos_token_id=0, eos_token_id=0)

GPT_OSS_ROPE = dict(rope_type="yarn", rope_theta=150000.0, factor=32.0, beta_fast=32.0,
                    beta_slow=1.0, original_max_position_embeddings=128)

# name: (configuration class, its arguments beside SHAPE)
FAMILIES = {
    "llama": ("LlamaConfig", dict(rope_parameters=LLAMA3)),
    "llama_biased": ("LlamaConfig", dict(attention_bias=True, tie_word_embeddings=True,
                                         rope_parameters=dict(rope_type="linear", factor=2.0,
                                                              rope_theta=5000.0))),
    "llama_yarn": ("LlamaConfig", dict(hidden_act="swish", max_position_embeddings=1024,
                                       rope_parameters=dict(rope_type="yarn", factor=4.0,
                                                            rope_theta=10000.0,
                                                            original_max_position_embeddings=256))),
    "qwen2_yarn": ("Qwen2Config", dict(max_position_embeddings=1024, rope_parameters=dict(
        rope_type="yarn", factor=8.0, rope_theta=1e6, original_max_position_embeddings=128,
        beta_fast=16, beta_slow=2, attention_factor=1.3, truncate=False))),
    "llama_dynamic": ("LlamaConfig", dict(max_position_embeddings=1024, rope_parameters=dict(
        rope_type="dynamic", factor=4.0, rope_theta=10000.0))),
    "mistral": ("MistralConfig", dict(sliding_window=24)),
    "qwen2": ("Qwen2Config", dict(tie_word_embeddings=True)),
    "qwen2_window": ("Qwen2Config", dict(use_sliding_window=True, sliding_window=20,
                                         max_window_layers=2)),
    "qwen3": ("Qwen3Config", {}),
    "qwen3_moe": ("Qwen3MoeConfig", dict(EXPERTS)),
    "gemma2": ("Gemma2Config", dict(sliding_window=20, query_pre_attn_scalar=24,
                                    attn_logit_softcapping=2.0, final_logit_softcapping=30.0)),
    "gemma3": ("Gemma3TextConfig", dict(num_hidden_layers=6, sliding_window=16,
                                        query_pre_attn_scalar=40)),
    "phi3": ("Phi3Config", dict(sliding_window=22, pad_token_id=0, eos_token_id=0)),
    "phi3_long": ("Phi3Config", dict(
        hidden_size=128, pad_token_id=0, eos_token_id=0, original_max_position_embeddings=512,
        rope_parameters=dict(rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                             short_factor=[1 + 0.1 * i for i in range(12)],
                             long_factor=[4 + 0.1 * i for i in range(12)],
                             original_max_position_embeddings=512))),
    "qwen3_next": ("Qwen3NextConfig", dict(EXPERTS, shared_expert_intermediate_size=40, **LINEAR)),
    "qwen3_5": ("Qwen3_5TextConfig", dict(LINEAR)),
    "qwen3_5_moe": ("Qwen3_5MoeTextConfig", dict(num_experts=6, num_experts_per_tok=2,
                                                 moe_intermediate_size=48,
                                                 shared_expert_intermediate_size=40, **LINEAR)),
}

FAMILIES |= {
    "gemma": ("GemmaConfig", {}),
    "olmo2": ("Olmo2Config", dict(hidden_size=128, **NO_SPECIAL)),
    "smollm3": ("SmolLM3Config", dict(num_hidden_layers=5, hidden_size=128, **NO_SPECIAL)),
    "smollm3_list": ("SmolLM3Config", dict(no_rope_layers=[1, 0, 0, 1], attention_bias=True,
                                           **NO_SPECIAL)),
    "granite": ("GraniteConfig", dict(hidden_size=128, attention_multiplier=0.05,
                                      embedding_multiplier=3.0, residual_multiplier=0.4,
                                      logits_scaling=2.5)),
    "mixtral": ("MixtralConfig", dict(num_local_experts=6, num_experts_per_tok=2,
                                      hidden_size=128)),
    "qwen2_moe": ("Qwen2MoeConfig", dict(EXPERTS, norm_topk_prob=False, hidden_size=128,
                                         shared_expert_intermediate_size=40)),
    "qwen2_moe_normed": ("Qwen2MoeConfig", dict(EXPERTS, shared_expert_intermediate_size=40)),
    "glm4": ("Glm4Config", dict(hidden_size=128, **NO_SPECIAL)),
    "gpt_oss": ("GptOssConfig", dict(num_local_experts=6, num_experts_per_tok=2, sliding_window=20,
                                     rope_parameters=dict(GPT_OSS_ROPE, truncate=False))),
    # Every token goes through all experts: a small difference in a cache cannot choose others.
    "gpt_oss_all": ("GptOssConfig", dict(num_local_experts=6, num_experts_per_tok=6,
                                         sliding_window=20,
                                         rope_parameters=dict(GPT_OSS_ROPE, truncate=False))),
    "gpt_oss_mxfp4": ("GptOssConfig", dict(num_local_experts=6, num_experts_per_tok=2,
                                           sliding_window=20, rope_parameters=GPT_OSS_ROPE)),
}

MINISTRAL_ROPE = dict(rope_type="yarn", rope_theta=1e6, factor=8.0, beta_fast=32.0, beta_slow=1.0,
                      mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.1,
                      original_max_position_embeddings=16)

# Vision models around a text model. The tower is there, and nothing runs it.
QWEN3_VL_TOWER = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                      spatial_merge_size=1, temporal_patch_size=1, num_position_embeddings=4,
                      deepstack_visual_indexes=[0])
QWEN2_VL_TOWER = dict(depth=1, hidden_size=16, intermediate_size=16, num_heads=2, patch_size=2,
                      spatial_merge_size=1, temporal_patch_size=1, fullatt_block_indexes=[0],
                      window_size=4)
TOWERS = {"qwen3_vl": QWEN3_VL_TOWER, "qwen2_5_vl": QWEN2_VL_TOWER}

FAMILIES |= {
    "llama_mlp_bias": ("LlamaConfig", dict(mlp_bias=True)),
    "olmo3": ("Olmo3Config", dict(hidden_size=128, sliding_window=20, rope_parameters=dict(
        full_attention=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                            original_max_position_embeddings=64),
        sliding_attention=dict(rope_type="default", rope_theta=10000.0)), **NO_SPECIAL)),
    "seed_oss": ("SeedOssConfig", dict(NO_SPECIAL)),
    "seed_oss_biased": ("SeedOssConfig", dict(attention_out_bias=True, mlp_bias=True,
                                              **NO_SPECIAL)),
    "ernie4_5": ("Ernie4_5Config", dict(NO_SPECIAL)),
    "ernie4_5_biased": ("Ernie4_5Config", dict(use_bias=True, **NO_SPECIAL)),
    "hunyuan": ("HunYuanDenseV1Config", dict(rope_parameters=dict(
        rope_type="dynamic", alpha=50.0, factor=1.0, rope_theta=10000.0), **NO_SPECIAL)),
    "granite4": ("GraniteMoeHybridConfig", dict(
        hidden_size=128, num_local_experts=0, shared_intermediate_size=96, mamba_n_heads=8,
        layer_types=["full_attention"] * 4, position_embedding_type="rope",
        attention_multiplier=0.05, embedding_multiplier=3.0, residual_multiplier=0.4,
        logits_scaling=2.5)),
    "granitemoe": ("GraniteMoeConfig", dict(
        hidden_size=128, num_local_experts=6, num_experts_per_tok=2, attention_multiplier=0.05,
        embedding_multiplier=3.0, residual_multiplier=0.4, logits_scaling=2.5)),
    "cohere": ("CohereConfig", dict(hidden_size=128, **NO_SPECIAL)),
    "cohere2": ("Cohere2Config", dict(hidden_size=128, sliding_window=20, logit_scale=0.3,
                                      **NO_SPECIAL)),
    "ministral3": ("Ministral3Config", dict(rope_parameters=MINISTRAL_ROPE, **NO_SPECIAL)),
    "ministral": ("MinistralConfig", dict(sliding_window=20, layer_types=[
        "full_attention", "sliding_attention"] * 2, **NO_SPECIAL)),
    "cwm": ("CwmConfig", dict(sliding_window=20, rope_parameters=LLAMA3, **NO_SPECIAL)),
    "exaone4": ("Exaone4Config", dict(hidden_size=128, sliding_window=20, **NO_SPECIAL)),
    "helium": ("HeliumConfig", dict(hidden_size=128, **NO_SPECIAL)),
    "glm": ("GlmConfig", dict(hidden_size=128, **NO_SPECIAL)),
    # llama.cpp takes norms of keys as wide as those of queries.
    "olmoe": ("OlmoeConfig", dict(hidden_size=128, num_key_value_heads=4, num_experts=6,
                                  num_experts_per_tok=2, **NO_SPECIAL)),
    "vaultgemma": ("VaultGemmaConfig", dict(sliding_window=20, query_pre_attn_scalar=24,
                                            attn_logit_softcapping=2.0,
                                            final_logit_softcapping=30.0, **NO_SPECIAL)),
    "qwen3_vl": ("Qwen3VLConfig", dict(rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, mrope_section=[6, 5, 5],
        mrope_interleaved=True))),
    "qwen2_5_vl": ("Qwen2_5_VLConfig", dict(hidden_size=128, rope_parameters=dict(
        rope_type="default", rope_theta=10000.0, mrope_section=[4, 6, 6]), **NO_SPECIAL)),
}

ROUTED = dict(n_routed_experts=8, num_experts_per_tok=3, moe_intermediate_size=48,
              n_shared_experts=2, routed_scaling_factor=1.7, first_k_dense_replace=1, **NO_SPECIAL)
IN_GROUPS = dict(ROUTED, n_group=4, topk_group=2)

FAMILIES |= {
    "glm4_moe": ("Glm4MoeConfig", dict(ROUTED, use_qk_norm=True, attention_bias=True)),
    "glm4_moe_groups": ("Glm4MoeConfig", dict(IN_GROUPS, norm_topk_prob=False)),
}

# Norms of latents have an epsilon of their own, 1e-6, in transformers.
LATENT = dict(rms_norm_eps=1e-6, num_key_value_heads=4, kv_lora_rank=64, q_lora_rank=32,
              qk_rope_head_dim=32, qk_nope_head_dim=24, v_head_dim=20)
DEEPSEEK_ROPE = dict(rope_type="yarn", rope_theta=10000.0, factor=8.0, beta_fast=32, beta_slow=1,
                     original_max_position_embeddings=64)
V3_ROPE = dict(DEEPSEEK_ROPE, mscale=1.0, mscale_all_dim=1.0)
V2_ROPE = dict(DEEPSEEK_ROPE, mscale=0.707, mscale_all_dim=0.707)

FAMILIES |= {
    "deepseek_v2": ("DeepseekV2Config", dict(ROUTED, **LATENT, rope_parameters=V2_ROPE)),
    # As V2 Lite: queries without a latent.
    "deepseek_v2_lite": ("DeepseekV2Config", dict(
        ROUTED, **{**LATENT, "q_lora_rank": None, "rms_norm_eps": 1e-5})),
    "deepseek_v2_groups": ("DeepseekV2Config", dict(
        IN_GROUPS, **LATENT, topk_method="group_limited_greedy",
        rope_parameters=dict(V2_ROPE, mscale=1.2))),
    "deepseek_v3": ("DeepseekV3Config", dict(IN_GROUPS, **LATENT, rope_parameters=V3_ROPE)),
    # Without experts: a small error cannot choose another one.
    "deepseek_v3_dense": ("DeepseekV3Config", dict(
        IN_GROUPS, **LATENT, rope_parameters=V3_ROPE) | dict(first_k_dense_replace=4)),
    # The rotated part is as large as the latent.
    "deepseek_v3_equal": ("DeepseekV3Config", dict(
        ROUTED, **{**LATENT, "kv_lora_rank": 32}, n_group=1, topk_group=1)),
}

# Sizes that no power of two divides; the last layers read the keys of earlier ones.
MIXED_LAYERS = dict(num_hidden_layers=7, intermediate_size=90, sliding_window=20,
                    layer_types=["sliding_attention", "full_attention", "sliding_attention",
                                 "sliding_attention", "full_attention", "sliding_attention",
                                 "full_attention"], **NO_SPECIAL)
LAYER_INPUTS = dict(MIXED_LAYERS, hidden_size_per_layer_input=10,
                    vocab_size_per_layer_input=N_VOCAB, num_kv_shared_layers=2)

FAMILIES |= {
    "gemma3n": ("Gemma3nTextConfig", dict(
        LAYER_INPUTS, hidden_size=60, intermediate_size=[90, 90, 102, 90, 90, 90, 110],
        vocab_size_per_layer_input=N_VOCAB - 20, laurel_rank=6, altup_num_inputs=3,
        final_logit_softcapping=30.0,
        activation_sparsity_pattern=[0.95, 0.5, 0.9, 0.0, 0.0, 0.7, 0.0])),
    # As E2B, 31B and 26B-A4B.
    "gemma4": ("Gemma4TextConfig", dict(
        LAYER_INPUTS, global_head_dim=64, use_double_wide_mlp=True, num_key_value_heads=1,
        final_logit_softcapping=30.0)),
    "gemma4_dense": ("Gemma4TextConfig", dict(
        MIXED_LAYERS, hidden_size=60, hidden_size_per_layer_input=0, global_head_dim=64,
        attention_k_eq_v=True, num_global_key_value_heads=1)),
    "gemma4_moe": ("Gemma4TextConfig", dict(
        MIXED_LAYERS, hidden_size_per_layer_input=0, global_head_dim=64, attention_k_eq_v=True,
        num_global_key_value_heads=1, enable_moe_block=True, num_experts=6, top_k_experts=2,
        moe_intermediate_size=44)),
}

# Experts have the values of MXFP4 blocks, and are stored as such.
MXFP4 = {"gpt_oss_mxfp4"}

# Not in a GGUF file: llama.cpp has no key for it, or the family has none.
# llama.cpp rounds YaRN's bounds to whole pairs, and never normalizes the experts of Qwen2-MoE.
HF_ONLY = {"qwen2_window", "qwen2_yarn", "smollm3_list", "qwen2_moe_normed", "gpt_oss",
           "gpt_oss_all", "seed_oss_biased", "ernie4_5_biased", "ministral", "cwm", "helium",
           "vaultgemma", "deepseek_v2_lite", "deepseek_v2_groups", "gemma3n", "gemma4",
           "gemma4_dense", "gemma4_moe", "deepseek_v3_dense"}

WINDOWED = {"mistral", "qwen2_window", "gemma2", "gemma3", "phi3", "gpt_oss", "olmo3", "cohere2",
            "ministral", "cwm", "exaone4", "vaultgemma", "gemma3n", "gemma4", "gemma4_dense",
            "gemma4_moe"}
HYBRID = {"qwen3_next", "qwen3_5", "qwen3_5_moe"}


def auto_class(name):
    is_wrapped = name in TOWERS
    return transformers.AutoModelForImageTextToText if is_wrapped else \
        transformers.AutoModelForCausalLM


def make(name, seed=7):
    """A model in f32, on the path through its code that has every step in it."""
    class_name, arguments = FAMILIES[name]
    shape = {**SHAPE, **arguments}
    if name in TOWERS:
        shape = dict(text_config=shape, vision_config=dict(
            TOWERS[name], out_hidden_size=shape["hidden_size"]))
    config = getattr(transformers, class_name)(**shape)
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = auto_class(name).from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            fill(key, tensor)
            if name in MXFP4 and key.endswith(("experts.gate_up_proj", "experts.down_proj")):
                round_to_mxfp4(tensor)
        for key, tensor in model.named_buffers():
            if key.endswith("e_score_correction_bias"):
                tensor.copy_(torch.randn_like(tensor) * 0.3)
            if key.endswith("layer_scalar"):
                tensor.copy_(1 + torch.randn_like(tensor) * 0.2)
    return model.eval()


def mxfp4_blocks(tensor):
    """Blocks of an expert matrix [experts, inputs, outputs] as GGUF has them:
    [experts, outputs, inputs / 32, 17]."""
    from gguf import GGMLQuantizationType, quants

    rows = tensor.transpose(1, 2).contiguous().float().numpy()
    blocks = quants.quantize(rows, GGMLQuantizationType.MXFP4)
    return blocks.reshape(*rows.shape[:2], -1, 17)


def round_to_mxfp4(tensor):
    from gguf import GGMLQuantizationType, quants

    blocks = mxfp4_blocks(tensor)
    rows = quants.dequantize(blocks.reshape(*blocks.shape[:2], -1), GGMLQuantizationType.MXFP4)
    tensor.copy_(torch.from_numpy(rows).transpose(1, 2))


def save_mxfp4(folder):
    """Changes a saved gpt-oss to the form in which it is published: codes and scales of MXFP4."""
    from safetensors.torch import load_file, save_file

    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name in [name for name in tensors if name.endswith(("gate_up_proj", "down_proj"))]:
        blocks = torch.from_numpy(mxfp4_blocks(tensors.pop(name)))
        codes = blocks[..., 1:]
        codes = torch.cat([codes & 15, codes >> 4], dim=-1)  # in the order of the values
        tensors[name + "_blocks"] = codes[..., 0::2] | codes[..., 1::2] << 4
        tensors[name + "_scales"] = blocks[..., 0].contiguous()
    save_file(tensors, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "mxfp4"}
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def fill(key, tensor):
    if key.endswith("A_log"):
        tensor.copy_(torch.rand_like(tensor) * 3 - 2)
    elif key.endswith(("dt_bias", ".bias", "_bias", "sinks")):
        tensor.copy_(torch.randn_like(tensor) * 0.3)
    elif "norm" in key:
        # Where weights are kept less 1 they are near 0 now, elsewhere near 1.
        tensor.copy_(tensor.mean().round() + torch.randn_like(tensor) * 0.2)
    elif "embed_tokens" in key:
        tensor.copy_(torch.randn_like(tensor))
    else:
        tensor.copy_(torch.randn_like(tensor) * 1.5 / math.sqrt(tensor.shape[-1]))


def _byte_letters():
    """GPT-2's letters for the 256 bytes."""
    letters, next_one = [], 0x100
    for byte in range(N_BYTES):
        printable = 0x20 < byte < 0x7F or (byte > 0xA0 and byte != 0xAD)
        letters.append(chr(byte if printable else next_one))
        next_one += not printable
    return letters


def vocabulary():
    """Tokens and merges: the bytes, and some pairs of them."""
    letters = _byte_letters()
    pairs = [(letters[ord("a") + i % 26], letters[ord("a") + (i * 7 + 3) % 26])
             for i in range(N_VOCAB - N_BYTES)]
    pairs = list(dict.fromkeys(pairs))
    firsts = [(letters[ord("A") + i], letters[ord("a") + i]) for i in range(26)]
    pairs = (pairs + firsts + [(letters[ord("0") + i], letters[ord("0") + j])
                               for i in range(10) for j in range(10)])[:N_VOCAB - N_BYTES]
    return letters + [a + b for a, b in pairs], [f"{a} {b}" for a, b in pairs]


def save_folder(model, folder, mxfp4=False):
    model.save_pretrained(folder)
    if mxfp4:
        save_mxfp4(folder)
    tokens, merges = vocabulary()
    tokenizer = {
        "version": "1.0", "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
