"""As a new user would: the wheel in an empty venv, and the lines of docs/guide/plugins.md in two
processes. torch and transformers are those of the peers."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.interop
pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

ROOT = Path(__file__).resolve().parents[3]


def lines_of_the_guide():
    """The two pieces of code of the section on transformers: saving, and loading."""
    text = (ROOT / "docs/guide/plugins.md").read_text()
    section = text[text.index("\n## transformers\n"):]
    save, load = re.findall(r"```python\n(.*?)```", section, re.S)[:2]
    assert "tq.save" in save and "tq.load" in load
    assert len([line for line in (save + load).split("\n") if line.strip()]) <= 12
    return save, load


@pytest.mark.skipif(not os.environ.get("TQCACHE_WHEEL"), reason="test_plugins.sh gives a wheel")
def test_ten_lines_in_an_empty_venv(tmp_path):
    # In the folders of PYTHONPATH pip would find the package, and install nothing.
    environment = {name: value for name, value in os.environ.items()
                   if name not in ("PYTHONPATH", "TQCACHE_WHEEL")}
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check",
                    "--no-index", "--no-deps", os.environ["TQCACHE_WHEEL"]], env=environment,
                   check=True)
    # Only what the wheel does not bring: torch, transformers and what these import.
    site, = (tmp_path / "venv").glob("lib/python*/site-packages")
    (site / "peers.pth").write_text(str(Path(torch.__file__).parents[1]) + "\n")
    (tmp_path / "hf").symlink_to(ROOT / "models/demo/hf")
    text = (ROOT / "models/demo/alice-excerpt.txt").read_text()
    (tmp_path / "prompt.txt").write_text(text[:3000])

    def run(code):
        done = subprocess.run([python, "-c", code], cwd=tmp_path, env=environment, check=True,
                              stdout=subprocess.PIPE, text=True)
        return done.stdout.strip().split("\n")[-1]

    save, load = lines_of_the_guide()
    tokens = "print(out[0, ids.shape[1]:].tolist())\n"
    right = ("cache = model(ids[:, :-1], use_cache=True).past_key_values\n"
             "out = model.generate(ids, past_key_values=cache, max_new_tokens=20,"
             " do_sample=False)\n")
    here = run(save + load + tokens)
    assert (tmp_path / "prompt.tqkv").stat().st_size > 0
    assert "site-packages" in run("import tqcache; print(tqcache.__file__)")
    # The other process does all but making the file.
    prepare = "".join(line + "\n" for line in save.split("\n")
                      if not re.match(r"with |    |tq\.save|tqcache\.verify", line))
    there = run(prepare + load + tokens)
    assert there == here
    assert run(prepare + right + tokens) == here, "4 bits changed a greedy token"
    assert len(here.split(",")) == 20
    info = subprocess.run([tmp_path / "venv/bin/tqcache", "verify", "prompt.tqkv"], cwd=tmp_path,
                          env=environment)
    assert info.returncode == 0
