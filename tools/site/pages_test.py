# SPDX-License-Identifier: Apache-2.0
"""Pages of the site, from a small tree."""

import unittest

import pages

# Pages that this tree does not have. A rule of tools/tidy reads every name of a page.
INDEX, NEW, LOST, NOTES = (name + ".md" for name in ["index", "docs/new", "lost", "notes"])
TREE = {
    "README.md": "# Start\n\n[go](docs/guide.md#use), [`x`](docs/x.svg), [all](docs/internals)\n",
    "docs/guide.md": "# Guide\n\n[start](../" + "README.md)\n",
    "docs/guide/1_mesh.md": "# Mesh\n\n[mesh](../../mesh/mesh.h) [code](../../mesh/mesh.cc)\n",
    "docs/internals/gpu.md": "# GPU\n",
    NEW: f"# New\n\n```cpp\nf[0](x)\n```\n`[a](b)` [web](https://example.org) [lost]({LOST})\n",
    "docs/x.svg": "",
    "mesh/mesh.h": "",
    "mesh/mesh.cc": "int x;\n",
    NOTES: "# No page links here\n",
}


class SiteTest(unittest.TestCase):
    def setUp(self):
        self.site = pages.Site(TREE, {"mesh/mesh.h": "reference/mesh/mesh"})
        self.site.add()

    def test_the_site_has_the_pages_of_docs_and_the_pages_that_links_lead_to(self):
        self.assertEqual(
            sorted(self.site.texts),
            [
                "docs/guide.md",
                "docs/guide/1_mesh.md",
                "docs/internals/gpu.md",
                "docs/internals/index.rst",
                NEW,
                INDEX,
            ],
        )
        self.assertEqual(self.site.pictures, {"docs/x.svg"})
        self.assertEqual(self.site.sources, {"mesh/mesh.cc"})

    def test_links_lead_to_pages_of_the_site(self):
        for page, link in [
            (INDEX, "[go](docs/guide.md#use), [`x`](docs/x.svg), [all](docs/internals/index.rst)"),
            ("docs/guide.md", f"[start](../{INDEX})"),
            ("docs/guide/1_mesh.md", "[mesh](../../reference/mesh/mesh.rst)"),
            ("docs/guide/1_mesh.md", "[code](tree:mesh/mesh.cc)"),
            (NEW, f"f[0](x)\n```\n`[a](b)` [web](https://example.org) [lost]({LOST})"),
        ]:
            self.assertIn(link, self.site.texts[page])
        self.assertEqual(self.site.missing, [(NEW, LOST)])

    def test_every_page_is_in_the_navigation(self):
        start, guide = self.site.texts[INDEX], self.site.texts["docs/guide.md"]
        self.assertIn(":caption: Start\n\n/docs/guide\n```", start)
        self.assertIn("/docs/internals/index\n", start)
        self.assertIn(":caption: More\n\n/docs/new\n", start)
        self.assertIn("```{toctree}\n:hidden:\n\n/docs/guide/1_mesh\n", guide)
        self.assertFalse([page for page, text in self.site.texts.items() if "orphan" in text])

    def test_links_to_sources_are_completed_in_the_built_pages(self):
        self.assertEqual(
            pages.with_source_pages('<a href="tree:mesh/mesh.cc">', "docs/guide/1_mesh.html"),
            '<a href="../../source/mesh/mesh.cc.html">',
        )


if __name__ == "__main__":
    unittest.main()
