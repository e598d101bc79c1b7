"""Dense sections that are kept as the residual of a prediction, written from
docs/reference/format.md 6.7, docs/reference/codec.md 11 and docs/reference/profile.md alone.
"""

import hashlib
import os
import struct

CLASSES, ACTIVITIES = 32, 4


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def sign(k):
    return (k > 0) - (k < 0)


class Profile:
    """A profile of version 2: the file's bytes, read with a class for FlatBuffers tables."""

    def __init__(self, file, Table):
        line, body = file[:83], file[83:]
        assert line[:18] == b"tqcache-profile 2 " and line[82:] == b"\n"
        assert hashlib.sha256(body).hexdigest() == line[18:82].decode()
        assert body[4:8] == b"TQP2"
        root = Table(body, struct.unpack_from("<I", body, 0)[0])
        self.n_layers, self.n_heads, self.head_dim = (root.scalar(i, "I") for i in (5, 6, 7))
        self.depth, self.n_features = root.scalar(8, "I"), root.scalar(9, "I")
        self.features = root.numbers(11, "b") if self.n_features else []
        self.sides = [
            dict(
                mean=side.numbers(0, "f"),
                unit=side.numbers(1, "f"),
                weights=side.numbers(2, "b"),
                weight_scale=side.numbers(3, "f"),
                map=side.numbers(4, "b"),
                map_scale=side.numbers(5, "f"),
                deviation=side.numbers(6, "f"),
            )
            for side in root.tables(12)
        ]


def find_profile(digest, Table):
    folder = os.environ.get("TQCACHE_PROFILES", "")
    for name in sorted(os.listdir(folder)) if folder else []:
        with open(os.path.join(folder, name), "rb") as stream:
            file = stream.read()
        if file[:82] == b"tqcache-profile 2 " + digest.hex().encode():
            return Profile(file, Table)
    return None


class Decoder:
    """The arithmetic code of one section."""

    def __init__(self, data):
        self.data, self.at, self.range = data, 4, 0xFFFFFFFF
        self.code = int.from_bytes(data[:4], "big")

    def follow(self):
        while self.range < 1 << 24:
            self.range <<= 8
            byte = self.data[self.at] if self.at < len(self.data) else 0
            self.code, self.at = (self.code << 8 | byte) & 0xFFFFFFFF, self.at + 1

    def split(self, bound):
        bit = self.code >= bound
        if bit:
            self.code -= bound
        return int(bit)

    def even(self):
        self.range >>= 1
        bit = self.split(self.range)
        self.follow()
        return bit

    def bit(self, model):
        bound = (self.range >> 15) * model[0]
        bit = self.split(bound)
        self.range = self.range - bound if bit else bound
        shift = 4 + (model[1] >= 16) + (model[1] >= 64) + (model[1] >= 256)
        model[0] += -(model[0] >> shift) if bit else (32768 - model[0]) >> shift
        model[1] = min(256, model[1] + 1)
        self.follow()
        return bit


class Models(dict):
    """zero and count of each model, by its name and indices."""

    def __missing__(self, key):
        self[key] = [16384, 0]
        return self[key]


def symbol(decoder, models, c, odd, activity):
    if not decoder.bit(models["above_0", c, odd, activity]):
        return 0
    negative = decoder.even()
    k = 1
    if decoder.bit(models["above_1", c, odd, activity]):
        k = 2
        while k < 16 and decoder.bit(models["above", c, k - 2]):
            k += 1
        if k == 16:
            n = 0
            while not decoder.even():
                n += 1
                assert n <= 10
            value = 1
            for _ in range(n):
                value = value << 1 | decoder.even()
            k = 15 + value
            assert k <= 1000
    return -k if negative else k


def product(x, matrix, dim):
    sums = [0] * dim
    for i, factor in enumerate(x):
        if factor:
            row = matrix[i * dim : (i + 1) * dim]
            sums = [total + factor * each for total, each in zip(sums, row)]
    return [f32(total) for total in sums]


def classes_of(deviations, step):
    bits = (struct.unpack("<I", struct.pack("<f", f32(d / step)))[0] for d in deviations)
    return [min(31, max(0, (each >> 21) - 488)) for each in bits]


def decode_block(profile, tokens, sections, step, n_sinks, value_bytes, turned):
    """Rows of channels [token][D] of every section of a token block, keys turned by `turned(row, t)`,
    with None for sink tokens; and the bytes of sink tokens of each section."""
    dim, n = profile.n_heads * profile.head_dim, len(tokens)
    n_sinks = min(n_sinks, n)
    models, activities, neighbors, result = Models(), [1] * n, [], []
    for number, stored in enumerate(sections):
        side, layer, is_value = profile.sides[number], number // 2, number % 2
        dense = n_sinks * dim * value_bytes[number]
        decoder = Decoder(stored[dense:])
        classes = classes_of(side["deviation"], step)
        scales = [f32(each * step) for each in side["map_scale"]]
        per_unit = [f32(1 / each) for each in side["unit"]]
        rows, own, sums = [None] * n_sinks, [None] * n_sinks, [0] * n
        for t in range(n_sinks, n):
            state, levels = 0, []
            for c in classes:
                k = symbol(decoder, models, c, state & 1, activities[t])
                sums[t] += min(abs(k), 15)
                levels.append(2 * k - (sign(k) if state & 1 else 0))
                state = (state >> 1) ^ (5 if state & 1 else 0) ^ (2 if k & 1 else 0)
            x = []
            for i in range(1, min(profile.depth, layer) + 1):
                x += neighbors[2 * (layer - i)][t] + neighbors[2 * (layer - i) + 1][t]
            first = tokens[t] * profile.n_features
            x += profile.features[first : first + profile.n_features]
            if is_value:
                x += neighbors[number - 1][t]
            predicted = product(x, side["weights"], dim)
            residual = product(levels, side["map"], dim)
            z = [
                f32(f32(p * s) + f32(r * u))
                for p, s, r, u in zip(predicted, side["weight_scale"], residual, scales)
            ]
            units = (f32(a * b) for a, b in zip(z, per_unit))
            own.append([round(min(2047.0, max(-2047.0, each))) for each in units])
            row = [f32(a + b) for a, b in zip(z, side["mean"])]
            rows.append(row if is_value else turned(row, t))
        assert decoder.at == len(stored) - dense
        neighbors.append(own)
        result.append((rows, stored[:dense]))
        total, count = sum(sums[n_sinks:]), n - n_sinks
        activities = [
            (4 * count * s >= 3 * total) + (count * s >= total) + (3 * count * s >= 4 * total)
            for s in sums
        ]
    return result
