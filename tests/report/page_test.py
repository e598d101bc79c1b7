"""The pages of tools/report/html_page.h, as other parsers read them.

usage: page_test.py SAMPLE_PAGE
"""

import functools
import math
import re
import subprocess
import sys
import unittest
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

PROGRAM = sys.argv.pop() if len(sys.argv) > 1 else ""
PAGES = ["sample", "numbers"] + [f"texts-{i}" for i in range(9)]
VOID = {"meta"}
# All that a page may be made of. None of these loads or runs anything.
ELEMENTS = set(
    "html head meta title style body main header nav section h1 h2 p a span ol ul li dl dt dd div"
    " table thead tbody tr th td details summary"
    " svg desc g line rect path text clipPath pattern".split()
)
ATTRIBUTES = set(
    "lang charset name content http-equiv id class href role tabindex scope style"
    " aria-label aria-labelledby aria-hidden"
    " viewBox width height x y x1 y1 x2 y2 d fill clip-path patternUnits patternTransform".split()
)
LENGTHS = {"viewBox", "width", "height", "x", "y", "x1", "y1", "x2", "y2"}


@functools.cache
def page(name):
    return subprocess.run([PROGRAM, name], check=True, capture_output=True).stdout.decode("utf-8")


class Nesting(HTMLParser):
    """What a browser's tokens close, and in which order."""

    def __init__(self):
        super().__init__()
        self.open = []
        self.wrong = []

    def handle_starttag(self, tag, attrs):
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        # In HTML a slash closes void elements, and those of SVG.
        if tag not in VOID and "svg" not in self.open:
            self.wrong.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.wrong.append(tag)


class Page(unittest.TestCase):
    def trees(self):
        return [ElementTree.fromstring(page(name)) for name in PAGES]

    def test_is_html_with_every_element_closed(self):
        for name in PAGES:
            parser = Nesting()
            parser.feed(page(name))
            self.assertEqual((parser.open, parser.wrong), ([], []), name)

    def test_is_xml_of_known_elements_and_attributes(self):
        for tree in self.trees():
            for element in tree.iter():
                self.assertIn(element.tag, ELEMENTS)
                self.assertLessEqual(set(element.keys()), ATTRIBUTES)

    def test_links_stay_on_the_page(self):
        for tree in self.trees():
            ids = [element.get("id") for element in tree.iter() if element.get("id")]
            self.assertEqual(len(ids), len(set(ids)))
            for element in tree.iter():
                for name in ("fill", "clip-path"):
                    if element.get(name):
                        self.assertIn(re.fullmatch(r"url\(#(.*)\)", element.get(name))[1], ids)
                if element.get("href"):
                    self.assertIn(re.fullmatch("#(.*)", element.get("href"))[1], ids)
                for name in (element.get("aria-labelledby") or "").split():
                    self.assertIn(name, ids)

    def test_pictures_have_finite_lengths_and_stay_within_their_box(self):
        for tree in self.trees():
            for svg in tree.iter("svg"):
                width, height = map(float, svg.get("viewBox").split()[2:])
                self.assertTrue(0 < width < 10000 and 0 < height < 100000)
                for element in svg.iter():
                    for name in LENGTHS & set(element.keys()):
                        for number in element.get(name).split():
                            self.assertTrue(math.isfinite(float(number)))
                    if element.tag == "text":
                        self.assertTrue(0 <= float(element.get("x")) <= width)
                        self.assertTrue(0 <= float(element.get("y")) <= height)

    def test_paths_have_finite_lengths(self):
        for tree in self.trees():
            for path in tree.iter("path"):
                numbers = re.split(r"[MLaz ]+", path.get("d").strip("MLaz "))
                self.assertTrue(all(math.isfinite(float(number)) for number in numbers))

    def test_pictures_have_a_title_and_a_description(self):
        for tree in self.trees():
            for svg in tree.iter("svg"):
                if svg.get("aria-hidden") == "true":
                    continue
                self.assertEqual(svg.get("role"), "img")
                self.assertEqual([child.tag for child in svg[:2]], ["title", "desc"])
                self.assertTrue(svg[1].text)

    def test_tables_have_rows_as_long_as_their_heading(self):
        for tree in self.trees():
            for table in tree.iter("table"):
                rows = [len(row) for row in table.iter("tr")]
                self.assertEqual(len(set(rows)), 1)


if __name__ == "__main__":
    unittest.main()
