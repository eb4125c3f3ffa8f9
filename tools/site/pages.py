# SPDX-License-Identifier: Apache-2.0
"""Makes the pages of the site from those of the tree: links lead to other pages of the site."""

import os
import re

# The pages in the order of the navigation. The site has every other page of docs/ too.
PARTS = {
    "Start": [
        "docs/install.md",
        "docs/guide.md",
        "docs/recipes.md",
        "docs/coming_from.md",
        "examples/README.md",
    ],
    "Run": [
        "docs/launching.md",
        "docs/clusters.md",
        "docs/environment.md",
        "docs/gpu.md",
        "docs/tuning.md",
        "docs/checkpoint_tool.md",
    ],
    "Subjects": [
        "docs/layouts.md",
        "docs/relayout.md",
        "docs/groups.md",
        "docs/order.md",
        "docs/strategies.md",
        "docs/parameter_servers.md",
    ],
    "Look up": [
        "reference/index",
        "docs/errors.md",
        "docs/glossary.md",
        "docs/status.md",
        "docs/performance.md",
        "docs/stability.md",
        "CHANGELOG.md",
        "SECURITY.md",
    ],
    "Work on Tessera": [
        "docs/architecture.md",
        "docs/decisions.md",
        "docs/internals",
        "CONTRIBUTING.md",
        "docs/testing.md",
        "docs/gotchas.md",
    ],
}
ROOT_PAGE = "README.md"
# Begins a link to a source of the tree, which with_source_pages() completes. Sources are not pages
# of Sphinx, because some 300 of them would take it as long as all the rest.
SOURCE = "tree:"
_LINK = re.compile(r"(?<!\\)\]\(([^()\s]+)\)")


def document(page):
    """The page's name on the site, without an extension."""
    return "index" if page == ROOT_PAGE else page.removesuffix(".md")


def with_targets(text, rewrite):
    """The text of a page, with each link's target rewritten; code is left as it is."""
    lines = []
    is_code = False
    for line in text.split("\n"):
        if re.match(r"\s*(```|~~~)", line):
            is_code = not is_code
        elif not is_code:
            parts = re.split(r"(`[^`]*`)", line)
            # A code span may be the text of a link: [`relayout`](...).
            line = "".join(
                part if i % 2 else _LINK.sub(lambda m: f"]({rewrite(m.group(1))})", part)
                for i, part in enumerate(parts)
            )
        lines.append(line)
    return "\n".join(lines)


def source_page(path, text):
    """The HTML of a source, with the colours of Sphinx's pages."""
    # Not at the top: a test of the other functions runs without Debian's packages.
    import pygments.formatters
    import pygments.lexers
    import pygments.util

    try:
        lexer = pygments.lexers.get_lexer_for_filename(path, text)
    except pygments.util.ClassNotFound:
        lexer = pygments.lexers.get_lexer_by_name("text")
    if path.endswith(".h"):
        lexer = pygments.lexers.get_lexer_by_name("cpp")
    style = pygments.formatters.HtmlFormatter(full=True, title=path, style="friendly")
    page = pygments.highlight(text, lexer, style)
    head = '<meta name="viewport" content="width=device-width">\n<style>'
    head += "h2 { overflow-wrap: anywhere; } pre { overflow-x: auto; font-size: 12px; }</style>"
    return page.replace("<head>", "<head>\n" + head, 1)


def with_source_pages(html, page):
    """A page of the site whose links to sources lead to their pages."""
    up = "../" * page.count("/")
    return re.sub(rf'href="{SOURCE}([^"]+)"', rf'href="{up}source/\1.html"', html)


def toctree(entries, caption=None):
    """The navigation to some pages, hidden on the page itself."""
    options = [":hidden:"] + ([f":caption: {caption}"] if caption else [])
    lines = ["", "```{toctree}", *options, "", *(f"/{each}" for each in entries), "```", ""]
    return "\n".join(lines)


