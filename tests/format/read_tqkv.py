#!/usr/bin/env python3
"""A second reader of .tqkv files, version 2, written from docs/reference/format.md alone.

Prints what is in a file as JSON: tokens, layers, and the values of every section; what packed ones
mean is in decode_turbo.py. Python's library is enough for stored sections and SHA-256; XXH3 and zstd
are checked when the modules xxhash and zstandard are there, and named under "not_checked" when they
are not. Of an encrypted file, KEY is the key in hexadecimal digits; decrypt.py needs no module.

usage: read_tqkv.py FILE [KEY]
"""

import hashlib
import json
import math
import struct
import sys

sys.dont_write_bytecode = True  # leaves the source folder as it is
import decode_predicted
import decode_symbols
import decode_turbo
import decrypt

try:
    import xxhash
except ImportError:
    xxhash = None
try:
    import zstandard
except ImportError:
    zstandard = None

MAGIC = b"TQKV\r\n\x1a\n"
BLOCK = 256
DTYPES = ["f32", "f16", "bf16"]
DTYPE_BYTES = [4, 2, 2]
SECTION = struct.Struct("<QQQ16s32sIIBBBBI")
GAP = struct.Struct("<QQ16s")
GROWING, GAPS, HIDDEN, PLANES, ENCRYPTED = 1, 2, 4, 8, 16  # required features
CHECKPOINTS, PREDICTED, MEDIA = 32, 64, 128
ENVELOPE = struct.Struct("<I12s16s32s32s16s16s")
SEAL = struct.Struct("<II16s")
STORED, ZSTD, IN_PLANES, SYMBOLS, RESIDUALS = range(5)  # compressions
ATTENTION, ARRAYS = b"tqcache.attention.v1", b"tqcache.arrays.v1"  # cache_type_id of layers
OPAQUE = b"tqcache.opaque.v1"  # behind the layers of checkpoints alone
WINDOW, TURBO_WINDOW = b"tqcache.rotating.v1", b"tqcache.rotating.v2"
UNEQUAL = {  # those whose values have a size of their own
    b"tqcache.attention.v2": ATTENTION,
    b"tqcache.rotating.v3": WINDOW,
    b"tqcache.rotating.v4": TURBO_WINDOW,
}


def kind(layer):
    """cache_type_id, without regard to the size of values."""
    return UNEQUAL.get(layer.text(0), layer.text(0))


def shape_of(layer, side):
    """Heads and components of K (side 0) or V."""
    heads, dim, value_dim = (layer.scalar(field, "I") for field in (1, 2, 8))
    return heads, value_dim if side == 1 and value_dim else dim


DENSE, TRELLIS = b"tqcache.dense.v1", b"tqcache.trellis.v1"  # and of sides
MODES = {b"tqcache.turbo_mse.v1": "mse", b"tqcache.turbo_prod.v1": "prod", TRELLIS: "trellis"}
MODES |= {b"tqcache.turbo_mixed.v1": "mixed", b"tqcache.affine.v1": "affine"}
HADAMARD = b"hartley_hadamard.v1"
ROTATIONS = [HADAMARD, b"dense_qr.v1", b"gaussian.v1", b"none.v1", b"matrix.v1"]
SCALES = [b"unbiased.v1", b"norm.v1", b"raw.v1", b"peak.v1", b"step.v1"]
WITH_FACTORS = [b"post_rope.v2", b"pre_rope.v2"]
CENTERINGS = [b"none", b"post_rope.v1", b"pre_rope.v1", *WITH_FACTORS]
MOST_TOKENS = 1 << 24
MOST_CHECKPOINTS, MOST_CHECKPOINT_TOKENS = 1024, 1 << 26
not_checked = set()


def require(condition, fact):
    if not condition:
        sys.exit("read_tqkv.py: " + fact)


