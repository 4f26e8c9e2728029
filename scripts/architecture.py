#!/usr/bin/env python3
"""Writes docs/architecture.svg to standard output: how a problem becomes a result, and which folder does what.

    python3 scripts/architecture.py > docs/architecture.svg
"""
from xml.sax.saxutils import escape

WIDTH, HEIGHT = 1240, 660
BOX, TALL = 160, 72
COLUMN = [30 + 204 * i for i in range(6)]
HIT, MISS, CHECK = 120, 320, 510  # the tops of the three rows
COLOURS = {
    "data": ("#eef3fb", "#4a6fa5"),
    "runtime": ("#e9f5ec", "#3f8557"),
    "compile": ("#fdf3e1", "#b0781f"),
    "llvm": ("#fbe9e7", "#b5482f"),
    "check": ("#f3ecf8", "#7b559b"),
}
drawn = []


def text(x, y, words, size=14, colour="#1b1b1b", anchor="middle", style=""):
    drawn.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{style}>'
                 f"{escape(words)}</text>")


def box(column, top, kind, title, *lines):
    """A step: its name, then a line or two, the last of which is the folder."""
    fill, edge = COLOURS[kind]
    x = COLUMN[column]
    drawn.append(f'<rect x="{x}" y="{top}" width="{BOX}" height="{TALL}" rx="8" fill="{fill}" stroke="{edge}" '
                 'stroke-width="1.6"/>')
    text(x + BOX / 2, top + 22, title, 15, style=' font-weight="bold"')
    for i, line in enumerate(lines):
        is_folder = i == len(lines) - 1
        text(x + BOX / 2, top + 42 + 18 * i, line, 12, edge if is_folder else "#444444",
             style=' font-family="DejaVu Sans Mono, monospace"' if is_folder else "")


def arrow(points, label="", at=None, anchor="middle", dashed=False):
    """A line through the points; its label stands at `at`."""
    path = " ".join(f"{'L' if i else 'M'}{x} {y}" for i, (x, y) in enumerate(points))
    dash = ' stroke-dasharray="6 4"' if dashed else ""
    drawn.append(f'<path d="{path}" fill="none" stroke="#444444" stroke-width="1.6"{dash} marker-end="url(#head)"/>')
    for i, line in enumerate(label.split("\n") if label else ()):
        text(at[0], at[1] + 15 * i, line, 12, "#444444", anchor)


def middle(column):
    return COLUMN[column] + BOX / 2


def across(column, top, label="", dashed=False):
    """From one box to the next of its row."""
    left, right = COLUMN[column] + BOX, COLUMN[column + 1]
    y = top + TALL / 2
    arrow([(left, y), (right - 2, y)], label, ((left + right) / 2, y - 8), dashed=dashed)


def hits():
    text(COLUMN[0], 40, "Every call: microseconds from disk, nanoseconds from memory, and no LLVM", 16, anchor="start",
         style=' font-weight="bold"')
    box(0, HIT, "data", "problem", "a struct, or text", "include/attune.h")
    box(1, HIT, "data", "key", "checked, canonical", "src/problem, cache")
    box(2, HIT, "runtime", "memory cache", "for this process", "src/cache")
    box(3, HIT, "runtime", "disk cache", "a file for each kernel", "src/cache")
    box(4, HIT, "runtime", "loader", "image → pages", "src/engine")
    box(5, HIT, "runtime", "run", "pool, runner, parts", "src/engine, threads")
    across(0, HIT)
    across(1, HIT)
    across(2, HIT, "miss")
    across(3, HIT, "hit")
    across(4, HIT)
    arrow([(middle(2), HIT), (middle(2), 78), (middle(5), 78), (middle(5), HIT - 2)], "hit", (middle(4) - 100, 70))


def misses():
    text(COLUMN[0], MISS + TALL + 32, "A miss: milliseconds", 16, anchor="start", style=' font-weight="bold"')
    box(0, MISS, "compile", "schedule", "rules, or tuned", "src/schedule, tune")
    box(1, MISS, "compile", "builders", "write the loop IR", "src/attend, src/layer")
    box(2, MISS, "compile", "passes", "lower and verify it", "src/ir")
    box(3, MISS, "llvm", "LLVM", "plug-in or worker", "src/codegen")
    box(4, MISS, "llvm", "linker", "object → flat image", "src/codegen")
    across(0, MISS)
    across(1, MISS, "IR")
    across(2, MISS, "text")
    across(3, MISS)
    border = (COLUMN[2] + BOX + COLUMN[3]) / 2
    drawn.append(f'<path d="M{border} {MISS - 42} v54 m0 34 V{MISS + TALL + 40}" stroke="#b5482f" stroke-width="1.6" '
                 'stroke-dasharray="2 4"/>')
    text(border + 8, MISS + TALL + 32, "loaded on the first miss only", 12, "#b5482f", "start")
    arrow([(middle(3) - 30, HIT + TALL), (middle(3) - 30, 250), (middle(0), 250), (middle(0), MISS - 2)],
          "miss: compile", (middle(1), 242))
    arrow([(middle(4), MISS), (middle(4), HIT + TALL + 2)], "image", (middle(4) + 8, 262), "start")
    arrow([(middle(4) - 40, MISS), (middle(4) - 40, 228), (middle(3) + 40, 228), (middle(3) + 40, HIT + TALL + 2)],
          "kept", ((middle(3) + middle(4)) / 2, 220))


def checks():
    text(COLUMN[0], CHECK + TALL + 44, "Beside it: what a kernel means", 16, anchor="start",
         style=' font-weight="bold"')
    box(2, CHECK, "check", "interpreter", "runs the same IR", "src/ir")
    box(4, CHECK, "check", "reference", "plain loops, f64", "reference/*.c")
    box(5, CHECK, "check", "attune-lab check", "random problems", "lab")
    arrow([(middle(2), MISS + TALL), (middle(2), CHECK - 2)], "IR, before and after\nevery pass", (middle(2) - 8, 450),
          "end", dashed=True)
    low = CHECK + TALL + 34
    arrow([(middle(2), CHECK + TALL), (middle(2), low), (middle(5) + 30, low), (middle(5) + 30, CHECK + TALL + 2)],
          "the same bits", (middle(3), low - 8), dashed=True)
    across(4, CHECK, dashed=True)
    text((COLUMN[4] + BOX + COLUMN[5]) / 2, CHECK + 24, "error", 12, "#444444")
    arrow([(middle(5), HIT + TALL), (middle(5), CHECK - 2)], "results", (middle(5) + 8, 370), "start", dashed=True)


def main():
    hits()
    misses()
    checks()
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
          'font-family="DejaVu Sans, Helvetica, Arial, sans-serif">')
    print("<title>How attune turns a problem into a result, and which folder does what</title>")
    print('<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
          'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#444444"/></marker></defs>')
    print(f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>')
    print("\n".join(drawn))
    print("</svg>")


if __name__ == "__main__":
    main()
