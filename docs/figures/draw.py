"""Draws the figures of the documents from the numbers in quality.json.

usage: draw.py           writes the pictures beside this file
       draw.py --check   fails if a picture is not the one that the numbers give

A figure has panels, a panel has series of points [bits per value, divergence]. A series has the
same mark and color in all panels, and stands in the legend once.
"""
import json
import math
import sys
from pathlib import Path
from xml.sax.saxutils import escape

HERE = Path(__file__).resolve().parent
WIDTH, PANEL_HEIGHT, TITLE_HEIGHT = 880, 300, 34
LEFT, RIGHT, TOP, BOTTOM = 62, 16, 30, 44  # of the axes in a panel
LINE_HEIGHT = 21

# Colors for light and dark pages. Series differ by mark, too.
COLORS = [("#1f5fa8", "#7db4f0"), ("#b3470f", "#f0a070"), ("#2b7a3d", "#7fce92"),
          ("#8a2f86", "#dd94da"), ("#7a6a00", "#d6c450"), ("#00707a", "#66cbd4"),
          ("#a02040", "#f08aa4"), ("#505860", "#b4bcc6")]


def number(value):
    return f"{value:.2f}".rstrip("0").rstrip(".")


def mark(index, x, y):
    """An outline of about 8 pixels."""
    polygons = {1: [(-4, -4), (4, -4), (4, 4), (-4, 4)],
                2: [(0, -5), (4.8, 4), (-4.8, 4)],
                3: [(0, -5.4), (5.4, 0), (0, 5.4), (-5.4, 0)],
                4: [(0, 5), (4.8, -4), (-4.8, -4)],
                5: [(-1.6, -5), (1.6, -5), (1.6, -1.6), (5, -1.6), (5, 1.6), (1.6, 1.6),
                    (1.6, 5), (-1.6, 5), (-1.6, 1.6), (-5, 1.6), (-5, -1.6), (-1.6, -1.6)],
                6: [(-5, -3), (5, -3), (5, 3), (-5, 3)],
                7: [(-3, -5), (3, -5), (3, 5), (-3, 5)]}
    css = f's{index % len(COLORS)}'
    if index % 8 == 0:
        return f'<circle class="{css}" cx="{number(x)}" cy="{number(y)}" r="4.4"/>'
    points = " ".join(f"{number(x + a)},{number(y + b)}" for a, b in polygons[index % 8])
    return f'<polygon class="{css}" points="{points}"/>'


def text(x, y, words, css="", turned=False):
    turn = f' transform="rotate(-90 {number(x)} {number(y)})"' if turned else ""
    css = f' class="{css}"' if css else ""
    return f'<text x="{number(x)}" y="{number(y)}"{css}{turn}>{escape(words)}</text>'


def log_ticks(low, high):
    steps = [m * 10.0 ** e for e in range(-6, 3) for m in (1, 2, 5)]
    return [t for t in steps if low <= t * 1.0001 and t <= high * 1.0001]


def linear_ticks(low, high):
    step = next(s for s in (.25, .5, 1, 2, 5) if (high - low) / s <= 8)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, int(math.floor(high / step + 1e-9)) + 1)]


def draw_panel(panel, names, left, top, width):
    out = []
    points = [p for s in panel["series"] for p in s["points"]]
    x0, x1 = min(p[0] for p in points), max(p[0] for p in points)
    y0, y1 = min(p[1] for p in points), max(p[1] for p in points)
    pad = (x1 - x0) * .05
    x0, x1, y0, y1 = max(0, x0 - pad), x1 + pad, y0 / 1.25, y1 * 1.25
    a, b = left + LEFT, left + width - RIGHT
    c, d = top + TOP, top + PANEL_HEIGHT - BOTTOM

    def place(point):
        return (a + (point[0] - x0) / (x1 - x0) * (b - a),
                d - math.log(point[1] / y0) / math.log(y1 / y0) * (d - c))

    out.append(text(a, top + 18, panel["title"], "bold"))
    for tick in linear_ticks(x0, x1):
        x = place((tick, y0))[0]
        out.append(f'<path class="grid" d="M{number(x)} {number(c)}V{number(d)}"/>')
        out.append(text(x, d + 16, f"{tick:g}", "mid"))
    for tick in log_ticks(y0, y1):
        y = place((x0, tick))[1]
        out.append(f'<path class="grid" d="M{number(a)} {number(y)}H{number(b)}"/>')
        out.append(text(a - 6, y + 4, f"{tick:g}".lstrip("0"), "end"))
    out.append(f'<path class="axis" d="M{number(a)} {number(c)}V{number(d)}H{number(b)}"/>')
    out.append(text((a + b) / 2, d + 34, "bits per value", "mid"))
    out.append(text(left + 12, (c + d) / 2, "mean KLD (log scale)", "mid", turned=True))
    for series in panel["series"]:
        index = names.index(series["name"])
        places = [place(p) for p in sorted(series["points"])]
        if len(places) > 1:
            line = "L".join(f"{number(x)} {number(y)}" for x, y in places)
            out.append(f'<path class="line l{index % len(COLORS)}" d="M{line}"/>')
        for point, (x, y) in zip(sorted(series["points"]), places):
            tip = escape(f'{series["name"]}: {point[0]:g} bits, {point[1]:g}')
            out.append(f"<g><title>{tip}</title>{mark(index, x, y)}</g>")
    return out


