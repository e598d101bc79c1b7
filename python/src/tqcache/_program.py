"""The program `tqcache` that the package brings along."""

import json
import os
import stat
import subprocess
import sys

from ._errors import make_error


def program():
    """The path of the program."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "tqcache")
    if not os.access(path, os.X_OK) and os.path.exists(path):  # some installers drop the permission
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    return path


def _environment():
    """That of this process, with the kernels for GPUs of the wheel tqcache-cuda."""
    variables = dict(os.environ)
    if not variables.get("TQCACHE_CUDA_LIBRARY"):
        try:
            import tqcache_cuda
        except ImportError:
            return variables
        variables["TQCACHE_CUDA_LIBRARY"] = os.fspath(tqcache_cuda.LIBRARY)
    return variables


def run(*arguments, check=True):
    """Runs a verb with --json and returns its report."""
    command = [program(), *map(os.fspath, map(_text, arguments)), "--json"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          env=_environment())
    lines = done.stdout.strip()
    try:
        report = json.loads(lines) if lines else None
    except ValueError:
        report = [json.loads(line) for line in lines.splitlines()]
    if check and done.returncode != 0:
        raise make_error(done.returncode, *_failure(done.stderr, report))
    return report


def eval(*arguments, check=True):
    """Runs `tqcache eval ARGUMENTS... --json` and returns its report."""
    return run("eval", *arguments, check=check)


def _text(argument):
    return argument if isinstance(argument, (str, os.PathLike)) else str(argument)


def _failure(stderr, report):
    """The message and the file of a failure."""
    for text in (stderr.strip().splitlines() or [""])[::-1]:
        try:
            failure = json.loads(text)
        except ValueError:
            continue
        if isinstance(failure, dict):
            failure = failure.get("error", failure)
        if isinstance(failure, dict) and "message" in failure:
            return failure["message"], failure.get("file")
    return stderr.strip() or json.dumps(report), None


def main():
    """The console script: the program takes the place of this process."""
    path = program()
    os.execve(path, [path, *sys.argv[1:]], _environment())
