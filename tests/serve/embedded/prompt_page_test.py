"""Looks at the page of kept prompts in headless Chromium, served with its own headers.

usage: prompt_page_test.py SAMPLE_PROMPT_PAGE [FOLDER]

Keeps the screenshots in FOLDER if one is named. Exits with 77, which ctest shows as skipped, where
there is no Chromium.
"""

import html
import html.parser
import http.server
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import unittest
import zlib

SKIPPED = 77
HEAD, _, PAGE = subprocess.run([sys.argv[1]], check=True, capture_output=True).stdout.partition(
    b"\n\n")
FOLDER = sys.argv[2] if len(sys.argv) > 2 else None
BROWSERS = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
BROWSER = os.environ.get("TQCACHE_CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)

# The page runs no script and may not be in a frame. So its layout is measured in a copy without its
# headers: browsers do not make a window as narrow as a phone.
FRAME = """<!DOCTYPE html><style>body{margin:0} iframe{border:0;display:block}</style>
<iframe style="width:WIDTHpx;height:900px"></iframe><script>
const frame = document.querySelector("iframe");
frame.onload = () => {
  const page = frame.contentDocument;
  document.documentElement.dataset.result = JSON.stringify({
    width: frame.contentWindow.innerWidth,
    scroll_width: page.documentElement.scrollWidth,
    n_rows: page.querySelectorAll("tbody tr").length,
    n_loaded: frame.contentWindow.performance.getEntriesByType("resource").length,
    texts: [...page.querySelectorAll("td.text")].map((cell) => cell.textContent),
    title: page.title,
  });
};
frame.srcdoc = PAGE;
</script>"""


class Handler(http.server.BaseHTTPRequestHandler):
    asked = []

    def do_GET(self):
        Handler.asked.append(self.path)
        is_frame = self.path.startswith("/frame-")
        self.send_response(200)
        if is_frame:
            self.send_header("Content-Type", "text/html; charset=utf-8")
        else:
            for line in HEAD.decode().splitlines():
                self.send_header(*line.split(": ", 1))
        self.end_headers()
        if is_frame:
            page = json.dumps(PAGE.decode()).replace("</", "<\\/")
            frame = FRAME.replace("WIDTH", self.path.removeprefix("/frame-"))
            self.wfile.write(frame.replace("PAGE", page).encode())
        else:
            self.wfile.write(PAGE)

    def log_message(self, *_):
        pass


class Counter(html.parser.HTMLParser):
    def __init__(self):
        super().__init__()
        self.tags = []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        for name, value in attributes:
            assert not name.startswith("on") and name not in ("src", "href"), (tag, name, value)


def first_color(png):
    """The first pixel of a PNG with 8 bits a channel: it is the paper's."""
    kind, data, at = png[25], b"", 8
    while at < len(png):
        (length,) = struct.unpack(">I", png[at:at + 4])
        if png[at + 4:at + 8] == b"IDAT":
            data += png[at + 8:at + 8 + length]
        at += 12 + length
    assert kind in (2, 6)
    # Whatever the filter of the first row is, nothing is left of its first pixel or above it.
    return tuple(zlib.decompress(data)[1:4])


class PromptPage(unittest.TestCase):
    def browse(self, path, *flags, dark=False):
        command = [
            BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
            "--disable-dev-shm-usage", "--virtual-time-budget=5000", "--window-size=1000,900",
            "--force-device-scale-factor=1", f"--user-data-dir={WORK}/profile",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", *flags,
            f"http://127.0.0.1:{SERVER.server_port}{path}"]
        return subprocess.run(command, check=True, capture_output=True, timeout=120).stdout

    def measure(self, width):
        dom = self.browse(f"/frame-{width}", "--dump-dom").decode()
        found = re.search(r'data-result="([^"]*)"', dom)[1]
        return json.loads(html.unescape(found))

    def test_it_is_well_formed(self):
        counter = Counter()
        counter.feed(PAGE.decode("utf-8"))
        self.assertNotIn("script", counter.tags)
        self.assertNotIn("img", counter.tags)
        self.assertEqual(counter.tags.count("tr"), 8)
        self.assertIn(b"Content-Security-Policy: default-src 'none'", HEAD)

    def test_it_fits_a_desktop_and_a_phone(self):
        for width in (1000, 390):
            found = self.measure(width)
            self.assertEqual((found["width"], found["scroll_width"]), (width, width))
            self.assertEqual((found["n_rows"], found["n_loaded"]), (6, 0))
            self.assertEqual(found["title"], "tqcache: kept prompts")
            self.assertEqual(found["texts"][0], "</style><script>document.title='owned'</script>")
            self.assertIn("&lt;b&gt;", found["texts"][2])

    def test_its_own_headers_allow_its_style_and_nothing_else(self):
        Handler.asked.clear()
        for dark, paper in ((False, (255, 255, 255)), (True, (0x17, 0x16, 0x1C))):
            path = os.path.join(FOLDER or WORK, f"prompts-{'dark' if dark else 'light'}.png")
            self.browse("/", "--screenshot=" + path, dark=dark)
            with open(path, "rb") as file:
                # Only the style sheet, which the policy names by its hash, makes it dark.
                self.assertEqual(first_color(file.read()), paper)
        self.assertEqual(set(Handler.asked) - {"/favicon.ico"}, {"/"})


if __name__ == "__main__":
    if BROWSER is None:
        print("NOT RUN: no Chromium: apt-get install chromium-headless-shell")
        sys.exit(SKIPPED)
    SERVER = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=SERVER.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as WORK:
        unittest.main(argv=sys.argv[:1])
