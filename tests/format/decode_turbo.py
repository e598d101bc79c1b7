"""Decodes packed token blocks of .tqkv files, written from docs/reference/codec.md alone.

Slow and plain. Every number is an f32, kept as a float: sums, differences and products of two f32
are computed in f64 and rounded once by f32(), which gives what an f32 unit gives.
"""

import array
import collections
import math

BLOCK = 256

Part = collections.namedtuple(
    "Part", "first size bits rotation rounds seed of_residual has_bias centroids matrix"
)


def f32(values):
    """Every value rounded to f32."""
    return array.array("f", values).tolist()


# --- layout lanes.v1: codec.md 5


def sixes_apart(y):
    """Four fields of six bits from three lines."""
    fourth = [(a >> 6) | (b >> 6) << 2 | (c >> 6) << 4 for a, b, c in zip(*y)]
    return [[v & 63 for v in line] for line in y] + [fourth]


def unpack_unit(bits, y):
    """Eight lines of 64 codes from `bits` lines of 64 bytes."""
    if bits in (5, 7):  # the highest bits stand apart
        low = unpack_unit(bits - 1, y[1:])
        return [
            [v | (top >> i & 1) << (bits - 1) for v, top in zip(low[i], y[0])] for i in range(8)
        ]
    if bits == 3:
        fields = sixes_apart(y)
        return [[v >> 3 * (i % 2) & 7 for v in fields[i // 2]] for i in range(8)]
    if bits == 6:
        return sixes_apart(y[:3]) + sixes_apart(y[3:])
    each = 8 // bits  # lines of bytes in a packed line
    mask = (1 << bits) - 1
    return [[v >> bits * (i % each) & mask for v in y[i // each]] for i in range(8)]


def packed_lines(bits, n):
    """Packed lines of the first n lines of a unit."""
    if n >= 8:
        return bits
    threes = n if n < 4 else 3 if n == 4 else n - 1
    pairs = (n + 1) // 2
    return [0, 1, (n + 3) // 4, min(3, pairs), pairs, 1 + pairs, threes, 1 + threes, n][bits]


def unpack_group(bits, n_lines, block, at):
    """The lines of a group whose first packed line is at `at`, and where the next group begins."""
    lines = []
    while len(lines) < n_lines:
        count = packed_lines(bits, n_lines - len(lines))
        y = [block[at + 64 * i : at + 64 * i + 64] for i in range(count)]
        lines += unpack_unit(bits, y + [bytes(64)] * (bits - count))
        at += 64 * count
    return lines[:n_lines], at


def unpack_block(bits, dim, is_keys, block):
    """Codes [256][dim] of one part and kv head from its bytes and what follows, and how many those
    bytes are."""
    codes = [[0] * dim for _ in range(BLOCK)]
    at = 0
    for group in range(BLOCK // 16 if is_keys else -(-dim // 16)):
        lines, at = unpack_group(bits, -(-dim // 4) if is_keys else BLOCK // 4, block, at)
        for k, line in enumerate(lines):
            for i, code in enumerate(line):
                lane, along = 16 * group + i // 4, 4 * k + i % 4
                token, component = (lane, along) if is_keys else (along, lane)
                if component < dim:
                    codes[token][component] = code
    return codes, at


# --- maps: codec.md 2


def splitmix64(state):
    mask = (1 << 64) - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        yield z ^ z >> 31


def hadamard_back(dim, rounds, seed):
    """The function y -> R^T y."""
    words = splitmix64(seed)
    signs = []  # [rounds][dim]
    for _ in range(rounds):
        taken = [next(words) for _ in range(-(-dim // 64))]
        signs.append([-1.0 if taken[i // 64] >> i % 64 & 1 else 1.0 for i in range(dim)])
    s = dim & -dim
    m = dim // s
    turns = [2 * math.pi * k / m for k in range(m)]
    cas = f32(math.cos(t) + math.sin(t) for t in turns)
    factor = f32([1 / math.sqrt(dim)])[0]

    def across_parts(v):
        w = []
        for j in range(m):
            total = v[:s]
            for i in range(1, m):
                product = f32(cas[i * j % m] * x for x in v[i * s : i * s + s])
                total = f32(a + b for a, b in zip(total, product))
            w += total
        return w

    def back(v):
        for sign in reversed(signs):
            h = 1
            while h < s:
                v = f32(v[j] + v[j + h] if j // h % 2 == 0 else v[j - h] - v[j] for j in range(dim))
                h *= 2
            v = across_parts(v)
            v = [x * each for x, each in zip(f32(x * factor for x in v), sign)]
        return v

    return back


def portable_log(s):
    mantissa, exponent = math.frexp(s)
    m, e = 2 * mantissa, exponent - 1
    if m > 1.4142135623730951:
        m, e = m / 2, e + 1
    z = (m - 1) / (m + 1)
    w = z * z
    p = 1 / 21
    for k in range(19, 0, -2):
        p = p * w + 1 / k
    return e * 0.6931471805599453 + (2 * z) * p


def normal_numbers(seed):
    coordinates = ((word >> 11) * 2.0**-52 - 1 for word in splitmix64(seed))
    while True:
        u, v = next(coordinates), next(coordinates)
        s = u * u + v * v
        if 0 < s < 1:
            f = math.sqrt((-2 * portable_log(s)) / s)
            yield u * f
            yield v * f


def orthogonal(columns):
    """Modified Gram-Schmidt, in place."""
    for k, column in enumerate(columns):
        length = 0.0
        for x in column:
            length = length + x * x
        length = math.sqrt(length)
        column[:] = [x / length for x in column]
        for other in columns[k + 1 :]:
            share = 0.0
            for x, y in zip(column, other):
                share = share + x * y
            other[:] = [y - x * share for x, y in zip(column, other)]


def drawn_rows(dim, rotation, seed):
    """The rows of a matrix that is made from a seed."""
    drawn = normal_numbers(seed)
    rows = [[next(drawn) for _ in range(dim)] for _ in range(dim)]
    if rotation == "dense_qr.v1":
        columns = [list(column) for column in zip(*rows)]
        orthogonal(columns)
        rows = zip(*columns)
    return [f32(row) for row in rows]


def matrix_back(dim, rows):
    """The function y -> M^T y."""

    def back(y):
        x = [0.0] * dim
        for value, row in zip(y, rows):
            x = f32(a + b for a, b in zip(x, f32(value * each for each in row)))
        return x

    return back


def map_back(part):
    if part.rotation == "hartley_hadamard.v1":
        return hadamard_back(part.size, part.rounds, part.seed)
    if part.rotation == "none.v1":
        return lambda y: y
    if part.rotation == "matrix.v1":
        values = part.matrix
        rows = [values[i : i + part.size] for i in range(0, part.size**2, part.size)]
        if len(values) != part.size**2:
            raise ValueError("a matrix of another size than its part")
        return matrix_back(part.size, rows)
    return matrix_back(part.size, drawn_rows(part.size, part.rotation, part.seed))


# --- decoding: codec.md 4


def decode_block(parts, codes, rows):
    """Head vectors [256][head_dim] in channel order, the mean out.

    codes: [parts][256][size]; rows: [scales of each part, then biases of each part that has one][256]
    """
    dim = max(part.first + part.size for part in parts)
    vectors = [[0.0] * dim for _ in range(BLOCK)]
    biases = iter(rows[len(parts) :])
    for part, part_codes, scales in zip(parts, codes, rows):
        back = map_back(part)
        bias = next(biases) if part.has_bias else None
        channels = slice(part.first, part.first + part.size)
        for token, vector in enumerate(vectors):
            x = back(f32(scales[token] * part.centroids[code] for code in part_codes[token]))
            if bias:
                x = f32(value + bias[token] for value in x)
            if part.of_residual:
                x = f32(a + b for a, b in zip(vector[channels], x))
            vector[channels] = x
    return vectors


# --- centering: codec.md 8


def rope_terms(n_dims, base, factors, position):
    """Cosine and sine of R_position for every pair of components."""
    factors = factors or [1.0] * (n_dims // 2)
    angles = [position * base ** (-2 * i / n_dims) / factors[i] for i in range(n_dims // 2)]
    return [math.cos(a) for a in angles], [math.sin(a) for a in angles]


def turned(x, terms, rounded):
    """R x, every operation through `rounded`."""
    cos, sin = terms
    half = len(cos)
    a, b = x[:half], x[half : 2 * half]
    a_cos, b_sin, b_cos, a_sin = (
        rounded(p * q for p, q in zip(*pair)) for pair in ((a, cos), (b, sin), (b, cos), (a, sin))
    )
    first = rounded(p - q for p, q in zip(a_cos, b_sin))
    second = rounded(p + q for p, q in zip(b_cos, a_sin))
    return first + second + x[2 * half :]


# --- factors of keys: codec.md 8

EIGHTHS = f32(2 ** (j / 8) for j in range(8))


def without_factors(vectors, eighths):
    """Every vector with its components divided by their factors 2^(f / 8): multiplied by 2^(-f / 8)."""
    inverses = [EIGHTHS[-f % 8] * 2.0 ** (-f // 8) for f in eighths]
    return [f32(x * each for x, each in zip(vector, inverses)) for vector in vectors]


# --- maps of kv heads: codec.md 10


def map_rows(entries, dim):
    """Orthogonal rows from those of a file, in 64ths."""
    rows = [[e / 64 for e in entries[i : i + dim]] for i in range(0, dim * dim, dim)]
    orthogonal(rows)
    return [f32(row) for row in rows]


def unmapped(vectors, rows, turns, position):
    """M^T y of every vector; with turns (n_dims, base, factors) R_p M^T y."""
    if turns:
        terms = rope_terms(*turns, position)
        rows = [f32(turned(row, terms, list)) for row in rows]
    back = matrix_back(len(rows), rows)
    vectors = [back(y) for y in vectors]
    if not turns:
        return vectors
    in_block = [[f32(each) for each in rope_terms(*turns, j)] for j in range(BLOCK)]
    return [turned(x, terms, f32) for x, terms in zip(vectors, in_block)]


def with_mean(vectors, mean, turns, position):
    """Adds what was taken out. turns: n_dims, base and factors of RoPE for a mean that turns, else None."""
    means = [mean] * BLOCK
    if turns:
        start = f32(turned(mean, rope_terms(*turns, position), list))
        in_block = [[f32(each) for each in rope_terms(*turns, j)] for j in range(BLOCK)]
        means = [turned(start, terms, f32) for terms in in_block]
    return [f32(a + b for a, b in zip(x, m)) for x, m in zip(vectors, means)]
