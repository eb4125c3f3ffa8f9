# SPDX-License-Identifier: Apache-2.0
"""Reads what a public header declares, with the comments, as the reference shows it.

A scan without a compiler, of headers that clang-format has formatted: a space stands before the
brace of a body and none before the brace of a value, and a blank line ends what a comment is about.
"""

import dataclasses
import re

# Namespaces inside tessera that are not part of the API.
INTERNAL_NAMESPACES = ("internal", "host", "cuda", "nccl")

_TOKEN = re.compile(
    r"//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*"
    r'|R"(?P<end>[^(]*)\(.*?\)(?P=end)"|"(?:\\.|[^"\\\n])*"'
    r"|\d[\w']*|'(?:\\.|[^'\\\n])+'|\n|[^\S\n]+|\w+|::|->|.",
    re.DOTALL | re.MULTILINE,
)
# Words before a parenthesis that are not the name of a function.
_NOT_NAMES = ("decltype", "alignas", "explicit", "requires", "noexcept", "__attribute__")


@dataclasses.dataclass
class Item:
    """A declaration, a macro, a heading ("// ---- Sums"), or a comment about none of them."""

    kind: str  # class, struct, enum, enumerator, function, variable, type, concept, macro, ...
    name: str
    text: str = ""  # the declaration on one line, without its body
    comment: list = dataclasses.field(default_factory=list)
    namespaces: tuple = ()
    items: list = dataclasses.field(default_factory=list)  # members, or enumerators


def without_template(head):
    """(template clauses, the rest) of a declaration."""
    start = 0
    while match := re.compile(r"\s*template\s*<").match(head, start):
        depth, start = 1, match.end()
        while depth > 0:
            depth += {"<": 1, ">": -1}.get(head[start], 0)
            start += 1
    return head[:start].strip(), head[start:].strip()


def function_name(head):
    """The name of the function that a declaration declares, or None: then it is a variable."""
    operator = re.search(r"\boperator\b\s*(\(\)|[^(]+?)\s*\(", head)
    if operator:
        name = operator.group(1)
        return "operator" + (" " if name[0].isalpha() else "") + name
    angles = parentheses = 0
    for match in re.finditer(r"(~?\w*)(\s*)([<>()=]|->)", head):
        word, mark = match.group(1), match.group(3)
        if mark == "=" and angles == parentheses == 0:
            return None
        if mark == "(" and head[match.end() :].startswith("*"):
            return None  # a pointer to a function
        if mark == "(" and angles == parentheses == 0 and word and word not in _NOT_NAMES:
            return word
        parentheses += {"(": 1, ")": -1}.get(mark, 0)
        if parentheses == 0:
            angles += {"<": 1, ">": -1}.get(mark, 0)
    return None


def without_initializers(head):
    """A constructor's declaration without the values of its members."""
    depth = 0
    for match in re.finditer(r"::|[():]", head):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if match.group() == ":" and depth == 0 and head[: match.start()].rstrip().endswith(")"):
            return head[: match.start()].rstrip()
    return head


def split_at_commas(head):
    """The parts of `int a = f(1, 2), b`, without regard to commas in brackets."""
    parts, depth = [""], 0
    for character in head:
        depth += (character in "(<[{") - (character in ")>]}")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return parts


def comment_text(token):
    return re.sub(r"^// ?", "", token).rstrip()


def _says_internal(comment):
    return bool(comment) and comment[0].startswith("Internal")


