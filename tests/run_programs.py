#!/usr/bin/env python3
"""Runs the tests of a build with each GoogleTest program started once, and not once a test.

usage: run_programs.py BUILD_FOLDER [--jobs N] [--timeout SECONDS] [--exclude REGEX] [--logs FOLDER]
  --timeout  for each program, and for each test that is no program of GoogleTest (default: 3600)
  --exclude  tests, named as ctest does, that are left out and listed

For processors that are emulated, where starting a program costs more than most tests take. ctest
starts each of them by itself, so it remains the judge of what a test needs from the ones before it.
Exit code 1: a test failed, or did not end.
"""

import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ENDED = re.compile(r"^\[ +(OK|FAILED|SKIPPED) +\] ([\w./]+)(?:,.*)? \(\d+ ms\)$", re.M)


def tests_of(folder):
    """Programs of GoogleTest with their tests, and other tests with their commands."""
    text = subprocess.run(["ctest", "--show-only=json-v1"], cwd=folder, check=True,
                          capture_output=True, text=True).stdout
    programs, others = collections.defaultdict(dict), []
    for test in json.loads(text)["tests"]:
        command = test.get("command")
        properties = {each["name"]: each["value"] for each in test.get("properties", [])}
        if not command or properties.get("DISABLED"):
            continue
        place = properties.get("WORKING_DIRECTORY", folder)
        environment = dict(each.split("=", 1) for each in properties.get("ENVIRONMENT", []))
        wanted = [each for each in command if each.startswith("--gtest_filter=")]
        if wanted and "*" not in wanted[0]:
            program = tuple(each for each in command if not each.startswith("--gtest_"))
            programs[program, place][wanted[0].split("=", 1)[1]] = test["name"]
        else:
            others.append((test["name"], command, place, environment,
                           properties.get("SKIP_RETURN_CODE")))
    return programs, others


def run(command, place, log, timeout, environment=None):
    """Exit code, or None if it did not end in time; and seconds."""
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as out:
        try:
            done = subprocess.run(command, cwd=place, stdout=out, stderr=subprocess.STDOUT,
                                  stdin=subprocess.DEVNULL, timeout=timeout,
                                  env=os.environ | (environment or {}))
            return done.returncode, time.monotonic() - began
        except subprocess.TimeoutExpired:
            return None, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--timeout", type=float, default=3600)
    parser.add_argument("--exclude", default="(?!)")
    parser.add_argument("--logs", type=pathlib.Path)
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    logs = (arguments.logs or folder / "Testing" / "programs").resolve()
    logs.mkdir(parents=True, exist_ok=True)
    programs, others = tests_of(folder)
    results = collections.defaultdict(list)

    def run_program(key):
        command, place = key
        names = programs[key]
        left_out = [test for test in names if re.search(arguments.exclude, names[test])]
        results["left out"] += [names[test] for test in left_out]
        wanted = [test for test in names if test not in left_out]
        if not wanted:
            return
        log = logs / (pathlib.Path(command[-1]).name + ".log")
        chosen = [f"--gtest_filter=*-{':'.join(left_out)}"] if left_out else []
        code, seconds = run([*command, *chosen], place, log, arguments.timeout)
        text = log.read_text(encoding="utf-8", errors="replace")
        ended = {test: how for how, test in ENDED.findall(text)}
        for test in wanted:
            how = ended.get(test)
            kind = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}.get(how, "did not end")
            results[kind].append(names[test])
        print(f"{log.stem}: {seconds:.0f} s, exit code {code}, "
              f"{sum(test in ended for test in wanted)} of {len(wanted)} tests ended", flush=True)

    def run_other(test):
        name, command, place, environment, skip_code = test
        if re.search(arguments.exclude, name):
            results["left out"].append(name)
            return
        code, seconds = run(command, place, logs / f"{name}.log", arguments.timeout, environment)
        kind = ("did not end" if code is None else "passed" if code == 0
                else "skipped" if code == skip_code else "failed")
        results[kind].append(name)
        print(f"{name}: {seconds:.0f} s, {kind}", flush=True)

    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        work = [pool.submit(run_program, key) for key in programs]
        work += [pool.submit(run_other, test) for test in others]
        for each in work:
            each.result()
    for kind in ("left out", "skipped", "did not end", "failed"):
        for name in sorted(results[kind]):
            print(f"{kind}: {name}")
    print(", ".join(f"{kind} {len(results[kind])}"
                    for kind in ("passed", "failed", "did not end", "skipped", "left out")))
    return 1 if results["failed"] or results["did not end"] else 0


if __name__ == "__main__":
    sys.exit(main())
