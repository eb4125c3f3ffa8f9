# SPDX-License-Identifier: Apache-2.0
"""Writes the reference: a page for each public header, as reStructuredText for Sphinx.

Pages are grouped as the front headers are, which programs include. A header belongs to the front
header that includes it; where none or several do, to the first that reaches it.
"""

import re

import headers

# Kinds of Items, and the directives of Sphinx.
_DIRECTIVES = {
    "class": "cpp:class",
    "struct": "cpp:struct",
    "union": "cpp:union",
    "enum": "cpp:enum",
    "enum-class": "cpp:enum-class",
    "enumerator": "cpp:enumerator",
    "function": "cpp:function",
    "variable": "cpp:var",
    "type": "cpp:type",
    "concept": "cpp:concept",
    "macro": "c:macro",
}
_LIST_MARK = re.compile(r"(\d+\.|-) ")


def sections(listing):
    """The paragraphs of tools/checks/public_headers.txt that list headers."""
    found = [[]]
    for line in listing.splitlines():
        if not line.strip():
            found.append([])
        elif not line.startswith("#"):
            found[-1].append(line.strip())
    return [each for each in found if each]


def grouped(fronts, others, includes_of):
    """Front header -> the headers of its group; `includes_of` maps a header to what it includes."""

    def closure(header):
        reached, waiting = set(), [header]
        while waiting:
            for each in includes_of(waiting.pop()):
                if each not in reached:
                    reached.add(each)
                    waiting.append(each)
        return reached

    # A front header comes after the front headers that it includes.
    order = sorted(fronts, key=lambda front: (len(closure(front) & set(fronts)), front))
    groups = {front: [] for front in order}
    for header in others:
        direct = [front for front in order if header in includes_of(front)]
        reaching = [front for front in order if header in closure(front)]
        owner = (direct[:1] or reaching[:1] or [None])[0]
        if owner:
            groups[owner].append(header)
    return groups


def escaped(text):
    """Text without the marks of reStructuredText; code in backticks stays code."""
    result = ""
    for i, part in enumerate(re.split(r"`([^`]+)`", text)):
        is_code = i % 2 == 1
        # Code must not touch a word.
        touches = result[-1:].isalnum() if is_code else i > 0 and part[:1].isalnum()
        result += "\\ " if touches else ""
        result += f"``{part}``" if is_code else re.sub(r"([\\*|`_]|:(?=:))", r"\\\1", part)
    # The beginning of a list.
    return re.sub(r"^(?=(?:(?:\d+|[ivxlcdm]+|\w)[.)]|\(\w+\)|[-+.:>]+)(?:\s|$))", r"\\", result)


def with_links(text, pages):
    """Escaped text, in which the names of headers that have pages are links."""

    def link(match):
        name = match.group().replace("\\", "")
        return f":doc:`{name} </{pages[name]}>`" if name in pages else match.group()

    return re.sub(r"(?<![\w/`])[\w/\\]+\.(?:h|md)\b", link, text)


def prose(lines, pages):
    """Lines of reStructuredText for the lines of a comment.

    Indented lines are code or a table, except in lists.
    """
    result = []
    i = 0

    def is_mark(at):
        return at < len(lines) and _LIST_MARK.match(lines[at].lstrip())

    def indent(at):
        return len(lines[at]) - len(lines[at].lstrip())

    while i < len(lines):
        if not lines[i].strip():
            i += 1
            continue
        start = i
        if is_mark(i):
            own = indent(i)
            while i < len(lines) and lines[i].strip() and (is_mark(i) or indent(i) > own):
                i += 1
            for line in re.split(r"\n\s*(?=(?:\d+\.|-) )", "\n".join(lines[start:i]).strip()):
                mark, text = line.split(" ", 1)
                text = with_links(escaped(" ".join(text.split())), pages)
                result.append(f"{'#.' if mark != '-' else '-'} {text}")
            result.append("")
        elif indent(i) >= 2:
            while i < len(lines) and (not lines[i].strip() or indent(i) >= 2):
                i += 1
            block = "\n".join(lines[start:i]).rstrip().split("\n")
            margin = min(len(line) - len(line.lstrip()) for line in block if line.strip())
            is_code = any(re.search(r"[;{]$|;  +\S", line) for line in block)
            result += [f".. code-block:: {'cpp' if is_code else 'text'}", "   :force:", ""]
            result += ["   " + line[margin:] for line in block] + [""]
        else:
            while i < len(lines) and lines[i].strip() and indent(i) < 2 and not (
                i > start and is_mark(i)
            ):
                i += 1
            text = " ".join(line.strip() for line in lines[start:i])
            result += [with_links(escaped(text), pages), ""]
    return result


