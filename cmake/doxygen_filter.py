"""Turns the comments of the public headers into comments of Doxygen, on standard output.

usage: doxygen_filter.py HEADER

    // above a declaration      becomes ///
    // behind a member          becomes ///<
    // Errors: and its like     becomes a paragraph with that title
    //   indented lines         (examples, tables) keep their shape

The first comment of a file describes the file.
"""
import re
import sys

LABEL = re.compile(
    r"(Shapes|Units|Requires|Errors|Threads|Bytes|Memory|Progress|Source|Spec|Value|Durable)"
    r":(\s+|$)")


def escape(text):
    return re.sub(r'([\\@&$#<>%"|])', r"\\\1", text)


def comment(indent, lines):
    """The lines of one comment, without their slashes."""
    shaped, in_verbatim, after_blank = [], False, True
    for text in lines:
        is_shaped = text.startswith("  ") and (after_blank or in_verbatim)
        if is_shaped != in_verbatim and (is_shaped or text):
            shaped.append("\\verbatim" if is_shaped else "\\endverbatim")
            in_verbatim = is_shaped
        label = LABEL.match(text)
        if in_verbatim:
            shaped.append(text)
        elif label:
            shaped += [f"\\par {label[1]}", escape(text[label.end():])]
        else:
            shaped.append(escape(text.strip()))
        after_blank = not text or text.endswith(":")
    if in_verbatim:
        shaped.append("\\endverbatim")
    return [f"{indent}/// {line}".rstrip() for line in shaped]


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = file.read().split("\n")
    out, block, is_first = [], [], True
    for line in lines:
        found = re.match(r"(\s*)//(?: (.*))?$", line)
        if found:
            block.append((found[1], found[2] or ""))
            continue
        if block:
            texts = [text for _, text in block]
            if is_first:
                texts[0] = re.sub(r"^[\w/]+\.h: ", "", texts[0])
                out.append("/// \\file")
            out += comment(block[0][0], texts)
            if not line and not is_first:  # a comment of its own, not of what follows
                del out[-len(comment(block[0][0], texts)):]
            block, is_first = [], False
        behind = re.match(r"(.*[;,{})\]])(\s+)// (.*)$", line)
        out.append(f"{behind[1]}{behind[2]}///< {escape(behind[3])}" if behind else line)
    print("\n".join(out))


if __name__ == "__main__":
    main()
