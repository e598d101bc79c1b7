"""Documents keep their shape: lengths, links, and commands and packages that exist.

usage: docs.py SOURCE_DIR TQCACHE      checks every .md file of the tree
       docs.py --self-test             sees that each rule finds what breaks it
"""
import os
import re
import shlex
import subprocess
import sys
import unicodedata
from pathlib import Path

MAX_README_LINES = 119
MAX_COLUMNS = 100
MAX_PARAGRAPH_LINES = 8
SHELL = {"sh", "console", "bash"}


def lines_with_kind(text):
    """(number, line, language of the fence it stands in or None)."""
    language = None
    for number, line in enumerate(text.splitlines(), 1):
        fence = re.match(r"\s*```(\w*)", line)
        if fence:
            language = (fence[1] or "text") if language is None else None
            continue
        yield number, line, language


def long_lines(text):
    """Prose beyond the right margin. Tables and fenced or indented code may be wider, and so may a
    link that does not fit into a line."""
    for number, line, language in lines_with_kind(text):
        if language or line.lstrip().startswith(("|", "<!--")) or line.startswith("    "):
            continue
        if len(line) > MAX_COLUMNS and " " in line.strip().lstrip("-*0123456789. "):
            yield number, f"{len(line)} columns"


def long_paragraphs(text):
    """Paragraphs and list items of more lines than one reads at a glance. Tables and indented text are
    none."""
    start, size = 0, 0
    for number, line, language in [*lines_with_kind(text), (0, "", None)]:
        is_prose = not language and line.strip() and not line.startswith(("|", "    ", "<!--", "#"))
        if size and (not is_prose or re.match(r"\s*([-*]|\d+\.)\s", line)):
            if size > MAX_PARAGRAPH_LINES:
                yield start, f"a paragraph of {size} lines"
            size = 0
        if is_prose:
            start, size = (start, size + 1) if size else (number, 1)


def anchors(text):
    """The ids that GitHub gives to the headings."""
    found = {}
    for _, line, language in lines_with_kind(text):
        heading = re.match(r"#+\s+(.*?)\s*#*$", line)
        if language or not heading:
            continue
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).lower()
        kept = (c for c in words if c in "-_ " or unicodedata.category(c)[0] in "LN")
        slug = "".join(kept).replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {slug if i == 0 else f"{slug}-{i}" for slug, n in found.items() for i in range(n + 1)}


def links(text):
    for number, line, language in lines_with_kind(text):
        if not language:
            yield from ((number, link) for link in re.findall(r"\]\(([^)\s]+)\)", line))


