"""The built program has the protections of cmake/TqcacheHardening.cmake, and loads no library from
the current folder.

usage: hardening.py PROGRAM READELF COMPILE_COMMANDS FLAG...
       hardening.py --self-test CXX READELF WORK_DIR    sees that each rule finds what breaks it
"""
import json
import re
import subprocess
import sys
from pathlib import Path

FLAGS = ("-fstack-protector-strong", "-fstack-clash-protection", "-fcf-protection=full")
FORTIFIED = "-D_FORTIFY_SOURCE=3"
ENDBR64 = bytes.fromhex("f30f1efa")


class Program:
    """What readelf prints of a program."""

    def __init__(self, path, readelf):
        self.path = Path(path)
        show = lambda *options: subprocess.run(
            [readelf, *options, "--wide", path], check=True, capture_output=True, text=True).stdout
        self.header = show("--file-header")
        self.segments = show("--segments")
        self.dynamic = show("--dynamic")
        self.imports = {line.split()[7].split("@")[0]
                        for line in show("--dyn-syms").splitlines()
                        if " UND " in line and len(line.split()) > 7}
        self.symbols = show("--symbols")

    def main_begins_with(self, n_bytes):
        """The first bytes of main(); None in a program without symbols."""
        found = re.search(r"^\s*\d+: ([0-9a-f]+) .*\sFUNC .*\smain$", self.symbols, re.M)
        if not found:
            return None
        address = int(found[1], 16)
        for line in self.segments.splitlines():
            load = re.match(r"\s*LOAD\s+(0x\w+)\s+(0x\w+)\s+0x\w+\s+(0x\w+)", line)
            if load:
                offset, begin, size = (int(x, 16) for x in load.groups())
                if begin <= address < begin + size:
                    at = offset + address - begin
                    return self.path.read_bytes()[at:at + n_bytes]
        return None


def violations(program, fortified):
    # A static program (tools/release.sh) names no library, and imports nothing.
    is_static = "(NEEDED)" not in program.dynamic
    if not re.search(r"Type:\s+DYN", program.header) or not (
            is_static or re.search(r"Flags:.*\bPIE\b", program.dynamic)):
        yield "is not position-independent"
    if "GNU_RELRO" not in program.segments:
        yield "has no RELRO segment"
    if "BIND_NOW" not in program.dynamic and not re.search(r"Flags:.*\bNOW\b", program.dynamic):
        yield "binds functions lazily: RELRO is not full"
    stack = re.search(r"GNU_STACK\s+(?:0x\w+\s+){5}([RWE ]+?)\s+(?:0x\w+|0)$",
                      program.segments, re.M)
    if not stack or "E" in stack[1]:
        yield "has an executable stack"
    if "(TEXTREL)" in program.dynamic:
        yield "has text relocations"
    if not is_static and "__stack_chk_fail" not in program.imports:
        yield "has no stack protector"
    if not is_static and not any("__glibcxx_assert_fail" in name for name in program.imports):
        yield "has no assertions of libstdc++"
    if not is_static and fortified and not any(
            re.fullmatch(r"__\w+_chk", name) for name in program.imports):
        yield "has no checked functions of the C library"
    first = program.main_begins_with(4)
    if "X86-64" in program.header and first is not None and first != ENDBR64:
        yield "main() does not begin with endbr64"
    if "(RPATH)" in program.dynamic:
        yield "has an RPATH, which comes before LD_LIBRARY_PATH"
    for entries in re.findall(r"\((?:RUN|R)PATH\).*\[(.*)\]", program.dynamic):
        for entry in entries.split(":"):
            if not entry.startswith(("/", "$ORIGIN")):
                yield f'looks for libraries in "{entry}", relative to the current folder'


def bad_commands(path, wanted):
    """Sources of the library and the program that are compiled without a flag."""
    for entry in json.loads(Path(path).read_text()):
        output = re.search(r" -o (\S+)", entry["command"])
        if output and output[1].startswith(("lib/", "server/", "research/", "tools/", "migrations/")):
            for flag in wanted:
                if flag not in entry["command"].split():
                    yield f"{output[1]}: compiled without {flag}"


def check(path, readelf, commands, *flags):
    found = [f"{path} {v}" for v in violations(Program(path, readelf), FORTIFIED in flags)]
    found += bad_commands(commands, flags)
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


SOURCE = """
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>
int main(int argc, char** argv) {
  char text[64];
  std::strcpy(text, argv[0]);
  std::vector<int> numbers(argc);
  std::printf("%s %d\\n", text, numbers[argc - 1]);
}
"""
GOOD = ("-O2", *FLAGS, "-U_FORTIFY_SOURCE", FORTIFIED, "-D_GLIBCXX_ASSERTIONS", "-fPIE",
        "-pie", "-Wl,-z,relro,-z,now,-z,noexecstack", "-Wl,--enable-new-dtags,-rpath,$ORIGIN/../lib")
# What is added to GOOD, and what is then reported.
BAD = (
    (("-fno-PIE", "-no-pie"), "is not position-independent"),
    (("-Wl,-z,norelro",), "has no RELRO segment"),
    (("-Wl,-z,lazy",), "binds functions lazily"),
    (("-Wl,-z,execstack",), "has an executable stack"),
    (("-fno-stack-protector",), "has no stack protector"),
    (("-U_GLIBCXX_ASSERTIONS",), "has no assertions of libstdc++"),
    (("-U_FORTIFY_SOURCE",), "has no checked functions"),
    (("-fcf-protection=none",), "main() does not begin with endbr64"),
    (("-Wl,--disable-new-dtags",), "has an RPATH"),
    (("-Wl,-rpath,/usr/lib:",), 'looks for libraries in ""'),
    (("-Wl,-rpath,lib",), 'looks for libraries in "lib"'),
)


def self_test(cxx, readelf, folder):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    source, program = folder / "main.cpp", folder / "main"
    source.write_text(SOURCE)

    def found(*flags):
        subprocess.run([cxx, *GOOD, *flags, "-o", program, source], check=True, capture_output=True)
        return list(violations(Program(str(program), readelf), True))

    failed = [f"good, but: {v}" for v in found()]
    failed += [f"good and static, but: {v}" for v in found("-static-pie")]
    fixed = found("-static", "-no-pie")
    if "is not position-independent" not in fixed:
        failed.append(f"static, at a fixed address: not found; reported: {fixed}")
    for flags, message in BAD:
        reported = found(*flags)
        if not any(message in v for v in reported):
            failed.append(f"{' '.join(flags)}: not found; reported: {reported}")
    commands = folder / "compile_commands.json"
    commands.write_text(json.dumps([{"command": "c++ -D_FORTIFY_SOURCE=3 " + " ".join(FLAGS[1:])
                                                + " -o lib/a.o -c a.cpp"}]))
    if list(bad_commands(commands, (*FLAGS, FORTIFIED))) != [f"lib/a.o: compiled without {FLAGS[0]}"]:
        failed.append("a missing flag of a command was not found")
    print(*failed, sep="\n", end="\n" if failed else "")
    return 1 if failed else 0


if __name__ == "__main__":
    arguments = sys.argv[1:]
    if arguments[:1] == ["--self-test"] and len(arguments) == 4:
        sys.exit(self_test(*arguments[1:]))
    if len(arguments) < 3:
        sys.exit(__doc__)
    sys.exit(check(*arguments))
