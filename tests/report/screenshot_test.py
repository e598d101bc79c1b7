"""Looks at the sample page in headless Chromium: in light, in dark, as wide as a phone, and its tables
on a laptop.

usage: screenshot_test.py SAMPLE_PAGE [FOLDER]

Keeps the screenshots in FOLDER if one is named. Exits with 77, which ctest shows as skipped, where
there is no Chromium.
"""

import html
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

SKIPPED = 77
PROGRAM = sys.argv[1]
FOLDER = sys.argv[2] if len(sys.argv) > 2 else None
BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
DESKTOP = 1000
PHONE = 390
LAPTOP = 1100
HEIGHT = 900

# The page runs no script, and browsers do not make a window as narrow as a phone. So it is shown in
# a frame, whose window measures it.
FRAME = """<!DOCTYPE html>
<style>body{margin:0} iframe{border:0;display:block}</style>
<iframe style="width:WIDTHpx;height:HEIGHTpx"></iframe>
<script>
const frame = document.querySelector("iframe");
const boxes = (svg) => [...svg.querySelectorAll("text")].map((text) => text.getBoundingClientRect());
const touch = (a, b) =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
  Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 3;
frame.onload = () => {
  const page = frame.contentDocument;
  const shown = [...page.querySelectorAll(".picture>svg")].filter(
    (svg) => svg.getBoundingClientRect().width > 0);
  const result = {
    width: frame.contentWindow.innerWidth,
    scroll_width: page.documentElement.scrollWidth,
    n_pictures: shown.length,
    n_loaded: frame.contentWindow.performance.getEntriesByType("resource").length,
    n_touching: 0,
    n_outside: 0,
    n_cut: [...page.querySelectorAll(".scroll")].filter(
      (table) => table.scrollWidth > table.clientWidth).length,
  };
  for (const svg of shown) {
    const all = boxes(svg), edge = svg.getBoundingClientRect();
    all.forEach((a, i) => {
      result.n_outside += a.left < edge.left - 1 || a.right > edge.right + 1;
      for (const b of all.slice(0, i)) result.n_touching += touch(a, b);
    });
  }
  document.documentElement.dataset.result = JSON.stringify(result);
};
frame.srcdoc = PAGE;
</script>
"""


def find_browser():
    named = os.environ.get("TQCACHE_CHROMIUM")
    return named or next(filter(None, map(shutil.which, BROWSERS)), None)


class Browser:
    def __init__(self, page, width, dark):
        self.path = os.path.join(WORK, "frame.html")
        frame = FRAME.replace("WIDTH", str(width)).replace("HEIGHT", str(HEIGHT))
        with open(self.path, "w", encoding="utf-8") as file:
            file.write(frame.replace("PAGE", json.dumps(page).replace("</", "<\\/")))
        self.size = f"{width},{HEIGHT}"
        self.scheme = 0 if dark else 1

    def run(self, *flags):
        command = [
            find_browser(), "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--virtual-time-budget=5000",
            "--force-device-scale-factor=1", f"--window-size={self.size}",
            f"--blink-settings=preferredColorScheme={self.scheme}",
            f"--user-data-dir={WORK}/profile", *flags, "file://" + self.path,
        ]
        return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout

    def measure(self):
        dom = self.run("--dump-dom").decode("utf-8")
        return json.loads(html.unescape(re.search(r'data-result="([^"]*)"', dom)[1]))

    def screenshot(self, name):
        path = os.path.join(FOLDER or WORK, name + ".png")
        self.run("--screenshot=" + path)
        with open(path, "rb") as file:
            return Picture(file.read())


def paeth(left, above, corner):
    estimate = left + above - corner
    return min((left, above, corner), key=lambda value: abs(estimate - value))