def draw(figure):
    names = list(dict.fromkeys(s["name"] for p in figure["panels"] for s in p["series"]))
    columns = figure["columns"]
    width = WIDTH / columns
    # The legend takes the free cell behind the last panel, or a row of its own.
    free = len(figure["panels"]) % columns != 0
    rows = -(-len(figure["panels"]) // columns)
    legend_height = 0 if free else LINE_HEIGHT * -(-len(names) // 3) + 14
    height = TITLE_HEIGHT + rows * PANEL_HEIGHT + legend_height
    css = ["text{font:12px sans-serif;fill:#1c2126}.mid{text-anchor:middle}.end{text-anchor:end}",
           ".bold{font-weight:bold}.head{font-size:15px;font-weight:bold}.page{fill:#fff}",
           ".grid{stroke:#dfe3e8;fill:none}.axis{stroke:#6a737d;fill:none}",
           ".line{fill:none;stroke-width:1.6}"]
    css += [f".s{i}{{fill:{c[0]}}}.l{i}{{stroke:{c[0]}}}" for i, c in enumerate(COLORS)]
    dark = ["text{fill:#e4e8ec}.page{fill:#14181d}.grid{stroke:#333a42}.axis{stroke:#8b949e}"]
    dark += [f".s{i}{{fill:{c[1]}}}.l{i}{{stroke:{c[1]}}}" for i, c in enumerate(COLORS)]
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
           f'width="{WIDTH}" height="{height}" role="img">',
           f'<title>{escape(figure["title"])}</title>',
           f'<desc>{escape(figure["description"])}</desc>',
           "<style>", *css, "@media(prefers-color-scheme:dark){", *dark, "}", "</style>",
           f'<rect class="page" width="{WIDTH}" height="{height}"/>',
           text(12, 22, figure["title"], "head")]
    for i, panel in enumerate(figure["panels"]):
        out += draw_panel(panel, names, (i % columns) * width,
                          TITLE_HEIGHT + (i // columns) * PANEL_HEIGHT, width)
    for i, name in enumerate(names):
        if free:
            x = len(figure["panels"]) % columns * width + LEFT
            y = TITLE_HEIGHT + (rows - 1) * PANEL_HEIGHT + TOP + 8 + i * LINE_HEIGHT
        else:
            x = LEFT + i % 3 * (WIDTH - LEFT) / 3
            y = TITLE_HEIGHT + rows * PANEL_HEIGHT + 6 + i // 3 * LINE_HEIGHT
        out += [mark(i, x, y), text(x + 14, y + 4, name)]
    return "\n".join(out + ["</svg>", ""])


def main():
    figures = json.loads((HERE / "quality.json").read_text(encoding="utf-8"))
    bad = []
    for figure in figures:
        path, picture = HERE / figure["file"], draw(figure)
        if sys.argv[1:] == ["--check"]:
            if not path.exists() or path.read_text(encoding="utf-8") != picture:
                bad.append(f"{path.name}: not what quality.json gives; run docs/figures/draw.py")
        else:
            path.write_text(picture, encoding="utf-8")
    if bad:
        sys.exit("\n".join(bad))


if __name__ == "__main__":
    main()