class Site:
    """Pages, pictures and sources of the tree that the site has.

    `files` maps a path to its text, or to None for a file that is no text; `headers` maps a header
    to its page of the reference.
    """

    def __init__(self, files, headers):
        self._files = files
        self._headers = headers
        self._folders = {os.path.dirname(path) for path in files}
        self.texts = {}  # page of the site, with its extension -> its text
        self.pictures = set()
        self.sources = set()
        self.missing = []  # (page, target)

    def add(self):
        """Adds all pages, and what they link to."""
        listed = [page for part in PARTS.values() for page in part]
        docs = sorted(path for path in self._files if re.fullmatch(r"docs/[^/]*\.md", path))
        others = [page for page in docs if page not in listed]
        parts = dict(PARTS, **({"More": others} if others else {}))
        root = self._page(ROOT_PAGE) + ".md"
        for caption, pages in parts.items():
            entries = []
            for page in pages:
                if page.startswith("reference/"):
                    entries.append(page)
                elif page in self._folders:
                    entries.append(self._folder(page))
                elif page in self._files:
                    entries.append(self._page(page))
            self.texts[root] += toctree(entries, caption)
        parts_of_guide = sorted(path for path in self._files if path.startswith("docs/guide/"))
        if parts_of_guide:
            entries = [self._page(page) for page in parts_of_guide]
            self.texts["docs/guide.md"] += toctree(entries)
        for page in [page for page in self.texts if page != root]:
            is_in_folder = os.path.dirname(page) in [*listed, "docs/guide"]
            if page.endswith(".md") and page not in [*listed, *others] and not is_in_folder:
                self.texts[page] = "---\norphan: true\n---\n" + self.texts[page]

    def _page(self, page):
        name = document(page)
        if name + ".md" not in self.texts:
            self.texts[name + ".md"] = ""  # in the making: pages link to each other
            text = with_targets(self._files[page], lambda target: self._target(page, target))
            self.texts[name + ".md"] = text
        return name

    def _target(self, page, target):
        """Where a link of a page leads on the site."""
        if re.match(r"[a-z]+:", target) or target.startswith("#"):
            return target
        path, _, anchor = target.partition("#")
        path = os.path.normpath(os.path.join(os.path.dirname(page), path))
        suffix = "#" + anchor if anchor else ""
        if path in self._headers:
            aim = self._headers[path] + ".rst"
        elif path.endswith(".md") and path in self._files:
            aim = self._page(path) + ".md" + suffix
        elif re.search(r"\.(svg|png)$", path) and path in self._files:
            self.pictures.add(path)
            aim = path
        elif path in self._files:
            self.sources.add(path)
            return SOURCE + path
        elif path + "/README.md" in self._files:
            aim = self._page(path + "/README.md") + ".md"
        elif path in self._folders:
            aim = self._folder(path) + ".rst"
        else:
            self.missing.append((page, target))
            return target
        return os.path.relpath(aim, os.path.dirname(document(page)) or ".")

    def _folder(self, path):
        """The page of a folder: it lists the pages in it, or else the names of its files."""
        name = path + "/index"
        if name + ".rst" in self.texts:
            return name
        self.texts[name + ".rst"] = ""
        inside = sorted(each for each in self._files if os.path.dirname(each) == path)
        listed = [self._page(each) for each in inside if each.endswith(".md")]
        is_listed = any(path in part for part in PARTS.values())
        title = path if not is_listed else os.path.basename(path).capitalize()
        lines = [] if is_listed else [":orphan:", ""]
        lines += [title, "=" * len(title), ""]
        if is_listed:
            lines += [".. toctree::", "   :maxdepth: 1", "", *(f"   /{each}" for each in listed)]
        else:
            lines += [f"- :doc:`/{each}`" for each in listed]
            lines += [f"- ``{each}``" for each in inside if not listed]
        self.texts[name + ".rst"] = "\n".join(lines) + "\n"
        return name
