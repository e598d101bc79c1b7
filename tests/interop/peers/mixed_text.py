"""Lines of mixed text: words, code, digits, white space, emoji, scripts, marks, control characters.

The same lines everywhere: of Unicode's characters only those that were there in version 3.2, and the
emoji, are taken, so that nobody's version of Unicode matters.
"""

import random
import unicodedata

WORDS = """the of Alice said Queen rabbit down I'll they're don't it's we've cannot Привет мир こんにちは
世界 你好 안녕하세요 สวัสดี مرحبا שלום नमस्ते ελληνικά naïve café Ångström ﬁne İstanbul straße ǅ ª º x86_64 3.14159
1,000,000 2026-11-22 0xDEADBEEF 1e-9 ½ Ⅷ ² ١٢٣ v1.2.3 foo.bar() a+b==c https://example.org/?q=1&r=%20
user@example.org #include <vector> def f(x): return{"k":[1,2]} /* c */ // x -- ;; ... — “quoted” «»""".split()
EMOJI = ["\U0001F600", "\U0001F469\u200d\U0001F4BB", "\u2764\ufe0f", "\U0001F1E9\U0001F1EA",
         "\U0001F44D\U0001F3FD", "\u263a", "\U0001F9D1\u200d\U0001F680"]
SPACES = [" ", "  ", "   ", "\t", "\t\t", "\n", "\n\n", "\n\n\n", "\r\n", "\r", "\u00a0", "\u3000",
          "\u2003", "\u0085", "\u2028", " \t ", "        ", "\u200b", "\x0b", "\x0c"]
MARKS = ["\u0301", "\u0300\u0323", "\u20dd", "\u0591", "\u093c", "\u0e38", "\u1ab0", "\u0345"]
CONTROLS = ["\x00", "\x01", "\x1b[31m", "\x7f", "\x9f", "\ufeff", "\ufffd", "\ue000", "\u2581",
            "\u2581\u2581", "\u202e", "\U000e0041", "\uffff"]
NAMES = ["<s>", "</s>", "<unk>", "<|im_start|>", "<|im_end|>", "<think>", "[INST]", "[/INST]",
         "<start_of_turn>", "<end_of_turn>", "<|eot_id|>", "<|user|>", "<|end|>", "<table>",
         "<|endoftext|>", "<bos>", "<|begin_of_text|>", "<pad>"]
CODE = ["    for (int i = 0; i < n; ++i) {", "\t\treturn self.x[i] ** 2", "if(a&&b||!c){}", "}", "*p++;",
        "lambda x:x+1", "SELECT * FROM t WHERE id='a''b';", "<a href=\"#\">", "0b1010 0o17 1_000"]

_ASSIGNED = [chr(c) for c in range(0x110000)
             if unicodedata.ucd_3_2_0.category(chr(c)) not in ("Cn", "Cs", "Co")]


def _piece(random_):
    kind = random_.random()
    if kind < 0.45:
        return random_.choice(WORDS)
    if kind < 0.55:
        return random_.choice(CODE)
    if kind < 0.63:
        return "".join(random_.choice("0123456789") for _ in range(random_.randint(1, 9)))
    if kind < 0.70:
        return random_.choice(EMOJI) * random_.randint(1, 3)
    if kind < 0.78:
        return random_.choice(SPACES) * random_.randint(1, 4)
    if kind < 0.83:
        return random_.choice("aoé क") + random_.choice(MARKS) * random_.randint(1, 2)
    if kind < 0.87:
        return random_.choice(CONTROLS)
    if kind < 0.91:
        return random_.choice(NAMES)
    return "".join(random_.choice(_ASSIGNED) for _ in range(random_.randint(1, 4)))


def lines(count, text, seed=20261122):
    """Every fifth a line of `text`, as it stands."""
    random_ = random.Random(seed)
    plain = [line for line in text.splitlines() if line]
    mixed = []
    for i in range(count):
        if i % 5 == 0:
            mixed.append(plain[i // 5 % len(plain)])
            continue
        pieces = [_piece(random_) for _ in range(random_.randint(1, 12))]
        mixed.append("".join(piece + random_.choice(["", " ", " ", "  "]) for piece in pieces))
    return mixed
