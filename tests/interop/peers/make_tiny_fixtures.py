"""Makes tests/data/architectures: models of a few thousand random weights in bf16, one of each family,
and the logits that transformers computes with them in f32.

usage: make_tiny_fixtures.py FOLDER [NAME ...]
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

import tiny_models

N_TOKENS = 40
N_VOCAB = 64

SMALL = dict(vocab_size=N_VOCAB, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, head_dim=32, max_position_embeddings=512)
SMALL_EXPERTS = dict(num_experts=4, moe_intermediate_size=16)
SMALL_LINEAR = dict(linear_key_head_dim=16, linear_value_head_dim=24,
                    layer_types=["linear_attention", "full_attention"])

SMALL_WINDOW = dict(sliding_window=9, layer_types=["sliding_attention", "full_attention"])

# head_dim is the size of the rotated part.
SMALL_LATENT = dict(num_key_value_heads=4, moe_intermediate_size=16,
                    n_shared_experts=1, qk_nope_head_dim=12, v_head_dim=10)

SMALL_MIXED = dict(vocab_size_per_layer_input=N_VOCAB, hidden_size=36, num_hidden_layers=4,
                   sliding_window=9, layer_types=["sliding_attention", "full_attention"] * 2)

CHANGES = {
    "llama": {},
    "llama_biased": {},
    "mistral": dict(sliding_window=9),
    "qwen2": {},
    "qwen3_moe": SMALL_EXPERTS,
    "gemma2": dict(sliding_window=8),
    "gemma3": dict(num_hidden_layers=3, sliding_window=7,
                   layer_types=["sliding_attention", "full_attention", "sliding_attention"]),
    "phi3_long": dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=1,
                      original_max_position_embeddings=128,
                      rope_parameters=dict(
                          rope_type="longrope", rope_theta=10000.0, partial_rotary_factor=0.75,
                          short_factor=[1 + 0.2 * i for i in range(12)],
                          long_factor=[4 + 0.2 * i for i in range(12)],
                          original_max_position_embeddings=128)),
    "qwen3_next": dict(SMALL_EXPERTS, shared_expert_intermediate_size=12, **SMALL_LINEAR),
    "qwen3_5": SMALL_LINEAR,
    "gemma": {},
    "olmo2": {},
    "smollm3": dict(num_hidden_layers=3, no_rope_layers=[1, 0, 1]),
    "granite": {},
    "mixtral": dict(num_local_experts=4, intermediate_size=16),
    "qwen2_moe": dict(SMALL_EXPERTS, shared_expert_intermediate_size=12),
    "glm4": {},
    "gpt_oss": dict(num_local_experts=4, intermediate_size=16, sliding_window=9),
    "gpt_oss_mxfp4": dict(num_local_experts=4, intermediate_size=32,
                          sliding_window=9),
    "llama_mlp_bias": {},
    "olmo3": dict(SMALL_WINDOW, rope_parameters=dict(
        full_attention=dict(rope_type="yarn", rope_theta=10000.0, factor=4.0,
                            original_max_position_embeddings=16),
        sliding_attention=dict(rope_type="default", rope_theta=10000.0))),
    "seed_oss": {},
    "ernie4_5": {},
    "ernie4_5_biased": {},
    "hunyuan": {},
    "granite4": dict(shared_intermediate_size=40, layer_types=["full_attention"] * 2),
    "granitemoe": dict(num_local_experts=4, intermediate_size=16),
    "cohere": dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=1),
    "cohere2": dict(SMALL_WINDOW, hidden_size=128),
    "ministral3": {},
    "ministral": SMALL_WINDOW,
    "cwm": SMALL_WINDOW,
    "exaone4": SMALL_WINDOW,
    "helium": dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=1),
    "glm": {},
    "olmoe": dict(num_experts=4, intermediate_size=16, hidden_size=64, num_attention_heads=2,
                  num_key_value_heads=1),
    "vaultgemma": SMALL_WINDOW,
    "qwen3_vl": {},
    "glm4_moe_groups": dict(moe_intermediate_size=16, n_shared_experts=1),
    "deepseek_v2_lite": SMALL_LATENT,
    "deepseek_v3": SMALL_LATENT,
    "gemma3n": dict(SMALL_MIXED, intermediate_size=[40, 44, 40, 36],
                    activation_sparsity_pattern=[0.9, 0.0, 0.0, 0.5]),
    "gemma4": SMALL_MIXED, "gemma4_dense": SMALL_MIXED,
    "gemma4_moe": dict(SMALL_MIXED, num_experts=4, moe_intermediate_size=12),
    "qwen2_5_vl": dict(hidden_size=64, num_attention_heads=2, num_key_value_heads=1),
}


def ids():
    return [(7 * i * i + 3 * i + 11) % N_VOCAB for i in range(N_TOKENS)]


@torch.no_grad()
def write(name, root):
    folder = root / name
    tiny_models.FAMILIES[name][1].update({**SMALL, **CHANGES[name]})
    model = tiny_models.make(name)
    model.to(torch.bfloat16)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "model.safetensors").chmod(0o644)
    # As saved: to() rounds what is no weight, too.
    model = tiny_models.auto_class(name).from_pretrained(folder, dtype=torch.float32,
                                                         attn_implementation="eager").eval()
    if name in tiny_models.MXFP4:
        tiny_models.save_mxfp4(folder)
    logits = model(torch.tensor([ids()])).logits[0].numpy()
    logits.astype("<f4").tofile(folder / "logits.f32")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    print(name, sum(file.stat().st_size for file in folder.iterdir()), np.abs(logits).max())


if __name__ == "__main__":
    target = Path(sys.argv[1])
    for each in sys.argv[2:] or CHANGES:
        shutil.rmtree(target / each, ignore_errors=True)
        write(each, target)
