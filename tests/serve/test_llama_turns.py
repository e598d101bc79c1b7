"""Random turns of up to four conversations through tqcache serve, and restarts in between.

usage: test_llama_turns.py --tqcache PROGRAM --source FOLDER [--seed N] [--turns N]
                           [--config NAME] [--flags "..."] [--log FILE]

Beside it runs the reference: the same llama-server without a proxy, which is never restarted and
gets the same requests in the same order. At every turn

- no more than 16 tokens are computed above those that the reference computes;
- the answer is the reference's. Every request asks for the log-probabilities of the likeliest
  tokens. llama.cpp's numbers depend a little on how a prompt is cut into batches, and on where its
  tokens lie in a cache that slots share; so two right servers can choose differently where two
  tokens are equally likely. The log-probabilities must agree within NOISE up to the first token
  that differs, and there both tokens must be equally likely to the reference. They must be equal
  where slots have a cache each and both sides reused the same number of tokens at every turn of a
  conversation. That finds more than equal texts would: a slot with some wrong values changes
  probabilities long before it changes the likeliest token.

An answer that differs by more is judged by a third server, which is started for it: that computes
the prompt at once, in small batches, behind the prompt of the turn before, and turn by turn as the
conversation did. What agrees with one of these is right: a few prompts in a thousand are that
sensitive, and the reference's way is not better than the others.

In some turns two or three conversations send at once. The reference gets these requests one after
the other. Answers are compared as always. So are computed tokens: each of these conversations has
had a turn, so that all that it shares with others is a part of its own last prompt. That was in a
slot, or saved, before any of the group began; and what waits for another one's slot waits, and is
not computed again. (A conversation at its first turn would be different: the reference may reuse a
common beginning that another one of the group has sent a moment ago.)

The proxy may send a group in another order. Then other slots are cleared, and what llama-server
takes from its RAM with windows or recurrent state ends at a checkpoint before the end of the
prompt: the answer is computed again. So there ANSWER more tokens may be computed in a group and at
the turn after it.

Two more things can be computed again, and are known limits. What conversations have in common of
less than a token block is not in a store, and with windows or recurrent state nothing else can be
used: llama-server may have a checkpoint there. And where slots are cleared when a task begins, a
request of a group may end in just that moment, before its slot could be saved: if llama-server ends
before the next turn, that turn of the group is lost.

The next turn continues with the proxy's answer on both sides. Ends with 77 if xllamacpp is missing.
TQCACHE_LONG_TESTS=1 or --long: a thousand turns for each configuration.
"""

import argparse
import concurrent.futures
import http.client
import json
import os
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
from pathlib import Path

import test_llama_server as serve

# Largest difference of a log-probability between two right servers. Measured with llama-server
# alone: 0.21 between a prompt computed at once and in two pieces (80 prompts), 0.19 between one
# that stayed in its slot and one that llama-server took from its RAM cache (8). Where the same
# batches were computed in caches of their own it is 0.
NOISE = 0.5
SAME = 1e-6
# Tokens that may be computed above the reference's.
SLACK = 16
BLOCK = 256
# Tokens of the longest answer, and those between llama-server's last checkpoint and it.
ANSWER = 20 + 5
# What was answered this long before a SIGKILL is in the store, if the programs have the machine to
# themselves.
SECONDS_TO_SAVE = 3
# --min-tokens of the proxy: shorter prompts are lost when llama-server ends.
MIN_TOKENS = 512
MAX_PROMPT = 3000
# Tokens of the smallest context that all slots share.
N_CONTEXT = 4096
# What a turn adds, at most.
MAX_TURN = 200
N_TOP = 8
AHEAD = "tqcache_common_tokens_total"

CONFIGS = {
    "defaults": {},
    "two": {"n_parallel": 2, "kv_unified": False},
    "one": {"n_parallel": 1, "cache_ram_mib": 0},
    # Only raw completions of token ids: the tiny model's text means nothing.
    "windows": {"n_ctx": 16384},
    "hybrid": {},
}