class Picture:
    """A PNG file of 8 bits a channel: PNG specification 1.2, chapters 6 and 9."""

    def __init__(self, data):
        self.width, self.height, depth, kind = struct.unpack(">IIBB", data[16:26])
        assert depth == 8 and kind in (2, 6)
        self.n_channels = 3 if kind == 2 else 4
        self.rows = self.unfiltered(zlib.decompress(self.compressed(data)))

    @staticmethod
    def compressed(data):
        parts, at = [], 8
        while at < len(data):
            (length,) = struct.unpack(">I", data[at : at + 4])
            if data[at + 4 : at + 8] == b"IDAT":
                parts.append(data[at + 8 : at + 8 + length])
            at += 12 + length
        return b"".join(parts)

    def unfiltered(self, data):
        stride, step = self.width * self.n_channels, self.n_channels
        above, rows = bytes(stride), []
        for start in range(0, self.height * (stride + 1), stride + 1):
            above = self.row(data[start], bytearray(data[start + 1 : start + 1 + stride]), above, step)
            rows.append(bytes(above))
        return rows

    @staticmethod
    def row(kind, row, above, step):
        for i in range(len(row) if kind else 0):
            left = row[i - step] if i >= step else 0
            corner = above[i - step] if i >= step else 0
            guess = (0, left, above[i], (left + above[i]) // 2, 0)[kind]
            row[i] = (row[i] + (paeth(left, above[i], corner) if kind == 4 else guess)) & 255
        return row

    def colors(self):
        """How often each color is there, of every second pixel."""
        counts = {}
        for row in self.rows[::2]:
            for i in range(0, len(row), 2 * self.n_channels):
                color = row[i : i + 3]
                counts[color] = counts.get(color, 0) + 1
        return counts


def paper(picture):
    colors = picture.colors()
    return max(colors, key=colors.get)


PAGE = subprocess.run([PROGRAM], check=True, capture_output=True).stdout.decode("utf-8")
# A figure with everything in the first screen, instead of facts and tables.
SECTIONS = re.findall(r"<section .*?</section>", PAGE, re.S)
FIGURES = re.sub(r"<main>.*</main>", lambda _: f"<main>{SECTIONS[4]}{SECTIONS[6]}{SECTIONS[1]}</main>",
                 PAGE, flags=re.S)


class Screenshots(unittest.TestCase):
    def check_layout(self, width):
        found = Browser(PAGE, width, dark=False).measure()
        self.assertEqual(found["width"], width)
        self.assertEqual(found["scroll_width"], width, "something is wider than the window")
        self.assertEqual(found["n_pictures"], 6)
        self.assertEqual(found["n_loaded"], 0)
        self.assertEqual(found["n_outside"], 0)
        self.assertEqual(found["n_touching"], 0)

    def check_picture(self, page, name, width, dark):
        picture = Browser(page, width, dark).screenshot(name)
        self.assertEqual((picture.width, picture.height), (width, HEIGHT))
        colors = picture.colors()
        n_pixels = sum(colors.values())
        self.assertGreater(len(colors), 40, "blank")
        self.assertLess(max(colors.values()), 0.99 * n_pixels, "nearly blank")
        return picture

    def test_nothing_is_wider_than_a_desktop(self):
        self.check_layout(DESKTOP)

    def test_nothing_is_wider_than_a_phone(self):
        self.check_layout(PHONE)

    def test_a_table_of_eleven_columns_fits_a_laptop(self):
        """As that of eval kld, with the longest names of configurations that advise tries."""
        names = ["configuration", "bits per value", "quantized", "mean", "+-", "median", "p99", "max",
                 "top-1 %", "+-", "perplexity"]
        row = ["0.625", "0.625", "0.24438", "0.00534", "0.17871", "1.2409", "13.052", "68.51", "1.03",
               "144.3964"]
        table = ("<section><div class=scroll><table><thead><tr>"
                 + "".join(f"<th class={'n' if i else 'c'}>{name}" for i, name in enumerate(names))
                 + "</thead><tbody><tr><th>k=mse:3,v=mse:4 (advised)"
                 + "".join(f"<td class=n>{number}" for number in row)
                 + "</tbody></table></div></section>")
        page = re.sub(r"<main>.*</main>", lambda _: f"<main>{table}</main>", PAGE, flags=re.S)
        found = Browser(page, LAPTOP, dark=False).measure()
        self.assertEqual((found["scroll_width"], found["n_cut"]), (LAPTOP, 0))
        found = Browser(page, PHONE, dark=False).measure()
        self.assertEqual((found["scroll_width"], found["n_cut"]), (PHONE, 1))

    def test_the_page_has_a_light_and_a_dark_face(self):
        light = self.check_picture(PAGE, "light", DESKTOP, dark=False)
        dark = self.check_picture(PAGE, "dark", DESKTOP, dark=True)
        self.assertGreater(min(paper(light)), 240)
        self.assertLess(max(paper(dark)), 40)

    def test_figures_are_drawn_on_a_desktop_and_a_phone(self):
        wide = self.check_picture(FIGURES, "figures", DESKTOP, dark=False)
        phone = self.check_picture(FIGURES, "figures-phone", PHONE, dark=True)
        for picture, codes in ((wide, (0x8A, 0x3C, 0x93)), (phone, (0xD7, 0x9B, 0xE0))):
            # The bars' part "codes" is the fourth, and nothing else has its color.
            self.assertGreater(picture.colors().get(bytes(codes), 0), 200)


if __name__ == "__main__":
    if not find_browser():
        print("NOT RUN: no Chromium: apt-get install chromium-headless-shell")
        sys.exit(SKIPPED)
    with tempfile.TemporaryDirectory() as WORK:
        unittest.main(argv=sys.argv[:1])
