"""Writes a GGUF file of random blocks of every quantized type, and what the gguf package widens them
to: the tensors Q4_0 and Q4_0.values, and so on.

Run by itself it makes tests/data/blocks.gguf (all types but MXFP4) and, with the name of a type,
tests/data/blocks_mxfp4.gguf:  make_blocks.py FILE [SEED [TYPE]]
"""

import sys
from pathlib import Path

import numpy as np

TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
         "MXFP4"]
N_ROWS = {32: 12, 256: 6}


def write(path, seed, types=TYPES):
    import gguf
    from gguf import GGMLQuantizationType, quants

    random = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "blocks")
    for name in types:
        kind = GGMLQuantizationType[name]
        block_values, block_bytes = gguf.GGML_QUANT_SIZES[kind]
        # Every byte is drawn, so that scales are of any kind: tiny, huge, infinite and no number.
        blocks = random.integers(0, 256, (N_ROWS[block_values], block_bytes), dtype=np.uint8)
        with np.errstate(all="ignore"):
            values = quants.dequantize(blocks, kind)
        writer.add_tensor(name, blocks, raw_dtype=kind)
        writer.add_tensor(f"{name}.values", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 1,
          sys.argv[3:] or TYPES[:-1])
