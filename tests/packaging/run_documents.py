"""The commands of the README and the guides, run as a reader would, and their outputs compared.

usage: run_documents.py SOURCE_DIR TQCACHE [--python PYTHON] [--package DIR]
                        [--only-peers | --without-peers] [PAGE...]
       run_documents.py --self-test

Blocks of shell (sh, console) and of Python are taken from the Markdown itself; CONTRIBUTING.md says
which comments steer this. Each page runs in a folder that looks like the root of the repository,
guides after the quick start. With --python its interpreter runs the Python blocks (DIR has the
package tqcache), and llama-server is that of its package xllamacpp; without it they are counted as
not run. --only-peers takes the pages that need Python or llama-server, also those that take long;
--without-peers takes the others.
"""
import argparse
import collections
import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

QUICK_START = "docs/guide/quickstart.md"
SHELL, PYTHON = {"sh", "console", "bash"}, {"python"}
LIMIT_S = 300  # for one block, on a loaded machine
TOLERANCE = 0.15  # of numbers that are no times: other processors round differently

# A run that no reader would see: numbers, dates, and names made of hexadecimal digits.
NUMBER = r"(?<![\w.])-?(?:\d[\d,]*)?\.?\d+(?:e[+-]\d+)?"
TOKEN = re.compile(rf"[0-9a-f]{{16,}}|\d{{4}}-\d\d-\d\d[ T]\d\d:\d\d\S*|{NUMBER}")
TIME = re.compile(r"\s*(?:s|ms|min|tokens/s|s ago)\b|/s\)")


class Block:
    def __init__(self, language, number):
        self.language, self.number = language, number
        self.lines = []
        self.hidden = False  # a comment: `run:`, `run python:`
        self.not_run = None  # the reason
        self.modules = []  # that Python has to have
        self.numbers_vary = False
        self.claim = None  # what the text behind the block says that it prints


class Page:
    def __init__(self, text):
        self.blocks, self.modules, self.takes_long = [], [], False
        for comment, port in re.findall(r"(<!-- page has port: (\d+) -->\n)", text):
            with socket.create_server(("127.0.0.1", 0)) as free:  # others may use this one
                text = text.replace(comment, "").replace(port, str(free.getsockname()[1]))
        block, comment, marks = None, None, {}
        for number, line in enumerate(text.splitlines(), 1):
            fence = re.match(r"\s*```(\w*)", line)
            if fence and block is None:
                block = Block(fence[1], number)
                block.not_run, block.numbers_vary = marks.get("not run"), "numbers vary" in marks
                block.modules = marks.get("needs", "").split()
                marks = {}
            elif fence:
                self.blocks.append(block)
                block = None
            elif block is not None:
                block.lines.append(line)
            elif comment is not None or line.lstrip().startswith("<!--"):
                comment = f"{comment}\n{line}" if comment is not None else line.strip()
                if not line.endswith("-->"):
                    continue
                name, _, value = comment[4:-3].strip().partition(":")
                comment = None
                if name in {"run", "run python"}:
                    hidden = Block("sh" if name == "run" else "python", number)
                    hidden.lines, hidden.hidden = value.strip().splitlines(), True
                    hidden.modules = marks.pop("needs", "").split()
                    self.blocks.append(hidden)
                elif name == "page needs":
                    self.modules += value.split()
                elif name == "page takes long":
                    self.takes_long = True
                else:
                    marks[name] = value.strip()
            elif claim := re.match(r'It prints "([^"]*)"', line):
                self.blocks[-1].claim = claim[1]
        if marks or block is not None or comment is not None:
            raise ValueError("a comment without a block, or something that does not end")

    def needs_peers(self):
        return bool(self.modules) or any(
            block.modules or block.language in PYTHON for block in self.blocks)


def console_commands(lines):
    """Pairs of a command and the lines that it prints."""
    pairs = []
    for line in lines:
        if line.startswith("$ "):
            pairs.append([line[2:], []])
        elif pairs and pairs[-1][0].endswith("\\") and not pairs[-1][1]:
            pairs[-1][0] += "\n" + line
        elif pairs:
            pairs[-1][1].append(line)
        else:
            raise ValueError(f"output without a command: {line}")
    return pairs


def value_of(text):
    return float(text.replace(",", ""))


