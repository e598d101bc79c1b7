#!/usr/bin/env python3
"""What tqcache serve adds to the requests of a chat: the first one after a restart, and warm ones.

Beside it: llama-server alone, which restores its own slot file after the restart, and with --hearth
the program hearth of PyPI's hearth-llm. Each has a llama-server of its own (the one inside PyPI's
xllamacpp); they get the same requests in turn, in an order that rotates. Prints two tables in
Markdown, medians in milliseconds. "Beyond computing" is the time of a request less the time that
llama-server says it computed: prompt and answer. Run it on an otherwise idle machine.

    python3 bench/serve_latency.py -m model.gguf --tqcache build/release/tools/tqcache
"""

import argparse
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(REPOSITORY / "tests/serve"))
import test_llama_server as serve  # noqa: E402

# hearth works with exactly one slot.
ONE_SLOT = {"n_parallel": 1, "cache_ram_mib": 0}


class Alone:
    """llama-server without a proxy. After a restart it restores its own slot file."""
    name = "llama-server, its own restore"

    def __init__(self, args, folder):
        self.args, self.folder = args, folder
        self.slots = folder / "slots"
        self.slots.mkdir(parents=True)
        settings = ONE_SLOT if args.one_slot or args.hearth else {}
        self.llama = serve.Llama(args.model, self.slots, n_threads=args.threads, **settings)
        self.port = self.llama.port
        self.more = {"id_slot": 0}
        self.start_proxy()

    def start_proxy(self):
        pass

    def kill_proxy(self):
        pass

    def keep(self):
        serve.post(self.port, "/slots/0?action=save", {"filename": "own.bin"})

    def restore(self):
        serve.post(self.port, "/slots/0?action=restore", {"filename": "own.bin"})

    def restart(self):
        self.kill_proxy()
        self.llama.kill()
        self.llama.start()
        self.start_proxy()
        time.sleep(self.args.settle)

    def end(self):
        self.kill_proxy()
        self.llama.end()


class Behind(Alone):
    """A proxy of its own before it."""

    def __init__(self, args, folder):
        self.reserved = serve.ReservedPort()
        super().__init__(args, folder)
        self.port = self.reserved.port
        self.more = {}

    def start_proxy(self):
        with open(self.folder / "proxy.log", "a") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log)

        def answers():
            if self.process.poll() is not None:
                raise SystemExit((self.folder / "proxy.log").read_text()[-2000:])
            return serve.get(self.reserved.port, "/health")
        serve.wait_for(answers, self.name, 60)

    def kill_proxy(self):
        self.process.kill()
        self.process.wait()

    def keep(self):
        """By itself, within this time."""
        time.sleep(self.args.wait)

    def restore(self):
        pass


class Tqcache(Behind):
    def __init__(self, args, folder, config):
        self.name, self.config = f"tqcache serve, {config}", config
        super().__init__(args, folder)

    def command(self):
        return [str(self.args.tqcache), "serve", "--upstream",
                f"http://127.0.0.1:{self.llama.port}", "--slot-dir", str(self.slots), "--store",
                f"dir:{self.folder / 'store'}", "--listen", f"127.0.0.1:{self.reserved.port}",
                "--config", self.config]


class Hearth(Behind):
    name = "hearth"

    def command(self):
        return [str(self.args.hearth), "serve", "--upstream",
                f"http://127.0.0.1:{self.llama.port}", "--cache-dir", str(self.slots), "--port",
                str(self.reserved.port)]


def ask(side, messages, max_tokens):
    """(milliseconds, the answer)."""
    body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, **side.more}
    begin = time.perf_counter()
    answer = serve.post(side.port, "/v1/chat/completions", body)
    return 1000 * (time.perf_counter() - begin), answer


def computing(timings):
    return timings["prompt_ms"] + timings["predicted_ms"]


def first_message(args, number):
    """About args.tokens tokens. 100 characters of this book are about 27."""
    book = (REPOSITORY / "models/demo/alice-excerpt.txt").read_text()
    text = f"Reader {number}. " + book
    while len(text) < 3.7 * args.tokens:
        text += book
    return [{"role": "system", "content": text[:int(3.7 * args.tokens)]},
            {"role": "user", "content": "What happens first?"}]


