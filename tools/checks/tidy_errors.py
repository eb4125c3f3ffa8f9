# SPDX-License-Identifier: Apache-2.0
"""The rule of tools/tidy about docs/errors.md: a row names tests that hold its words."""

import re

PAGE = "docs/errors.md"
# The test must hold this many consecutive words of the message.
NUM_WORDS = 3


def rows(text):
    """(line number, messages, labels) of each row of the page's tables that names a target."""
    for i, line in enumerate(text.split("\n")):
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        labels = re.findall(r"`(//[\w/]*:\w+)`", cells[-1]) if len(cells) == 4 else []
        if labels:
            messages = re.findall(r"`([^`]*)`", cells[0])
            yield i + 1, [message.replace("\\|", "|") for message in messages], labels


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
    """Runs of NUM_WORDS consecutive words of a message, without placeholders of values; runs of two
    where there are no longer ones."""
    parts = re.split(r"\.\.\.|\{[^}]*\}|\[[^\]]*\]|\([^)]*\)|\"[^\"]*\"|\d+", message)
    parts = [normalized(part).strip(" ,;:").split(" ") for part in parts]
    for num_words in (NUM_WORDS, 2):
        runs = {
            " ".join(words[i : i + num_words])
            for words in parts
            for i in range(len(words) - num_words + 1)
        }
        if runs:
            return runs
    return set()


def check_errors_page(tree):
    """(line, message) of each message of a row that no test of the row holds words of, and of each
    test of a row that holds no words of a message of the row."""
    for line, messages, labels in rows(tree.files.get(PAGE, "")):
        unknown = [label for label in labels if not rule_text(tree, label)]
        if unknown:
            yield line, f"{unknown[0]} is not a target"
            continue
        texts = {label: sources(tree, label) for label in labels}
        wanted = {message: fragments(message) for message in messages if fragments(message)}
        if not wanted:
            yield line, "no message with two consecutive words; quote more of it"
        for message, words in wanted.items():
            if not any(run in text for run in words for text in texts.values()):
                yield line, f'no test named here holds words of "{message}"'
        for label, text in texts.items():
            if wanted and not any(run in text for runs in wanted.values() for run in runs):
                yield line, f"{label} holds no words of the messages of its row"
