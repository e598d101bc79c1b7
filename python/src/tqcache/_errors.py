"""One class of exceptions for each exit code of the program."""


class Error(Exception):
    """A failure. `code` is the exit code of the program, `file` the file it concerns, or None."""

    code = 1

    def __init__(self, message, file=None, code=None):
        super().__init__(f"{file}: {message}" if file else message)
        self.message = message
        self.file = file
        if code is not None:
            self.code = code


class UsageError(Error, ValueError):
    """2: the caller asked for something impossible."""

    code = 2


class NotFoundError(Error, FileNotFoundError):
    """10: no such file, or no such prompt."""

    code = 10


class BusyError(Error):
    """11: another process is writing the file, or the store cannot answer now."""

    code = 11


class CorruptError(Error):
    """20: the bytes contradict the format or a checksum."""

    code = 20


class UnsupportedError(Error):
    """21: a version, kind or size that is not supported."""

    code = 21


class MismatchError(Error):
    """22: a good file, but of another model, or without its key."""

    code = 22


class SystemError(Error, OSError):
    """1: the operating system or a server reports a failure."""

    code = 1


class Interrupted(Error, KeyboardInterrupt):
    """130: a progress callback stopped the work."""

    code = 130


_BY_CODE = {each.code: each for each in (UsageError, NotFoundError, BusyError, CorruptError,
                                         UnsupportedError, MismatchError, SystemError, Interrupted)}


def make_error(code, message, file=None):
    """The exception for an exit code."""
    return _BY_CODE.get(code, Error)(message, file or None, code)