def restarts(args, sides):
    """For each side, of all rounds: [(milliseconds, computing, tokens reused, tokens computed)]."""
    rows = {side.name: [] for side in sides}
    for i in range(args.rounds):
        messages = first_message(args, i)
        for side in sides[i % len(sides):] + sides[:i % len(sides)]:
            _, answer = ask(side, messages, 32)
            side.keep()
            side.restart()
            said = answer["choices"][0]["message"]["content"]
            more = messages + [{"role": "assistant", "content": said},
                               {"role": "user", "content": "And then?"}]
            begin = time.perf_counter()
            side.restore()
            restored = 1000 * (time.perf_counter() - begin)
            took, answer = ask(side, more, 1)
            timings = answer["timings"]
            rows[side.name].append((restored + took, computing(timings), timings["cache_n"],
                                    timings["prompt_n"]))
            print(f"  restart {i}, {side.name}: {restored + took:.0f} ms, {timings['cache_n']} "
                  f"reused, {timings['prompt_n']} computed", file=sys.stderr)
    return rows


def warm(args, sides):
    """For each side: [(milliseconds, computing)] of the requests of one growing chat."""
    rows = {side.name: [] for side in sides}
    messages = first_message(args, "warm")
    for i in range(args.pairs + 3):
        for side in sides[i % len(sides):] + sides[:i % len(sides)]:
            took, answer = ask(side, messages, 1)
            if i >= 3:
                rows[side.name].append((took, computing(answer["timings"])))
        messages = messages + [{"role": "assistant", "content": "Yes."},
                               {"role": "user", "content": f"And in part {i}?"}]
        time.sleep(args.pause)
    return rows


def table(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", type=pathlib.Path,
                        default=REPOSITORY / "models/demo/tqcache-demo-17m.q8_0.gguf")
    parser.add_argument("--tqcache", type=pathlib.Path, required=True)
    parser.add_argument("--hearth", type=pathlib.Path, help="the program of PyPI's hearth-llm")
    parser.add_argument("--config", action="append", help="default: lossless and turbo")
    parser.add_argument("--one-slot", action="store_true",
                        help="-np 1 --cache-ram 0; always with --hearth")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="restarts of each")
    parser.add_argument("--pairs", type=int, default=50, help="warm requests of each")
    parser.add_argument("--wait", type=float, default=3.0,
                        help="seconds between answer and SIGKILL")
    parser.add_argument("--settle", type=float, default=1.0, help="seconds after the start")
    parser.add_argument("--pause", type=float, default=0.2, help="seconds between warm requests")
    args = parser.parse_args()

    folder = pathlib.Path(tempfile.mkdtemp(prefix="serve-latency-"))
    sides = []
    try:
        sides.append(Alone(args, folder / "alone"))
        for config in args.config or ["lossless", "turbo"]:
            sides.append(Tqcache(args, folder / config, config))
        if args.hearth:
            sides.append(Hearth(args, folder / "hearth"))
        after = restarts(args, sides)
        between = warm(args, sides)
        disk = {side.name: sum(p.stat().st_size for p in side.folder.rglob("*") if p.is_file() and
                               p.suffix != ".log") for side in sides}
    finally:
        for side in sides:
            side.end()
        shutil.rmtree(folder)

    slots = "one slot" if args.one_slot or args.hearth else "llama-server's defaults"
    print(f"\n{args.model.name}, {args.tokens} tokens, {args.threads} thread(s), {slots}; first "
          f"request after a SIGKILL of both {args.wait:g} s after an answer, medians of "
          f"{args.rounds}:\n")
    median = statistics.median
    own = median(took - computed for took, computed, *_ in after[sides[0].name])
    table(["", "ms (least)", "computing", "beyond computing", "beyond llama-server's restore",
           "tokens reused", "computed", "MB on disk"],
          [[name, f"{median(r[0] for r in rows):.0f} ({min(r[0] for r in rows):.0f})",
            f"{median(r[1] for r in rows):.0f}", f"{median(r[0] - r[1] for r in rows):.0f}",
            f"{median(r[0] - r[1] for r in rows) - own:.0f}", f"{median(r[2] for r in rows):.0f}",
            f"{median(r[3] for r in rows):.0f}", f"{disk[name] / 1e6:.1f}"]
           for name, rows in after.items()])
    print(f"Warm requests with one token of answer, medians of {args.pairs}:\n")
    alone = between[sides[0].name]
    table(["", "ms (least)", "beyond computing (least)", "beyond no proxy (median of pairs)"],
          [[name.replace(", its own restore", ""),
            f"{median(r[0] for r in rows):.1f} ({min(r[0] for r in rows):.1f})",
            f"{median(r[0] - r[1] for r in rows):.1f} ({min(r[0] - r[1] for r in rows):.1f})",
            f"{median((a[0] - a[1]) - (b[0] - b[1]) for a, b in zip(rows, alone)):.1f}"]
           for name, rows in between.items()])


if __name__ == "__main__":
    main()