def top_tokens(answer):
    """For each token of an answer, the likeliest tokens: [(id, {id: log-probability})]."""
    if "choices" in answer:
        logprobs = answer["choices"][0].get("logprobs")
        tokens = logprobs["content"] if logprobs else []
    else:
        tokens = answer.get("completion_probabilities", [])
    return [(t["id"], {o["id"]: o["logprob"] for o in t["top_logprobs"]}) for t in tokens]


def difference(answer, expected, noise, compares_all=False):
    """(what is wrong or None, largest difference of a log-probability)."""
    largest = 0
    ours, theirs = top_tokens(answer), top_tokens(expected)
    for i, ((id_a, top_a), (id_b, top_b)) in enumerate(zip(ours, theirs)):
        if id_a not in top_b or id_b not in top_a:
            return f"token {i}: {id_a}, expected {id_b}, is not among the likeliest", largest
        # A model with random weights is always sure of one token: the others say what it has read.
        for token in (id_a, id_b, *(top_a.keys() & top_b.keys() if compares_all else ())):
            largest = max(largest, abs(top_a[token] - top_b[token]))
            if largest > noise:
                return (f"token {i} ({id_a}, expected {id_b}): log-probability of {token} is "
                        f"{top_a[token]:.3f}, expected {top_b[token]:.3f}"), largest
        if id_a != id_b:
            if top_b[id_b] - top_b[id_a] > 2 * noise:
                return f"token {i} is {id_a}, expected {id_b}", largest
            return None, largest
    if len(ours) != len(theirs):
        return f"{len(ours)} tokens, expected {len(theirs)}", largest
    return None, largest