def differs(expected, actual, numbers_vary=False):
    """None, or what is wrong with the output. `...` stands for any text, on a line of its own for
    any lines; blanks are one blank; numbers may differ by TOLERANCE, and times by anything."""
    pattern, numbers = "", []
    for line in expected:
        line = " ".join(line.split())
        if line == "...":
            pattern += r"(?:.*\n)*?"
            continue
        at = 0
        for token in TOKEN.finditer(line):
            pattern += re.escape(line[at:token.start()])
            at = token.end()
            if not re.fullmatch(NUMBER, token[0]):
                pattern += r"[0-9a-f]{16,}" if token[0].isalnum() else r"\d{4}-\d\d-\d\d\S? ?\S*"
                continue
            pattern += f"({NUMBER})"
            numbers.append((token[0], bool(TIME.match(line, at))))
        pattern += re.escape(line[at:]) + "\n"
    pattern = pattern.replace(re.escape("..."), ".*")
    text = "".join(" ".join(line.split()) + "\n" for line in actual.splitlines())
    found = re.fullmatch(pattern, text)
    if not found:
        return "other text"
    for (wanted, is_time), got in zip(numbers, found.groups()):
        if numbers_vary or is_time:
            continue
        if abs(value_of(got) - value_of(wanted)) > TOLERANCE * abs(value_of(wanted)):
            return f"{got} in place of {wanted}"
    return None


class Session:
    """A program that is told files to run, one after the other, and says how each ended."""

    def __init__(self, command, folder, environment):
        self.folder, self.n_runs, self.answers = folder, 0, queue.Queue()
        self.process = subprocess.Popen(command, cwd=folder, env=environment, text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                        start_new_session=True)
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        for line in self.process.stdout:
            self.answers.put(line)
        self.answers.put("it ended\n")

    def run(self, text):
        """(failed, output)"""
        self.n_runs += 1
        stem = self.folder / f".run-{id(self):x}-{self.n_runs}"
        stem.write_text(text + "\n", encoding="utf-8")
        out = stem.with_suffix(".out")
        self.process.stdin.write(self.order(stem, out) + "\n")
        self.process.stdin.flush()
        try:
            answer = self.answers.get(timeout=LIMIT_S).strip()
        except queue.Empty:
            answer = f"no end after {LIMIT_S} s"
        # A command that has no end may not have begun to write.
        output = out.read_text(encoding="utf-8", errors="replace") if out.exists() else ""
        return (answer if answer != "0" else None, output)

    def end(self):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
        with contextlib.suppress(ProcessLookupError):  # servers that the page has started
            os.killpg(self.process.pid, signal.SIGTERM)


class Shell(Session):
    """The answer is the status of the last command that failed."""

    def __init__(self, folder, environment):
        super().__init__(["bash", "--norc"], folder, environment)

    def order(self, script, out):
        return (f"failed=0; trap 'failed=$?' ERR; eval \"$(<{script})\" > {out} 2>&1 < /dev/null; "
                "trap - ERR; echo $failed")


class Interpreter(Session):
    """The answer is the exception."""

    LOOP = """
import contextlib, os, sys, traceback
names, answers = {"__name__": "__main__"}, os.fdopen(os.dup(1), "w")
for order in sys.stdin:
    script, out = order.rstrip("\\n").split("\\t")
    with open(out, "w") as file, contextlib.redirect_stdout(file):
        os.dup2(file.fileno(), 1); os.dup2(file.fileno(), 2)
        try:
            exec(compile(open(script).read(), script, "exec"), names)
            answer = "0"
        except BaseException as error:
            traceback.print_exc(file=file)
            answer = f"{type(error).__name__}"
    print(answer, file=answers, flush=True)
"""

    def __init__(self, python, folder, environment):
        super().__init__([python, "-c", self.LOOP], folder, environment)

    def order(self, script, out):
        return f"{script}\t{out}"


# What the guides start as `llama-server`: the package xllamacpp has the server, and no program.
LLAMA_SERVER = """#!{python}
import json, os, sys
names = {{"-m": "model", "-c": "n_ctx", "--port": "port", "--slot-save-path": "slots"}}
settings = {{names[flag]: int(value) if value.isdigit() else value
            for flag, value in zip(sys.argv[1::2], sys.argv[2::2])}}
program = "{source}/tests/serve/llama_server_process.py"
os.execv(sys.executable, [sys.executable, program, json.dumps(settings)])
"""


