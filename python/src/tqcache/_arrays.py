"""Arrays in and out: names of dtypes, buffers, and bf16, which numpy lacks."""

import operator



class _Numpy:
    """numpy, imported when it is first used: a conversion does not need it, and importing it takes
    most of the time that the package adds to one."""

    def __getattr__(self, name):
        import numpy

        value = getattr(numpy, name)
        setattr(self, name, value)
        return value


np = _Numpy()

F32, F16, BF16 = 0, 1, 2
CODES = {"f32": F32, "f16": F16, "bf16": BF16}
NAMES = ("f32", "f16", "bf16")
_NUMPY = ("float32", "float16", "uint16")


def numpy_dtype(code):
    """The dtype of numpy's arrays for f32, f16 and bf16."""
    return np.dtype(_NUMPY[code])


def code_of(name):
    try:
        return CODES[name]
    except (KeyError, TypeError):
        raise ValueError(f"dtype {name!r}: f32, f16 or bf16") from None


def as_array(array, bf16=False):
    """(array, bf16): what the extension can read, and whether its uint16 are bf16."""
    dtype = getattr(array, "dtype", None)
    if isinstance(array, np.ndarray) and dtype.name == "bfloat16":  # of the package ml_dtypes
        return array.view(np.uint16), True
    if hasattr(array, "detach") and getattr(array, "requires_grad", False):
        array = array.detach()
    if isinstance(array, (list, tuple)):
        array = np.asarray(array, np.float32)
    return array, bool(bf16)


def as_bytes(data):
    """A buffer as contiguous bytes that the extension can read, without a copy where possible."""
    if isinstance(data, np.ndarray):
        data = np.ascontiguousarray(data)
        return data.reshape(-1).view(np.uint8) if data.size else np.empty(0, np.uint8)
    try:
        view = memoryview(data)
    except TypeError:
        return data  # with DLPack
    if view.nbytes == 0:
        return np.empty(0, np.uint8)
    if not view.c_contiguous:
        return np.frombuffer(view.tobytes(), np.uint8)
    return np.frombuffer(view.cast("B"), np.uint8)


def as_room(out):
    """A writable buffer."""
    if isinstance(out, np.ndarray):
        if not out.flags.c_contiguous or not out.flags.writeable:
            raise ValueError("a contiguous, writable buffer is needed")
        return out.reshape(-1).view(np.uint8) if out.size else np.empty(0, np.uint8)
    try:
        view = memoryview(out)
    except TypeError:
        return out
    if view.readonly or not view.c_contiguous:
        raise ValueError("a contiguous, writable buffer is needed")
    return np.frombuffer(view.cast("B"), np.uint8) if view.nbytes else np.empty(0, np.uint8)


def buffers(data):
    """One buffer, or several as a list."""
    return [as_bytes(each) for each in data] if isinstance(data, (list, tuple)) else [as_bytes(data)]


def rooms(out):
    return [as_room(each) for each in out] if isinstance(out, (list, tuple)) else [as_room(out)]


def token_list(tokens):
    """Token ids as a list of int."""
    if tokens is None:
        return None
    if hasattr(tokens, "tolist"):
        tokens = tokens.tolist()
    tokens = list(tokens)
    if len(tokens) == 1 and isinstance(tokens[0], (list, tuple)):  # [1, n]
        tokens = list(tokens[0])
    # Not int(), which would cut 1.5 to 1.
    ids = [operator.index(each) for each in tokens]
    if ids and not -2**31 <= min(ids) <= max(ids) < 2**31:
        raise ValueError(f"token ids have 32 bits: {min(ids)} to {max(ids)}")
    return ids
