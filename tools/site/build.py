#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Builds the site of Tessera from the pages of the tree and its public headers.

Sphinx makes it, from copies of the pages whose links lead to other pages of the site, and from a
page for each public header. Needs no network. A warning of Sphinx is an error.
"""

import argparse
import importlib.util
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import zlib

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools/checks"))

import declarations  # noqa: E402 (of tools/checks)
import headers  # noqa: E402
import links  # noqa: E402
import pages  # noqa: E402
import reference  # noqa: E402

PACKAGES = {"sphinx": "python3-sphinx", "myst_parser": "python3-myst-parser", "furo": "furo"}
LISTING = "tools/checks/public_headers.txt"


def missing_packages():
    return [PACKAGES[name] for name in PACKAGES if importlib.util.find_spec(name) is None]


def tree_files():
    """path -> text of each file that git knows or would add, None for what is no text."""
    git = ["git", "ls-files", "-zco", "--exclude-standard"]
    names = subprocess.run(git, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout
    files = {}
    for name in filter(None, names.split("\0")):
        try:
            files[name] = (ROOT / name).read_text()
        except (UnicodeDecodeError, FileNotFoundError):
            files[name] = None
    return files


def write_sources(folder, files):
    """Writes what Sphinx reads; returns the pages."""
    shutil.rmtree(folder, ignore_errors=True)
    texts, header_pages = reference.write(files[LISTING], files.get)
    site = pages.Site(files, header_pages)
    site.add()
    for name, text in [*site.texts.items(), *((f"{page}.rst", texts[page]) for page in texts)]:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for picture in site.pictures:
        path = folder / picture
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / picture, path)
    return site


def run_sphinx(sources, output):
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q"]
    # Always from nothing: Sphinx is slower where it removes an old reference first.
    with tempfile.TemporaryDirectory(prefix="tessera_docs_") as doctrees:
        command += ["-c", str(ROOT / "tools/site"), "-d", doctrees, str(sources), str(output)]
        return subprocess.run(command, check=False).returncode == 0


def add_source_pages(output, sources):
    """Adds the pages of sources to a built site, and completes the links to them."""
    for path in output.rglob("*.html"):
        html = path.read_text()
        if pages.SOURCE in html:
            path.write_text(pages.with_source_pages(html, str(path.relative_to(output))))
    for path, text in sources.items():
        page = output / "source" / (path + ".html")
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(pages.source_page(path, text))


def reference_names(inventory):
    """The names of C++ that a built site has, from its objects.inv."""
    text = zlib.decompress(inventory.split(b"\n", 4)[4]).decode()
    return {line.split(" cpp:")[0] for line in text.splitlines() if " cpp:" in line}


def api_names(text):
    """The qualified names at namespace scope of the API that preprocessed headers declare."""
    names = set()
    for each in declarations.scan(text):
        # What may stand in parentheses before the name.
        head = re.sub(
            r"\b(alignas|decltype|requires)\s*\(([^()]|\(([^()]|\([^()]*\))*\))*\)", "", each.head
        )
        name = declarations.declared_name(head)
        is_type = re.match(r"(template\s*<.*>\s*)?(class|struct|union|enum)\b", head, re.DOTALL)
        is_internal = any(part in headers.INTERNAL_NAMESPACES for part in each.namespaces)
        if each.namespaces[:1] != ["tessera"] or "" in each.namespaces or is_internal:
            continue
        if is_type and not each.has_body or re.match(r"template\s*<>", head):
            continue
        if re.search(rf"::\s*~?{name}\s*\(", head):
            continue  # a member that is defined outside of its class
        names.add("::".join([*each.namespaces, str(name)]))
    return names


def preprocessed(names):
    """What is left of the headers of the tree when no macro is."""
    includes = "".join(f'#include "{name}"\n' for name in names)
    compiler = ["g++", "-std=c++20", "-E", "-x", "c++", "-iquote", str(ROOT), "-"]
    compiler += ["-isystem", "/usr/include/eigen3"]
    # From another folder, so that all paths of the tree are absolute in the output.
    run = subprocess.run(
        compiler, input=includes, stdout=subprocess.PIPE, text=True, check=True, cwd="/"
    )
    kept, is_ours = [], False
    for line in run.stdout.splitlines():
        marker = re.match(r'# \d+ "([^"]*)"', line)
        if marker:
            is_ours = marker.group(1).startswith(str(ROOT))
        elif is_ours:
            kept.append(line)
    return "\n".join(kept)


def hidden_names(files, inventory):
    """(number of names, those that the reference lacks) of the public headers."""
    fronts, others = reference.sections(files[LISTING])[:2]
    # The header of MPI needs the MPI of the program; it has no macros that declare.
    text = preprocessed([*(each for each in fronts if each != "tessera/mpi.h"), *others])
    wanted = api_names(text) | api_names(files["tessera/mpi.h"])
    listed = set(fronts + others)
    internal = set()
    for path in files:
        if path.endswith(".h") and path in files[LISTING]:
            found = headers.read(files[path])[2] if path in listed else set()
            internal |= {"::".join([*namespaces, name]) for namespaces, name in found}
            if path not in listed:
                internal |= api_names(files[path])
    wanted -= internal
    return len(wanted), sorted(wanted - reference_names(inventory))


def check(files, output):
    """Prints what is wrong with a built site, and returns whether nothing is."""
    count, wrong = links.wrong_links(output)
    print(f"docs: {count} links, {len(wrong)} of them wrong")
    num_names, hidden = hidden_names(files, (output / "objects.inv").read_bytes())
    print(f"docs: {num_names} names of the headers, {len(hidden)} of them not in the reference")
    for line in wrong + hidden:
        print(line)
    return not wrong and not hidden


def main(arguments):
    parser = argparse.ArgumentParser(prog="tools/docs", description="Builds the site of Tessera.")
    parser.add_argument("folder", nargs="?", default=ROOT / ".site", type=pathlib.Path)
    parser.add_argument(
        "--check",
        action="store_true",
        help="also check every link, and that the reference has every name of the public headers",
    )
    options = parser.parse_args(arguments)
    missing = missing_packages()
    if missing:
        names = " ".join(missing)
        print(f"docs: {len(missing)} packages are missing; as root run: apt-get install {names}")
        return 1
    files = tree_files()
    sources, output = options.folder / "sources", options.folder / "html"
    site = write_sources(sources, files)
    for page, target in site.missing:
        print(f'{page}: "{target}" is not in the tree')
    shutil.rmtree(output, ignore_errors=True)
    if not run_sphinx(sources, output):
        return 1
    add_source_pages(output, {path: files[path] or "" for path in site.sources})
    print(f"docs: {output}/index.html")
    is_right = check(files, output) if options.check else True
    return 0 if is_right and not site.missing else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
