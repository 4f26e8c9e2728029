"""Prefixes that requests share in vLLM's cache (cascade attention). Needs torch, and nothing of vLLM.

A first pass appends the new keys, and is over the keys that each request has for itself. Neighbours in a step whose
first blocks are the same are one sequence in a second pass, which reads the keys of these blocks once for all of their
queries. The logarithms of their sums join the two.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy
import torch

import attune

LEAST_KEYS = 256  # of a prefix
LEAST_SAVED = 100_000  # keys that one pass would read again, often from a CPU's cache: for fewer, two gain too little
MOST_QUERIES = 4  # of a step, for each request that shares: with prompts, joining all rows takes more than is saved
MOST_HEIGHTS = 8  # numbers of shared blocks that are tried


class Shared(NamedTuple):
    """The lists of the two passes, as keywords of Attention.plan()."""

    prefix: Dict[str, Any]
    own: Dict[str, Any]


def find(lists: Dict[str, Any], block_size: int) -> Optional[Shared]:
    """The two passes of a step with these int32 lists; None where neighbours share too little.

    A prefix is whole blocks of keys before those of the step's queries, so each query sees all of it."""
    table, starts, lens = (lists[name].numpy() for name in ("block_table", "cu_seqlens_q", "kv_lens"))
    if not (table[1:, 0] == table[:-1, 0]).any():
        return None
    whole = numpy.maximum(lens - numpy.diff(starts), 0) // block_size
    heads = table[:, : max(whole.max(), 1)]  # tables are as wide as the longest context
    differ = heads[1:] != heads[:-1]
    links = numpy.where(differ.any(1), differ.argmax(1), heads.shape[1])  # blocks of a request that the next has, too
    links = numpy.minimum(links, numpy.minimum(whole[1:], whole[:-1]))
    links[links * block_size < LEAST_KEYS] = 0
    if links.sum() * block_size < LEAST_SAVED:
        return None
    begins, blocks = _runs(tuple(links.tolist()))
    counts = numpy.diff(begins, append=len(lens))
    if ((counts - 1) * blocks).sum() * block_size < LEAST_SAVED:
        return None
    if starts[-1] - starts[0] > MOST_QUERIES * counts[blocks > 0].sum():
        return None
    rest = lens - numpy.repeat(blocks, counts) * block_size
    own = numpy.zeros((len(lens), -(-rest.max() // block_size)), numpy.int32)
    for begin, count, skipped in zip(begins, counts, blocks):
        behind = table[begin : begin + count, skipped : skipped + own.shape[1]]
        own[begin : begin + count, : behind.shape[1]] = behind
    return Shared(
        _lists(starts[numpy.append(begins, len(lens))], blocks * block_size, table[begins, : blocks.max()]),
        _lists(starts, rest, own),
    )


def _lists(starts: numpy.ndarray, lens: numpy.ndarray, table: numpy.ndarray) -> Dict[str, Any]:
    given = dict(cu_seqlens_q=starts, kv_lens=lens, block_table=table)
    return {name: torch.from_numpy(one.astype(numpy.int32, copy=False)) for name, one in given.items()}


@functools.lru_cache(maxsize=8)  # steps that decode have the links of the step before
def _runs(links: Tuple[int, ...]) -> Tuple[numpy.ndarray, numpy.ndarray]:
    """Runs of neighbours, neighbour i + 1 of which has links[i] blocks of neighbour i: where they begin, and the blocks
    that all of a run share. Some link is above 0. No other runs save reading more blocks if links have at most
    MOST_HEIGHTS numbers. Of more, runs are those of links that are rounded down to as many numbers.

    most[n]: blocks that the first n neighbours save. A run that shares `height` blocks saves them at each link."""
    heights = sorted(set(links) - {0})
    if len(heights) > MOST_HEIGHTS:
        low, high, last = heights[0], heights[-1], MOST_HEIGHTS - 1
        heights = [low + (high - low) * i // last for i in range(MOST_HEIGHTS)]
    open_runs = [(-1, 0)] * len(heights)  # for each height: the blocks saved up to here, and where the run begins
    most, begin = [0, 0], [0, 0]
    for at, link in enumerate(links):
        best = most[-1], at + 1
        for i, height in enumerate(heights):
            if height > link:
                open_runs[i] = -1, 0
                continue
            saved, since = open_runs[i]
            open_runs[i] = run = (saved + height, since) if saved >= most[at] else (most[at] + height, at)
            if run[0] > best[0]:
                best = run
        most.append(best[0])
        begin.append(best[1])
    begins = [begin[-1]]
    while begins[-1]:
        begins.append(begin[begins[-1]])
    begins.reverse()
    blocks = [min(links[at : end - 1], default=0) for at, end in zip(begins, [*begins[1:], len(links) + 1])]
    return numpy.array(begins), numpy.array(blocks)


@functools.lru_cache(maxsize=None)
def joining_of(dtype: str, num_heads: int, head_size: int) -> attune.Kernel:
    """Joins two results [num_heads, tokens, head_size] by the logarithms of their sums, into [tokens, num_heads,
    head_size]."""
    strides = 0, head_size, num_heads * head_size, 1
    return attune.compile(attune.Problem(
        op="merge", num_parts=2, batch=1, num_heads=num_heads, seq_q=attune.DYNAMIC, head_dim=head_size, dtype=dtype,
        out_strides=strides,
    ))  # fmt: skip


class Plan:
    """Both passes of a kind of layers, which run() as a StepPlan does. prefix, own: StepPlans that give lse. joining:
    of joining_of(); compiled before, since a step that has appended cannot take the single pass any more."""

    def __init__(self, prefix: Any, own: Any, joining: attune.Kernel) -> None:
        self._prefix, self._own, self._joining = prefix, own, joining
        self._parts: Any = None

    def run(
        self, q: torch.Tensor, k: Any = None, v: Any = None, *, out: torch.Tensor, runner: Any, sinks: Any = None,
        **cache: Any,
    ) -> torch.Tensor:
        """A request may share blocks that another writes in this step, so the pass that appends runs first. It has the
        sinks. Layers run one after the other, so they share what is between."""
        if self._parts is None:
            tokens, heads, columns = out.shape
            parts, lse = q.new_empty((2, heads, tokens, columns)), q.new_empty((2, heads, tokens), dtype=torch.float32)
            passes = [dict(out=part.transpose(0, 1), lse=sums) for part, sums in zip(parts, lse)]
            self._parts = *passes, dict(parts=parts.flatten(1, 2), parts_lse=lse.flatten(1))
        first, second, both = self._parts
        bindings = {} if sinks is None else {"sinks": sinks}
        self._own.run(q, k, v, runner=runner, **first, **cache, **bindings)
        self._prefix.run(q, runner=runner, **second, **cache)
        self._joining.run(out=out.transpose(0, 1)[None], runner=runner, **both)
        return out
