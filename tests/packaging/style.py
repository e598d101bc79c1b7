#!/usr/bin/env python3
"""The rules of CONTRIBUTING that a program can check, in the files that git knows.

usage: style.py SOURCE_DIR [--no-format]
       style.py --self-test
"""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

COLUMNS = 100
OURS = ("lib/", "server/", "cuda/", "research/", "tools/", "migrations/")

# Environment variables and the time of day are read at the edge: by the program, and by these.
READ_ENVIRONMENT = {
    "lib/tqcache/base/processor.cpp": "TQCACHE_ISA, of the whole process",
    "lib/tqcache/capi/handles.cpp": "TQCACHE_PROFILES: the C interface is an edge",
    "lib/tqcache/store/backends/credentials.cpp": "for callers who ask for it",
}
READ_TIME_OF_DAY = {
    "lib/tqcache/base/atomic_file.cpp": "the age of temporary files that crashed processes left",
    "lib/tqcache/store/backends/dir_backend.cpp": "when a blob was used last",
}
# What the library keeps between calls, beside constants.
KEEPS_STATE = {
    "lib/tqcache/cuda/attention.cu": "what each GPU can do",
    "lib/tqcache/cuda/c_interface.cpp": "the last error of a thread",
    "lib/tqcache/cuda/packed_attention.cuh": "the shared memory that a kernel was allowed",
    "lib/tqcache/store/backends/s3_backend.cpp": "random pauses of a thread",
}
# A variable of a function or class, or, at the left margin, of a namespace.
STATE = re.compile(r"^\s*(?:inline )?(?:thread_local\b|static (?!const\b|constexpr\b|inline\b)"
                   r"[^()]*[\w>*&]\s+\w+(?:\[\w*\])?\s*[;={])"
                   r"|^(?!using\b|typedef\b|const\b|constexpr\b|inline const|extern\b|namespace\b"
                   r"|class\b|concept\b|struct\b|enum\b|union\b|friend\b|template\b|static\b)"
                   r"[a-z][\w:<>,*& ]*[\w>*&]\s+\w+(?:\[\w*\])?\s*(?:;|= |\{.*\};)", re.M)


def without_raw_strings(text):
    """The text with the same lines, in which raw strings are empty: they are shown to users."""
    return re.sub(r'R"(\w*)\((.*?)\)\1"', lambda found: '""' + "\n" * found.group(2).count("\n"),
                  text, flags=re.DOTALL)


def check_columns(path, text):
    for number, line in enumerate(without_raw_strings(text).split("\n"), 1):
        if len(line) > COLUMNS:
            yield f"{path}:{number}: {len(line)} columns, at most {COLUMNS}"


def check_header(path, text):
    """#pragma once, then the path and what the header is for. Headers that are compiled once for
    each instruction set have no #pragma."""
    lines = text.split("\n")
    first = 1 if lines[0] == "#pragma once" else 0
    found = re.match(r"(?://|/\*) ([\w./-]+): \S", lines[first]) if len(lines) > first else None
    if not found:
        yield f"{path}:{first + 1}: {lines[first]!r}, expected // FOLDER/FILE.h: what it is for"
    elif not ("/" + path).endswith("/" + found.group(1)):
        yield f"{path}:{first + 1}: names {found.group(1)}"


def check_edge(path, text):
    if not path.startswith("lib/"):
        return
    for words, allowed in ((r"\bgetenv\b", READ_ENVIRONMENT),
                           (r"\bsystem_clock\b|\btime\(nullptr\)", READ_TIME_OF_DAY)):
        found = re.search(words, text)
        if found and path not in allowed:
            yield f"{path}: {found.group(0)}: the library is told such things, it does not look"
    code = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    found = STATE.search(without_raw_strings(code))
    if found and path not in KEEPS_STATE:
        yield f"{path}: {found.group(0).strip()}: the library keeps nothing between calls"


def check_codec_state(path, text):
    """What a KvCodec holds is the business of its module; others ask the codec."""
    if path.startswith(OURS) and not path.startswith("lib/tqcache/cache/"):
        if '"tqcache/cache/kv_codec_state.h"' in text:
            yield f"{path}: includes kv_codec_state.h, which is for lib/tqcache/cache"


