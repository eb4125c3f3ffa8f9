# SPDX-License-Identifier: Apache-2.0
"""Checks the links of built pages: files and anchors inside the site, the form of all others."""

import html.parser
import os
import pathlib
import re
import urllib.parse


class _Page(html.parser.HTMLParser):
    """The links and the anchors of one page."""

    def __init__(self):
        super().__init__()
        self.links = []  # (line, target)
        self.anchors = set()

    def handle_starttag(self, tag, attrs):
        for name, value in attrs:
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src") and value is not None:
                self.links.append((self.getpos()[0], value))


def _is_well_formed(target):
    """Whether a link that leaves the site has the form of one."""
    parts = urllib.parse.urlsplit(target)
    if parts.scheme in ("http", "https"):
        return re.fullmatch(r"[\w.-]+\.\w+(:\d+)?", parts.netloc) and not re.search(r"\s", target)
    return parts.scheme in ("mailto", "data")


def wrong_links(folder):
    """(number of links, messages about wrong ones) of all pages of a folder."""
    folder = pathlib.Path(folder)
    pages = {}
    for path in sorted(folder.rglob("*.html")):
        pages[path] = page = _Page()
        page.feed(path.read_text())
    count, wrong = 0, []
    for path, page in pages.items():
        for line, target in page.links:
            count += 1
            where = f"{path.relative_to(folder)}:{line}: "
            if re.match(r"[\w+.-]+:", target) or target.startswith("//"):
                if not _is_well_formed(target):
                    wrong.append(f'{where}"{target}" is no address')
                continue
            parts = urllib.parse.urlsplit(target)
            name = urllib.parse.unquote(parts.path)
            aim = pathlib.Path(os.path.normpath(path.parent / name)) if name else path
            if not aim.is_file():
                wrong.append(f'{where}"{target}" leads to no file')
            elif parts.fragment and aim in pages:
                if urllib.parse.unquote(parts.fragment) not in pages[aim].anchors:
                    wrong.append(f'{where}"{target}" leads to no anchor')
    return count, wrong
