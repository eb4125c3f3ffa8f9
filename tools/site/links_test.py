# SPDX-License-Identifier: Apache-2.0
"""Links of built pages."""

import pathlib
import tempfile
import unittest

import links


class LinksTest(unittest.TestCase):
    def messages(self, body):
        with tempfile.TemporaryDirectory() as folder:
            page = pathlib.Path(folder) / "docs" / "page.html"
            page.parent.mkdir()
            page.write_text('<h1 id="top">Title</h1>\n' + body)
            (page.parent / "other.html").write_text('<a name="old"></a><p id="long-waits">')
            (page.parent.parent / "site.css").write_text("")
            return links.wrong_links(folder)

    def test_right_links(self):
        body = (
            '<a href="#top">a</a><a href="#">b</a><a href="other.html#long-waits">c</a>'
            '<a href="other.html#old">d</a><link href="../site.css?v=1">'
            '<a href="https://example.org/a#b">e</a><a href="mailto:a@example.org">f</a>'
        )
        self.assertEqual(self.messages(body), (7, []))

    def test_wrong_links(self):
        for target, message in [
            ("#bottom", "leads to no anchor"),
            ("other.html#top", "leads to no anchor"),
            ("gone.html", "leads to no file"),
            ("../docs", "leads to no file"),
            ("https://example", "is no address"),
            ("https:/example.org", "is no address"),
            ("tree:mesh/mesh.h", "is no address"),
        ]:
            expected = [f'docs/page.html:2: "{target}" {message}']
            self.assertEqual(self.messages(f'<a href="{target}">x</a>'), (1, expected))


if __name__ == "__main__":
    unittest.main()
