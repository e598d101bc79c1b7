#!/usr/bin/env python3
"""Compares two readers of .tqkv files on mutated files: the library, and read_tqkv.py, which was
written from docs/reference/format.md alone.

Each mutation changes some bytes of a golden file; in most, all checksums and digests that cover the
change are then made right, so that it is the rules that decide. What the library accepts, the other
reader has to accept with the same tokens, hashes, digest and values. What the library refuses, the
other reader has to refuse, too, except by the rules that it does not implement (NOT_IN_PYTHON). The
other reader also has rules that only `verify` checks (VERIFY_ALONE).

usage: differential_fuzz.py --reader PROGRAM --golden FOLDER [--runs N | --seconds S] [--seed N]
                            [--keep FOLDER]

PROGRAM is print_values. Needs libxxhash.so.0 and libzstd.so.1, or the modules xxhash and zstandard.
"""

import argparse
import array
import collections
import ctypes
import glob
import hashlib
import json
import math
import os
import random
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
import types

sys.dont_write_bytecode = True

# Rules of the library that read_tqkv.py does not implement, by the message of the refusal.
NOT_IN_PYTHON = [
    # limits of docs/reference/format.md 9
    r"are allowed|too large|out of memory|at most|more than|beyond",
    # FlatBuffers' own rules, and alignment
    r"FlatBuffer|not aligned|alignment|misaligned",
]

# Rules of read_tqkv.py that a load does not check, only `verify` (docs/reference/format.md 2 and 10).
VERIFY_ALONE = [r"gap: checksum mismatch", r"padding behind a gap"]


def load_xxhash():
    """The module, or what read_tqkv.py needs of it, from the C library."""
    try:
        import xxhash  # noqa: F401

        return
    except ImportError:
        pass
    library = ctypes.CDLL("libxxhash.so.0")

    class Hash128(ctypes.Structure):
        _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

    library.XXH3_128bits.restype = Hash128
    library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]
    library.XXH3_64bits.restype = ctypes.c_uint64
    library.XXH3_64bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    def digest(data):
        found = library.XXH3_128bits(bytes(data), len(data))
        return struct.pack(">QQ", found.high, found.low)

    module = types.ModuleType("xxhash")
    module.xxh3_128_digest = digest
    module.xxh3_64_intdigest = lambda data: library.XXH3_64bits(bytes(data), len(data))
    sys.modules["xxhash"] = module


def load_zstandard():
    try:
        import zstandard  # noqa: F401

        return
    except ImportError:
        pass
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_decompress.restype = ctypes.c_size_t
    library.ZSTD_decompress.argtypes = [ctypes.c_char_p, ctypes.c_size_t] * 2
    library.ZSTD_findFrameCompressedSize.restype = ctypes.c_size_t
    library.ZSTD_findFrameCompressedSize.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

    class ZstdDecompressor:
        def decompress(self, frame, size):
            frame = bytes(frame)
            if library.ZSTD_findFrameCompressedSize(frame, len(frame)) != len(frame):
                raise ValueError("not one frame")
            room = ctypes.create_string_buffer(max(size, 1))
            found = library.ZSTD_decompress(room, size, frame, len(frame))
            if found > size:
                raise ValueError("a frame that does not decompress")
            return room.raw[:found]

    module = types.ModuleType("zstandard")
    module.ZstdDecompressor = ZstdDecompressor
    sys.modules["zstandard"] = module


load_xxhash()
load_zstandard()
import read_tqkv  # noqa: E402
import xxhash  # noqa: E402

