"""Decode steps of transformers behind a long prompt: CudaCache against DynamicCache.

python3 transformers_cache.py: four layers of an 8B model's shape (32 query heads, 8 kv heads of
128) with random weights, bf16. Prints medians of 50 steps, and bytes of the caches.
"""

import torch
import transformers

from tqcache.cuda_cache import CudaCache, register_attention

N_LAYERS = 4


def make_model(attention):
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=4096, intermediate_size=14336, num_hidden_layers=N_LAYERS,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=262144)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation=attention)
    return model.eval()


@torch.no_grad()
def step_us(model, cache, batch, n_tokens, n=50):
    # Keys and values go in directly: a prompt of this length would take minutes.
    for layer in cache.layers[:N_LAYERS]:
        shape = (batch, 8, n_tokens, 128)
        layer.update(*(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)))
    ids, times = torch.ones(batch, 1, dtype=torch.long, device="cuda"), []
    for _ in range(n + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        model(ids, past_key_values=cache)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times[5:])[n // 2]


def main():
    register_attention()
    torch.backends.cuda.enable_cudnn_sdp(False)
    plain, packed = make_model("sdpa"), make_model("tqcache")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"{torch.cuda.get_device_name()}, {N_LAYERS} layers")
    for batch, n_tokens in [(1, 8192), (1, 32768), (1, 131072), (16, 8192), (16, 32768)]:
        cache = transformers.DynamicCache(config=plain.config)
        dense = step_us(plain, cache, batch, n_tokens)
        size = sum(2 * layer.keys.numel() * 2 for layer in cache.layers)
        del cache
        for bits in (4, 2):
            for center in ("rope", "mean"):
                cache = CudaCache(packed.config, bits=bits, center=center)
                us = step_us(packed, cache, batch, n_tokens)
                print(f"| {batch} x {n_tokens} | {bits} | {center} | {us:.0f} us | dense "
                      f"{dense:.0f} us | {cache.nbytes / size:.3f} of the bytes |", flush=True)
                del cache


if __name__ == "__main__":
    main()
