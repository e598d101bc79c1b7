#!/usr/bin/env python3
"""How many tests the last run of ctest skipped, and why.

usage: skipped.py BUILD_FOLDER

Many tests of faults need root, seccomp or mounts and skip themselves without them; others need a
program that is not installed. ctest lists their names, but not the reasons.
"""

import collections
import pathlib
import re
import sys

# What GoogleTest prints, and what the test programs in Python print before they end with 77.
REASON = re.compile(r"^\S+:\d+: Skipped\n(.*)|^NOT RUN: (.*)", re.M)


def results(log):
    """Pairs of a test's name and all that the log says about it."""
    parts = re.split(r"^\d+/\d+ Testing: (.*)$", log, flags=re.M)
    return zip(parts[1::2], parts[2::2])


def reason(text):
    found = REASON.search(text)
    return found and (found.group(1) or found.group(2) or "no reason given").strip()


def main():
    log = pathlib.Path(sys.argv[1]) / "Testing" / "Temporary" / "LastTest.log"
    text = log.read_text(encoding="utf-8", errors="replace")
    found = [reason(part) for _, part in results(text)]
    reasons = collections.Counter(each for each in found if each is not None)
    print(f"{sum(reasons.values())} tests skipped" + (":" if reasons else ""))
    for why, count in reasons.most_common():
        print(f"  {count:4}  {why}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main()