class Table:
    """A FlatBuffers table: a signed offset back to its vtable, then the fields."""

    def __init__(self, buffer, at):
        self.buffer, self.at = buffer, at
        self.vtable = at - struct.unpack_from("<i", buffer, at)[0]

    def where(self, field):
        size = struct.unpack_from("<H", self.buffer, self.vtable)[0]
        entry = 4 + 2 * field
        offset = struct.unpack_from("<H", self.buffer, self.vtable + entry)[0] if entry < size else 0
        return self.at + offset if offset else None

    def scalar(self, field, code):
        at = self.where(field)
        return struct.unpack_from("<" + code, self.buffer, at)[0] if at else 0

    def fixed(self, field, size):
        at = self.where(field)
        return self.buffer[at : at + size] if at else None

    def follow(self, at):
        return at + struct.unpack_from("<I", self.buffer, at)[0]

    def table(self, field):
        at = self.where(field)
        return Table(self.buffer, self.follow(at)) if at else None

    def vector(self, field, size):
        """The elements' bytes, and where they begin."""
        start = self.follow(self.where(field))
        count = struct.unpack_from("<I", self.buffer, start)[0]
        return self.buffer[start + 4 : start + 4 + count * size], start + 4

    def text(self, field):
        return self.vector(field, 1)[0]

    def numbers(self, field, code):
        raw = self.vector(field, struct.calcsize(code))[0]
        return list(struct.unpack("<%d%s" % (len(raw) // struct.calcsize(code), code), raw))

    def tables(self, field):
        raw, start = self.vector(field, 4)
        return [Table(self.buffer, self.follow(start + i)) for i in range(0, len(raw), 4)]


def check_xxh3_128(data, expected, what):
    if xxhash is None:
        not_checked.add("XXH3 (no module xxhash)")
    else:
        require(xxhash.xxh3_128_digest(data) == expected, what + ": checksum mismatch")


def read_slot(file, index):
    """The fields of a header slot, or None when it is not whole."""
    slot = file[64 * index : 64 * index + 64]
    if slot[:8] != MAGIC:
        return None
    if xxhash is not None and xxhash.xxh3_64_intdigest(slot[:56]) != struct.unpack("<Q", slot[56:])[0]:
        return None
    names = ["version", "generation", "required", "optional", "manifest_offset", "file_length"]
    fields = dict(zip(names, struct.unpack("<IIIIQQ", slot[8:40])))
    fields["checksum"] = slot[40:56]
    generation = fields["generation"]
    return fields if generation > 0 and generation % 2 == (index + 1) % 2 else None


def is_growing(slot):
    return slot["version"] == 2 and slot["required"] & GROWING != 0


def announces(slot, current):
    """Whether a whole slot says that an append to the current state has begun."""
    expected = [current["generation"] + 1, GROWING, 0, 0, current["file_length"], bytes(16)]
    names = ["generation", "required", "optional", "manifest_offset", "file_length", "checksum"]
    return [slot[name] for name in names] == expected


def read_header(file):
    slots = [read_slot(file, 0), read_slot(file, 1)]
    states = [slot for slot in slots if slot and not is_growing(slot)]
    require(states, "not a .tqkv file")
    slot = max(states, key=lambda each: each["generation"])
    require(slot["version"] == 2 and slot["required"] | 255 == 255, "not a version that this program reads")
    i = 1 - slots.index(slot)
    growing = bool(slots[i] and is_growing(slots[i]))
    damaged = not announces(slots[i], slot) if growing else not slots[i] and any(file[64 * i : 64 * i + 64])
    require(len(file) >= slot["file_length"], "the file is shorter than it says")
    require(len(file) == slot["file_length"] or growing or damaged, "the file is longer than it says")
    slot["damaged"] = damaged
    slot["bytes"] = file[64 - 64 * i : 128 - 64 * i]
    return slot


class Cipher:
    """The keys of an encrypted file. Opens its manifest; then its sections, by their seals."""

    def __init__(self, key, sealed):
        require(len(sealed) > ENVELOPE.size, "an encrypted manifest that is too short")
        scheme, zeros, key_id, self.file_id, self.write, self.tag, more = ENVELOPE.unpack_from(sealed)
        require(scheme == 1, "an unknown scheme of encryption")
        require(not any(zeros + more), "reserved bytes of the envelope")
        require(key is not None, "encrypted with the key " + key_id.hex())
        require(decrypt.hkdf(key, b"", b"tqcache key id 1")[:16] == key_id, "another key")
        self.master, self.sealed, self.writes = key, sealed, []

    def key_of(self, write):
        return decrypt.hkdf(self.master, self.file_id + write, b"tqcache file 1")

    def manifest(self, slot):
        associated = slot["bytes"][:40] + self.sealed[:96]
        plain = decrypt.unseal(self.key_of(self.write), bytes(12), associated, self.sealed[128:], self.tag)
        require(plain is not None, "manifest: authentication failed")
        return plain

    def read_seals(self, manifest, sections):
        table = manifest.table(8)
        require(table is not None, "an encrypted file without seals")
        salts = table.vector(0, 32)[0]
        writes = [salts[i : i + 32] for i in range(0, len(salts), 32)]
        require(writes and writes[-1] == self.write, "the newest write")
        require(len(writes) <= len(sections) + 1, "number of writes")
        keys = [self.key_of(write) for write in writes]
        seals = list(SEAL.iter_unpack(table.vector(1, SEAL.size)[0]))
        require(len(seals) == len(sections), "number of seals")
        for section, (write, number, tag) in zip(sections, seals):
            section["seal"] = keys[write], struct.pack("<IQ", 1, number), tag

    def section(self, section, stored):
        names = ["layer", "block", "side", "form", "compression", "reserved_8", "raw_size", "stored_size"]
        associated = struct.pack("<IIIBBBBQQ", 1, *(section[name] for name in names))
        key, nonce, tag = section["seal"]
        plain = decrypt.unseal(key, nonce, self.file_id + associated, stored, tag)
        require(plain is not None, "section: authentication failed")
        return plain


def u64(value):
    return struct.pack("<Q", value)


def sized(data):
    return u64(len(data)) + data


def name_part(part):
    name = u64(part.scalar(0, "I")) + u64(part.scalar(1, "I")) + u64(part.scalar(2, "B"))
    name += sized(part.text(3)) + u64(part.scalar(4, "B")) + u64(part.scalar(5, "Q"))
    name += sized(part.text(6))
    if part.text(6) == b"step.v1":
        name += u64(part.scalar(11, "I"))  # the bits of an f32
    name += u64(part.scalar(7, "B")) + u64(part.scalar(8, "B"))
    name += sized(part.vector(9, 4)[0])
    if part.text(3) == b"matrix.v1":
        name += hashlib.sha256(part.vector(10, 4)[0]).digest()
    return name


def name_side(side, shape):
    name = sized(side.text(0)) + u64(side.scalar(1, "B"))
    codec = side.table(2)
    if codec:
        name += sized(codec.text(0)) + u64(len(codec.tables(1)))
        name += b"".join(name_part(part) for part in codec.tables(1))
        name += sized(side.text(3)) + sized(side.vector(4, 4)[0] if side.where(4) else b"")
        name += sized(side.vector(5, 2)[0] if side.where(5) else b"") + u64(side.scalar(6, "H"))
        if side.text(3) in WITH_FACTORS:
            name += sized(side.vector(8, 1)[0])
    if side.text(0) == b"tqcache.trellis.v1":
        heads, dim = shape
        stored = side.vector(7, 1)[0] if side.where(7) else b""
        if stored and len(stored) != heads * dim * dim:
            stored = unframed(stored, heads * dim * dim)
            if stored is None:
                not_checked.add("maps (no module zstandard)")
        name += sized(stored or b"")
    return name


def name_layer(layer):
    parts = sized(layer.text(0))
    heads = u64(layer.scalar(1, "I")) + u64(layer.scalar(2, "I"))
    if layer.text(0) in UNEQUAL:
        heads += u64(layer.scalar(8, "I"))
    if kind(layer) in (ATTENTION, TURBO_WINDOW):
        parts += heads
        if kind(layer) == TURBO_WINDOW:
            parts += u64(layer.scalar(6, "I"))
        sides = name_side(layer.table(3), shape_of(layer, 0))
        return parts + sides + name_side(layer.table(4), shape_of(layer, 1))
    if kind(layer) == WINDOW:
        parts += heads + b"".join(u64(layer.scalar(field, "I")) for field in (6, 7))
    arrays = layer.tables(5)
    parts += u64(len(arrays))
    for array in arrays:
        parts += sized(array.text(0)) + u64(array.scalar(1, "B")) + sized(array.vector(2, 8)[0])
    return parts


def name_tokens(manifest):
    hidden = manifest.table(7)
    if not hidden:
        return sized(manifest.vector(2, 4)[0])
    hashes = hidden.vector(1, 32)[0]
    return u64((1 << 63) + hidden.scalar(0, "I")) + u64(len(hashes) // 32) + hashes


def content_name(manifest, sections):
    identity, layers = manifest.table(1), manifest.tables(3)
    rope = identity.table(2)
    parts = [sized(b"tqcache content name v1"), sized(identity.text(0)), sized(identity.text(1))]
    has_factors = rope.where(3) is not None
    parts += [u64(rope.scalar(0, "B") + 256 * has_factors), u64(rope.scalar(1, "I"))]
    parts += [struct.pack("<d", rope.scalar(2, "d") or 0.0)]
    if has_factors:
        parts.append(sized(rope.vector(3, 4)[0]))
    parts += [sized(identity.fixed(3, 32)), sized(identity.fixed(4, 32))]
    parts += [sized(identity.fixed(5, 32) or b""), sized(identity.text(6))]
    parts += [name_tokens(manifest), u64(len(layers))] + [name_layer(each) for each in layers]
    parts.append(u64(len(sections)))
    for section in sections:
        parts += [u64(section[key]) for key in ("layer", "side", "block", "form", "raw_size")]
        parts.append(sized(section["raw_sha256"]))
    checkpoints = manifest.tables(9) if manifest.where(9) else []
    if checkpoints:
        parts.append(u64(len(checkpoints)))
    for checkpoint in checkpoints:
        layers = checkpoint.tables(2)
        parts += [u64(checkpoint.scalar(0, "I")), u64(checkpoint.scalar(1, "I")), u64(len(layers))]
        parts += [name_layer(each) for each in layers]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def read_model_fingerprint(identity):
    """The version and the digest, or (1, None) in files of older writers."""
    version, digest = identity.scalar(7, "B"), identity.fixed(8, 32)
    require(identity.where(9) is None or 1 <= identity.scalar(9, "I") <= 1024, "streams")
    require(identity.where(10) is None or 1 <= len(identity.text(10)) <= 1024, "source layout")
    require(identity.scalar(11, "B") <= 2, "standing")
    require(version != 1 and (version == 0) == (digest is None), "model fingerprint")
    return (version, digest.hex()) if version else (1, None)


def read_sections(manifest, file, manifest_offset):
    """The section table and the number of gaps, after going through the file from end to end."""
    names = ["offset", "stored_size", "raw_size", "checksum", "raw_sha256", "layer", "block", "side"]
    names += ["form", "compression", "reserved_8", "reserved_32"]
    raw = manifest.vector(4, SECTION.size)[0]
    sections = [dict(zip(names, row)) for row in SECTION.iter_unpack(raw)]
    gaps = list(GAP.iter_unpack(manifest.vector(6, GAP.size)[0])) if manifest.where(6) else []
    require(gaps or manifest.where(6) is None, "a list of no gaps")
    require(all(a[0] < b[0] for a, b in zip(gaps, gaps[1:])), "order of gaps")
    ranges = [(section["offset"], section["stored_size"]) for section in sections]
    if gaps:
        ranges = sorted(ranges + [(offset, size) for offset, size, _ in gaps])
    end, behind, in_gaps = 128, "section", {offset: size for offset, size, _ in gaps}
    for offset, size in ranges + [(manifest_offset, 0)]:
        require(offset == (end + 63) // 64 * 64, "sections and gaps do not tile the file")
        require(not any(file[end:offset]), "padding behind a %s is not zero" % behind)
        end, behind = offset + size, "gap" if in_gaps.get(offset) == size else "section"
    for offset, size, checksum in gaps:
        require(size > 0, "a gap of no bytes")
        check_xxh3_128(file[offset : offset + size], checksum, "gap")
    return sections, len(gaps)


def media_ids(span, position):
    """The token ids of a span that begins at a position."""
    content = b"tqcache media 1" + struct.pack("<BQ", span["kind"], len(span["id"])) + span["id"]
    content += struct.pack("<QQ", span["n_tokens"], len(span["coordinates"]))
    content += b"".join(struct.pack("<q", each - position) for each in span["coordinates"])
    content += struct.pack("<q", span["next_position"] - position)
    digest = hashlib.sha256(content).digest()
    ids = []
    for part in range((span["n_tokens"] + 7) // 8):
        words = struct.unpack("<8I", hashlib.sha256(digest + struct.pack("<Q", part)).digest())
        ids += [-2 - word % 2147483646 for word in words]
    return ids[: span["n_tokens"]]


def read_media(manifest, tokens, hidden):
    """The spans as dictionaries, after checking them and the token ids."""
    if not manifest.where(11):
        require(hidden or all(token >= 0 for token in tokens), "a token id below 0")
        return []
    tables, spans, text = manifest.tables(11), [], []
    require(1 <= len(tables) <= 4096, "number of media")
    end = position = 0
    for table in tables:
        span = {
            "kind": table.scalar(0, "B"),
            "begin": table.scalar(1, "I"),
            "n_tokens": table.scalar(2, "I"),
            "id": table.text(3),
            "coordinates": table.numbers(4, "i") if table.where(4) else [],
            "next_position": table.scalar(5, "I"),
            "placeholder": table.scalar(6, "i") if table.where(6) else -1,
        }
        require(span["kind"] <= 2 and 1 <= span["n_tokens"] <= MOST_TOKENS, "kind or size of a medium")
        require(end <= span["begin"] < len(tokens), "begin of a medium")
        require(not hidden or not span["id"], "an id though tokens are hidden")
        require(hidden or 1 <= len(span["id"]) <= 256, "size of an id")
        require(all(0x21 <= byte <= 0x7E for byte in span["id"]), "characters of an id")
        require(span["placeholder"] >= -1, "placeholder of a medium")
        text += tokens[end : span["begin"]]
        position += span["begin"] - end
        if table.where(4):
            require(len(span["coordinates"]) == 3 * span["n_tokens"], "number of coordinates")
            require(all(0 <= each <= MOST_TOKENS for each in span["coordinates"]), "coordinates")
            require(span["next_position"] <= MOST_TOKENS, "position behind a medium")
        else:
            require(span["next_position"] == position + span["n_tokens"], "position behind a medium")
        end = span["begin"] + span["n_tokens"]
        own = tokens[span["begin"] : end]
        require(hidden or own == media_ids(span, position)[: len(own)], "token ids of a medium")
        position = span["next_position"]
        spans.append(span)
        require(end <= len(tokens) or len(spans) == len(tables), "a medium behind a cut one")
    text += tokens[end:]
    require(hidden or all(token >= 0 for token in text), "a token id below 0")
    return [{**span, "id": span["id"].decode("ascii")} for span in spans]


def read_tokens(manifest):
    """The ids and the hashes of token blocks in hexadecimal; one of them is None."""
    hidden = manifest.table(7)
    if not hidden:
        return manifest.numbers(2, "i"), None
    count, hashes = hidden.scalar(0, "I"), hidden.vector(1, 32)[0]
    require(count <= MOST_TOKENS, "number of tokens")
    require(not manifest.vector(2, 4)[0], "hidden tokens that are there")
    require(len(hashes) in (0, 32 * ((count + BLOCK - 1) // BLOCK)), "number of hashes")
    return [-1] * count, [hashes[i : i + 32].hex() for i in range(0, len(hashes), 32)]


def check_rope(rope):
    style, n_dims, base = rope.scalar(0, "B"), rope.scalar(1, "I"), rope.scalar(2, "d")
    require(style <= 2 and n_dims <= 1024, "style or components of RoPE")
    require(math.isfinite(base) and base >= 0, "base of RoPE")
    if rope.where(3):
        factors = rope.numbers(3, "f")
        require(factors and len(factors) == n_dims // 2, "number of RoPE's factors")
        require(all(math.isfinite(f) and f > 0 for f in factors), "factors of RoPE")


def can_rotate(rope, dim):
    """Whether a mean can be taken before RoPE."""
    n_dims, factors = rope.scalar(1, "I"), rope.numbers(3, "f") if rope.where(3) else []
    whole = rope.scalar(0, "B") != 0 and n_dims % 2 == 0 and 2 <= n_dims <= dim
    return whole and rope.scalar(2, "d") >= 1 and all(2**-20 <= f <= 2**20 for f in factors)


def check_part(part):
    size, bits, rounds = part.scalar(1, "I"), part.scalar(2, "B"), part.scalar(4, "B")
    rotation, scale, step = part.text(3), part.text(6), part.scalar(11, "f")
    require(8 <= size <= 1024 and 1 <= bits <= 8, "channels or bits of a part")
    require(rotation in ROTATIONS and scale in SCALES, "an unknown rotation or scale")
    require(1 <= rounds <= (3 if rotation == HADAMARD else 1), "rounds")
    require(1 / 64 <= step <= 8 if scale == b"step.v1" else step == 0, "step")
    require(part.scalar(7, "B") <= 1 and part.scalar(8, "B") <= 1, "neither yes nor no")
    centroids = part.numbers(9, "f")
    require(len(centroids) == 1 << bits, "number of centroids")
    require(all(-1 <= c <= 1 for c in centroids), "a centroid outside -1 to 1")
    require(all(a < b for a, b in zip(centroids, centroids[1:])), "order of centroids")
    require((part.where(10) is not None) == (rotation == b"matrix.v1"), "presence of a matrix")
    if part.where(10):
        matrix = part.numbers(10, "f")
        require(len(matrix) == size * size and all(abs(x) <= 16 for x in matrix), "matrix")


def is_of_mode(mode, parts, dim):
    firsts, sizes = ([part.scalar(field, "I") for part in parts] for field in (0, 1))
    bits, residual, bias = ([part.scalar(field, "B") for part in parts] for field in (2, 7, 8))
    in_steps = [part.text(6) == b"step.v1" for part in parts]
    if any(in_steps) != (mode == "trellis") or any(bias) != (mode == "affine"):
        return False
    if mode == "prod":
        return firsts == [0, 0] and sizes == [dim] * 2 and residual == [0, 1] and bits[0] < 8 and bits[1] == 1
    if any(residual) or [sum(sizes[:i]) for i in range(len(parts))] != firsts or sum(sizes) != dim:
        return False
    if mode == "mixed":
        return len(parts) == 2 and bits[0] > bits[1]
    if mode == "affine":
        plain = all(bias) and all(part.text(3) == b"none.v1" for part in parts)
        return plain and sizes[0] in (32, 64, 128) and len(set(sizes)) == len(set(bits)) == 1
    levels = [j / 128 for j in range(-128, 128)]
    return len(parts) == 1 and (mode == "mse" or parts[0].numbers(9, "f") == levels)


def check_side(side, shape, is_keys, rope):
    heads, dim = shape
    name, n_sinks = side.text(0), side.scalar(6, "H")
    mean, outliers, maps = (side.where(field) is not None for field in (4, 5, 7))
    require(side.scalar(1, "B") <= 2, "dtype")
    if name == DENSE:
        has_more = n_sinks or mean or outliers or maps or any(side.where(i) for i in (2, 3, 8))
        require(not has_more, "a dense side with what belongs to a codec")
        return
    require(name in MODES, "an unknown cache_type_id of a side")
    require(32 <= dim, "head_dim of a turbo side")
    require(side.table(2) and side.table(2).text(0) == b"lanes.v1", "no codec, or unknown layout")
    parts = side.table(2).tables(1)
    require(1 <= len(parts) <= 32, "number of parts")
    for part in parts:
        check_part(part)
    require(is_of_mode(MODES[name], parts, dim), "parts that are not of the mode")
    require(side.text(3) in CENTERINGS, "unknown centering")
    require(n_sinks <= BLOCK, "sink tokens")
    if side.text(3).startswith(b"pre_rope."):
        require(is_keys and can_rotate(rope, dim), "centering before RoPE where there is none")
    if mean:
        values = side.numbers(4, "f")
        require(side.text(3) != b"none" and len(values) == heads * dim, "size of a mean")
        require(all(map(math.isfinite, values)), "a mean that is not finite")
    require((side.text(3) in WITH_FACTORS) == (side.where(8) is not None), "factors and centering")
    if side.where(8) is not None:
        factors = side.numbers(8, "b")
        require(is_keys and MODES[name] in ("mse", "prod", "mixed"), "factors of a codec without any")
        require(len(factors) == heads * dim and min(factors) >= -127, "factors")
    if outliers:
        n, channels = parts[0].scalar(1, "I"), side.numbers(5, "H")
        require(MODES[name] == "mixed" and len(channels) == heads * n, "number of outliers")
        for of_head in (channels[n * head : n * head + n] for head in range(heads)):
            require(of_head == sorted(set(of_head)) and of_head[-1] < dim, "outlier channels")
    if maps:
        stored, size = side.vector(7, 1)[0], heads * dim * dim
        require(name == TRELLIS and stored, "maps")
        if len(stored) != size:
            unframed(stored, size)


def check_array(array):
    shape, dtype = array.numbers(2, "Q"), array.scalar(1, "B")
    require(dtype <= 2, "dtype")
    require(len(shape) <= 8 and math.prod(shape) * DTYPE_BYTES[dtype] <= 1 << 40, "a large array")


def check_layer(layer, rope, is_behind=False):
    name, has_sides = kind(layer), layer.where(3) is not None
    heads, dim, window, keep, value_dim = (layer.scalar(field, "I") for field in (1, 2, 6, 7, 8))
    require((layer.text(0) in UNEQUAL) == (value_dim != 0),
            f"value_dim {value_dim} in a layer of type \"{layer.text(0)}\"")
    require(value_dim <= 1024 and (value_dim == 0 or value_dim != dim), "size of values")
    require(name in (ATTENTION, ARRAYS, OPAQUE, WINDOW, TURBO_WINDOW), "an unknown cache_type_id")
    require(name != OPAQUE or is_behind, "an opaque layer of the cache itself")
    require(has_sides == (layer.where(4) is not None), "one side of two")
    require(has_sides == (layer.where(5) is None), "sides or arrays")
    require(has_sides == (name in (ATTENTION, TURBO_WINDOW)), "sides and arrays of the type")
    sized = 1 <= heads <= 1024 and 1 <= dim <= 1024
    require(heads == dim == 0 if name in (ARRAYS, OPAQUE) else sized, "heads of a layer")
    require(name in (WINDOW, TURBO_WINDOW) or window == keep == 0, "a window")
    require(window <= MOST_TOKENS, "a large window")
    if has_sides:
        check_side(layer.table(3), shape_of(layer, 0), True, rope)
        check_side(layer.table(4), shape_of(layer, 1), False, rope)
    else:
        require(len(layer.tables(5)) <= 64, "number of arrays")
        for array in layer.tables(5):
            check_array(array)
            is_words = array.scalar(1, "B") == 0 and len(array.numbers(2, "Q")) == 1
            require(name != OPAQUE or is_words, "an opaque array")


def is_predictable(layer):
    return layer.text(0) == ATTENTION and layer.table(3).text(0) == layer.table(4).text(0) == DENSE


def check_prediction(prediction, sections, hashes):
    """The predicted sections are those of the first token blocks."""
    residuals = [section["compression"] == RESIDUALS for section in sections]
    require((prediction is not None) == any(residuals), "prediction and sections disagree")
    if prediction is None:
        return
    require(hashes is None, "predicted, but hidden")
    require(2.0**-20 <= prediction.scalar(1, "f") <= 2.0**20, "step of a prediction")
    require(prediction.scalar(2, "H") <= BLOCK, "sinks of a prediction")
    n_blocks = 1 + max(s["block"] for s, is_one in zip(sections, residuals) if is_one)
    for section, is_one in zip(sections, residuals):
        require(is_one == (section["side"] < 2 and section["block"] < n_blocks), "not predicted")


class Residuals:
    """Token blocks that are predicted, decoded as they are needed."""

    def __init__(self, prediction, layers, sections, tokens, rope):
        self.profile = decode_predicted.find_profile(prediction.fixed(0, 32), Table)
        self.step, self.n_sinks = prediction.scalar(1, "f"), prediction.scalar(2, "H")
        self.layers, self.sections, self.tokens, self.rope = layers, sections, tokens, rope
        self.blocks = {}

    def turned(self, position):
        """R_position of a vector of all kv heads."""
        rope, dim = self.rope, self.profile.head_dim
        if not can_rotate(rope, dim):
            return lambda row: row
        factors = rope.numbers(3, "f") if rope.where(3) else None
        terms = decode_turbo.rope_terms(rope.scalar(1, "I"), rope.scalar(2, "d"), factors, position)
        terms = [decode_turbo.f32(each) for each in terms]
        f32 = decode_turbo.f32
        return lambda row: sum(
            (list(decode_turbo.turned(row[i : i + dim], terms, f32)) for i in range(0, len(row), dim)),
            [],
        )

    def raw(self, section, stored_of):
        """The section's bytes; stored_of(section): the stored bytes of any section."""
        block = section["block"]
        if block not in self.blocks:
            self.blocks[block] = self.decode(block, stored_of)
        return self.blocks[block][2 * section["layer"] + section["side"]]

    def decode(self, block, stored_of):
        sections = [section for section in self.sections if section["block"] == block]
        dtypes = [self.layers[s["layer"]].table(3 + s["side"]).scalar(1, "B") for s in sections]
        first = block * BLOCK
        tokens, heads = self.tokens[first : first + BLOCK], self.profile.n_heads
        turns = {}

        def turned(row, t):
            if t not in turns:
                turns[t] = self.turned(first + t)
            return turns[t](row)

        decoded = decode_predicted.decode_block(
            self.profile,
            tokens,
            [stored_of(section) for section in sections],
            self.step,
            self.n_sinks if block == 0 else 0,
            [DTYPE_BYTES[dtype] for dtype in dtypes],
            turned,
        )
        return [joined(*each, heads, dtype) for each, dtype in zip(decoded, dtypes)]


def joined(rows, sinks, heads, dtype):
    """[kv head][token][channel] of decoded rows, with the stored bytes of sink tokens in front."""
    n_sinks, out = rows.count(None), b""
    dim = len(rows[-1]) // heads if n_sinks < len(rows) else 0
    for head in range(heads):
        out += sinks[head * len(sinks) // heads : (head + 1) * len(sinks) // heads]
        values = [x for row in rows[n_sinks:] for x in row[head * dim : (head + 1) * dim]]
        if DTYPES[dtype] == "bf16":
            words = struct.unpack("<%dI" % len(values), struct.pack("<%df" % len(values), *values))
            values = [word + 0x7FFF + (word >> 16 & 1) >> 16 for word in words]
        out += struct.pack("<%d%s" % (len(values), "feH"[dtype]), *values)
    return out


def check_section(section, layer, n_tokens):
    """Form and sizes. The section is the one that belongs at its place of the table."""
    side = None if section["side"] == 2 else layer.table(3 + section["side"])
    packed, compression = section["form"] == 1, section["compression"]
    stored_size, raw_size = section["stored_size"], section["raw_size"]
    require(section["reserved_8"] == section["reserved_32"] == 0, "reserved bytes of a section")
    require(section["form"] <= 1 and compression <= RESIDUALS, "form or compression")
    if side is None or side.text(0) == DENSE:
        require(not packed, "packed, of a side that is not turbo")
    elif packed:
        require(BLOCK * section["block"] + BLOCK <= n_tokens, "packed, but not full")
        require(side.text(3) == b"none" or side.where(4), "packed, without a mean")
        require(MODES[side.text(0)] != "mixed" or side.where(5), "packed, without outliers")
    else:
        require(BLOCK * section["block"] + BLOCK >= n_tokens, "a block before the last is not packed")
    require(compression != IN_PLANES or not packed, "planes of packed codes")
    require(compression != SYMBOLS or packed and side.text(0) == TRELLIS, "symbols")
    require(compression != RESIDUALS or is_predictable(layer), "residuals")
    fits = stored_size == raw_size if compression == STORED else 0 < stored_size < raw_size
    require(fits, "stored size")


def check_window(layer, n_tokens):
    """A rotating layer: keys and values of the tokens in its window."""
    window, keep = layer.scalar(6, "I"), layer.scalar(7, "I")
    require(0 <= keep < window, "a window that is none")
    arrays = layer.tables(5)
    require([array.text(0) for array in arrays] == [b"keys", b"values"], "arrays of a window")
    for side, array in enumerate(arrays):
        heads, dim = shape_of(layer, side)
        require(array.numbers(2, "Q") == [heads, min(window, n_tokens), dim], "shape of a window")


def check_turbo_window(layer):
    """A rotating layer in token blocks."""
    require(layer.scalar(6, "I") > 0 and layer.scalar(7, "I") == 0, "a window that is none")
    sides = [layer.table(3), layer.table(4)]
    require(any(side.table(2) for side in sides), "a turbo window of dense sides")
    require(not any(side.scalar(6, "H") for side in sides), "sink tokens in a window")


def planned_sections(layers, n_tokens):
    """Layer, side and block of all sections, in their order."""
    n_blocks, planned = (n_tokens + BLOCK - 1) // BLOCK, []
    for block in range(n_blocks):
        for i, layer in enumerate(layers):
            window = layer.scalar(6, "I")
            begin = n_tokens - min(window, n_tokens) if window else 0
            if layer.table(3) and block >= begin // BLOCK:
                planned += [(i, 0, block), (i, 1, block)]
    for i, layer in enumerate(layers):
        if not layer.table(3):
            planned += [(i, 2, array) for array in range(len(layer.tables(5)))]
    return planned


def is_same_kind(layer, kept):
    """Whether a checkpoint's layer is one of the cache's windows, or its recurrent state."""
    names = (WINDOW, TURBO_WINDOW) if kind(layer) in (WINDOW, TURBO_WINDOW) else (ARRAYS,)
    fields = [each.scalar(field, "I") for each in (layer, kept) for field in (1, 2, 6, 7, 8)]
    if kind(kept) not in names or fields[:5] != fields[5:]:
        return False
    of_array = lambda array: (array.text(0), array.scalar(1, "B"), array.numbers(2, "Q"))
    return names != (ARRAYS,) or [*map(of_array, layer.tables(5))] == [*map(of_array, kept.tables(5))]


def read_checkpoints(manifest, layers, n_tokens, rope):
    """Layers and number of tokens of each checkpoint."""
    if manifest.where(9) is None:
        return []
    last, total, states = 0, 0, []
    fixed = [layer for layer in layers if kind(layer) != ATTENTION]
    require(fixed, "checkpoints of a cache that can go back")
    for checkpoint in manifest.tables(9):
        count, kept = checkpoint.scalar(0, "I"), checkpoint.tables(2)
        require(last < count <= n_tokens, "order or number of tokens of checkpoints")
        require(checkpoint.scalar(1, "I") < count, "first position of a checkpoint")
        opaque = len(kept) > 0 and kind(kept[-1]) == OPAQUE
        require(len(kept) - opaque == len(fixed), "number of layers of a checkpoint")
        require(not states or len(kept) == len(states[0][0]), "opaque layers in some checkpoints")
        require(all(map(is_same_kind, fixed, kept)), "a checkpoint of other layers")
        for i, layer in enumerate(kept):
            check_layer(layer, rope, is_behind=i == len(fixed))
        last, total = count, total + count
        states.append((kept, count))
    require(1 <= len(states) <= MOST_CHECKPOINTS, "number of checkpoints")
    require(total <= MOST_CHECKPOINT_TOKENS, "tokens of all checkpoints")
    return states


def raw_blocks(frame):
    """The content of a zstd frame that nothing was compressed in (RFC 8878, 3.1.1), or None."""
    descriptor, at = frame[4], 5
    at += 0 if descriptor & 0x20 else 1
    at += [descriptor >> 5 & 1, 2, 4, 8][descriptor >> 6]
    content, is_last = b"", False
    while not is_last:
        header = int.from_bytes(frame[at : at + 3], "little")
        is_last, kind, size = header & 1, header >> 1 & 3, header >> 3
        if kind != 0:
            return None
        content += frame[at + 3 : at + 3 + size]
        at += 3 + size
    return content


def check_frame(frame, size):
    """The rules for the header of a zstd frame (RFC 8878, 3.1.1.1) that holds `size` bytes."""
    require(len(frame) > 5 and frame[:4] == b"\x28\xb5\x2f\xfd", "no zstd frame")
    flags, at = frame[4], 5
    if not flags & 0x20:
        window = (8 + (frame[5] & 7)) << (7 + (frame[5] >> 3))
        require(window <= 1 << 27, "the frame's window is too large")
        at += 1
    n_id, n_content = [0, 1, 2, 4][flags & 3], [flags >> 5 & 1, 2, 4, 8][flags >> 6]
    require(not any(frame[at : at + n_id]), "the frame needs a dictionary")
    content = int.from_bytes(frame[at + n_id : at + n_id + n_content], "little")
    content += 256 if n_content == 2 else 0
    require(n_content > 0 and content == size > 0, "the frame holds another number of bytes")
    require(size <= len(frame) // 4 * 131072, "the frame cannot hold so many bytes")


def unframed(frame, size):
    """None without zstandard."""
    check_frame(frame, size)
    if zstandard is not None:
        return zstandard.ZstdDecompressor().decompress(frame, size)
    content = raw_blocks(frame)
    if content is None:
        not_checked.add("compressed sections (no module zstandard)")
    return content


def from_symbols(stored, layer, section):
    heads, dim = shape_of(layer, section["side"])
    side = layer.table(3 + section["side"])
    n_sinks = side.scalar(6, "H") if section["block"] == 0 else 0
    n_sink_bytes = heads * n_sinks * dim * DTYPE_BYTES[side.scalar(1, "B")]
    is_keys = section["side"] == 0
    return decode_symbols.raw_section(stored, unframed, heads, dim, is_keys, n_sink_bytes)


def number_bytes(layer, section):
    """Bytes of a number of a dense section."""
    if section["side"] == 2:
        return DTYPE_BYTES[layer.tables(5)[section["block"]].scalar(1, "B")]
    return DTYPE_BYTES[layer.table(3 + section["side"]).scalar(1, "B")]


def join_planes(stored, raw_size, width):
    """The numbers whose bytes stand in planes, the highest one first, turned left by one bit."""
    n, at, turned = raw_size // width, 8 * width, [0] * (raw_size // width)
    for size in struct.unpack_from("<%dQ" % width, stored):
        require(0 < size <= n, "size of a plane")
        plane = stored[at : at + size] if size == n else unframed(stored[at : at + size], n)
        require(len(plane) == n, "a plane has the wrong size")
        turned = [word << 8 | byte for word, byte in zip(turned, plane)]
        at += size
    require(at == len(stored), "bytes behind the planes")
    bits = 8 * width
    return b"".join((word >> 1 | (word & 1) << (bits - 1)).to_bytes(width, "little") for word in turned)


def stored_bytes(file, section, cipher):
    stored = file[section["offset"] : section["offset"] + section["stored_size"]]
    check_xxh3_128(stored, section["checksum"], "section")
    return cipher.section(section, stored) if cipher else stored


def raw_bytes(file, section, layer, cipher, residuals):
    """The bytes of a section before compression, or None without zstandard or the profile."""
    stored = stored_bytes(file, section, cipher)
    if section["compression"] == RESIDUALS:
        if residuals.profile is None:
            not_checked.add("predicted sections (no profile)")
            return None
        stored = residuals.raw(section, lambda other: stored_bytes(file, other, cipher))
    elif section["compression"] != STORED:
        if zstandard is None and section["compression"] != SYMBOLS:
            not_checked.add("compressed sections (no module zstandard)")
            return None
        if section["compression"] == ZSTD:
            stored = unframed(stored, section["raw_size"])
        elif section["compression"] == SYMBOLS:
            stored = from_symbols(stored, layer, section)
            if stored is None:
                return None
        else:
            stored = join_planes(stored, section["raw_size"], number_bytes(layer, section))
    require(len(stored) == section["raw_size"], "a section has the wrong size")
    require(hashlib.sha256(stored).digest() == section["raw_sha256"], "SHA-256 mismatch")
    return stored


def numbers(raw, dtype):
    if DTYPES[dtype] == "bf16":
        return [struct.unpack("<f", b"\0\0" + raw[i : i + 2])[0] for i in range(0, len(raw), 2)]
    return list(struct.unpack("<%d%s" % (len(raw) // DTYPE_BYTES[dtype], "fe"[dtype]), raw))


def dense_values(layer, section, n_tokens, raw):
    """Values of a dense section as a flat list, after checking the size that the shape gives."""
    if section["side"] == 2:
        array = layer.tables(5)[section["block"]]
        dtype, count = array.scalar(1, "B"), math.prod(array.numbers(2, "Q"))
    else:
        dtype = layer.table(3 + section["side"]).scalar(1, "B")
        tokens = min(BLOCK, n_tokens - BLOCK * section["block"])
        count = tokens * math.prod(shape_of(layer, section["side"]))
    require(section["raw_size"] == count * DTYPE_BYTES[dtype], "raw size and shape disagree")
    return numbers(raw, dtype)


def part_of(table):
    return decode_turbo.Part(
        first=table.scalar(0, "I"),
        size=table.scalar(1, "I"),
        bits=table.scalar(2, "B"),
        rotation=table.text(3).decode(),
        rounds=table.scalar(4, "B"),
        seed=table.scalar(5, "Q"),
        of_residual=table.scalar(7, "B") == 1,
        has_bias=table.scalar(8, "B") == 1,
        centroids=table.numbers(9, "f"),
        matrix=table.numbers(10, "f") if table.where(10) else None,
    )


def packed_heads(side, section, shape, raw):
    """Of a packed section, for each kv head: codes, rows of scales and biases, sink tokens."""
    heads, dim = shape
    parts = [part_of(each) for each in side.table(2).tables(1)]
    is_keys = section["side"] == 0
    all_codes, at = [], 0
    for _ in range(heads):
        codes = []
        for part in parts:
            unpacked, size = decode_turbo.unpack_block(part.bits, part.size, is_keys, raw[at:])
            codes.append(unpacked)
            at += size
        all_codes.append(codes)
    n_rows = len(parts) + sum(part.has_bias for part in parts)
    scales = numbers(raw[at : at + 512 * n_rows * heads], 1)
    sinks = numbers(raw[at + 512 * n_rows * heads :], side.scalar(1, "B"))
    n_sinks = side.scalar(6, "H") if section["block"] == 0 else 0
    require(len(sinks) == heads * n_sinks * dim, "raw size and shape disagree")
    for head in range(heads):
        first = head * n_rows * BLOCK
        rows = [scales[first + BLOCK * i : first + BLOCK * (i + 1)] for i in range(n_rows)]
        yield parts, all_codes[head], rows, sinks[head * n_sinks * dim : (head + 1) * n_sinks * dim]


def maps_of(side, shape):
    """Entries of the maps of all kv heads; None where there are none, or without zstandard."""
    if not side.where(7):
        return None
    heads, dim = shape
    stored = side.vector(7, 1)[0]
    if len(stored) != heads * dim * dim:
        stored = unframed(stored, heads * dim * dim)
    return None if stored is None else struct.unpack("%db" % len(stored), stored)


def packed_values(rope, layer, section, raw):
    """Values of a packed section [n_kv_heads, 256, head_dim], as a flat list."""
    side = layer.table(3 + section["side"])
    shape = shape_of(layer, section["side"])
    dim = shape[1]
    maps = maps_of(side, shape)
    if side.where(7) and maps is None:
        return None
    values = []
    for head, (parts, codes, rows, sinks) in enumerate(packed_heads(side, section, shape, raw)):
        decoded = decode_turbo.decode_block(parts, codes, rows)
        if side.where(5):
            n = parts[0].size
            loud = side.numbers(5, "H")[n * head : n * (head + 1)]
            order = loud + [i for i in range(dim) if i not in loud]
            decoded = [[x for _, x in sorted(zip(order, vector))] for vector in decoded]
        turns = None
        if side.text(3).startswith(b"pre_rope."):
            factors = rope.numbers(3, "f") if rope.where(3) else None
            turns = rope.scalar(1, "I"), rope.scalar(2, "d"), factors
        if maps:
            rows = decode_turbo.map_rows(maps[dim * dim * head : dim * dim * (head + 1)], dim)
            position = BLOCK * section["block"]
            decoded = decode_turbo.unmapped(decoded, rows, turns, position)
        if side.text(3) in WITH_FACTORS:
            eighths = side.numbers(8, "b")[dim * head : dim * (head + 1)]
            decoded = decode_turbo.without_factors(decoded, eighths)
        if side.text(3) != b"none":
            mean = side.numbers(4, "f")[dim * head : dim * (head + 1)]
            decoded = decode_turbo.with_mean(decoded, mean, turns, BLOCK * section["block"])
        values += sinks
        for vector in decoded[len(sinks) // dim :]:
            values += vector
    return values


def is_kept_decoded(side):
    """Whether the reference reader has a packed block's values in memory, rounded to the dtype (2.)"""
    return side.where(7) is not None and side.text(3) == b"pre_rope.v1"


def read(path, key=None):
    with open(path, "rb") as stream:
        file = stream.read()
    slot = read_header(file)
    file = file[: slot["file_length"]]  # what may stand behind is of an append that was cut short
    buffer = file[slot["manifest_offset"] :]
    check_xxh3_128(buffer, slot["checksum"], "manifest")
    cipher = Cipher(key, buffer) if slot["required"] & ENCRYPTED else None
    if cipher:
        buffer = cipher.manifest(slot)
    require(buffer[4:8] == b"TQK2", "the manifest is none")
    manifest = Table(buffer, struct.unpack_from("<I", buffer, 0)[0])
    (tokens, hashes), layers = read_tokens(manifest), manifest.tables(3)
    rope = manifest.table(1).table(2)
    check_rope(rope)
    for layer in layers:
        check_layer(layer, rope)
    sections, n_gaps = read_sections(manifest, file, slot["manifest_offset"])
    if cipher:
        cipher.read_seals(manifest, sections)
    in_planes = any(section["compression"] == IN_PLANES for section in sections)
    features = GAPS * (n_gaps > 0) + HIDDEN * (hashes is not None) + PLANES * in_planes
    features += ENCRYPTED * (manifest.where(8) is not None)
    features += CHECKPOINTS * (manifest.where(9) is not None)
    prediction = manifest.table(10) if manifest.where(10) else None
    features += PREDICTED * (prediction is not None)
    features += MEDIA * (manifest.where(11) is not None)
    require(slot["required"] == features, "required features and manifest disagree")
    media = read_media(manifest, tokens, hashes is not None)
    require(not media or prediction is None, "media and a prediction")
    name = content_name(manifest, sections)
    if "maps (no module zstandard)" not in not_checked:
        require(name == manifest.fixed(5, 32).hex(), "content name mismatch")

    checkpoints = read_checkpoints(manifest, layers, len(tokens), rope)
    planned, all_layers = [], []  # layers with the number of tokens that they belong to
    for state, n_tokens in [(layers, len(tokens)), *checkpoints]:
        for layer in state:
            if kind(layer) == WINDOW:
                check_window(layer, n_tokens)
            if kind(layer) == TURBO_WINDOW:
                check_turbo_window(layer)
        first = len(all_layers)
        planned += [(first + i, side, block) for i, side, block in planned_sections(state, n_tokens)]
        all_layers += [(layer, n_tokens) for layer in state]
    found = [(section["layer"], section["side"], section["block"]) for section in sections]
    require(found == planned, "other sections than the layers have")
    for section in sections:
        check_section(section, *all_layers[section["layer"]])
    n_cache = len(planned_sections(layers, len(tokens)))
    check_prediction(prediction, sections[:n_cache], hashes)
    residuals = prediction and Residuals(prediction, layers, sections[:n_cache], tokens, rope)
    version, fingerprint = read_model_fingerprint(manifest.table(1))
    rows = []
    for section in sections:
        row = {key: section[key] for key in ("layer", "side", "block", "form")}
        layer, n_tokens = all_layers[section["layer"]]
        raw = raw_bytes(file, section, layer, cipher, residuals)
        if raw is not None and section["form"] == 0:
            row["values"] = dense_values(layer, section, n_tokens, raw)
        elif raw is not None:
            values = packed_values(rope, layer, section, raw)
            if values is not None:
                row["values"] = values
            if is_kept_decoded(layer.table(3 + section["side"])):
                row["kept_as"] = DTYPES[layer.table(3 + section["side"]).scalar(1, "B")]
        rows.append(row)
    return {
        "writer": manifest.text(0).decode("utf-8", "replace"),
        "architecture": manifest.table(1).text(0).decode("utf-8", "replace"),
        "fingerprint_version": version,
        "model_fingerprint": fingerprint,
        "generation": slot["generation"],
        "other_slot_damaged": slot["damaged"],
        "n_gaps": n_gaps,
        "tokens": tokens,
        "token_block_hashes": hashes,
        "media": media,
        "checkpoints": [n_tokens for _, n_tokens in checkpoints],
        "layer_types": [layer.text(0).decode("utf-8", "replace") for layer in layers],
        "sections": rows,
        "content_name": manifest.fixed(5, 32).hex(),
        "not_checked": sorted(not_checked),
    }


if __name__ == "__main__":
    require(len(sys.argv) in (2, 3), __doc__.splitlines()[-1])
    print(json.dumps(read(sys.argv[1], bytes.fromhex(sys.argv[2]) if len(sys.argv) == 3 else None)))