def bad_links(path, text):
    for number, link in links(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        file = (path.parent / target).resolve() if target else path
        if not file.exists():
            yield number, f"{link}: there is no such file"
        elif anchor and anchor not in anchors(file.read_text(encoding="utf-8")):
            yield number, f"{link}: {file.name} has no such heading"


def commands(text):
    """(number, arguments of tqcache) of every command in a block of shell."""
    joined, start = "", 0
    for number, line, language in lines_with_kind(text):
        if language not in SHELL:
            joined = ""
            continue
        if language == "console" and not joined and not line.startswith("$ "):
            continue
        start = start if joined else number
        joined += line.removeprefix("$ ")
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        try:
            words = list(shlex.shlex(joined, posix=True, punctuation_chars=True))
        except ValueError:
            words = joined.split()
        joined = ""
        command = None
        for word in words + [";"]:
            if word == "tqcache":
                command = []
            elif command is not None and re.fullmatch(r"[;&|<>()]+", word):
                yield start, command
                command = None
            elif command is not None:
                command.append(word)


class Program:
    def __init__(self, path):
        self.path = path
        self.helps = {}

    def help(self, *verbs):
        if verbs not in self.helps:
            # Groups of verbs have no rare flags, and so no --help-all.
            for flag in ["--help-all", "--help"]:
                command = [self.path, *verbs, flag]
                run = subprocess.run(command, capture_output=True, text=True)
                if run.returncode == 0:
                    break
            self.helps[verbs] = run.stdout if run.returncode == 0 else ""
        return self.helps[verbs]

    def verbs(self, *group):
        text = self.help(*group)
        if "VERB" not in text:
            return set()
        return set(re.findall(r"^  ([a-z]+)  ", text, re.MULTILINE))

    def flags(self, *verbs):
        """Those that begin a line of the help, before its description."""
        found = set()
        for line in self.help(*verbs).splitlines():
            if re.match(r"\s+-", line):
                names = re.split(r"\s{2,}", line.strip())[0]
                found |= set(re.findall(r"(?<![\w-])--?[A-Za-z][\w-]*", names))
        return found


def bad_command(program, words):
    group = ()
    while program.verbs(*group):
        if not words or words[0].startswith("-") or words[0].isupper():
            break
        if words[0] not in program.verbs(*group):
            return f"tqcache {' '.join(group)} {words[0]}: no such verb"
        group, words = (*group, words[0]), words[1:]
    if not group:
        known = {"--help", "--version", "-h"}
    else:
        known = program.flags(*group)
    for word in words:
        flag = re.match(r"--?[A-Za-z][\w-]*", word)
        if flag and flag[0] not in known:
            return f"tqcache {' '.join(group)}: no flag {flag[0]}"
    return None


def bad_packages(root, text):
    """The packages that README installs are those of tools/install-deps.sh."""
    script = (root / "tools/install-deps.sh").read_text(encoding="utf-8")
    needed = set(re.search(r"packages=\((.*?)\)", script, re.DOTALL)[1].split())
    line = re.search(r"apt-get install((?:[^\n\\]|\\\n)*)", text)
    named = set(line[1].replace("\\\n", " ").split()) if line else set()
    for package in sorted(needed ^ named):
        yield 1, f"{package}: in {'install-deps.sh' if package in needed else 'README'} alone"


def complaints(root, path, program):
    text = path.read_text(encoding="utf-8")
    if path == root / "README.md" and len(text.splitlines()) > MAX_README_LINES:
        yield 1, f"{len(text.splitlines())} lines"
    if path == root / "README.md":
        yield from bad_packages(root, text)
    yield from long_lines(text)
    yield from long_paragraphs(text)
    yield from bad_links(path, text)
    for number, words in commands(text):
        bad = bad_command(program, words)
        if bad:
            yield number, bad


def documents(root):
    # Not rglob(): it fails where a folder that it saw is gone, and in build other tests make and
    # remove folders meanwhile.
    found = []
    for folder, folders, files in os.walk(root):
        folders[:] = set(folders) - {"build", ".git"}
        found += [Path(folder, name) for name in files if name.endswith(".md")]
    return sorted(found)


class FakeProgram(Program):
    def __init__(self):
        self.helps = {(): "Usage: tqcache VERB\n\n  info      Show\n  store     Share\n",
                      ("info",): "Options:\n  -m,--model PATH  which --other has\n",
                      ("store",): "Usage: tqcache store VERB\n\n  put       Put\n",
                      ("store", "put"): "  --name N    name\n"}

    def help(self, *verbs):
        return self.helps.get(verbs, "")


def self_test():
    program = FakeProgram()

    def found(text):
        bad = [bad_command(program, words) for _, words in commands(text)]
        shapes = [*long_lines(text), *long_paragraphs(text)]
        return len(shapes) + sum(message is not None for message in bad)

    fence = "```sh\n{}\n```\n".format
    cases = {
        "word\n" * 8: 0, "word\n" * 9: 1, "- word\n" * 9: 0, "- " + "word\n" * 9: 1,
        "word\n" * 5 + "\n" + "word\n" * 5: 0, "```\n" + "word\n" * 9 + "```\n": 0,
        "word " * 20: 0, "word " * 21: 1, "| word " * 30: 0, fence("word " * 30): 0,
        fence("tqcache info -m x y"): 0, fence("tqcache inf y"): 1, fence("tqcache info --modl x"): 1,
        fence("tqcache store put a --name b | tqcache info -"): 0, fence("tqcache store get a"): 1,
        fence("tqcache info a \\\n  --wrong"): 1, fence("tqcache info --other"): 1, fence("tqcache store put a --model b"): 1,
        fence("echo x > y && tqcache info -q z"): 1, fence("tqcache VERB --help"): 0,
        "```console\ntqcache says --this\n$ tqcache nonsense\n```": 1, "`tqcache nonsense`": 0,
    }
    wrong = [text for text, expected in cases.items() if found(text) != expected]
    here = Path(__file__)
    linked = {f"[a]({here.name})": 0, "[a](no-such-file)": 1, "# A b, `c`\n[a](#a-b-c)": 0,
              "[a](https://example.org)": 0, "```\n[a](no-such-file)\n```": 0}
    for text, expected in linked.items():
        anchored = text.replace("(#", "(unknown.md#") if "#a-b" in text else text
        if anchored != text:
            if "a-b-c" not in anchors(text):
                wrong.append(text)
        elif len(list(bad_links(here, text))) != expected:
            wrong.append(text)
    for text in wrong:
        print(f"judged wrongly: {text!r}")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root, program = Path(sys.argv[1]).resolve(), Program(sys.argv[2])
    if "VERB" not in program.help():
        print(f"{sys.argv[2]}: gives no help")
        return 1
    n_files = n_bad = 0
    for path in documents(root):
        n_files += 1
        for number, message in complaints(root, path, program):
            n_bad += 1
            print(f"{path.relative_to(root)}:{number}: {message}")
    print(f"{n_files} documents, {n_bad} complaints")
    return 1 if n_bad else 0


if __name__ == "__main__":
    sys.exit(main())