def _signature(item):
    return re.sub(r"\s*=\s*\{\}$", "", item.text)


def without_repeats(items):
    """The Items without functions that are declared first, and with their comment later."""

    def key(item):
        return item.kind, item.namespaces, re.sub(r" = ([^,()]|\([^()]*\))*", "", item.text)

    result = []
    for i, item in enumerate(items):
        later = [each for each in items[i + 1 :] if key(each) == key(item)]
        if item.kind != "function" or item.comment or not later:
            result.append(item)
    return result


def directives(items, pages):
    """Lines of reStructuredText for the Items of one level."""
    result = []
    namespaces = None
    items = without_repeats(items)
    i = 0
    while i < len(items):
        item = items[i]
        if item.kind == "heading":
            result += [item.name, "-" * len(item.name), ""]
        if item.kind in ("heading", "prose"):
            result += prose(item.comment, pages)
            i += 1
            continue
        if item.kind == "enumerator" or not item.namespaces:
            pass
        elif item.namespaces != namespaces:
            namespaces = item.namespaces
            if not _is_nested(item):
                result += [f".. cpp:namespace:: {'::'.join(namespaces)}", ""]
        # Overloads share the comment of the first.
        same = i + 1
        while (
            item.kind == "function"
            and same < len(items)
            and items[same].kind == "function"
            and items[same].name == item.name
            and not items[same].comment
        ):
            same += 1
        head = f".. {_DIRECTIVES[item.kind]}:: "
        result.append(head + _signature(item))
        result += [" " * len(head) + _signature(each) for each in items[i + 1 : same]]
        result.append("")
        body = prose(item.comment, pages) + directives(item.items, pages)
        result += ["   " + line if line else "" for line in body]
        i = same
    return result


def _is_nested(item):
    return bool(item.namespaces) and item.namespaces[-1][:1].isupper()


def summary(banner):
    """The first sentence, for lists of headers."""
    first = "\n".join(banner).split("\n\n")[0]
    text = " ".join(first.split())
    return re.match(r".*?\.(?= |$)|.*", text).group().rstrip(".:")


def header_page(header, front, text, pages):
    """The page of a header, as lines."""
    banner, items, _ = headers.read(text)
    lines = [header, "=" * len(header), ""]
    lines += [".. code-block:: cpp", "", f'   #include "{front}"', ""]
    return lines + prose(banner, pages) + directives(items, pages)


def group_page(front, group, read, pages):
    """The page of a front header: what it says, its headers, and what it declares itself."""
    lines = header_page(front, front, read(front), pages)
    if not group:
        return lines
    lines += ["Headers", "-------", ""]
    for header in group:
        banner = headers.read(read(header))[0]
        lines.append(f":doc:`{header} </{pages[header]}>`")
        lines += ["   " + escaped(summary(banner)), ""]
    lines += [".. toctree::", "   :hidden:", ""]
    return lines + [f"   /{pages[header]}" for header in group] + [""]


def index_page(groups, read, pages):
    """The first page of the reference."""
    lines = ["API reference", "=============", ""]
    lines += [
        "A program includes front headers. A page shows the declarations of one header, with their",
        "comments. Private members and internal names are left out.",
        "",
    ]
    for front in groups:
        lines.append(f":doc:`{front} </{pages[front]}>`")
        lines += ["   " + escaped(summary(headers.read(read(front))[0])), ""]
    lines += [".. toctree::", "   :hidden:", ""]
    return lines + [f"   /{pages[front]}" for front in groups] + [""]


def write(listing, read):
    """(page -> its text, header -> its page) for the headers of a listing.

    `read` maps the path of a header to its text.
    """
    fronts, others = sections(listing)[:2]

    def includes_of(header):
        return re.findall(r'^#include "([^"]+)"', read(header) or "", re.MULTILINE)

    groups = grouped(fronts, others, includes_of)
    known = [*groups, *(header for group in groups.values() for header in group)]
    pages = {header: "reference/" + header.removesuffix(".h") for header in known}
    texts = {"reference/index": index_page(groups, read, pages)}
    for front, group in groups.items():
        texts[pages[front]] = group_page(front, group, read, pages)
        for header in group:
            texts[pages[header]] = header_page(header, front, read(header), pages)
    return {page: "\n".join(lines) + "\n" for page, lines in texts.items()}, pages
