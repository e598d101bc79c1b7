"""Blocks of keys and values from a GPU to a folder and back: raw, packed by the CPU, and packed by
the GPU.

    python3 bench/cuda/tier.py [--folder DIR] [--gib 1] [--threads 4] [--runs 5]

A block is what LMCache keeps of 256 tokens of an 8B model: 32 layers, 8 kv heads of 128, bf16, 32
MiB. It begins in the memory of the GPU and ends there. Every block goes to the CPU's pinned memory
as it is, which is what engines do before they ask a tier, then through a serializer to a file, and
the same way back. "from the GPU" leaves out the first step: the packed block is all that crosses
PCIe. GB/s count bf16 bytes; files are written without fsync and read from the page cache, unless the
folder is on a disk that is slower. Medians of runs, which take turns.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from tqcache._pages import Layout, PageCodec

LAYERS, TOKENS, HEADS, DIM = 32, 256, 8, 128
SHAPE = (2, LAYERS, TOKENS, HEADS, DIM)
LAYOUT = Layout(SHAPE, (0, 1, 3, 2, 4))
N_BYTES = 2 * LAYERS * TOKENS * HEADS * DIM * 2


def blocks_on_gpu(n):
    noise = torch.Generator(device="cuda").manual_seed(1)
    mean = 2 * torch.randn(2, LAYERS, 1, HEADS, DIM, device="cuda", generator=noise)
    return [(torch.randn(SHAPE, device="cuda", generator=noise) + mean).to(torch.bfloat16)
            for _ in range(n)]


class Way:
    """How a block gets from the GPU to a file and back."""

    def __init__(self, folder, codec, crosses_raw):
        self.folder, self.codec, self.crosses_raw = folder, codec, crosses_raw
        folder.mkdir()

    def store(self, item):
        number, block = item
        stream = torch.cuda.Stream()
        room = None
        if self.crosses_raw:
            room = self.rooms.pop()
            with torch.cuda.stream(stream):
                room.copy_(block, non_blocking=True)
            stream.synchronize()
            block = room
        if self.codec is None:
            parts = [block.view(-1).view(torch.uint8).numpy()]
        else:
            parts = self.codec.encode(block)
        with open(self.folder / f"{number}", "wb", buffering=0) as file:
            for part in parts:
                file.write(part)
        if room is not None:
            self.rooms.append(room)

    def fetch(self, item):
        number, block = item
        room = self.rooms.pop() if self.crosses_raw else None
        if self.codec is None:
            with open(self.folder / f"{number}", "rb", buffering=0) as file:
                file.readinto(memoryview(room.view(-1).view(torch.uint8).numpy()))
        else:
            data = (self.folder / f"{number}").read_bytes()
            self.codec.decode(data, block if room is None else room)
        if room is not None:
            stream = torch.cuda.Stream()
            with torch.cuda.stream(stream):
                block.copy_(room, non_blocking=True)
            stream.synchronize()
            self.rooms.append(room)


def seconds(pool, work, items):
    torch.cuda.synchronize()
    began = time.perf_counter()
    list(pool.map(work, items))
    torch.cuda.synchronize()
    return time.perf_counter() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--gib", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    n = args.gib * 2**30 // N_BYTES
    root = Path(tempfile.mkdtemp(prefix="tier-", dir=args.folder))
    blocks = blocks_on_gpu(n)
    rooms = [torch.empty(SHAPE, dtype=torch.bfloat16, pin_memory=True)
             for _ in range(args.threads)]
    ways = {
        "raw": Way(root / "raw", None, True),
        "packed by the CPU": Way(root / "cpu", PageCodec(LAYOUT, torch.bfloat16), True),
        "packed by the GPU": Way(root / "gpu", PageCodec(LAYOUT, torch.bfloat16, device="cuda"),
                                 True),
        "packed, from the GPU": Way(root / "direct",
                                    PageCodec(LAYOUT, torch.bfloat16, device="cuda"), False)}
    times = {name: ([], []) for name in ways}
    with ThreadPoolExecutor(args.threads) as pool:
        for run in range(args.runs + 1):  # the first warms up
            for name, way in ways.items():
                way.rooms = rooms
                again = [torch.empty_like(block) for block in blocks]
                there = seconds(pool, way.store, list(enumerate(blocks)))
                back = seconds(pool, way.fetch, list(enumerate(again)))
                if run > 0:
                    times[name][0].append(there)
                    times[name][1].append(back)
                else:
                    error = max(((a.float() - b.float()).norm() / b.float().norm()).item()
                                for a, b in zip(again, blocks))
                    assert error == 0 if way.codec is None else error < 0.11, (name, error)
    print(f"\n{torch.cuda.get_device_name()}, {n} blocks of {N_BYTES >> 20} MiB bf16, "
          f"{args.threads} threads, {root.parent}, medians of {args.runs} runs\n")
    print("| way | store, GB/s of bf16 | fetch | store, times the CPU's | fetch | bytes |")
    print("|---|---|---|---|---|---|")
    base = [statistics.median(each) for each in times["packed by the CPU"]]
    for name, way in ways.items():
        there, back = (statistics.median(each) for each in times[name])
        size = sum(file.stat().st_size for file in way.folder.iterdir())
        total = n * N_BYTES
        print(f"| {name} | {total / there / 1e9:.2f} | {total / back / 1e9:.2f} | "
              f"{base[0] / there:.1f} | {base[1] / back:.1f} | {100 * size / total:.1f}% |")
    shutil.rmtree(root)


main()
