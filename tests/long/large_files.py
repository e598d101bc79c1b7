#!/usr/bin/env python3
"""Files of 32 GiB: convert, verify, open, store and take back, in bounded memory.

usage: large_files.py --tqcache PROGRAM [--gib N] [--folder FOLDER] [--turbo] [--back]
                      [--uncompressed]

The input is a cache of transformers (docs/reference/interop.md) with holes: it takes a few MB on a
disk whose file system has sparse files. Most of its values are 0; some are not, before and behind
every boundary of 2 GiB, so that an offset that is cut to 32 bits shows. Written without losses
(--config lossless), the cache is small again. More steps need room: --turbo writes the 4-bit form (a
quarter of the size), --back exports all values again and compares them with the input (the size
itself, because the exporter leaves no holes). With --uncompressed the cache has all its bytes, in
the file, in the store and in what comes back (three times the size).

Every step may take at most 512 MiB of memory of its own, an export one whole tensor more (keys or
values of a layer: its rows are by head). Pages of mapped files do not count.
"""

import argparse
import json
import math
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

GIB = 1 << 30
N_LAYERS, N_HEADS, HEAD_DIM = 8, 8, 128  # the width of an 8B's layers, and fewer of them
TOKEN_BYTES = N_LAYERS * 2 * N_HEADS * HEAD_DIM * 2
MOST_MIB = 512
N_VOCAB, WIDTH = 256, 64
MARK = struct.pack("<e", 1.5)


def write_cache(path, n_tokens):
    """A safetensors file with holes. Returns its size."""
    header, end = {}, 0

    def add(name, dtype, shape, size):
        nonlocal end
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size

    side = N_HEADS * n_tokens * HEAD_DIM * 2
    for layer in range(N_LAYERS):
        for part in ("key", "value"):
            add(f"model.layers.{layer}.{part}", "F16", [1, N_HEADS, n_tokens, HEAD_DIM], side)
    add("tokens", "I64", [n_tokens], 8 * n_tokens)
    header["__metadata__"] = {"format": "tqcache-hf-1", "n_tokens": str(n_tokens),
                              "layer_types": json.dumps(["full_attention"] * N_LAYERS)}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    start = 8 + len(text)
    values_end = start + header["tokens"]["data_offsets"][0]
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(start + end)
        for boundary in range(2 * GIB, values_end, 2 * GIB):
            for place in (boundary - 2, boundary):
                file.seek(place + (start - place) % 2)
                file.write(MARK)
        file.seek(values_end - 2)
        file.write(MARK)
        file.seek(values_end)
        for first in range(0, n_tokens, 65536):
            n = min(65536, n_tokens - first)
            file.write(struct.pack(f"<{n}q", *((first + i) * 7919 % 251 for i in range(n))))
    return start + end