class Runner:
    def __init__(self, source, program, python, package):
        self.source, self.program, self.python, self.package = source, program, python, package
        self.n_run, self.complaints = 0, []
        self.not_run = collections.Counter()
        self.quick_start = None  # its folder
        self.lacking = {}  # by modules, so that none is imported for each block
        self.with_long = os.environ.get("TQCACHE_LONG_TESTS") == "1"

    def folder_of(self, parent, name):
        folder = parent / name.replace("/", "-").removesuffix(".md")
        (folder / "build/release/tools").mkdir(parents=True)
        (folder / "build/release/tools/tqcache").symlink_to(self.program)
        if self.python:
            server = folder / "build/release/tools/llama-server"
            server.write_text(LLAMA_SERVER.format(python=self.python, source=self.source))
            server.chmod(0o755)
        for entry in self.source.iterdir():
            if entry.name != "build" and not entry.name.startswith("."):
                (folder / entry.name).symlink_to(entry)
        return folder

    def environment(self, folder):
        path = os.environ["PATH"]
        keep = {name: value for name, value in os.environ.items() if not name.startswith("TQCACHE_")}
        if "PYTHONPYCACHEPREFIX" not in keep:  # it would lie among the sources
            keep["PYTHONDONTWRITEBYTECODE"] = "1"
        return keep | {
            "PATH": f"{folder}/build/release/tools:{path}", "SOURCE": str(self.source),
            "QUICK_START": str(self.quick_start or folder),
            "PYTHONPATH": f"{self.package or ''}:{self.source}/tools", "HF_HUB_OFFLINE": "1",
            "CUDA_VISIBLE_DEVICES": "", "HOME": str(folder)}

    def lacks(self, modules):
        """None, or why Python cannot import the modules."""
        key = tuple(modules)
        if key not in self.lacking:
            self.lacking[key] = self.try_import(modules)
        return self.lacking[key]

    def try_import(self, modules):
        if not modules:
            return None
        if not self.python:
            return "needs the Python packages of TQCACHE_PEERS"
        text = "import " + ", ".join(modules)
        run = subprocess.run([self.python, "-c", text], capture_output=True, text=True,
                             env=self.environment(Path("/")))
        last = run.stderr.strip().splitlines()[-1:] or ["?"]
        return f"needs {last[0].split(chr(39))[1::2][0]}" if run.returncode and "'" in last[0] else (
            last[0] if run.returncode else None)

    def run_page(self, parent, name):
        try:
            page = Page((self.source / name).read_text(encoding="utf-8"))
        except ValueError as error:
            return self.complain(name, 1, str(error), "")
        folder = self.folder_of(parent, name)
        if name == QUICK_START:
            self.quick_start = folder
        lacking = self.lacks(page.modules)
        if page.takes_long and not self.with_long:
            lacking = "takes long: TQCACHE_LONG_TESTS=1"
        environment = self.environment(folder)
        shell = Shell(folder, environment)
        interpreter = Interpreter(self.python, folder, environment) if self.python else None
        # Every block of Python in the guides uses the package.
        no_package = self.lacks(["tqcache"]) if any(
            block.language in PYTHON for block in page.blocks) else None
        for block in page.blocks:
            reason = lacking or block.not_run or self.lacks(block.modules)
            if block.language in PYTHON:
                reason = reason or no_package
            if block.language == "json":
                self.check_json(name, block)
            elif block.language == "text":
                continue
            elif reason:
                self.not_run[reason] += not block.hidden
            elif block.language in PYTHON:
                self.run_python(name, block, interpreter)
            elif block.language in SHELL:
                self.run_shell(name, block, shell)
            else:
                self.complain(name, block.number, f"a block of {block.language or 'nothing'}", "")
        shell.end()
        if interpreter:
            interpreter.end()

    def check_json(self, name, block):
        text = "\n".join(block.lines)
        decoder, at = json.JSONDecoder(), 0
        try:
            while text[at:].strip():
                at += len(text[at:]) - len(text[at:].lstrip())
                _, at = decoder.raw_decode(text, at)
        except ValueError as error:
            self.complain(name, block.number, f"no JSON: {error}", text)
        self.n_run += 1

    def run_python(self, name, block, interpreter):
        failed, output = interpreter.run("\n".join(block.lines))
        self.n_run += not block.hidden
        if failed:
            self.complain(name, block.number, failed, output)
        elif block.claim and block.claim not in output:
            self.complain(name, block.number, f'does not print "{block.claim}"', output)

    def run_shell(self, name, block, shell):
        if block.language != "console":
            pairs = [("\n".join(block.lines), None)]
        else:
            pairs = console_commands(block.lines)
        for command, expected in pairs:
            failed, output = shell.run(command)
            self.n_run += not block.hidden
            # A message that is shown is one that was meant.
            meant = any(line.startswith("tqcache: ") for line in expected or [])
            wrong = f"status {failed}" if failed and not meant else None
            if not wrong and expected:
                wrong = differs(expected, output, block.numbers_vary)
            if wrong:
                self.complain(name, block.number, f"{wrong}\n    $ {command}", output)

    def complain(self, name, number, what, output):
        shown = "".join(f"    {line}\n" for line in output.splitlines()[-40:])
        self.complaints.append(f"{name}:{number}: {what}\n{shown}")