def check_names(paths):
    """File names are unique in the product: an include then names one file."""
    seen = {}
    for path in paths:
        if not path.startswith(OURS):
            continue
        name = pathlib.PurePosixPath(path).name
        if name in seen:
            yield f"{path}: the name of {seen[name]}"
        seen[name] = path


def check_format(folder, paths):
    """clang-format 14, whose style is .clang-format."""
    program = shutil.which("clang-format-14")
    if program is None or not paths:
        return
    done = subprocess.run([program, "--dry-run", "--Werror", *paths], cwd=folder,
                          capture_output=True, text=True)
    files = sorted(set(re.findall(r"^(\S+):\d+:\d+: error: code should be", done.stderr, re.M)))
    for path in files:
        yield f"{path}: not formatted: clang-format-14 -i {path}"
    if done.returncode != 0 and not files:
        yield done.stderr.strip()


def cpp_files(folder):
    listed = subprocess.run(["git", "ls-files", "-z", "*.cpp", "*.h", "*.cu", "*.cuh"], cwd=folder,
                            capture_output=True, text=True, check=True).stdout
    return [path for path in listed.split("\0") if path and (folder / path).is_file()]


def check_generated(folder):
    """What a build makes is named in .gitignore, and not in git."""
    listed = subprocess.run(["git", "ls-files", "-z", "-ci", "--exclude-standard"], cwd=folder,
                            capture_output=True, text=True, check=True).stdout
    for path in listed.split("\0"):
        if path:
            yield f"{path}: in git, and in .gitignore"


def violations(folder, with_format):
    paths = cpp_files(folder)
    yield from check_generated(folder)
    yield from check_names(paths)
    for path in paths:
        text = (folder / path).read_text()
        yield from check_columns(path, text)
        if path.endswith(".h") and path.startswith(OURS):
            yield from check_header(path, text)
        yield from check_edge(path, text)
        yield from check_codec_state(path, text)
    if with_format:
        yield from check_format(folder, paths)


def self_test():
    """Each rule finds what breaks it, and nothing in what keeps it."""
    good = {
        "lib/a/b.h": "#pragma once\n// a/b.h: numbers.\n\nint one();\n"
                     "struct A {\n  static A make(int n);\n  static constexpr int kOne = 1;\n};\n",
        "lib/a/b.cpp": "const int kTwo = 2;\nint one() {\n  static const int n = 1;\n"
                       "  return n;\n}\n",
        ".gitignore": "*.gguf\n",
        "tools/help.cpp": 'const char* kHelp = R"(' + "x" * 120 + ')";\n',
    }
    bad = {
        "lib/a/wide.cpp": "// " + "x" * 120 + "\n",
        "lib/a/other.h": "#pragma once\n// b/other.h: numbers.\n",
        "lib/a/bare.h": "#pragma once\n\nint one();\n",
        "lib/a/home.cpp": 'const char* home = getenv("HOME");\n',
        "lib/a/now.cpp": "  auto now = std::chrono::system_clock::now();\n",
        "lib/a/count.cpp": "int count() {\n  static int n = 0;\n  return ++n;\n}\n",
        "lib/a/known.cpp": "std::map<int, int> known;\n",
        "lib/a/seed.cpp": "int next() {\n  thread_local Random random(1);\n}\n",
        "lib/tqcache/model/a.cpp": '#include "tqcache/cache/kv_codec_state.h"\n',
        "server/b.h": "#pragma once\n// server/b.h: numbers.\n",
        "models/made.gguf": "GGUF",
    }
    wrong = 0
    for extra in [{}] + [{path: text} for path, text in bad.items()]:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            for path, text in {**good, **extra}.items():
                (folder / path).parent.mkdir(parents=True, exist_ok=True)
                (folder / path).write_text(text)
            for args in (["init", "-q"], ["add", "--force", "."]):
                subprocess.run(["git", *args], cwd=folder, check=True)
            found = list(violations(folder, with_format=False))
            if len(found) != len(extra):
                print(f"{list(extra)}: {found}")
                wrong += 1
    return wrong


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    folder = pathlib.Path(sys.argv[1])
    if not (folder / ".git").exists():
        print("not a git checkout: nothing is checked")
        return 77
    found = list(violations(folder, "--no-format" not in sys.argv))
    for line in found:
        print(line)
    print(f"{len(found)} violations")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
