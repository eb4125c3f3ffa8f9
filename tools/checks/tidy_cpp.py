# SPDX-License-Identifier: Apache-2.0
"""C++ for the rules of tools/tidy: text without comments and literals, functions of a file."""

import re


def strip_cpp(text):
    """Blanks comments, string and character literals, keeping every line break."""
    token = re.compile(
        r'R"(?P<tag>[^(\s]{0,16})\(.*?\)(?P=tag)"'
        r"|//(?:\\\n|[^\n])*"
        r"|/\*.*?\*/"
        r'|"(?:\\.|[^"\\\n])*"'
        r"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'",
        re.S,
    )

    def blank(match):
        text = match.group(0)
        empty = "" if text.startswith("/") else '""'
        return empty + "\n" * text.count("\n")

    return token.sub(blank, text)


_SCOPE = re.compile(r"^(inline\s+)?(namespace|class|struct|union|enum|extern|requires)\b")


def _drop_template(header):
    """The header without a leading template<...>."""
    while header.startswith("template"):
        depth = 0
        for i, char in enumerate(header):
            depth += {"<": 1, ">": -1}.get(char, 0)
            if char == ">" and depth == 0:
                header = header[i + 1 :].lstrip()
                break
        else:
            return header
    return header


def _function_name(header):
    """The name of the function, or None if the brace opens something else."""
    header = re.sub(r"\[\[[^\]]*\]\]|alignas\([^)]*\)", "", header).strip()
    header = _drop_template(header)
    if "(" not in header or _SCOPE.match(header) or header.endswith("="):
        return None
    match = re.search(
        r"((?:[\w~]+(?:<[^<>]*>)?::)*(?:operator\W+|operator \w+|~?\b(?!decltype\b)\w+))\s*\(",
        header,
    )
    if not match:
        return None
    test = re.match(
        r"(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P)\s*\(\s*(\w+)\s*,\s*(\w+)", header
    )
    return f"{test.group(1)}.{test.group(2)}" if test else match.group(1).strip()


def functions(text):
    """(name, first line, number of lines) of each function body in a C++ file; lambdas and local
    classes belong to the function around them."""
    text = strip_cpp(text)
    text = re.sub(
        r"^[ \t]*#(?:\\\n|[^\n])*", lambda m: "\n" * m.group(0).count("\n"), text, flags=re.M
    )
    found = []
    stack = []  # None for a scope or a block, else (name, first line) of a function
    in_function = 0
    line = 1
    header, header_line, parens = "", 1, 0
    for char in text:
        if char == "\n":
            line += 1
        if parens > 0 and not in_function:  # Braces among parameters: a default value.
            parens += {"(": 1, ")": -1}.get(char, 0)
            header += char
            continue
        if char == "{":
            name = None if in_function else _function_name(header.strip())
            stack.append((name, header_line) if name else None)
            in_function += name is not None
        elif char == "}" and stack:
            top = stack.pop()
            if top:
                in_function -= 1
                found.append((top[0], top[1], line - top[1] + 1))
        parens += {"(": 1, ")": -1}.get(char, 0)
        is_label = char == ":" and header.strip() in ("public", "private", "protected")
        if char in "{};" or is_label:
            header, parens = "", 0
        else:
            if not header.strip():
                header_line = line
            header += char
    return found
