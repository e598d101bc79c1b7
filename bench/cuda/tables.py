"""Prints the tables of docs/reference/cuda.md, for this machine's GPU.

python3 tables.py FOLDER: runs bench_cuda of that folder and dense_attention.py, which needs torch.
python3 tables.py BENCH.txt DENSE.txt: reads what the two printed.
"""

import re
import subprocess
import sys
from pathlib import Path


def rows(text):
    """The cells of each line that is a row of a table."""
    for line in text.splitlines():
        if line.startswith("| ") and not line.startswith("| batch"):
            yield [cell.strip() for cell in line.strip("| \n").split("|")]


def dense_times(text):
    """Microseconds of the fastest backend by (batch, tokens), where both backends were tried."""
    times = {}
    for cells in rows(text):
        found = re.fullmatch(r"(\d+) x (\d+)", cells[0])
        if found and cells[2].endswith(" us"):
            key = int(found[1]), int(found[2])
            times[key] = min(float(cells[2][:-3]), times.get(key, float("inf")))
    return times


def print_attention(cells_of_rows, dense):
    names = "batch x tokens", "heads", "head_dim", "bits", "us", "GB/s", "% of copy", "dense, us"
    print("| " + " | ".join(names) + " | faster by |")
    print("|---" * 9 + "|")
    for batch, tokens, head_dim, bits, heads, us, gbs, percent in cells_of_rows:
        key = int(batch), int(tokens)
        is_same = heads == "32/8" and head_dim == "128" and key in dense
        other = f"{dense[key]:.1f} | {dense[key] / float(us):.1f}" if is_same else " | "
        print(
            f"| {batch} x {int(tokens):,} | {heads} | {head_dim} | {bits} | {us} | {int(gbs):,} "
            f"| {percent} | {other} |"
        )


def main():
    if len(sys.argv) == 2:
        bench = subprocess.run(
            [Path(sys.argv[1]) / "bench_cuda"], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        dense = subprocess.run(
            [sys.executable, Path(__file__).parent / "dense_attention.py"],
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
    elif len(sys.argv) == 3:
        bench, dense = (Path(name).read_text(encoding="utf-8") for name in sys.argv[1:])
    else:
        sys.exit(__doc__)
    tables = [list(rows(part)) for part in bench.split("\n\n")]
    print(bench.split("\n\n")[0])
    print(dense.partition("\n")[0])
    for table in tables:
        if table and len(table[-1]) == 8 and "/" in table[-1][4]:
            print()
            print_attention([row for row in table if row[0].isdigit()], dense_times(dense))
    for part in bench.split("\n\n"):
        if part.startswith(("| head_dim", "| bytes")):
            print(f"\n{part.rstrip()}")


if __name__ == "__main__":
    main()
