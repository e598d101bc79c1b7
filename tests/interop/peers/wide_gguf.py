"""Writes a GGUF file of Q8_0, F16 and F32 tensors once more with all of them in f32.

llama.cpp multiplies Q8_0 weights with activations of 8 bits; with weights of f32 it computes in f32,
so that its tokens can be compared closely.
"""

import struct

import numpy as np

ALIGNMENT = 32
F32, F16, Q8_0 = 0, 1, 8
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}


class Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, letter):
        (value,) = struct.unpack_from(f"<{letter}", self.data, self.at)
        self.at += struct.calcsize(letter)
        return value

    def string(self):
        count = self.number("Q")
        self.at += count
        return self.data[self.at - count:self.at]

    def skip_value(self, kind):
        if kind == STRING:
            self.string()
        elif kind == ARRAY:
            kind, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip_value(kind)
        else:
            self.at += SIZES[kind]


def padded(count):
    return -(-count // ALIGNMENT) * ALIGNMENT


def values_of(data, at, kind, count):
    if kind == Q8_0:
        blocks = np.frombuffer(data, np.dtype([("scale", "<f2"), ("codes", "i1", 32)]), count // 32, at)
        return blocks["codes"].astype("<f4") * blocks["scale"].astype("<f4")[:, None]
    return np.frombuffer(data, {F32: "<f4", F16: "<f2"}[kind], count, at).astype("<f4")


def write(source, target):
    file = Reader(source.read_bytes())
    file.at = 8
    n_tensors, n_values = file.number("Q"), file.number("Q")
    for _ in range(n_values):
        file.string()
        file.skip_value(file.number("I"))
    head, infos, tensors, offset = file.data[:file.at], b"", [], 0
    for _ in range(n_tensors):
        name = file.string()
        shape = [file.number("Q") for _ in range(file.number("I"))]
        kind, at, count = file.number("I"), file.number("Q"), int(np.prod(shape))
        tensors.append((kind, at, count))
        infos += struct.pack("<Q", len(name)) + name + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape, F32, offset)
        offset = padded(offset + 4 * count)
    start = padded(file.at)
    with target.open("wb") as out:
        out.write((head + infos).ljust(padded(len(head + infos)), b"\0"))
        for kind, at, count in tensors:
            data = values_of(file.data, start + at, kind, count).tobytes()
            out.write(data.ljust(padded(len(data)), b"\0"))
