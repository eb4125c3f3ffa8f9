# SPDX-License-Identifier: Apache-2.0
"""The rules `plain-english` and `ragged-item` of tools/tidy: phrases that comments, messages, docs
and commit subjects must not have, what to write instead, and items that clang-format broke."""

import re

# They quote what the rule forbids.
OWN_FILES = ("tools/checks/tidy_prose.py", "tools/checks/tidy_test.py")
# Data and licences are not prose of ours. Recorded output is in fences, which are blanked.
CHECKED = (
    r"(\.(h|cc|cu|md|py|proto|bzl|BUILD|txt|bazelrc|gitignore)|(^|/)BUILD|^WORKSPACE|^\.ci/.*"
    r"|^tools/[^./]*)$"
)
SKIPPED = r"^(fuzz/corpus/|examples/data/.*\.txt$|LICENSE)"

_UNITS = (
    "axis|block|box|call|client|command|commit|core|datagram|device|dim|element|entry|file|"
    "function|GPU|group|handle|host|image|item|job|kind|library|line|member|message|number|"
    "operation|page|part|phase|place|process|product|rank|region|round|row|run|shard|size|step|"
    "task|term|test|thread"
)
_NOT_AN_ID = r"(?<![\w.-])(?<!client\s)(?<!device\s)(?<!member\s)(?<!rank\s)"
_NUMBERS = "one|two|three|four|five|six|seven|eight|nine|ten|\\d+"
# "of one of a device", "on 2 and a device": no counts per something.
_NOT_COUNTED = (
    "and|are|as|at|by|for|from|has|have|holds|if|in|into|is|makes|of|on|or|owns|than|that|then|to|"
    "was|when|where|which|with|within|without|writes"
)
_COUNTED = "blocks|boxes|bytes|clients|cores|devices|elements|entries|ids|lines|rows|threads"

# (name, regular expression over text in which any space stands for a run of them, what to write)
PHRASES = [
    ("who", r"\bwho(?:ever|m)?\b(?![^.?!;]*\?)", "a named thing: the member, the caller"),
    ("nobody", r"\b(?:no|some|every|any)body\b", "a named thing: no member, another thread"),
    ("but for", r"\bbut for\b", '"except"'),
    ("dear", r"\bdear(?:er|est|ly)?\b", '"expensive"'),
    ("himself", r"\b(?:him|her)self\b", '"itself"'),
    ("as it comes", r"\bas (?:it|they) comes?\b", '"by default", "as installed"'),
    ("what came of", r"\bwhat (?:comes?|came) of\b", '"the result"'),
    ("let go of", r"\blet(?:s|ting)? go\b", '"release" or "drop"'),
    ("for people", r"\bfor people\b", '"for messages", "for the log"'),
    ("of no meaning", r"\bof no meaning\b", '"unused" or "undefined"'),
    ("comes to", r"\b(?:comes?|came|coming) to\b", '"reaches", "ends", "amounts to"'),
    ("hears", r"\bhear(?:s|d)?\b", '"is told", "learns", "receives"'),
    ("lies", r"\b(?:lies?|lay) (?:in|on|by|at|there|among|beside)\b", '"is in", "is stored"'),
    ("at work", r"\bat work\b", '"running", "in progress"'),
    (
        "one X a Y",
        rf"{_NOT_AN_ID}(?:{_NUMBERS}) (?!(?:{_NOT_COUNTED})\b)[a-z-]+ an? (?:{_UNITS})\b"
        rf"|{_NOT_AN_ID}(?:one|once|\d+) an? (?:{_UNITS})\b"
        rf"|\b(?:{_COUNTED}) an? (?:{_UNITS})\b",
        '"per"',
    ),
]

_TOKEN = re.compile(
    r'R"(?P<tag>[^(\s]{0,16})\((?P<raw>.*?)\)(?P=tag)"'
    r"|//(?P<line>(?:\\\n|[^\n])*)"
    r"|/\*(?P<block>.*?)\*/"
    r'|"(?P<string>(?:\\.|[^"\\\n])*)"'
    r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
    re.S,
)
_CODE = "\x01"  # Stands for code: no phrase spans it.


