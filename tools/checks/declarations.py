# SPDX-License-Identifier: Apache-2.0
"""Declarations at namespace scope of a C++ source, as a scan without a compiler finds them."""

import dataclasses
import re


@dataclasses.dataclass
class Declaration:
    namespaces: list  # that enclose it, "" for an unnamed one: ["tessera", "ops", ""]
    name: str
    head: str  # its text up to "{" or ";"
    has_body: bool


# Comments, and literals of strings and characters.
_NOT_CODE = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r'|R"(?P<end>[^(]*)\(.*?\)(?P=end)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'(?:\\.|[^'\\\n])+'",
    re.DOTALL,
)
# An attribute or a macro of one may be before its name.
_NAMESPACE = re.compile(
    r"\s*(?:inline\s+)?namespace\b\s*(?:\[\[.*?\]\]|[A-Z_]+\s)?\s*([\w:]*)[^=]*", re.DOTALL
)
_DIRECTIVE = re.compile(r"^[ \t]*#(?:\\\n|[^\n])*", re.MULTILINE)


def declared_name(head):
    """The name that a declaration at namespace scope declares, or None. It is "operator" of each
    operator."""
    head = re.sub(r"^\s*template\s*<", "<", head)
    while head.lstrip().startswith("<"):
        depth, i = 0, head.index("<")
        for i in range(i, len(head)):
            depth += {"<": 1, ">": -1}.get(head[i], 0)
            if depth == 0:
                break
        head = head[i + 1 :]
    head = re.sub(r"\[\[.*?\]\]", "", head)
    for pattern in (
        r"\s*(?:class|struct|union|enum(?:\s+class)?)\s+(\w+)\s*(?:final\s*)?(?::[^:].*)?$",
        r"\s*using\s+(?:[\w:]*::)?(\w+)\s*(?:=.*)?$",
        r"\s*namespace\s+(\w+)\s*=",
    ):
        match = re.match(pattern, head, re.DOTALL)
        if match:
            return match.group(1)
    if re.search(r"\boperator\b", head):
        return "operator"
    match = re.match(r"[^(=]*?(\w+)\s*(?:\[[^\]]*\]\s*)*(?:[(=]|$)", head, re.DOTALL)
    return match.group(1) if match else None


def macros(text):
    """The macros that a source defines and leaves defined."""
    names = set()
    text = _NOT_CODE.sub(" ", text)
    for match in re.finditer(r"^[ \t]*#\s*(define|undef)\s+(\w+)", text, re.MULTILINE):
        (names.add if match.group(1) == "define" else names.discard)(match.group(2))
    return names


def scan(text):
    """Yields the Declarations of a source."""
    text = _DIRECTIVE.sub("", _NOT_CODE.sub(" ", text))
    namespaces = []
    depth = 0  # of braces that are not a namespace's
    parentheses = 0
    head = ""
    for token in re.findall(r"[{}();]|[^{}();]+", text):
        if depth > 0:
            depth += {"{": 1, "}": -1}.get(token, 0)
            continue
        parentheses += {"(": 1, ")": -1}.get(token, 0)
        if token in "{;" and parentheses == 0:
            namespace = _NAMESPACE.fullmatch(head)
            name = declared_name(head)
            if token == "{" and namespace:
                namespaces.append(namespace.group(1))
            else:
                if head.strip() and name and name != "static_assert":
                    path = [part for each in namespaces for part in each.split("::")]
                    yield Declaration(path, name, head.strip(), token == "{")
                depth += token == "{"
            head = ""
        elif token == "{":
            depth += 1
        elif token == "}":
            namespaces.pop()
            head = ""
        else:
            head += token