Row = collections.namedtuple("Row", "at offset stored_size raw_size compression")
INTERESTING = [0, 1, 2, 3, 7, 8, 15, 16, 63, 64, 127, 128, 255, 256, 257, 1023, 1024, 1025, 65535]
INTERESTING += [1 << 16, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


class File:
    """A file that is changed and then made right again."""

    def __init__(self, data):
        self.data = bytearray(data)
        self.slot = read_tqkv.read_header(bytes(data))
        self.slot_at = 64 * ((self.slot["generation"] + 1) % 2)
        self.manifest_at = self.slot["manifest_offset"]
        self.end = self.slot["file_length"]

    def manifest(self):
        buffer = bytes(self.data[self.manifest_at : self.end])
        return read_tqkv.Table(buffer, struct.unpack_from("<I", buffer, 0)[0])

    def rows(self):
        raw, start = self.manifest().vector(4, read_tqkv.SECTION.size)
        for i, row in enumerate(read_tqkv.SECTION.iter_unpack(raw)):
            at = self.manifest_at + start + i * read_tqkv.SECTION.size
            yield Row(at, row[0], row[1], row[2], row[9])

    def mend_section(self, row):
        """The checksum, and the SHA-256 where the content is known without a decoder."""
        stored = bytes(self.data[row.offset : row.offset + row.stored_size])
        self.data[row.at + 24 : row.at + 40] = xxhash.xxh3_128_digest(stored)
        raw = stored
        if row.compression == read_tqkv.ZSTD:
            raw = read_tqkv.unframed(stored, row.raw_size)
        if row.compression in (read_tqkv.STORED, read_tqkv.ZSTD):
            self.data[row.at + 40 : row.at + 72] = hashlib.sha256(raw).digest()

    def mend_digest(self):
        """The content digest of the manifest as it is now."""
        names = ["offset", "stored_size", "raw_size", "checksum", "raw_sha256", "layer", "block"]
        names += ["side", "form", "compression", "reserved_8", "reserved_32"]
        manifest = self.manifest()
        raw = manifest.vector(4, read_tqkv.SECTION.size)[0]
        sections = [dict(zip(names, row)) for row in read_tqkv.SECTION.iter_unpack(raw)]
        name = bytes.fromhex(read_tqkv.content_name(manifest, sections))
        at = self.manifest_at + manifest.where(5)
        self.data[at : at + 32] = name

    def mend_manifest(self):
        checksum = xxhash.xxh3_128_digest(bytes(self.data[self.manifest_at : self.end]))
        self.data[self.slot_at + 40 : self.slot_at + 56] = checksum
        self.mend_slot(self.slot_at)

    def mend_slot(self, at):
        checksum = xxhash.xxh3_64_intdigest(bytes(self.data[at : at + 56]))
        self.data[at + 56 : at + 64] = struct.pack("<Q", checksum)


class Mutator:
    def __init__(self, seed):
        self.random = random.Random(seed)

    def mutate(self, golden):
        """The kind of the mutation and the changed bytes."""
        kinds = [self.flip, self.cut, self.header, self.other_slot, self.row, self.swap]
        kinds += [self.manifest] * 4 + [self.section] * 3
        kind = self.random.choice(kinds)
        file = File(golden)
        try:
            kind(file)
        except (struct.error, ValueError, TypeError, IndexError, MemoryError, SystemExit):
            pass  # what could not be made right stays wrong
        return kind.__name__, bytes(file.data)

    def change(self, data, begin, end):
        """One to four small changes in a range."""
        if end <= begin:
            return
        for _ in range(self.random.choice([1, 1, 1, 2, 4])):
            at = self.random.randrange(begin, end)
            how = self.random.randrange(4)
            if how == 0:
                data[at] ^= 1 << self.random.randrange(8)
            elif how == 1:
                data[at] = self.random.randrange(256)
            else:
                width, code = self.random.choice([(1, "B"), (2, "H"), (4, "I"), (8, "Q")])
                at = min(at, end - width) // width * width
                if at < begin:
                    continue
                value = self.random.choice(INTERESTING) & ((1 << 8 * width) - 1)
                if how == 3:
                    old = struct.unpack_from("<" + code, data, at)[0]
                    value = (old + self.random.choice([-64, -1, 1, 64])) & ((1 << 8 * width) - 1)
                struct.pack_into("<" + code, data, at, value)

    def flip(self, file):
        self.change(file.data, 0, len(file.data))

    def cut(self, file):
        if self.random.random() < 0.5:
            del file.data[self.random.randrange(len(file.data)) :]
        else:
            file.data += self.random.randbytes(self.random.choice([1, 64, 1000]))

    def header(self, file):
        self.change(file.data, file.slot_at, file.slot_at + 56)
        file.mend_slot(file.slot_at)

    def other_slot(self, file):
        at = 64 - file.slot_at
        how = self.random.randrange(3)
        if how == 0:  # a copy with another generation, or an announcement
            file.data[at : at + 64] = file.data[file.slot_at : file.slot_at + 64]
            generation = file.slot["generation"] + self.random.choice([-1, 1])
            struct.pack_into("<I", file.data, at + 12, generation & 0xFFFFFFFF)
            if self.random.random() < 0.5:
                file.data[at + 16 : at + 24] = struct.pack("<II", 1, 0)
                file.data[at + 24 : at + 32] = bytes(8)
                file.data[at + 40 : at + 56] = bytes(16)
                if self.random.random() < 0.5:
                    file.data += self.random.randbytes(100)
        if how < 2 and self.random.random() < 0.7:
            self.change(file.data, at, at + 56)
        if how == 2:
            file.data[at : at + 64] = self.random.randbytes(64)
        if self.random.random() < 0.8:
            file.mend_slot(at)

    def manifest(self, file):
        self.change(file.data, file.manifest_at, file.end)
        if self.random.random() < 0.8:
            file.mend_digest()
        file.mend_manifest()

    def row(self, file):
        rows = list(file.rows())
        row = self.random.choice(rows)
        self.change(file.data, row.at, row.at + read_tqkv.SECTION.size)
        if self.random.random() < 0.8:
            file.mend_digest()
        file.mend_manifest()

    def swap(self, file):
        """Two rows of the section table, or parts of them, change places."""
        a, b = self.random.choice(list(file.rows())), self.random.choice(list(file.rows()))
        begin, end = self.random.choice([(0, 80), (0, 72), (72, 80), (24, 40), (40, 72), (0, 8)])
        x, y = file.data[a.at + begin : a.at + end], file.data[b.at + begin : b.at + end]
        file.data[a.at + begin : a.at + end], file.data[b.at + begin : b.at + end] = y, x
        file.mend_digest()
        file.mend_manifest()

    def section(self, file):
        row = self.random.choice(list(file.rows()))
        self.change(file.data, row.offset, row.offset + row.stored_size)
        if self.random.random() < 0.9:
            file.mend_section(row)
            file.mend_digest()
        file.mend_manifest()


class Timeout(Exception):
    pass


def read_python(path):
    """What read_tqkv.py finds, or None when it refuses the file."""

    def stop(*_):
        raise Timeout()

    signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, 20)  # seconds of the processor
    read_tqkv.not_checked.clear()
    try:
        return read_tqkv.read(path), None
    except SystemExit as refusal:
        return None, str(refusal)
    except Timeout:
        raise
    except Exception as refusal:  # noqa: BLE001: whatever hinders a reader is a refusal
        return None, "%s: %s" % (type(refusal).__name__, refusal)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