def write_model(folder, n_tokens):
    """A model of these layers, whose weights are 0: a store wants a cache to be of some model."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps({
        "model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": N_VOCAB,
        "hidden_size": WIDTH, "intermediate_size": WIDTH, "num_hidden_layers": N_LAYERS,
        "num_attention_heads": N_HEADS, "num_key_value_heads": N_HEADS, "head_dim": HEAD_DIM,
        "max_position_embeddings": n_tokens, "rms_norm_eps": 1e-5, "tie_word_embeddings": True}))
    letters = [chr(i if 0x20 < i < 0x7F or (i > 0xA0 and i != 0xAD) else 0x100 + i)
               for i in range(256)]
    others = iter(range(0x100, 0x200))
    letters = [each if ord(each) < 0x100 else chr(next(others)) for each in letters]
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [], "model": {"type": "BPE", "merges": [],
                                      "vocab": {each: i for i, each in enumerate(letters)}},
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}}))
    rows = N_HEADS * HEAD_DIM
    shapes = {"model.embed_tokens.weight": [N_VOCAB, WIDTH], "model.norm.weight": [WIDTH]}
    for layer in range(N_LAYERS):
        block = f"model.layers.{layer}."
        shapes |= {block + f"self_attn.{part}_proj.weight": [rows, WIDTH] for part in "qkv"}
        shapes |= {block + f"mlp.{part}_proj.weight": [WIDTH, WIDTH]
                   for part in ("gate", "up", "down")}
        shapes |= {block + "self_attn.o_proj.weight": [WIDTH, rows],
                   block + "input_layernorm.weight": [WIDTH],
                   block + "post_attention_layernorm.weight": [WIDTH]}
    header, end = {}, 0
    for name, shape in shapes.items():
        size = 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


class Peak(threading.Thread):
    """The most memory of its own that a process has had."""

    def __init__(self, process):
        super().__init__(daemon=True)
        self.process, self.mib = process, 0

    def run(self):
        while self.process.poll() is None:
            try:
                with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
                    kib = [int(line.split()[1]) for line in status if line.startswith("RssAnon")]
                self.mib = max([self.mib, *[each / 1024 for each in kib]])
            except (OSError, ValueError):
                pass
            time.sleep(0.02)


def run(program, *arguments, more_mib=0):
    command = [str(program), *map(str, arguments)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    peak = Peak(process)
    peak.start()
    out, err = process.communicate()
    peak.join()
    print(f"  {arguments[0]} {arguments[1]}: {peak.mib:.0f} MiB of its own", flush=True)
    if process.returncode != 0:
        sys.exit(f"{' '.join(command)}: exit code {process.returncode}\n{err}")
    most = MOST_MIB + more_mib
    if peak.mib > most:
        sys.exit(f"{' '.join(command)}: {peak.mib:.0f} MiB of memory, at most {most:.0f} expected")
    return out


def tensors_of(path):
    """Open file and place of every tensor."""
    file = path.open("rb")
    (size,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(size))
    return file, {name: [8 + size + at for at in entry["data_offsets"]]
                  for name, entry in header.items() if name != "__metadata__"}


def compare(a, b):
    (one, places), (other, others) = tensors_of(a), tensors_of(b)
    for name, (first, end) in places.items():
        if name == "tokens":
            continue
        one.seek(first)
        other.seek(others[name][0])
        if others[name][1] - others[name][0] != end - first:
            sys.exit(f"{name}: another size")
        for at in range(first, end, 1 << 24):
            n = min(1 << 24, end - at)
            if one.read(n) != other.read(n):
                sys.exit(f"{name}: other values, at byte {at - first} or within 16 MiB behind it")


def check(options, folder):
    n_tokens = int(options.gib * GIB) // TOKEN_BYTES
    foreign = folder / "in.safetensors"
    size = write_cache(foreign, n_tokens)
    used = foreign.stat().st_blocks * 512
    print(f"{n_tokens} tokens, {size} bytes, {used} of them on the disk", flush=True)
    if used > size // 16:
        sys.exit("the file system has no sparse files")

    whole = folder / "a.tqkv"
    model = folder / "model"
    write_model(model, n_tokens)
    form = ("--bits", 16, "--compress", "none") if options.uncompressed else ("--config", "lossless")
    run(options.tqcache, "convert", foreign, whole, *form, "-m", model, "--probe", 0)
    # Otherwise files that claim to hold 64 times their size, or more than the machine's memory, are
    # refused before they are read.
    room = ("--max-memory", 2 * size)
    run(options.tqcache, "verify", whole, *room)
    info = json.loads(run(options.tqcache, "info", whole, "--json"))
    if info["n_tokens"] != n_tokens:
        sys.exit(f"info: {info['n_tokens']} tokens")

    store = f"dir:{folder / 'store'}"
    run(options.tqcache, "store", "put", whole, "--store", store, "--name", "large", *room)
    run(options.tqcache, "store", "check", "--store", store, "--read-data", *room)
    back = folder / "b.tqkv"
    run(options.tqcache, "store", "get", "large", "-o", back, "--store", store, *room)
    run(options.tqcache, "verify", back, *room)
    digests = [json.loads(run(options.tqcache, "info", file, "--json"))["content_name"]
               for file in (whole, back)]
    if len(set(digests)) != 1:
        sys.exit(f"the store gave other contents back: {digests}")

    if options.back:
        again = folder / "again.safetensors"
        run(options.tqcache, "convert", whole, again, "--to", "hf", *room,
            more_mib=size / (2 * N_LAYERS) / (1 << 20))
        compare(foreign, again)
        again.unlink()
    if options.turbo:
        packed = folder / "c.tqkv"
        run(options.tqcache, "convert", foreign, packed, "--bits", 4)
        run(options.tqcache, "verify", packed, *room)
    print("right")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tqcache", type=Path, required=True)
    parser.add_argument("--gib", type=float, default=32)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--turbo", action="store_true")
    parser.add_argument("--back", action="store_true")
    parser.add_argument("--uncompressed", action="store_true")
    options = parser.parse_args()
    if not os.path.exists("/proc/self/status"):
        sys.exit("needs /proc")
    folder = Path(tempfile.mkdtemp(prefix="tqcache-large-", dir=options.folder))
    try:
        check(options, folder)
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
