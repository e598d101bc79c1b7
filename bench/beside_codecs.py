#!/usr/bin/env python3
"""The error of tqcache's configurations, and of other codecs for keys and values on PyPI.

usage: bench/beside_codecs.py -m MODEL --text FILE --tqcache PROGRAM --venv DIR [--tokens N]
                              [--layers N]

Each package is installed into a folder of its own below DIR (names collide), without its
dependencies; torch, numpy and mlx are those of the Python that runs this. One prompt's dense keys
and values, as tqcache computes them, go through every codec. Prints, for each:

  bits    per value, everything counted that the codec needs to decode (of tqcache, the whole file)
  K, V    the squared error of keys and values by their energy, mean over layers and heads
  score   the squared error of products of keys with 64 of the prompt's own keys, by their variance
          over the prompt: what moves attention. A part that is equal for all keys moves nothing,
          and does not count

Every third layer by default, because some codecs take seconds for a megabyte.
"""

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

# package, and what it needs beside torch and numpy
PACKAGES = {
    "aither-kvcache": "aither-kvcache==2.4.1",
    "fused-turboquant": "fused-turboquant==0.1.0 scipy",
    "kakeyalattice": "kakeyalattice==1.5.0",
    "kvcrush": "kvcrush==0.1.0",
    "lmcache-turbo-quant-serde": "lmcache-turbo-quant-serde==0.1.0 tqai==0.6.1",
    "turbokv": "turbokv==0.1.0 scipy",
    "turboquant-torch": "turboquant-torch==0.4.0 scipy",
    "mlx": "",  # QuantizedKVCache of mlx-lm is mx.quantize
}
OF_TQCACHE = ["turbo4", "turbo4,sink=0", "affine4,sink=0", "prod4,sink=0", "turbo3,sink=0",
              "turbo2,sink=0"]
ARCHIVES = ["4.0", "3.0", "2.0"]


# --- codecs: a function of f32 vectors [n, d] gives (decoded vectors, stored bits)

def torch_codec(encode, bits):
    def run(x):
        import torch
        decoded = encode(torch.from_numpy(x))
        return decoded.float().numpy(), bits
    return run


def codecs_of(package, d):
    """Pairs of a name and a codec. `d`: head_dim."""
    import torch
    if package == "aither-kvcache":
        module = importlib.import_module("aither_kvcache")
        for bits in (4, 3, 2):
            codec = module.TurboQuant(head_dim=d, bits=bits, device="cpu")
            yield f"{bits} bits", torch_codec(lambda x, c=codec: c.decode(*c.encode(x)), bits + 32 / d)
    elif package == "fused-turboquant":
        module = importlib.import_module("fused_turboquant")
        for bits in (4, 3, 2):
            codec = module.TurboQuantMSE(head_dim=d, bits=bits, device="cpu")
            yield f"{bits} bits", torch_codec(lambda x, c=codec: c.decode(c.encode(x)), bits + 32 / d)
    elif package == "kakeyalattice":
        module = importlib.import_module("kakeyalattice")
        for q in (8, 4, 2):
            codec = module.V15KakeyaZamirE8GPU(D=d, q_range=q, device="cpu")
            bits = codec.bits_per_token_per_head / d  # it has no stored form
            yield f"E8, q {q}", torch_codec(lambda x, c=codec: c.roundtrip(x), bits)
    elif package == "kvcrush":
        module = importlib.import_module("turboquant")

        def crush(x):
            codec = module.TurboQuant(bits=4, block_size=32)
            few = x[:64]  # pure Python
            stored = codec.compress(few.reshape(-1), use_delta=False)
            decoded = np.asarray(codec.decompress(stored), np.float32).reshape(few.shape)
            return decoded, 8 * len(stored) / few.size
        yield "4 bits, use_delta=False", crush
    elif package == "lmcache-turbo-quant-serde":
        module = importlib.import_module("lmcache_turbo_quant_serde")
        for bits in (4, 3, 2):
            def serde(x, bits=bits):
                stored = module.TurboQuantSerializer(bits=bits).to_bytes(torch.from_numpy(x))
                return (module.TurboQuantDeserializer().from_bytes(stored).float().numpy(),
                        8 * len(stored) / x.size)
            yield f"{bits} bits", serde
    elif package == "turbokv":
        module = importlib.import_module("turboquant.quantizer")
        codec = module.TurboQuantizer(dim=d, bits=4, device="cpu", seed=1)
        yield "4 bits", torch_codec(
            lambda x: codec.dequantize(*codec.quantize(x.half())), 4 + 16 / d)
    elif package == "turboquant-torch":
        module = importlib.import_module("turboquant")
        for bits in (4, 3, 2):
            for unbiased in (False, True):
                codec = module.TurboQuant(dim=d, bit_width=bits, unbiased=unbiased)
                name = f"{bits} bits, {'QJL' if unbiased else 'mse'}"
                # One norm of f32, with QJL a second one; its estimate as decoded vectors.
                yield name, torch_codec(lambda x, c=codec: c.dequantize(c.quantize(x)),
                                        bits + (64 if unbiased else 32) / d)
    elif package == "mlx":
        import mlx.core as mx
        for bits in (4, 3, 2):
            def affine(x, bits=bits):
                packed = mx.quantize(mx.array(x).astype(mx.float16), group_size=64, bits=bits)
                decoded = mx.dequantize(*packed, group_size=64, bits=bits)
                return np.array(decoded.astype(mx.float32)), 8 * sum(
                    part.nbytes for part in packed) / x.size
            yield f"mlx-lm, {bits} bits, groups of 64", affine