class Library:
    """The library's reader, a program that answers one name after another."""

    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def read(self, path):
        self.process.stdin.write(path.encode() + b"\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("print_values ended with %s" % self.process.wait())
        found = json.loads(line)
        for section in found.get("sections", []):
            values = array.array("f")
            values.frombytes(self.process.stdout.read(4 * section[4]))
            section.append(values)
        return found


# The largest relative error of rounding to a dtype, and what may be infinite after it.
ROUNDING = {"f32": (0.0, 1e30), "f16": (2.0**-11, 65504.0), "bf16": (2.0**-8, 1e30)}


def is_near(a, b, scale, dtype):
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    rounding, largest = ROUNDING[dtype]
    if not (math.isfinite(a) and math.isfinite(b)):
        return max(abs(a), abs(b)) > largest or math.isnan(a) or math.isnan(b)
    return abs(a - b) <= 1e-5 + 1e-5 * scale + rounding * abs(b)


def difference(ours, theirs):
    for key in ["tokens", "token_block_hashes", "content_name", "generation", "n_gaps",
                "checkpoints"]:
        if ours[key] != theirs[key]:
            return key
    if ours["other_slot_damaged"] != theirs["other_slot_damaged"]:
        return "other_slot_damaged"
    if len(ours["sections"]) != len(theirs["sections"]):
        return "number of sections"
    for i, (mine, row) in enumerate(zip(ours["sections"], theirs["sections"])):
        if mine[:4] != [row[key] for key in ("layer", "side", "block", "form")]:
            return "section %d" % i
        if "values" not in row:
            return "section %d: no values (%s)" % (i, theirs["not_checked"])
        values = row["values"]
        if len(values) != len(mine[5]):
            return "section %d: %d and %d values" % (i, len(mine[5]), len(values))
        finite = [abs(v) for v in values if math.isfinite(v)]
        scale = max(finite, default=0.0)
        dtype = row.get("kept_as", "f32")
        for k, (a, b) in enumerate(zip(mine[5], values)):
            if not is_near(a, b, scale, dtype):
                return "section %d: value %d is %r and %r" % (i, k, a, b)
    return None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--reader", required=True)
    parser.add_argument("--golden", required=True)
    parser.add_argument("--runs", type=int, default=300,
                        help="three times as many with TQCACHE_LONG_TESTS=1")
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", help="folder for files that are read differently")
    args = parser.parse_args()
    if os.environ.get("TQCACHE_LONG_TESTS") == "1":
        args.runs *= 3
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

    golden = []
    for path in sorted(glob.glob(os.path.join(args.golden, "*.tqkv"))):
        with open(path, "rb") as stream:
            golden.append((os.path.basename(path), stream.read()))
    if not golden:
        sys.exit("no golden files in " + args.golden)
    library, mutator = Library(args.reader), Mutator(args.seed)
    excused = [re.compile(pattern) for pattern in NOT_IN_PYTHON]
    counts, faults = collections.Counter(), collections.Counter()
    begin, run = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "a.tqkv")
        while run < args.runs if args.seconds is None else time.monotonic() - begin < args.seconds:
            name, data = mutator.random.choice(golden)
            kind, mutated = mutator.mutate(data)
            with open(path, "wb") as stream:
                stream.write(mutated)
            ours = library.read(path)
            run += 1
            try:
                theirs, why = read_python(path)
            except Timeout:
                counts["too slow for Python"] += 1
                continue
            refused = ours.get("refused")
            fault = None
            if refused is None and theirs is None and any(re.search(rule, why) for rule in VERIFY_ALONE):
                counts["refused by rules of verify alone"] += 1
            elif refused is None and theirs is None:
                fault = "only the library accepts; Python: " + re.sub(r"\d+", "N", why)
            elif refused is not None and theirs is not None:
                if any(pattern.search(refused) for pattern in excused):
                    counts["refused by rules that Python lacks"] += 1
                else:
                    fault = "only Python accepts; library: " + re.sub(r"\d+", "N", refused)
            elif refused is None:
                found = difference(ours, theirs)
                if found:
                    fault = "read differently: " + found
                counts["accepted by both"] += 1
            else:
                counts["refused by both"] += 1
            if fault:
                faults[fault] += 1
                if faults[fault] == 1:
                    print("run %d, %s, %s: %s" % (run, name, kind, fault), flush=True)
                    if args.keep:
                        os.makedirs(args.keep, exist_ok=True)
                        kept = os.path.join(args.keep, "%d-%d.tqkv" % (args.seed, run))
                        with open(kept, "wb") as stream:
                            stream.write(mutated)
    print("%d mutations, seed %d: %s" % (run, args.seed, dict(sorted(counts.items()))))
    if faults:
        for fault, n in faults.most_common():
            print("%6d %s" % (n, fault))
        sys.exit("%d files were read differently" % sum(faults.values()))


if __name__ == "__main__":
    main()
