"""Tiny random models of mlx-lm whose caches have shapes of their own: latents, lists, shared layers."""

import importlib

import mlx.core as mx

PLAIN = dict(vocab_size=97, hidden_size=64, intermediate_size=64, num_hidden_layers=3,
             num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-6,
             max_position_embeddings=1024, rope_theta=10000.0, tie_word_embeddings=False)
# The latent of a token has 48 components, its rotated part 16.
LATENT = dict(PLAIN, kv_lora_rank=48, q_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=24,
              v_head_dim=32, moe_intermediate_size=32, n_shared_experts=1, n_routed_experts=4,
              num_experts_per_tok=2, moe_layer_freq=1, first_k_dense_replace=1, n_group=1, topk_group=1,
              routed_scaling_factor=1.0, norm_topk_prob=True, topk_method="noaux_tc",
              scoring_func="sigmoid", rope_scaling=None, attention_bias=False)
MODELS = {
    "deepseek_v3": LATENT,
    "deepseek_v32": dict(LATENT, index_head_dim=32, index_n_heads=2, index_topk=64),
    "glm4_moe_lite": LATENT,
    "kimi_linear": dict(
        PLAIN, head_dim=16, model_max_length=1024, num_experts=2, moe_intermediate_size=32,
        kv_lora_rank=48, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=32,
        linear_attn_config=dict(kda_layers=[1, 3], full_attn_layers=[2], head_dim=16, num_heads=4,
                                short_conv_kernel_size=4)),
    "falcon_h1": dict(PLAIN, head_dim=16, mamba_d_ssm=64, mamba_d_state=16, mamba_d_head=16,
                      mamba_n_heads=4, mamba_n_groups=1, mamba_d_conv=4, mamba_expand=1),
    # The last 2 of 6 layers share the caches of earlier ones.
    "gemma4_text": dict(PLAIN, num_hidden_layers=6, head_dim=16, global_head_dim=32, num_kv_shared_layers=2,
                        num_key_value_heads=1, sliding_window=32, sliding_window_pattern=3,
                        vocab_size_per_layer_input=97, hidden_size_per_layer_input=8,
                        tie_word_embeddings=True),
}


def make(name):
    """A model; None if this mlx-lm does not have it."""
    try:
        module = importlib.import_module(f"mlx_lm.models.{name}")
    except ImportError:
        return None
    mx.random.seed(11)
    model = module.Model(module.ModelArgs.from_dict(dict(MODELS[name], model_type=name)))
    mx.eval(model.parameters())
    return model
