# SPDX-License-Identifier: Apache-2.0
"""The rule of tools/tidy about docs/errors.md: a row names a test that holds its words."""

import re

PAGE = "docs/errors.md"
# The test must hold this many consecutive words of the message.
NUM_WORDS = 3


def rows(text):
    """(line number, message, labels) of each row of the page's tables that names a target."""
    for i, line in enumerate(text.split("\n")):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        labels = re.findall(r"`(//[\w/]*:\w+)`", cells[-1]) if len(cells) == 4 else []
        message = re.findall(r"`((?:[^`])*)`", cells[0]) if labels else []
        if message:
            yield i + 1, message[0].replace("\\|", "|"), labels


def rule_text(tree, label):
    """The text of the rule behind a label in its BUILD file, "" where there is none."""
    package, name = label[2:].split(":")
    build = tree.files.get(f"{package}/BUILD", "")
    for rule in re.split(r"(?m)^(?=\w+\()", build):
        if re.search(rf'name = "{name}"', rule):
            return rule
    return ""


def sources(tree, label):
    """The text of a test and of the suites it links, strings that span lines joined."""
    package = label[2:].split(":")[0]
    rule = rule_text(tree, label)
    names = [f"{package}/{name}" for name in re.findall(r'"(\w+_test\.(?:cc|py))"', rule)]
    if '"//collectives/testing:conformance"' in rule:
        names += [path for path in tree.files if path.startswith("collectives/testing/conformance")]
    text = " ".join(tree.files.get(name, "") for name in names)
    return normalized(re.sub(r'"\s*\n\s*"', "", text))


def normalized(text):
    return re.sub(r"\s+", " ", text.replace("\\", ""))


def fragments(message):
    """Runs of NUM_WORDS consecutive words of a message, without placeholders of values."""
    for part in re.split(r"\.\.\.|\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|\"[^\"]*\"|\d+", message):
        words = normalized(part).strip(" ,;:").split(" ")
        for i in range(len(words) - NUM_WORDS + 1):
            yield " ".join(words[i : i + NUM_WORDS])


def check_errors_page(tree):
    """(line, message) of each row whose tests do not hold its words."""
    for line, message, labels in rows(tree.files.get(PAGE, "")):
        unknown = [label for label in labels if not rule_text(tree, label)]
        if unknown:
            yield line, f"{unknown[0]} is no target"
            continue
        texts = [sources(tree, label) for label in labels]
        wanted = list(fragments(message))
        if wanted and not any(words in text for words in wanted for text in texts):
            yield line, f'no test named here holds words of "{message}"'
