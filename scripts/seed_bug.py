#!/usr/bin/env python3
"""usage: seed_bug.py check FILE…          whether each bug fits the sources and names tests that there are
       seed_bug.py seed FILE [TREE]    changes the sources of TREE (.), and prints the files that it changed

A seeded bug is a file tests/mutants/NAME.bug: a sentence, a line "tests: NAME…" with the tests that must see it, and
one pair or several of

    find:
        some lines of the sources
    replace:
        what takes their place

What is looked for stands exactly once in the sources, in any file. Between tokens any white space, or none, is as good
as any other, so code may be moved, indented and wrapped without touching a bug.
"""
import pathlib
import re
import sys

FOLDERS = ("adapters", "include", "lab", "python", "reference", "src", "tools")
ENDINGS = {".c", ".h", ".def", ".py", ".hpp"}


def parse(path):
    """The names of tests, and the pairs of what is looked for and what takes its place."""
    head, *pairs = re.split(r"(?m)^find:\n", path.read_text())
    tests = re.search(r"(?m)^tests: (.+)$", head)
    pairs = [pair.split("replace:\n", 1) for pair in pairs]
    if not head.split("\n")[0] or not tests or not pairs or any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"{path}: a bug is a sentence, 'tests: NAME…', 'find:' and 'replace:'")
    return tests.group(1).split(), pairs


def pattern(text):
    tokens = re.findall(r"\w+|[^\w\s]", text)
    if not tokens:
        raise ValueError("nothing is looked for")
    between = [r"\s+" if (a + b).isidentifier() else r"\s*" for a, b in zip(tokens, tokens[1:])] + [""]
    return re.compile("".join(re.escape(token) + blank for token, blank in zip(tokens, between)))


def sources(tree):
    return {path: path.read_text() for folder in FOLDERS for path in sorted((tree / folder).rglob("*"))
            if path.suffix in ENDINGS}


def seed(path, texts):
    """The files that the bug changes, with their new text. ValueError: it does not fit."""
    changed = {}
    for wanted, replacement in parse(path)[1]:
        find = pattern(wanted)
        found = [(file, match) for file, text in texts.items() for match in find.finditer(changed.get(file, text))]
        if len(found) != 1:
            raise ValueError(f"{path}: stands {len(found)} times in the sources, and not once: {wanted.strip()[:80]}")
        file, match = found[0]
        text = changed.get(file, texts[file])
        new = text[: match.start()] + replacement.strip() + text[match.end() :]
        if new.split() == text.split():
            raise ValueError(f"{path}: changes nothing")
        changed[file] = new
    return changed


def check(paths):
    texts, bad = sources(pathlib.Path(".")), 0
    for path in map(pathlib.Path, paths):
        try:
            for test in parse(path)[0]:
                if test != "check" and not (list(pathlib.Path("tests").rglob(f"{test}.c"))
                                            or list(pathlib.Path("tests").rglob(test))):
                    raise ValueError(f"{path}: there is no test {test}")
            seed(path, texts)
        except ValueError as error:
            print(error)
            bad += 1
    return 1 if bad else 0


def main(arguments):
    if len(arguments) >= 2 and arguments[0] == "check":
        return check(arguments[1:])
    if len(arguments) in (2, 3) and arguments[0] == "seed":
        try:
            changed = seed(pathlib.Path(arguments[1]), sources(pathlib.Path(*arguments[2:3])))
        except (OSError, ValueError) as error:
            print(error, file=sys.stderr)
            return 1
        for file, text in changed.items():
            file.write_text(text)
            print(file)
        return 0
    print(__doc__.split("\n\n")[0], file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
