#!/usr/bin/env python3
"""usage: circles.py FOLDER…     circles of files by quoted includes, one a line; a .c and its .h are one file

Files that include each other in a circle cannot be read one after the other. test_rooms.sh has those that may be: each
is one thought in several files.
"""
import pathlib
import re
import sys

ROOTS = ("src", "include", "tools", "lab", "reference", "adapters", "src/base", "src/problem", "src/schedule")


def units(folders):
    """The files of each unit, by its path without the ending."""
    found = {}
    for path in sorted(p for folder in folders for p in pathlib.Path(folder).rglob("*.[ch]")):
        found.setdefault(path.with_suffix(""), []).append(path)
    return found


def includes(paths, known):
    """The other units that these files include."""
    for path in paths:
        for name in re.findall(r'#include "([^"]+\.h)"', path.read_text()):
            for folder in (path.parent, *map(pathlib.Path, ROOTS)):
                if (folder / name).exists():
                    unit = (folder / name).with_suffix("")
                    if unit in known and unit != path.with_suffix(""):
                        yield unit
                    break


def reached(start, graph):
    seen, left = set(), [start]
    while left:
        for unit in graph[left.pop()] - seen:
            seen.add(unit)
            left.append(unit)
    return seen


def main():
    known = units(sys.argv[1:])
    graph = {unit: set(includes(paths, known)) for unit, paths in known.items()}
    ways = {unit: reached(unit, graph) for unit in graph}
    circles = {frozenset(other for other in ways[unit] if unit in ways[other]) for unit in graph if unit in ways[unit]}
    for circle in sorted(" ".join(sorted(map(str, circle))) for circle in circles):
        print(circle)


if __name__ == "__main__":
    main()
