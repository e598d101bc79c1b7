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

# Not in a GGUF file: llama.cpp has no key for it, or the family has none.
HF_ONLY = {"qwen2_window", "qwen2_yarn"}

WINDOWED = {"mistral", "qwen2_window", "gemma2", "gemma3", "phi3"}
HYBRID = {"qwen3_next", "qwen3_5", "qwen3_5_moe"}


def make(name, seed=7):
    """A model in f32, on the path through its code that has every step in it."""
    class_name, arguments = FAMILIES[name]
    config = getattr(transformers, class_name)(**{**SHAPE, **arguments})
    config._attn_implementation = "eager"
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32,
                                                          attn_implementation="eager")
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            _fill(key, tensor)
    return model.eval()


def _fill(key, tensor):
    if key.endswith("A_log"):
        tensor.copy_(torch.rand_like(tensor) * 3 - 2)
    elif key.endswith("dt_bias") or key.endswith(".bias"):
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


def save_folder(model, folder):
    model.save_pretrained(folder)
    tokens, merges = vocabulary()
    tokenizer = {
        "version": "1.0", "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)},
                  "merges": merges},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
