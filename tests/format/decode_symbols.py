"""Packed sections that are kept as symbols of a trellis, written from
docs/reference/format.md 6.6 and docs/reference/codec.md 10 alone.
"""

import struct

BLOCK = 256
CLASS = 16  # components


def unpack(density, data):
    """One symbol, two or four from each byte."""
    width = 8 // density
    lowest = {1: 0, 2: 56, 4: 62}[density]
    mask = (1 << width) - 1
    return [lowest + (byte >> width * k & mask) for byte in data for k in range(density)]


def path_codes(symbols):
    """Codes of one vector from its symbols."""
    state, codes = 0, []
    for symbol in symbols:
        k = symbol - 64
        codes.append(2 * k + (state & 1) + 128)
        state = (state >> 1) ^ (5 if state & 1 else 0) ^ (2 if k & 1 else 0)
    return codes


def block_bytes(dim, is_keys, codes):
    """Layout lanes.v1 of 8 bits, from codes [256][dim]."""
    groups = BLOCK // 16 if is_keys else -(-dim // 16)
    lines = -(-dim // 4) if is_keys else BLOCK // 4
    block = bytearray(groups * lines * 64)
    for token, vector in enumerate(codes):
        for component, code in enumerate(vector):
            lane, along = (token, component) if is_keys else (component, token)
            line = lane // 16 * lines + along // 4
            block[64 * line + 4 * (lane % 16) + along % 4] = code
    return bytes(block)


def raw_section(stored, decompress, heads, dim, is_keys, n_sink_bytes):
    """The bytes before compression, or None. decompress: the content of a frame, whose size is
    given, or None."""
    n_classes = -(-dim // CLASS)
    densities = list(stored[:n_classes])
    if any(density not in (1, 2, 4) for density in densities):
        raise ValueError("symbols a byte")
    components = [min(CLASS, dim - CLASS * i) for i in range(n_classes)]
    sizes = [n * heads * BLOCK // density for n, density in zip(components, densities)]
    content = decompress(stored[n_classes:], sum(sizes) + heads * BLOCK + n_sink_bytes)
    if content is None:
        return None
    symbols, at = [], 0
    for size, density in zip(sizes, densities):
        symbols += unpack(density, content[at : at + size])
        at += size
    scales = content[at : at + heads * BLOCK]
    raw = b""
    for head in range(heads):
        codes = []
        for token in range(BLOCK):
            first = head * BLOCK + token
            vector = [symbols[i * heads * BLOCK + first] for i in range(dim)]
            codes.append(path_codes(vector) if scales[first] else [0] * dim)
        raw += block_bytes(dim, is_keys, codes)
    return raw + struct.pack("<%dH" % len(scales), *(s << 7 for s in scales)) + content[at + len(scales) :]