class Conversation:
    """The prompt of a client, which grows. A chat, a text, or (where the model has no text) ids."""

    def __init__(self, draw, number, kind, book, system, longest):
        self.draw, self.number, self.kind, self.book = draw, number, kind, book
        self.n_turns = 0
        # The requests that were answered: path and body.
        self.sent = []
        # Whether its prompt was too short for the store when llama-server lost it.
        self.was_lost = False
        # Tokens of prompt and answer at its last turn.
        self.n_tokens = 0
        # Whether its last turn was one of a group.
        self.was_in_group = False
        # Tokens of its turns in groups since it was last saved for certain; of these, lost.
        self.n_unsaved = self.n_lost = 0
        # Whether both sides reused the same number of tokens at all turns.
        self.is_same = True
        own = f"Conversation {number}. "
        if kind == "ids":
            self.prompt = list(system) + [draw.randrange(1, 256) for _ in
                                          range(draw.randrange(300, longest // 4))]
        elif kind == "chat":
            text = system or own + self.piece(1200, longest)
            self.prompt = [{"role": "system", "content": text}]
        else:
            self.prompt = system + own + self.piece(1200, longest)

    def piece(self, shortest, longest):
        """Some of the book: 100 characters are about 26 tokens."""
        n = self.draw.randrange(shortest, longest)
        begin = self.draw.randrange(len(self.book) - n)
        return self.book[begin:begin + n]

    def ask(self):
        """Adds the client's part of the next turn."""
        self.n_turns += 1
        if self.kind == "ids":
            self.prompt = self.prompt + [self.draw.randrange(1, 256)
                                         for _ in range(self.draw.randrange(5, 80))]
        elif self.kind == "chat":
            text = f"Question {self.n_turns}: {self.piece(20, 400)}?"
            self.prompt = self.prompt + [{"role": "user", "content": text}]
        else:
            self.prompt = self.prompt + f"\n\nChapter {self.n_turns}. {self.piece(20, 400)}"

    def request(self, n_predict):
        if self.kind == "chat":
            return "/v1/chat/completions", {
                "messages": self.prompt, "max_tokens": n_predict, "temperature": 0,
                "logprobs": True, "top_logprobs": N_TOP}
        return "/completion", {"prompt": self.prompt, "n_predict": n_predict, "temperature": 0,
                               "n_probs": N_TOP, "ignore_eos": True, "return_tokens": True}

    def add(self, answer):
        timings = answer["timings"]
        self.n_tokens = timings["cache_n"] + timings["prompt_n"] + timings["predicted_n"]
        self.was_lost = False
        if self.kind == "ids":
            self.prompt = self.prompt + answer["tokens"]
        elif self.kind == "chat":
            text = answer["choices"][0]["message"]["content"] or ""
            self.prompt = self.prompt + [{"role": "assistant", "content": text}]
        else:
            self.prompt = self.prompt + answer["content"]


def abort(port, path, body, n_pieces):
    """Closes the connection after so many pieces of a stream. Returns the timings of the last."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", path,
                       json.dumps({**body, "stream": True, "timings_per_token": True}),
                       {"Content-Type": "application/json"})
    answer = connection.getresponse()
    n, timings = 0, None
    while n < n_pieces:
        line = answer.readline()
        if not line:
            break
        if line.startswith(b"data: {"):
            n += 1
            timings = json.loads(line[6:]).get("timings", timings)
    # The answer holds the socket, too.
    answer.close()
    connection.close()
    return timings


def post_status(port, path, body):
    """The status of the answer."""
    try:
        serve.post(port, path, body)
        return 200
    except urllib.error.HTTPError as error:
        return error.code


class Run:
    """One configuration: the two sides, and what went wrong."""

    def __init__(self, name, options, folder):
        self.name, self.options, self.folder = name, options, folder
        self.draw = random.Random(f"{options.seed} {name}")
        self.failures, self.log, self.n_kept = [], [], 0
        # Largest difference of a log-probability: where the same was computed, and elsewhere.
        self.largest = {True: 0.0, False: 0.0}
        self.computed = [0, 0]
        self.n_turns = self.n_aborted = self.n_restarts = self.n_groups = self.n_judged = 0
        slots = folder / "slots"
        slots.mkdir()
        (folder / "other").mkdir()
        settings = CONFIGS[name]
        self.model_path = model = self.model(name)
        self.reference = serve.Llama(model, folder / "other", **settings)
        self.llama = serve.Llama(model, slots, **settings)
        self.proxy = serve.Proxy(self.llama.port, slots, folder / "store",
                                 *shlex.split(options.flags))
        self.slots = slots
        self.pool = concurrent.futures.ThreadPoolExecutor(4)
        self.book = (options.source / "models/demo/alice-excerpt.txt").read_text()
        if name == "windows":
            self.system = [self.draw.randrange(1, 256) for _ in range(700)]
        else:
            self.system = "You are a careful reader. " + self.book[:2300]
        self.n_conversations = 0
        # Slots with a cache each: numbers do not depend on what other slots hold.
        self.is_same_system = "n_parallel" in settings
        self.conversations = [self.new_conversation() for _ in range(4)]
        self.last_answer = time.monotonic()
        self.seen = ""

    def model(self, name):
        if name == "hybrid":
            return self.options.source / "models/hybrid/tqcache-hybrid-19m.q8_0.gguf"
        if name != "windows":
            return serve.demo(self.options.source)
        sys.path.insert(0, str(self.options.source / "tests/interop/peers"))
        import tiny_gguf
        import tiny_models
        tiny_models.FAMILIES["gemma3"][1].update(sliding_window=64)
        path = self.folder / "gemma3.gguf"
        tiny_gguf.write(tiny_models.make("gemma3"), path)
        return path

    def new_conversation(self):
        number = self.n_conversations
        self.n_conversations += 1
        kind = "ids" if self.name == "windows" else ("chat", "text")[number // 2 % 2]
        empty = [] if self.name == "windows" else ""
        conversation = Conversation(self.draw, number, kind, self.book,
                                    self.system if number % 2 else empty,
                                    9000 if self.options.long else 2600)
        conversation.is_shared = bool(number % 2)
        conversation.is_same = "n_parallel" in CONFIGS[self.name] and \
            (self.is_same_system or not conversation.is_shared)
        return conversation

    def end(self):
        for server in (self.proxy, self.llama, self.reference):
            server.end()
        self.pool.shutdown()

    def note(self, line):
        self.log.append(line)
        if self.options.verbose:
            print(f"  {line}", flush=True)

    def new_log(self):
        """What the proxy wrote since the last call."""
        log = self.proxy.log()
        new, self.seen = log[len(self.seen):], log
        if self.options.keep_logs:
            with open(self.options.keep_logs / f"{self.name}.log", "a") as file:
                file.write(new + "".join(f"# {line}\n" for line in self.log[self.n_kept:]))
            self.n_kept = len(self.log)
        return new

    def fail(self, line):
        self.failures.append(line)
        print(f"  FAILED {self.name}: {line}\n    " +
              "\n    ".join(self.log[-6:] + self.new_log().splitlines()[-12:]), flush=True)

    def both(self, call):
        """call(port) for the proxy and the reference at the same time: (its answer, reference's).
        """
        tasks = [self.pool.submit(call, port) for port in (self.proxy.port, self.reference.port)]
        try:
            return [task.result() for task in tasks]
        finally:
            self.last_answer = time.monotonic()

    def wait_until_idle(self):
        for server in (self.llama, self.reference):
            serve.wait_for(lambda: not any(s["is_processing"] for s in
                                           json.loads(serve.get(server.port, "/slots"))),
                           "an idle llama-server", 60)

    def compare_work(self, conversation, what, ours, theirs):
        """Notes and compares the timings of a turn. Returns the line about it."""
        line = (f"{self.n_turns}: {conversation.kind} {conversation.number} turn "
                f"{conversation.n_turns}{what}: {ours['cache_n']} reused, {ours['prompt_n']} "
                f"computed; reference {theirs['cache_n']} reused, {theirs['prompt_n']} computed")
        self.note(line)
        self.computed[0] += ours["prompt_n"]
        self.computed[1] += theirs["prompt_n"]
        if ours["cache_n"] + ours["prompt_n"] != theirs["cache_n"] + theirs["prompt_n"]:
            self.fail(f"another number of tokens in the prompt at {line}")
        slack = SLACK
        is_in_group = "at once" in what
        if self.name in ("windows", "hybrid"):
            if is_in_group or conversation.was_in_group:
                slack += ANSWER
            if theirs["cache_n"] <= BLOCK:
                slack += theirs["cache_n"]
        conversation.was_in_group = is_in_group
        slack += conversation.n_lost
        conversation.n_lost = 0
        is_cleared = self.name not in ("two", "one")
        n_new = theirs["prompt_n"] + theirs["predicted_n"]
        conversation.n_unsaved = conversation.n_unsaved + n_new if is_in_group and is_cleared else 0
        if ours["prompt_n"] > theirs["prompt_n"] + slack and not conversation.was_lost:
            self.fail(f"more computed at {line}")
        if ours["cache_n"] != theirs["cache_n"]:
            # Conversations with a common system prompt may share its tokens.
            for other in self.conversations:
                if other is conversation or other.is_shared and conversation.is_shared:
                    other.is_same = False
                    self.is_same_system = self.is_same_system and not other.is_shared
        return line

    def turn(self, conversation):
        self.n_turns += 1
        conversation.ask()
        path, body = conversation.request(self.draw.randrange(4, 20))
        ahead = self.proxy.metric(AHEAD)
        answer, expected = self.both(lambda port: serve.post(port, path, body))
        # llama-server counts what the proxy lets it compute ahead of a prompt as reused.
        ahead = int(self.proxy.metric(AHEAD) - ahead)
        answer["timings"]["cache_n"] -= ahead
        answer["timings"]["prompt_n"] += ahead
        self.compare(conversation, "", (path, body), answer, expected)
        self.new_log()

    def turns_at_once(self, group):
        """A turn of each of these conversations: the proxy gets all of them at once."""
        self.n_groups += 1
        self.n_turns += len(group)
        requests = []
        for conversation in group:
            conversation.ask()
            requests.append(conversation.request(self.draw.randrange(4, 20)))
            # Slots that compute at the same time have common batches: numbers differ a little.
            conversation.is_same = False
            for other in self.conversations:
                if other.is_shared and conversation.is_shared:
                    other.is_same = self.is_same_system = False
        tasks = [self.pool.submit(serve.post, self.proxy.port, *request) for request in requests]
        expected = [serve.post(self.reference.port, *request) for request in requests]
        answers = [task.result() for task in tasks]
        self.last_answer = time.monotonic()
        for i, conversation in enumerate(group):
            self.compare(conversation, f" ({i + 1} of {len(group)} at once)", requests[i],
                         answers[i], expected[i])
        self.new_log()

    def compare(self, conversation, what, request, answer, expected):
        line = self.compare_work(conversation, what, answer["timings"], expected["timings"])
        is_same = conversation.is_same
        # With random weights noise is 0.03, and one other token of 600 changes 0.5.
        noise = SAME if is_same else 0.2 if self.name == "windows" else NOISE
        wrong, largest = difference(answer, expected, noise, self.name == "windows")
        if wrong and not is_same:
            self.note(f"{line}: {wrong}")
            wrong = self.judge(conversation, request, answer, expected, noise)
        else:
            self.largest[is_same] = max(self.largest[is_same], largest)
        if wrong:
            self.fail(f"wrong answer at {line}: {wrong}")
        conversation.sent.append(request)
        conversation.add(answer)

    def judge(self, conversation, request, answer, expected, noise):
        """Compares an answer with those of a llama-server that computes the prompt in several ways.
        Returns what is wrong, or None."""
        self.n_judged += 1
        ways = {"at once": ({}, [request]), "in batches of 64": ({"n_ubatch": 64}, [request])}
        if conversation.sent:
            ways["behind the turn before"] = ({}, [conversation.sent[-1], request])
            ways["turn by turn"] = ({}, [*conversation.sent, request])
        found = []
        for way, (settings, requests) in ways.items():
            folder = Path(tempfile.mkdtemp(prefix="judge-", dir=self.folder))
            server = serve.Llama(self.model_path, folder, **{**CONFIGS[self.name], **settings})
            try:
                for each in requests:
                    judged = serve.post(server.port, *each)
            finally:
                server.end()
            wrong, _ = difference(answer, judged, noise, self.name == "windows")
            other, _ = difference(expected, judged, noise, self.name == "windows")
            found.append(f"{way}: {wrong or 'right'}, reference: {other or 'right'}")
            if not wrong:
                self.note(f"judged: {found[-1]}")
                return None
        return "; ".join(found)

    def aborted_turn(self, conversation):
        self.n_aborted += 1
        before = conversation.prompt
        conversation.ask()
        path, body = conversation.request(400)
        n = self.draw.randrange(2, 12)
        ours, theirs = self.both(lambda port: abort(port, path, body, n))
        self.wait_until_idle()
        self.last_answer = time.monotonic()
        self.compare_work(conversation, f" (client gone after {n} pieces)", ours, theirs)
        if self.draw.random() < 0.5:
            conversation.prompt = before

    def other_request(self):
        """A request that has nothing to do with the conversations: llama-server clears slots."""
        path, body = self.draw.choice([
            ("/v1/embeddings", {"input": "a few words"}),
            ("/completion", {"prompt": "A short question", "n_predict": 2, "temperature": 0}),
            ("/completion", {"prompt": "Not to be reused", "n_predict": 2, "temperature": 0,
                             "cache_prompt": False})])
        statuses = self.both(lambda port: post_status(port, path, body))
        self.note(f"{path} {json.dumps(body)}: {statuses}")
        if statuses[0] != statuses[1]:
            self.fail(f"{path}: {statuses[0]}, expected {statuses[1]}")

    def restart(self):
        self.n_restarts += 1
        who = self.draw.choice(["proxy", "llama-server", "both"])
        how = self.draw.choice([signal.SIGTERM, signal.SIGKILL])
        # A proxy that is asked to end saves what it has; nothing else can be known to be saved.
        if how == signal.SIGKILL or who == "llama-server":
            n_busy = max(1, os.getloadavg()[0] / os.cpu_count())
            time.sleep(max(0, SECONDS_TO_SAVE * n_busy - (time.monotonic() - self.last_answer)))
        servers = {"proxy": [self.proxy], "llama-server": [self.llama],
                   "both": [self.proxy, self.llama]}[who]
        self.note(f"{how.name} of {who}")
        for server in servers:
            server.process.send_signal(how)
            code = server.process.wait(timeout=60)
            self.new_log()
            if server is self.proxy and how == signal.SIGTERM and code != 0:
                self.fail(f"exit code {code} of the proxy after SIGTERM")
        if self.proxy in servers:
            self.seen = ""
        for server in reversed(servers):
            server.start()
        if who != "proxy":
            for conversation in self.conversations:
                conversation.was_lost = conversation.was_lost or \
                    conversation.n_tokens < MIN_TOKENS + SLACK
                conversation.n_lost = conversation.n_unsaved

    def some_at_once(self):
        """A turn of two or three conversations, as many as have had one and fit into a context."""
        group, n_tokens = [], 0
        for conversation in self.draw.sample(self.conversations, self.draw.choice([2, 3])):
            n = conversation.n_tokens + MAX_TURN
            if conversation.n_turns == 0 or n > MAX_PROMPT or n_tokens + n > N_CONTEXT:
                continue
            group.append(conversation)
            n_tokens += n
        if len(group) > 1:
            self.turns_at_once(group)

    def go(self):
        while self.n_turns < self.options.turns:
            i = self.draw.randrange(4)
            if self.conversations[i].n_tokens > MAX_PROMPT - MAX_TURN:
                self.conversations[i] = self.new_conversation()
            action = self.draw.random()
            if action < 0.08:
                self.aborted_turn(self.conversations[i])
            elif action < 0.18:
                self.other_request()
            elif action < 0.18 + self.options.restarts:
                self.restart()
            elif action < 0.35 + self.options.restarts:
                self.some_at_once()
            else:
                self.turn(self.conversations[i])
        self.proxy.stop()
        left = [p.name for p in self.slots.iterdir() if not p.name.startswith(".")]
        if left:
            self.fail(f"left in the slot folder: {left}")


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tqcache", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--models", type=Path)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--long", action="store_true",
                        default=os.environ.get("TQCACHE_LONG_TESTS") is not None)
    parser.add_argument("--turns", type=int)
    parser.add_argument("--restarts", type=float, default=0.1, help="how often, of all actions")
    parser.add_argument("--config", action="append", choices=CONFIGS)
    parser.add_argument("--flags", default="", help="more flags of tqcache serve")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--keep-logs", type=Path, help="folder for a log of both sides")
    options = parser.parse_args()
    options.turns = options.turns or (1000 if options.long else 20)
    return options


def main():
    options = parse()
    try:
        import xllamacpp  # noqa: F401
    except (ImportError, OSError) as error:
        print(f"NOT RUN: xllamacpp: {error}", flush=True)
        sys.exit(serve.NOT_RUN)
    serve.OPTIONS = options
    n_failures = 0
    for name in options.config or CONFIGS:
        begin = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="tqcache-turns-"))
        try:
            run = Run(name, options, folder)
        except ImportError as error:
            print(f"{name}: NOT RUN: {error}", flush=True)
            shutil.rmtree(folder)
            continue
        try:
            run.go()
        finally:
            run.end()
            shutil.rmtree(folder)
        n_failures += len(run.failures)
        print(f"{name}: seed {options.seed}, {run.n_turns} turns, {run.n_aborted} aborted, "
              f"{run.n_groups} groups at once, {run.n_restarts} restarts: {run.computed[0]} tokens "
              f"computed, reference "
              f"{run.computed[1]}; log-probabilities differ by {run.largest[True]:.2g} at most "
              f"where the same was computed, {run.largest[False]:.2g} elsewhere, {run.n_judged} "
              f"answers were judged; "
              f"{len(run.failures)} failures; {time.monotonic() - begin:.0f} s", flush=True)
    sys.exit(1 if n_failures else 0)


if __name__ == "__main__":
    main()
