#!/usr/bin/env python3
"""What conversations that were converted apart share in a store.

usage: bench/store_sharing.py -m MODEL --tqcache PROGRAM --text FILE [--conversations N]
                              [--prompts N] [--prompt-tokens N] [--tokens N] [--config TEXT]

Each conversation is one of a few system prompts and a text of its own. For each: `prefill`, `convert`,
`store put`, each by a process of its own, so nothing but the store knows of the others. Prints the
bytes and token blocks that the store got, and those that the prompts have, which is what it would
hold if nothing were shared.
"""

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

BLOCK = 256


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--tqcache", default="tqcache")
    parser.add_argument("--text", required=True, help="a book")
    parser.add_argument("--conversations", type=int, default=200)
    parser.add_argument("--prompts", type=int, default=4, help="different system prompts")
    parser.add_argument("--prompt-tokens", type=int, default=1500, help="of a system prompt, about")
    parser.add_argument("--tokens", type=int, default=600, help="of a conversation of its own, about")
    parser.add_argument("--config", default="turbo4")
    options = parser.parse_args()
    # About four characters a token in English.
    text = Path(options.text).read_text(encoding="utf-8")
    prompt_size, own_size = 4 * options.prompt_tokens, 4 * options.tokens

    def run(*arguments):
        done = subprocess.run([options.tqcache, *arguments], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"{' '.join(arguments)}: {done.stderr}")
        return done.stdout

    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        store, alone_bytes, new_bytes, new_blocks, blocks = f"dir:{folder}/store", 0, [], 0, 0
        for i in range(options.conversations):
            which = i % options.prompts
            system = text[which * prompt_size:(which + 1) * prompt_size]
            at = (options.prompts * prompt_size + i * own_size) % (len(text) - own_size)
            (folder / "text").write_text(system + text[at:at + own_size], encoding="utf-8")
            run("prefill", "-m", options.model, "--file", f"{folder}/text",
                "-o", f"{folder}/dense", "-f")
            run("convert", f"{folder}/dense", f"{folder}/packed", "--config", options.config, "-f")
            put = json.loads(run("store", "put", f"{folder}/packed", "--store", store,
                                 "--name", f"conversation {i}", "--json"))
            alone_bytes += put["bytes"]
            new_bytes.append(put["new_bytes"])
            blocks += put["blocks"]
            new_blocks += put["new_blocks"]
    total = sum(new_bytes)
    firsts = new_bytes[:options.prompts]
    later = new_bytes[options.prompts:]
    print(json.dumps({
        "conversations": options.conversations, "config": options.config,
        "bytes": total, "bytes_if_nothing_was_shared": alone_bytes,
        "part": round(total / alone_bytes, 4),
        "token_blocks": blocks, "new_token_blocks": new_blocks,
        "first_of_a_prompt": round(sum(firsts) / max(len(firsts), 1)),
        "later": round(sum(later) / max(len(later), 1)),
    }, indent=1))


if __name__ == "__main__":
    main()