def documents(source):
    guides = sorted(str(path.relative_to(source)) for path in (source / "docs/guide").glob("*.md"))
    return ([QUICK_START, "README.md", "python/README.md"]
            + [name for name in guides if name != QUICK_START])


def choose(source, names, options):
    """The quick start always runs: others begin with what it leaves."""
    if not options.only_peers and not options.without_peers:
        return names
    return [name for name in names if name == QUICK_START or options.only_peers ==
            Page((source / name).read_text(encoding="utf-8")).needs_peers()]


def self_test():
    cases = [
        (["a 10 b"], "a 10 b", False, True), (["a 10 b"], "a 11 b", False, True),
        (["a 10 b"], "a 12 b", False, False), (["a 10 b"], "a 99 b", True, True),
        (["a 10 b"], "a x b", True, False), (["10 s"], "99.5 s", False, True),
        (["1,000 bytes"], "1,020 bytes", False, True), (["1,000 bytes"], "1,500 bytes", False, False),
        (["a", "...", "c"], "a\nb\nb\nc", False, True), (["a", "...", "c"], "a\nb", False, False),
        (["a ... c"], "a b b c", False, True), (["a"], "a\nb", False, False), (["a   b"], "a b", False, True),
        (["2026-11-23 04:01 x"], "2031-01-02 05:06 x", False, True), (["key deadbeefdeadbeef"], "key 0123456789abcdef", False, True),
        (["key deadbeefdeadbeef"], "key word", False, False), ([".5 1e-03"], "0.5 1.1e-03", False, True),
    ]
    wrong = [case for case in cases if (differs(case[0], case[1], case[2]) is None) != case[3]]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shell = Shell(folder, dict(os.environ))
        for text, expected in [("export A=5; false; true", ("1", "")), ("echo $A", (None, "5\n")),
                               ("printf 'a' >&2", (None, "a")), ("exit 3", ("it ended", ""))]:
            if shell.run(text) != expected:
                wrong.append(text)
        interpreter = Interpreter(sys.executable, folder, dict(os.environ))
        for text, expected in [("a = 5", (None, "")), ("print(a)", (None, "5\n"))]:
            if interpreter.run(text) != expected:
                wrong.append(text)
        if interpreter.run("b")[0] != "NameError":
            wrong.append("NameError")
        interpreter.end()
    text = ("<!-- not run: needs x -->\n```sh\nfalse\n```\n<!-- run: true\nfalse -->\n"
            "```console\n$ a \\\n  b\nc\n$ d\n```\n```python\n```\nIt prints \"z\"\n")
    blocks = Page(text).blocks
    if ([block.not_run for block in blocks] != ["needs x", None, None, None] or
            console_commands(blocks[2].lines) != [["a \\\n  b", ["c"]], ["d", []]] or
            blocks[3].claim != "z" or blocks[1].lines != ["true", "false"]):
        wrong.append(text)
    for case in wrong:
        print(f"judged wrongly: {case!r}")
    return 1 if wrong else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    parser = argparse.ArgumentParser()
    parser.add_argument("source", type=Path)
    parser.add_argument("tqcache", type=Path)
    parser.add_argument("--python")
    parser.add_argument("--package", type=Path)
    parser.add_argument("--only-peers", action="store_true")
    parser.add_argument("--without-peers", action="store_true")
    parser.add_argument("pages", nargs="*")
    options = parser.parse_intermixed_args()
    source = options.source.resolve()
    python = options.python if options.python and Path(options.python).exists() else None
    runner = Runner(source, options.tqcache.resolve(), python, options.package)
    runner.with_long |= options.only_peers
    pages = [QUICK_START] + [page for page in options.pages if page != QUICK_START]
    pages = choose(source, pages if options.pages else documents(source), options)
    with tempfile.TemporaryDirectory(prefix="tqcache-documents-") as parent:
        for name in pages:
            runner.run_page(Path(parent), name)
    for complaint in runner.complaints:
        print(complaint)
    print(f"{runner.n_run} commands and Python blocks run, {len(runner.complaints)} complaints")
    for reason, number in sorted(runner.not_run.items()):
        print(f"not run: {number} blocks: {reason}")
    return 1 if runner.complaints else 0


if __name__ == "__main__":
    sys.exit(main())
