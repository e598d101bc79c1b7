"""Decode steps and prompts of transformers: TqcacheCache on a GPU against DynamicCache.

python3 transformers_cache.py: four layers of an 8B model's shape (32 query heads, 8 kv heads of
128) with random weights, bf16. Prints medians of 50 steps, usual ones and those of a CUDA graph;
what the kernels of a dense step take alone; bytes of the caches; and time and peak of memory while
a prompt of 131,072 tokens is read by 8,192.
"""

import contextlib
import time

import torch
import transformers

import tqcache.transformers as tq

N_LAYERS = 4


def make_model():
    config = transformers.LlamaConfig(
        vocab_size=1024, hidden_size=4096, intermediate_size=14336, num_hidden_layers=N_LAYERS,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, max_position_embeddings=262144)
    torch.manual_seed(1)
    with torch.device("cuda"):
        model = transformers.AutoModelForCausalLM.from_config(
            config, dtype=torch.bfloat16, attn_implementation="sdpa")
    return model.eval()


def bytes_of(cache):
    return sum(tq.bytes_of_layer(layer) for layer in cache.layers)


@torch.no_grad()
def step_us(model, cache, n=50):
    batch = cache.layers[0].keys.shape[0]
    ids, times = torch.ones(batch, 1, dtype=torch.long, device="cuda"), []
    for _ in range(n + 5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        model(ids, past_key_values=cache)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times[5:])[n // 2]


@torch.no_grad()
def kernels_us(model, cache, n=10):
    """The time of the GPU alone: what a step would take if Python took none."""
    batch = cache.layers[0].keys.shape[0]
    ids = torch.ones(batch, 1, dtype=torch.long, device="cuda")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(n):
            model(ids, past_key_values=cache)
        torch.cuda.synchronize()
    return sum(event.device_time for event in profile.events()
               if event.device_type == torch.autograd.DeviceType.CUDA) / n


@torch.no_grad()
def filled(model, cache, batch, n_tokens):
    """The cache with a prompt: keys and values go in directly, and a token shows each layer its
    attention."""
    for layer in range(N_LAYERS):
        shape = (batch, 8, n_tokens, 128)
        cache.update(*(torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(2)),
                     layer)
    model(torch.ones(batch, 1, dtype=torch.long, device="cuda"), past_key_values=cache)
    return cache


@torch.no_grad()
def peak_of_prompt(model, cache, n_tokens, n_chunk=8192):
    """Bytes above those of the model at the peak, and of what is left; and seconds."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    ids = torch.ones(1, n_chunk, dtype=torch.long, device="cuda")
    start = time.perf_counter()
    for _ in range(0, n_tokens, n_chunk):
        model(ids, past_key_values=cache, logits_to_keep=1)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - start
    return torch.cuda.max_memory_allocated() - before, bytes_of(cache), seconds


def packed_cache(model, bits=4, **options):
    return tq.TqcacheCache(bits=bits, config=model.config, **options)


def main():
    torch.backends.cuda.enable_cudnn_sdp(False)  # it plans its work anew for each length
    model = make_model()
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, "
          f"{torch.cuda.get_device_name()}, {N_LAYERS} layers")
    for _ in range(3):  # warm
        step_us(model, filled(model, packed_cache(model), 1, 8192))
    print("| batch x tokens | bits | dense | its kernels | packed | packed, graph | of the bytes |")
    for batch, n_tokens in [(1, 8192), (1, 32768), (1, 131072), (16, 8192), (16, 32768)]:
        cache = filled(model, transformers.DynamicCache(config=model.config), batch, n_tokens)
        dense, size, alone = step_us(model, cache), bytes_of(cache), kernels_us(model, cache)
        del cache
        for bits in (4, 2):
            times = []
            for graphs in (contextlib.nullcontext(), tq.step_graphs(model)):
                cache = filled(model, packed_cache(model, bits), batch, n_tokens)
                assert all(layer.is_on_gpu for layer in cache.layers)
                with graphs:
                    times.append(step_us(model, cache))
            print(f"| {batch} x {n_tokens} | {bits} | {dense:.0f} us | {alone:.0f} us | {times[0]:.0f} us | "
                  f"{times[1]:.0f} us | {bytes_of(cache) / size:.3f} |", flush=True)
            del cache
    for name, make in [("dense", lambda: transformers.DynamicCache(config=model.config)),
                       ("packed", lambda: packed_cache(model))]:
        peak_of_prompt(model, make(), 32768)  # warm
        peak, left, seconds = peak_of_prompt(model, make(), 131072)
        print(f"prompt of 131,072 tokens by 8,192, {name}: peak {peak / 2**20:.0f} MiB, "
              f"cache {left / 2**20:.0f} MiB, {seconds:.2f} s", flush=True)


if __name__ == "__main__":
    main()
