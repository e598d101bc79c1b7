"""Reads what the tests need of llama.cpp's state files: keys and values, by layer.

A reader of its own for one purpose; docs/reference/interop.md, "llama.cpp", says what each version
has.
"""

import struct

SESSION, SEQUENCE = 0x6767736E, 0x67677371


class Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if self.at + count > len(self.data):
            raise ValueError("the file ends too soon")
        self.at += count
        return self.data[self.at - count:self.at]

    def u32(self):
        return struct.unpack("<I", self.take(4))[0]

    def u64(self):
        return struct.unpack("<Q", self.take(8))[0]


def read(path):
    """Of a file with one stream whose values lie by rows: version, token ids, and the bytes of keys and
    of values, both as lists of (type, row size, bytes)."""
    file = Cursor(path.read_bytes())
    magic, version, n_tokens = file.u32(), file.u32(), file.u32()
    if magic not in (SESSION, SEQUENCE):
        raise ValueError("no state file of llama.cpp")
    tokens = list(struct.unpack(f"<{n_tokens}i", file.take(4 * n_tokens)))
    if magic == SESSION:
        file.take(file.u32())  # name of the architecture
    if file.u32() != 1:
        raise ValueError("several streams")
    n_cells = file.u32()
    for _ in range(n_cells):
        file.take(4)  # position
        file.take(4 * file.u32())  # ids of its sequences
    if file.u32() != 0:
        raise ValueError("values by columns")
    n_layers = file.u32()
    if version >= (11 if magic == SESSION else 4):
        file.take(8)  # widths of the rotations of keys and of values
    keys, values = ([_rows(file, n_cells) for _ in range(n_layers)] for _ in range(2))
    if file.at != len(file.data):
        raise ValueError("more follows")
    return version, tokens, keys, values


def _rows(file, n_cells):
    kind, size = file.u32(), file.u64()
    return kind, size, file.take(n_cells * size)
