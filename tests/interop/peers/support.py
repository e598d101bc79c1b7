"""What the tests with real peers share: the peers, the `tqcache` program, and how tokens are compared.

A test program ends with 77 when its peer is missing, and says why: ctest then counts it as not run.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import unittest
from functools import lru_cache
from pathlib import Path

NOT_RUN = 77
N_CONTINUED = 32


@lru_cache
def _command_line():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tqcache", type=Path, required=True, help="the program under test")
    parser.add_argument("--source", type=Path, required=True, help="the project's sources")
    parser.add_argument("--tensors-test", type=Path, help="the tests of lib/tqcache/tensors")
    parser.add_argument("--tokenize-lines", type=Path, help="the library's tokenizers, for many texts")
    parser.add_argument("--run-templates", type=Path, help="the library's chat templates")
    parser.add_argument("--logits", type=Path, help="the program of logits.cpp")
    parser.add_argument("--models", type=Path, help="folder of real models, filled when needed")
    parser.add_argument("--mlx-lm", default="", help="version of mlx-lm that is wanted, as 0.31")
    return parser.parse_known_args()


def options():
    return _command_line()[0]


# All cases of tests that otherwise take some of theirs: tools/check.sh --long.
IS_LONG = os.environ.get("TQCACHE_LONG_TESTS") == "1"


def hf_folder():
    return options().source / "models/demo/hf"


def gguf():
    return options().source / "models/demo/tqcache-demo-17m.q8_0.gguf"


def not_run(reason):
    print(f"NOT RUN: {reason}", flush=True)
    sys.exit(NOT_RUN)


def need(name):
    """A module of the peers, or the end of the program."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError, RuntimeError) as error:
        not_run("; ".join([f"{name}: {error}", *_what_setup_said()]))


def _what_setup_said():
    report = Path(sys.prefix) / "missing.txt"
    return report.read_text().splitlines() if report.exists() else []


@lru_cache
def alice():
    """Token ids of the demo's text, by another tokenizer than the one under test."""
    tokenizer = need("tokenizers").Tokenizer.from_file(str(hf_folder() / "tokenizer.json"))
    return tokenizer.encode((options().source / "models/demo/alice-excerpt.txt").read_text()).ids


@lru_cache
def _shared_folder():
    return tempfile.TemporaryDirectory(prefix="tqcache-peers-")


def shared_folder():
    """For files that several tests use."""
    return Path(_shared_folder().name)


class PeerTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="tqcache-peers-")
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def ids_file(self, ids):
        path = self.folder / "ids.json"
        path.write_text(json.dumps(ids))
        return path

    def tqcache(self, *arguments):
        """What the program writes to standard output. It must succeed."""
        command = [str(word) for word in (options().tqcache, *arguments)]
        done = subprocess.run(command, capture_output=True, text=True, env=_plain_environment())
        self.assertEqual(done.returncode, 0, f"{' '.join(command)}: {done.stdout}{done.stderr}")
        return done.stdout

    def convert(self, source, name, *flags):
        """The file of that name which `tqcache convert` makes of another file."""
        path = self.folder / name
        self.tqcache("convert", source, path, "--force", *flags)
        return path

    def generate(self, model, cache, first, count=N_CONTINUED):
        """What tqcache writes on after a cache and one token more, always the most probable."""
        answer = json.loads(self.tqcache("generate", "--model", model, "--cache", cache,
                                         "--ids", first, "-n", count, "--temperature", 0, "--json"))
        tokens = answer["token_ids"]
        self.assertGreaterEqual(len(tokens), count // 2, "the text ended too soon to compare")
        return tokens

    def assert_agrees(self, rows, tokens, bound, what):
        """`rows` are a peer's logits at each step, the tokens before it being tqcache's own. A token
        is as good as the peer's own choice when its logit is no more than `bound` below the best:
        so much the peer's arithmetic and ours differ, and where two tokens are nearer than that
        either may win."""
        losses = losses_of(rows, tokens)
        same = sum(loss == 0 for loss in losses)
        print(f"  {what}: {same} of {len(tokens)} tokens are the peer's own choice; "
              f"at most {max(losses):.3f} below its best logit (bound {bound})", flush=True)
        self.assertLessEqual(max(losses), bound, f"{what}: {losses}")

    def assert_disagrees(self, rows, tokens, bound, what):
        """That the comparison has teeth: of a cache that is not the right one it must not hold."""
        worst = max(losses_of(rows, tokens))
        print(f"  {what}: {worst:.3f} below the best logit, as it should be", flush=True)
        self.assertGreater(worst, bound, what)


def losses_of(rows, tokens):
    """How much less than its best logit a peer gives to each token."""
    return [float(max(row) - row[token]) for row, token in zip(rows, tokens, strict=True)]


def _plain_environment():
    # The peers' Python must not reach the program under test.
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def main():
    """Runs the tests, or those that the command line names (ToMlxLm.test_dense)."""
    unittest.main(argv=[sys.argv[0], *_command_line()[1]], verbosity=2)
