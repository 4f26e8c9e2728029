#!/usr/bin/env python3
"""Writes docs/layouts.svg to standard output: where the keys of three sequences lie, in each kind of tensor.

    python3 scripts/layouts.py > docs/layouts.svg
"""
from xml.sax.saxutils import escape

WIDTH, HEIGHT, CELL = 960, 490, 26
SEQUENCES = (("#dbe7f7", "#4a6fa5"), ("#dcefe1", "#3f8557"), ("#fbe8c9", "#b0781f"))
FREE = ("#f7f7f7", "#b5b5b5")
LENGTHS = (6, 3, 5)
drawn = []


def text(x, y, words, size=13, anchor="start", colour="#1b1b1b", style=""):
    drawn.append(f'<text x="{x}" y="{y}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{style}>'
                 f"{escape(words)}</text>")


def code(x, y, words, anchor="start"):
    text(x, y, words, 12, anchor, "#444444", ' font-family="DejaVu Sans Mono, monospace"')


def title(x, y, words, line):
    text(x, y, words, 16, style=' font-weight="bold"')
    text(x, y + 20, line, 12, colour="#444444")


def cell(x, y, sequence, key, is_new=False):
    """A key of a sequence, or a free place; a new key has a thick edge."""
    fill, edge = FREE if sequence is None else SEQUENCES[sequence]
    drawn.append(f'<rect x="{x}" y="{y}" width="{CELL}" height="{CELL}" fill="{fill}" stroke="{edge}" '
                 f'stroke-width="{3 if is_new else 1.2}"/>')
    if sequence is not None:
        text(x + CELL / 2, y + 18, str(key), 12, "middle", edge)


def contiguous(x, y):
    title(x, y, "Contiguous: ATTUNE_KV_CACHE", "[batch, seq_kv, kv_heads, dim]; free places are not read")
    for b, length in enumerate(LENGTHS):
        text(x, y + 58 + 34 * b, f"sequence {b}", 12)
        for j in range(8):
            cell(x + 84 + CELL * j, y + 40 + 34 * b, b if j < length else None, j)
        code(x + 306, y + 58 + 34 * b, f"kv_lens[{b}] = {length}")
    code(x + 84 + 4 * CELL, y + 160, "seq_kv = 8", "middle")


def ragged(x, y):
    title(x, y, "Ragged: ATTUNE_THD", "[tokens, heads, dim]; one sequence after the other")
    place = 0
    for b, length in enumerate(LENGTHS):
        code(x + CELL * place, y + 92, str(place), "middle")
        for j in range(length):
            cell(x + CELL * place, y + 44, b, j)
            place += 1
    code(x + CELL * place, y + 92, str(place), "middle")
    code(x, y + 124, "cu_seqlens_q = {0, 6, 9, 14}")


def paged(x, y):
    title(x, y, "Paged: ATTUNE_KV_PAGED", "[pages, page_size, kv_heads, dim]; here page_size is 4")
    pages = {0: (0, 0), 5: (0, 4), 3: (1, 0), 1: (2, 0), 6: (2, 4)}  # page: sequence, its first key
    for p in range(8):
        left, top = x + 118 * (p % 4), y + 62 + 58 * (p // 4)
        code(left + 2 * CELL, top - 6, f"page {p}", "middle")
        b, first = pages.get(p, (None, 0))
        for j in range(4):
            is_key = b is not None and first + j < LENGTHS[b]
            cell(left + CELL * j, top, b if is_key else None, first + j)
    code(x, y + 174, "block_table = {0, 5}, {3, –}, {1, 6}")
    code(x, y + 192, "kv_lens = {6, 3, 5}")


def appending(x, y):
    title(x, y, "Appending: appends = 1", "k and v of the step go behind the cached keys; kv_lens count them")
    for j in range(2):
        cell(x + 84 + CELL * j, y + 44, 0, 4 + j, True)
    text(x, y + 62, "k, v", 12)
    code(x + 84 + CELL * 2 + 10, y + 62, "2 queries, 2 new keys")
    drawn.append(f'<path d="M{x + 84 + CELL} {y + 74} L{x + 84 + CELL * 5} {y + 94}" stroke="#444444" '
                 'stroke-width="1.6" marker-end="url(#head)"/>')
    text(x, y + 116, "the cache", 12)
    for j in (0, 1, 2, 3, 6, 7, 4, 5):  # thick edges last
        cell(x + 84 + CELL * j, y + 98, 0 if j < 6 else None, j, j in (4, 5))
    code(x + 306, y + 116, "kv_lens[0] = 6")
    text(x, y + 150, "With is_causal, the first query attends to keys 0 to 4,", 12)
    text(x, y + 167, "and the last query to keys 0 to 5.", 12)


def main():
    contiguous(30, 40)
    ragged(540, 40)
    paged(30, 270)
    appending(540, 270)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
          f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="DejaVu Sans, Helvetica, Arial, sans-serif">')
    print("<title>Where the keys of three sequences lie: contiguous, ragged, paged, and appended</title>")
    print('<defs><marker id="head" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
          'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#444444"/></marker></defs>')
    print(f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" fill="#ffffff"/>')
    print("\n".join(drawn))
    print("</svg>")


if __name__ == "__main__":
    main()