def _blank(text, fill=" "):
    return re.sub(r"\S", fill, text)


def _prose_of_cpp(text):
    """Comments and strings. Code becomes _CODE, and so does what ends a paragraph: an empty comment
    line, the end of a comment behind code, and the end of a raw line."""
    parts = []
    end = 0
    for match in _TOKEN.finditer(text):
        parts.append(_blank(text[end : match.start()], _CODE))
        kind = match.lastgroup
        if kind in ("raw", "line", "block", "string"):
            start, stop = match.span(kind)
            parts.append(" " * (start - match.start()))
            words = re.sub(r"\\[^\n]", "  ", text[start:stop])
            words = words.replace("\n", _CODE + "\n") if kind == "raw" else words
            before = text[: match.start()].rpartition("\n")[2]
            is_end = kind == "line" and bool(before.strip() or not words.strip())
            parts.append(words + _CODE if is_end else words)
            parts.append(" " * (match.end() - stop))
        else:
            parts.append(_blank(match.group(0), _CODE))
        end = match.end()
    parts.append(_blank(text[end:], _CODE))
    return "".join(parts)


def _prose_of_page(text):
    """Text outside fences, code spans blanked."""
    lines = []
    fenced = False
    for line in text.split("\n"):
        is_fence = re.match(r"\s*(```|~~~)", line)
        fenced ^= bool(is_fence)
        is_code = fenced or is_fence
        lines.append(
            _blank(line, _CODE)
            if is_code
            else re.sub(r"`[^`]*`", lambda m: _blank(m.group(0), _CODE), line)
        )
    return "\n".join(lines)


def prose(path, text):
    """The prose of a file, with the file's line breaks."""
    if re.search(r"\.(h|cc|cu|proto)$", path):
        return _prose_of_cpp(text)
    if path.endswith(".md"):
        return _prose_of_page(text)
    return re.sub(r'(?m)^[ \t]*#+|"[ \t]*$|^[ \t]*f?"', lambda m: _blank(m.group(0)), text)


_PATTERNS = [
    (name, re.compile(pattern.replace(" ", r"\s+"), re.I), instead)
    for name, pattern, instead in PHRASES
]


# clang-format moves the last words of a line that is too long to the next line. In a list item that
# line begins below the item's number, and the rest of the item stays where it was.
_RAGGED = re.compile(
    r"(?m)^ *//( +)(?:\w{1,2}\.|-) .{70,}\n *//\1(?!\w{1,2}\. |- )\S.*\n *//\1 +\S"
)


def phrases_in(text):
    """(offset, name, what to write instead) of each phrase, in order."""
    found = []
    for name, pattern, instead in _PATTERNS:
        found += [(match.start(), name, instead) for match in pattern.finditer(text)]
    return sorted(found)


def check_prose(files):
    """(path, line, message) of each phrase in files whose prose is ours."""
    for path in sorted(files):
        if not re.search(CHECKED, path) or re.search(SKIPPED, path):
            continue
        if path in OWN_FILES:
            continue
        text = prose(path, files[path])
        for offset, name, instead in phrases_in(text):
            yield path, text.count("\n", 0, offset) + 1, f'"{name}": write {instead}'


def check_ragged_items(tree):
    """(path, line, message) of each list item of a comment that clang-format broke."""
    for path, _ in tree.select(r"\.(h|cc|cu)$"):
        text = tree.files[path]
        for match in _RAGGED.finditer(text):
            line = text.count("\n", 0, match.start()) + 2
            yield path, line, "clang-format broke this list item; rewrap it"


def check_subjects(subjects):
    """A message for each phrase in the subjects of commits."""
    for subject in subjects:
        for _, name, instead in phrases_in(subject):
            yield f'subject "{subject}" has "{name}": write {instead}'
