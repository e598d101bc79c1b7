"""Decode attention on dense bf16 keys and values through PyTorch, to compare bench_cuda with.

python3 dense_attention.py: prints the median of 30 runs for each backend that can do it.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]


def median_us(run, n=30):
    for i in range(5):
        run(i)
    times = []
    for i in range(n):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run(i)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return sorted(times)[n // 2]


def main():
    x = torch.randint(0, 255, (1 << 30,), dtype=torch.uint8, device="cuda")
    y = torch.empty_like(x)
    copy = 2 * x.numel() / median_us(lambda i: y.copy_(x)) * 1e-3
    del x, y
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}, copy {copy:.0f} GB/s")
    for batch, tokens in [(1, 1024), (1, 8192), (1, 32768), (1, 131072), (32, 8192), (64, 8192)]:
        n_sets = max(1, min(8, (400 << 20) // (batch * tokens * 4096)))
        shape = (n_sets, batch, 8, tokens, 128)
        k = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        v = torch.randn(shape, dtype=torch.bfloat16, device="cuda")
        q = torch.randn(batch, 32, 1, 128, dtype=torch.bfloat16, device="cuda")
        for backend in BACKENDS:
            try:
                with sdpa_kernel([backend]):
                    us = median_us(
                        lambda i: torch.nn.functional.scaled_dot_product_attention(
                            q, k[i % n_sets], v[i % n_sets], enable_gqa=True
                        )
                    )
            except RuntimeError as error:
                print(f"| {batch} x {tokens} | {backend.name} | {str(error)[:60]} |")
                continue
            gbs = batch * tokens * 4096 / us * 1e-3
            print(f"| {batch} x {tokens} | {backend.name} | {us:.1f} us | {gbs:.0f} GB/s |", flush=True)


if __name__ == "__main__":
    main()