# --- measures

def errors(x, decoded, queries):
    """(relative squared error, relative squared error of scores)"""
    x, decoded = x[:len(decoded)].astype(np.float64), decoded.astype(np.float64)
    difference = decoded - x
    scores, moved = x @ queries.T, difference @ queries.T
    return ((difference ** 2).sum() / (x ** 2).sum(),
            moved.var(axis=0).sum() / scores.var(axis=0).sum())


def mean_errors(layers, decode):
    """Means over layers and heads: bits, K, V, score. decode(which, layer, head, vectors)"""
    rows = []
    for i, (keys, values) in enumerate(layers):
        for head in range(keys.shape[0]):
            queries = keys[head, np.linspace(0, keys.shape[1] - 1, 64).astype(int)].astype(np.float64)
            k, bits_k = decode(0, i, head, keys[head])
            v, bits_v = decode(1, i, head, values[head])
            error_k, score = errors(keys[head], k, queries)
            error_v, _ = errors(values[head], v, queries)
            rows.append(((bits_k + bits_v) / 2, error_k, error_v, score))
    return np.mean(rows, axis=0).tolist()


def read_layers(path, step):
    with np.load(path) as file:
        n = sum(name.endswith("_key") for name in file.files)
        return [[file[f"layer_{i}_{which}"].astype(np.float32) for which in ("key", "value")]
                for i in range(0, n, step)]


def show(who, what, row):
    bits, k, v, score = row
    print(f"| {who} | {what} | {bits:.2f} | {k:.4f} | {v:.4f} | {score:.4f} |", flush=True)


def one_package(package, path, step):
    """In a process of its own, which has the package's folder on its path."""
    layers = read_layers(path, step)
    rows = []
    for name, codec in codecs_of(package, layers[0][0].shape[-1]):
        rows.append([name, mean_errors(layers, lambda which, i, head, x: codec(x))])
    print(json.dumps(rows))


def install(package, wanted, venv):
    folder = venv / package
    if wanted and not folder.exists():
        subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                        "--disable-pip-version-check", "--only-binary", ":all:", "--target", folder,
                        *wanted.split()], check=True)
    return folder


def main():
    if sys.argv[1:2] == ["--package"]:
        return one_package(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--text", required=True)
    parser.add_argument("--tqcache", default="tqcache")
    parser.add_argument("--venv", type=Path, required=True, help="folder for the packages")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=3, help="every so many layers")
    options = parser.parse_args()

    def tqcache(*arguments):
        subprocess.run([options.tqcache, *map(str, arguments), "-q"], check=True)

    print("| codec | form | bits | K | V | score |\n|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        dense = folder / "dense.npz"
        tqcache("prefill", "-m", options.model, "--file", options.text, "--tokens", options.tokens,
                "-o", folder / "dense.kv")
        tqcache("convert", folder / "dense.kv", dense, "--to", "npz")
        layers = read_layers(dense, options.layers)
        n_values = sum(2 * keys.size for keys, _ in read_layers(dense, 1))
        forms = [(name, ["--config", name]) for name in OF_TQCACHE]
        forms += [(f"archive, --bits {bits}", ["--config", "archive", "--bits", bits])
                  for bits in ARCHIVES]
        for name, flags in forms:
            packed, again = folder / "packed.tqkv", folder / "again.npz"
            tqcache("convert", folder / "dense.kv", packed, *flags, "-f")
            tqcache("convert", packed, again, "--to", "npz", "-f")
            bits, decoded = 8 * packed.stat().st_size / n_values, read_layers(again, options.layers)
            show("tqcache", name, mean_errors(
                layers, lambda which, i, head, x: (decoded[i][which][head], bits)))
        for package, wanted in PACKAGES.items():
            home = install(package, wanted, options.venv)
            run = subprocess.run([sys.executable, __file__, "--package", package, dense,
                                  str(options.layers)], capture_output=True, text=True,
                                 env={"PYTHONPATH": str(home), "PATH": "/usr/bin:/bin",
                                      "OMP_NUM_THREADS": "1"})
            if run.returncode != 0:
                print(f"| {package} | not run: {run.stderr.strip().splitlines()[-1]} | | | | |")
                continue
            for name, row in json.loads(run.stdout.splitlines()[-1]):
                show(package, name, row)


if __name__ == "__main__":
    main()
