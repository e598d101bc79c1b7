#!/usr/bin/env python3
"""A second reader of .tqkv files, version 2, written from docs/format.md alone.

Prints what is in a file as JSON: tokens, layers, and the values of every dense section. Python's
library is enough for stored sections and SHA-256; XXH3 and zstd are checked when the modules
xxhash and zstandard are there, and named under "not_checked" when they are not.

usage: read_tqkv.py FILE
"""

import hashlib
import json
import math
import struct
import sys

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
    return fields if fields["generation"] % 2 == (index + 1) % 2 else None


def read_header(file):
    slots = [slot for slot in (read_slot(file, 0), read_slot(file, 1)) if slot]
    require(slots, "not a .tqkv file")
    slot = max(slots, key=lambda each: each["generation"])
    require(slot["version"] == 2 and slot["required"] == 0, "not a version that this program reads")
    require(slot["file_length"] == len(file), "the file is shorter or longer than it says")
    return slot


def u64(value):
    return struct.pack("<Q", value)


def sized(data):
    return u64(len(data)) + data


def name_side(side):
    parts = sized(side.text(0)) + u64(side.scalar(1, "B"))
    codec = side.table(2)
    if codec:
        parts += u64(codec.scalar(0, "B")) + u64(codec.scalar(1, "Q"))
        parts += sized(codec.text(2)) + sized(codec.text(3)) + sized(codec.text(4))
        parts += sized(codec.vector(5, 4)[0]) + sized(codec.text(6))
        parts += sized(codec.vector(7, 4)[0] if codec.where(7) else b"")
    return parts


def name_layer(layer):
    parts = sized(layer.text(0))
    if layer.text(0) == b"tqcache.attention.v1":
        parts += u64(layer.scalar(1, "I")) + u64(layer.scalar(2, "I"))
        return parts + name_side(layer.table(3)) + name_side(layer.table(4))
    arrays = layer.tables(5)
    parts += u64(len(arrays))
    for array in arrays:
        parts += sized(array.text(0)) + u64(array.scalar(1, "B")) + sized(array.vector(2, 8)[0])
    return parts


def content_name(manifest, sections):
    identity, layers = manifest.table(1), manifest.tables(3)
    rope = identity.table(2)
    parts = [sized(b"tqcache content name v1"), sized(identity.text(0)), sized(identity.text(1))]
    parts += [u64(rope.scalar(0, "B")), u64(rope.scalar(1, "I"))]
    parts += [struct.pack("<d", rope.scalar(2, "d"))]
    parts += [sized(identity.fixed(3, 32)), sized(identity.fixed(4, 32))]
    parts += [sized(identity.fixed(5, 32) or b""), sized(identity.text(6))]
    parts += [sized(manifest.vector(2, 4)[0]), u64(len(layers))] + [name_layer(each) for each in layers]
    parts.append(u64(len(sections)))
    for section in sections:
        parts += [u64(section[key]) for key in ("layer", "side", "block", "form", "raw_size")]
        parts.append(sized(section["raw_sha256"]))
    return hashlib.sha256(b"".join(parts)).hexdigest()


def read_sections(manifest, manifest_offset):
    names = ["offset", "stored_size", "raw_size", "checksum", "raw_sha256", "layer", "block", "side"]
    names += ["form", "compression", "reserved_8", "reserved_32"]
    raw = manifest.vector(4, SECTION.size)[0]
    sections = [dict(zip(names, row)) for row in SECTION.iter_unpack(raw)]
    end = 128
    for section in sections:
        require(section["offset"] == (end + 63) // 64 * 64, "a section is out of place")
        end = section["offset"] + section["stored_size"]
    require(manifest_offset == (end + 63) // 64 * 64, "the manifest is out of place")
    return sections


def raw_bytes(file, section):
    """The bytes of a section before compression, or None without zstandard."""
    stored = file[section["offset"] : section["offset"] + section["stored_size"]]
    check_xxh3_128(stored, section["checksum"], "section")
    if section["compression"] == 1:
        if zstandard is None:
            not_checked.add("compressed sections (no module zstandard)")
            return None
        stored = zstandard.ZstdDecompressor().decompress(stored, section["raw_size"])
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
        count = layer.scalar(1, "I") * tokens * layer.scalar(2, "I")
    require(section["raw_size"] == count * DTYPE_BYTES[dtype], "raw size and shape disagree")
    return numbers(raw, dtype)


def read(path):
    with open(path, "rb") as stream:
        file = stream.read()
    slot = read_header(file)
    buffer = file[slot["manifest_offset"] :]
    check_xxh3_128(buffer, slot["checksum"], "manifest")
    require(buffer[4:8] == b"TQK2", "the manifest is none")
    manifest = Table(buffer, struct.unpack_from("<I", buffer, 0)[0])
    tokens, layers = manifest.numbers(2, "i"), manifest.tables(3)
    sections = read_sections(manifest, slot["manifest_offset"])
    require(content_name(manifest, sections) == manifest.fixed(5, 32).hex(), "content name mismatch")

    rows = []
    for section in sections:
        row = {key: section[key] for key in ("layer", "side", "block", "form")}
        raw = raw_bytes(file, section)
        if raw is not None and section["form"] == 0:
            row["values"] = dense_values(layers[section["layer"]], section, len(tokens), raw)
        rows.append(row)
    return {
        "writer": manifest.text(0).decode(),
        "architecture": manifest.table(1).text(0).decode(),
        "tokens": tokens,
        "layer_types": [layer.text(0).decode() for layer in layers],
        "sections": rows,
        "content_name": manifest.fixed(5, 32).hex(),
        "not_checked": sorted(not_checked),
    }


if __name__ == "__main__":
    require(len(sys.argv) == 2, __doc__.splitlines()[-1])
    print(json.dumps(read(sys.argv[1])))
