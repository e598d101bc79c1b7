"""Blocks of cache engines in a store: common to the plug-ins for LMCache, SGLang and vLLM.

An engine's block is bytes under a key. The identity of the engine (model, geometry, dtype, ranks,
layout) is part of the key, and is compared again when a block is read. A block of another identity,
a damaged block and a store that cannot be reached are all a miss, reported once to the log.
"""

import hashlib
import json
import logging
import threading

import tqcache


def identity_bytes(**fields) -> bytes:
    """The fields as bytes that are equal exactly if all fields are."""
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), default=str).encode()


def identity_name(identity: bytes) -> str:
    """A short name of an identity, for namespaces."""
    return hashlib.sha256(identity).hexdigest()[:16]


def element_size_of(dtype) -> int:
    """Bytes of a number of a dtype (a torch.dtype or its name), or 1 where planes do not help."""
    name = str(dtype).removeprefix("torch.")
    return {"float32": 4, "float": 4, "float16": 2, "half": 2, "bfloat16": 2}.get(name, 1)


class Blocks:
    """Values of one namespace. Threads: any number at once."""

    def __init__(self, store: str, namespace: str, logger: logging.Logger, key_file=None):
        self._logger = logger
        self._lock = threading.Lock()
        self._reported: set[str] = set()
        self._whole = tqcache.Values(store, namespace, key_file, compress="none",
                                     on_warning=self._warn)
        self._planes = {size: tqcache.Values(store, namespace, key_file, compress="planes",
                                             element_size=size, on_warning=self._warn)
                        for size in (2, 4)}

    @staticmethod
    def name(identity: bytes, key: bytes) -> str:
        return hashlib.sha256(len(identity).to_bytes(8, "little") + identity + key).hexdigest()

    def put(self, identity: bytes, key: bytes, data, extra: bytes = b"",
            element_size: int = 1) -> bool:
        """Whether the block is in the store now. Numbers of 2 or 4 bytes become byte planes."""
        n_bytes = memoryview(data).nbytes
        values = self._whole
        if element_size > 1 and n_bytes > 0 and n_bytes % element_size == 0:
            values = self._planes[element_size]
        try:
            values.put(self.name(identity, key), data, identity + extra)
            return True
        except tqcache.Error as error:
            self._report("put", error)
            return False

    def get_into(self, identity: bytes, key: bytes, out, extra: bytes = b"") -> bool:
        """Fills `out`, and returns False for a miss: then `out` is not changed."""
        try:
            return self._whole.get(self.name(identity, key), identity + extra, out) is not None
        except tqcache.Error as error:
            self._report("get", error)
            return False

    def get(self, identity: bytes, key: bytes, extra: bytes = b"") -> bytes | None:
        try:
            return self._whole.get(self.name(identity, key), identity + extra)
        except tqcache.Error as error:
            self._report("get", error)
            return None

    def put_page(self, identity: bytes, key: bytes, page, codec) -> bool:
        """The same for a page that a PageCodec quantizes. `identity` has codec.identity()."""
        try:
            self._whole.put(self.name(identity, key), codec.encode(page), identity)
            return True
        except tqcache.Error as error:
            self._report("put", error)
            return False

    def get_page_into(self, identity: bytes, key: bytes, page, codec) -> bool:
        """Fills the page, and returns False for a miss: then it is not changed."""
        try:
            packed = self._whole.get(self.name(identity, key), identity)
            if packed is None:
                return False
            codec.decode(packed, page)
            return True
        except tqcache.Error as error:
            self._report("get", error)
            return False

    def exists(self, identity: bytes, keys) -> list[bool]:
        keys = list(keys)
        try:
            return self._whole.exists([self.name(identity, key) for key in keys])
        except tqcache.Error as error:
            self._report("exists", error)
            return [False] * len(keys)

    def delete(self, identity: bytes, key: bytes) -> bool:
        try:
            return self._whole.delete(self.name(identity, key))
        except tqcache.Error as error:
            self._report("delete", error)
            return False

    def clear(self) -> None:
        try:
            self._whole.clear()
        except tqcache.Error as error:
            self._report("clear", error)

    def close(self) -> None:
        for values in (self._whole, *self._planes.values()):
            values.close()

    def _warn(self, message: str) -> None:
        self._logger.warning("%s", message)

    def _report(self, call: str, error: Exception) -> None:
        """A store that fails does so for every block: the same message is logged once."""
        message = f"the store fails, its blocks count as missing: {call}: {error}"
        with self._lock:
            if message in self._reported or len(self._reported) >= 1000:
                return
            self._reported.add(message)
        self._logger.warning("%s", message)