class Reader:
    """One pass over the tokens of a header."""

    def __init__(self, text):
        self._tokens = []  # (token, column)
        line_start = 0
        for match in _TOKEN.finditer(text):
            self._tokens.append((match.group(), match.start() - line_start))
            if "\n" in match.group():
                line_start = match.start() + match.group().rindex("\n") + 1
        self._next = 0
        # What a comment or a namespace marks as internal: (namespaces, name).
        self.internal = set()

    def read(self):
        """The comment at the top of the header, and its Items."""
        items = self._level((), None)
        banner = []
        if items and items[0].kind == "prose":
            banner = items.pop(0).comment
        return "\n".join(banner).split("Apache-2.0", 1)[-1].strip("\n").split("\n"), items

    def _level(self, namespaces, access):
        """The Items up to the brace that ends this level. `access` is None outside of classes."""
        items, comment = [], []
        newlines = 0
        is_internal = False

        def flush():
            if comment and not _says_internal(comment):
                heading = re.fullmatch(r"-{3,} ?(.*)", comment[0])
                kind, name = ("heading", heading.group(1)) if heading else ("prose", "")
                items.append(Item(kind, name, "", comment[bool(heading) :], namespaces))
            comment.clear()

        while self._next < len(self._tokens):
            token, _ = self._tokens[self._next]
            if token.isspace():
                self._next += 1
                newlines += token == "\n"
                if newlines == 2:
                    flush()
                    is_internal = False
                continue
            newlines = 0
            if token.startswith("//"):
                self._next += 1
                comment.append(comment_text(token))
                continue
            if token == "}":
                break
            if token.lstrip().startswith("#"):
                if re.match(r"\s*#\s*(ifndef|if|include|undef|endif)", token):
                    flush()  # the banner, where no blank line follows it
                self._next += 1
                items += self._macro(token, comment, namespaces)
                continue
            if access and token in ("public", "protected", "private"):
                self._skip_past(":")
                access = token
                flush()
                continue
            if token == ";":
                self._next += 1
                continue
            is_internal = is_internal or _says_internal(comment)
            found = self._declaration(namespaces, access, list(comment))
            comment.clear()
            for item in found:
                is_hidden = is_internal or access in ("private", "protected")
                if is_hidden or _says_internal(item.comment):
                    self.internal.add((namespaces, item.name))
                else:
                    items.append(item)
        flush()
        return items

    @staticmethod
    def _macro(token, comment, namespaces):
        match = re.match(r"\s*#\s*define\s+(\w+(?:\([^)]*\))?)", token)
        lines, comment[:] = list(comment), []
        name = match.group(1).split("(")[0] if match else ""
        if not match or name.endswith("_") or not lines:
            return []  # helpers of the header, and its guard
        return [Item("macro", name, match.group(1), lines, namespaces)]

    def _skip_past(self, end):
        while self._tokens[self._next][0] != end:
            self._next += 1
        self._next += 1

    def _skip_braces(self):
        """Skips from a brace to past the brace that ends it."""
        depth = 0
        while True:
            token = self._tokens[self._next][0]
            depth += {"{": 1, "}": -1}.get(token, 0)
            self._next += 1
            if depth == 0:
                return

    def _head(self):
        """(the text of a declaration up to ";" or to the brace of its body, which of the two)."""
        parts = []
        depth = 0
        while True:
            token = self._tokens[self._next][0]
            if token == "{":
                words = "".join(parts).split()
                is_value = depth > 0 or not parts[-1].isspace() or words[-1] in ("=", "requires")
                if not is_value:
                    return " ".join(words), token
                self._skip_braces()
                parts.append("{}")
                continue
            if token == "}":  # an enumerator without a comma, or a macro without a semicolon
                return " ".join("".join(parts).split()), token
            self._next += 1
            if token == ";" and depth == 0:
                return " ".join("".join(parts).split()), token
            depth += {"(": 1, ")": -1}.get(token, 0)
            is_comment = token.startswith(("//", "/*")) or token.lstrip().startswith("#")
            parts.append(" " if is_comment else token)

    def _trailing_comment(self):
        """The comment behind a declaration, with its further lines."""
        lines = []
        column = None
        at = self._next
        while at < len(self._tokens):
            token, here = self._tokens[at]
            if token.startswith("//") and (column is None or here == column):
                column = here
                lines.append(comment_text(token))
                self._next = at + 1
            elif not token.isspace() or (token == "\n" and not lines):
                break
            at += 1
        return [line for line in lines if not line.startswith("NOLINT")]

    def _declaration(self, namespaces, access, comment):
        head, end = self._head()
        head = re.sub(r"\b(TESSERA_PUBLIC|ABSL_MUST_USE_RESULT)\b ?", "", head)
        head = re.sub(r"^([A-Z0-9_]+\([^()]*\) )+", "", head)  # macros without a semicolon
        template, rest = without_template(head)
        if end == "{" and (match := re.fullmatch(r"(?:inline )?namespace ?([\w:]*) ?", rest)):
            return self._namespace(namespaces, match.group(1))
        if end == "{" and rest == 'extern "C"':
            self._next += 1
            items = self._level(namespaces, access)
            self._next += 1
            return items
        type_ = re.fullmatch(
            r"(class|struct|union|enum(?: class)?) (?:alignas\(\w+\) )?([\w:]+)( final)?"
            r"((?:<.*>)?)( ?:(?!:) ?.*)?",
            rest,
        )
        if type_:
            return self._type(namespaces, comment, template, type_, end)
        if end == "{":
            self._skip_braces()
        comment += self._trailing_comment()
        items = self._simple(template, rest)
        for item in items:
            item.namespaces = namespaces
        if items:
            items[0].comment = comment
        return items

    def _namespace(self, namespaces, name):
        self._next += 1
        inner = (*namespaces, *name.split("::"))
        items = self._level(inner, None)
        self._next += 1
        self._trailing_comment()
        if any(part in ("", *INTERNAL_NAMESPACES) for part in inner):
            return []
        return items

    def _type(self, namespaces, comment, template, match, end):
        kind, name, final, arguments, bases = match.groups()
        if end == ";":
            self._trailing_comment()
            return []  # declared, and defined elsewhere
        self._next += 1
        item = Item(kind.split()[0], name, "", comment, namespaces)
        if kind.startswith("enum"):
            item.kind = kind.replace(" ", "-")
            item.items = self._enumerators()
        else:
            access = "private" if kind == "class" else "public"
            item.items = self._level((*namespaces, name), access)
            self._next += 1
        self._skip_past(";")
        item.comment = item.comment + self._trailing_comment()
        text = f"{template} {name}{arguments}{final or ''}{(bases or '').strip() and ' ' + bases}"
        item.text = " ".join(text.split())
        return [item]

    def _enumerators(self):
        """The enumerators up to the closing brace, which is skipped."""
        items, comment, parts = [], [], []

        def end():
            text = " ".join("".join(parts).split())
            parts.clear()
            if text:
                lines = comment + self._trailing_comment()
                items.append(Item("enumerator", text.split()[0], text, lines))
                comment.clear()

        while True:
            token = self._tokens[self._next][0]
            self._next += 1
            if token.startswith("//"):
                is_behind = bool("".join(parts).strip())
                if is_behind:  # the last enumerator, without a comma
                    self._next -= 1
                    end()
                else:
                    comment.append(comment_text(token))
            elif token in ",}":
                end()
                if token == "}":
                    return items
            else:
                parts.append(token)

    @staticmethod
    def _simple(template, rest):
        """The Items of a declaration that has no members; several for `int a, b`."""
        if rest.startswith(("static_assert", "friend class", "friend struct", "template ")):
            return []
        if rest.startswith("concept "):
            name = rest.split()[1]
            return [Item("concept", name, f"{template} {name}")]
        if rest.startswith("using "):
            match = re.fullmatch(r"using (\w+) = (.*)", rest)
            if match:
                text = f"{template} {match.group(1)} = {match.group(2)}".strip()
                return [Item("type", match.group(1), text)]
            match = re.fullmatch(r"using ([\w:]*::)(\w+)", rest)
            if not match or match.group(1).endswith(match.group(2) + "::"):
                return []  # of a namespace, or constructors of a base
            return [Item("type", match.group(2), f"{match.group(2)} = {''.join(match.groups())}")]
        name = function_name(rest)
        if name is not None:
            if re.search(rf"::\s*{re.escape(name)}\s*\(", rest):
                return []  # a member that is defined outside of its class
            text = without_initializers(re.sub(r"^((?:static |constexpr )*)inline ", r"\1", rest))
            return [Item("function", name, f"{template} {text}".strip())]
        rest = re.sub(r"^(inline|extern) ", "", rest)
        if pointer := re.search(r"\(\*(\w+)\)", rest):
            return [Item("variable", pointer.group(1), rest)]
        type_, items = "", []
        for part in split_at_commas(rest):
            match = re.match(r"(.*?)(\w+)((?:\[[^\]]*\])*)( = .*|\{\})?$", part.strip())
            if not match or not (match.group(1) or type_):
                return []
            type_ = match.group(1) or type_
            text = f"{template} {type_}{match.group(2)}{match.group(3)}".strip()
            value = match.group(4) or ""
            text += value if value not in ("{}", " = {}") else ""
            items.append(Item("variable", match.group(2), text))
        return items


def read(text):
    """(the comment at the top, the Items, the internal names) of a header."""
    reader = Reader(text)
    banner, items = reader.read()
    return banner, items, reader.internal
