"""Caches of models whose heads are split over processes (tensor parallelism), in files.

Each of N processes has the kv heads [rank * H / N, (rank + 1) * H / N) of each layer, and writes
them to a file of its own, `prompt.rank-0-of-2.tqkv`. A head's bytes do not depend on the others, so
any number of processes reads the heads that it needs from the files of any other number, or from
the file of the whole cache.
"""

import contextlib
import copy
import glob
import os
import re

import numpy as np

import tqcache
from tqcache import MismatchError, NotFoundError, UnsupportedError, UsageError

_MARK = re.compile(r"^(.*), heads of rank (\d+) of (\d+)$")


def checked(rank):
    """(rank, number of ranks) of what a caller gave; (0, 1) for None."""
    if rank is None:
        return 0, 1
    this, n_ranks = rank
    if not 0 <= this < n_ranks:
        raise UsageError(f"rank {this} of {n_ranks} ranks, which count from 0")
    return int(this), int(n_ranks)


def part_path(path, rank) -> str:
    """The file of a rank."""
    this, n_ranks = checked(rank)
    stem, extension = os.path.splitext(os.fspath(path))
    return f"{stem}.rank-{this}-of-{n_ranks}{extension}"


def marked(identity, rank):
    """The identity of a rank's file, which says what the file's name says, too."""
    this, n_ranks = checked(rank)
    return _from(identity, f"{identity.source_format}, heads of rank {this} of {n_ranks}")


def _from(identity, source_format):
    made = copy.copy(identity)
    made.source_format = source_format
    return made


def _sets_of_parts(path):
    """{number of ranks: ranks whose file is there}."""
    stem, extension = os.path.splitext(os.fspath(path))
    found = {}
    for name in glob.glob(f"{glob.escape(stem)}.rank-*-of-*{glob.escape(extension)}"):
        numbers = re.fullmatch(r"\.rank-(\d+)-of-(\d+)", name[len(stem):len(name) - len(extension)])
        if numbers:
            found.setdefault(int(numbers[2]), set()).add(int(numbers[1]))
    return found


class _Heads:
    """Some heads of one layer, from one file or several; what tqcache.Layer has of all heads."""

    def __init__(self, parts):
        """parts: (layer, first head, end) in order."""
        layer = parts[0][0]
        self._parts = parts
        self.n_kv_heads = sum(end - begin for _, begin, end in parts)
        for name in ("kind", "head_dim", "value_dim", "window", "keep", "n_tokens", "key_dtype",
                     "value_dtype"):
            setattr(self, name, getattr(layer, name))

    def keys(self, begin=0, end=None, *, dtype=None):
        return np.concatenate([layer.keys(begin, end, dtype=dtype)[first:last]
                               for layer, first, last in self._parts])

    def values(self, begin=0, end=None, *, dtype=None):
        return np.concatenate([layer.values(begin, end, dtype=dtype)[first:last]
                               for layer, first, last in self._parts])


class _File:
    """The files of all ranks, as far as this rank needs them, as one tqcache.Cache."""

    def __init__(self, files, n_ranks, rank):
        first = files[min(files)]
        self.n_tokens, self.tokens, self.info = first.n_tokens, first.tokens, first.info
        self.identity = _from(first.identity, _MARK.sub(r"\1", first.identity.source_format))
        for number, file in files.items():
            mark = _MARK.match(file.identity.source_format)
            if n_ranks > 1 and (mark is None or (int(mark[2]), int(mark[3])) != (number, n_ranks)):
                raise MismatchError(f"{file.path}: not the file of rank {number} of {n_ranks}")
            same = _from(file.identity, self.identity.source_format)
            if (same._fields() != self.identity._fields() or file.n_tokens != self.n_tokens or
                    len(file.layers) != len(first.layers) or
                    (file.tokens is None) != (self.tokens is None) or
                    (self.tokens is not None and not np.array_equal(file.tokens, self.tokens))):
                raise MismatchError(f"{file.path}: of another prompt or model than {first.path}")
        self.layers = [self._layer(i, files, n_ranks, rank) for i in range(len(first.layers))]

    @staticmethod
    def _layer(i, files, n_ranks, rank):
        layers = {number: file.layers[i] for number, file in files.items()}
        one = layers[min(layers)]
        if one.kind == "state":
            raise UnsupportedError(f"layer {i}: recurrent states are not split by kv heads")
        shapes = {(layer.kind, layer.n_kv_heads, layer.head_dim, layer.value_dim, layer.window,
                   layer.n_tokens) for layer in layers.values()}
        if len(shapes) != 1:
            raise MismatchError(f"layer {i}: files of different shapes: {sorted(map(str, shapes))}")
        this, n_readers = rank
        n_heads = one.n_kv_heads * n_ranks
        if n_heads % n_readers != 0:
            raise UnsupportedError(f"layer {i}: {n_heads} kv heads for {n_readers} ranks")
        begin, end = this * n_heads // n_readers, (this + 1) * n_heads // n_readers
        parts = []
        for number in sorted(layers):
            at = number * one.n_kv_heads  # of this file's first head
            if at < end and begin < at + one.n_kv_heads:
                parts.append((layers[number], max(begin - at, 0), min(end - at, one.n_kv_heads)))
        if sum(last - first for _, first, last in parts) != end - begin:
            raise MismatchError(f"layer {i}: heads {begin} to {end} are not in the files")
        return _Heads(parts)


@contextlib.contextmanager
def open_heads(path, rank, key_file=None):
    """The heads of a rank, as a cache: from the file `path` of a whole cache, or from files that
    another number of ranks wrote. Errors: NotFoundError, which names the rank that is missing."""
    this, n_readers = checked(rank)
    with contextlib.ExitStack() as stack:
        if os.path.exists(path):
            files, n_ranks = {0: stack.enter_context(tqcache.open(path, key_file=key_file))}, 1
        else:
            found = _sets_of_parts(path)
            complete = [n for n, ranks in found.items() if ranks >= set(range(n))]
            if not complete:
                missing = "; ".join(f"of {n} ranks {sorted(set(range(n)) - ranks)}"
                                    for n, ranks in sorted(found.items()))
                raise NotFoundError(f"{path}: neither this file nor those of all ranks are there"
                                    + (f" (missing: {missing})" if missing else ""))
            n_ranks = n_readers if n_readers in complete else min(complete)
            # Those whose heads overlap with this rank's.
            wanted = [n for n in range(n_ranks)
                      if n * n_readers < (this + 1) * n_ranks and this * n_ranks < (n + 1) * n_readers]
            files = {n: stack.enter_context(tqcache.open(part_path(path, (n, n_ranks)),
                                                         key_file=key_file)) for n in wanted}
        yield _File(files, n_ranks, (this, n_readers))
