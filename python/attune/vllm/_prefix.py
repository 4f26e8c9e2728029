"""Prefixes that requests share in vLLM's cache (cascade attention). Needs torch, and nothing of vLLM.

A first pass appends the new keys, and is over the keys that each request has for itself. Neighbours in a step whose
first blocks are the same are one sequence in a second pass, which reads the keys of these blocks once for all of their
queries. The logarithms of their sums join the two.
"""

from __future__ import annotations

from typing import Any, Dict, NamedTuple, Optional, Tuple

import numpy
import torch

LEAST_KEYS = 256  # of a prefix
LEAST_SAVED = 100_000  # keys that one pass would read again, often from a CPU's cache: for fewer, two gain too little
MOST_QUERIES = 4  # of a step, for each request that shares: with prompts, joining all rows takes more than is saved


class Shared(NamedTuple):
    """The lists of the two passes, as keywords of Attention.plan()."""

    prefix: Dict[str, Any]
    own: Dict[str, Any]


def find(lists: Dict[str, Any], block_size: int) -> Optional[Shared]:
    """The two passes of a step with these int32 lists; None where neighbours share too little.

    A prefix is whole blocks of keys before those of the step's queries, so each query sees all of it."""
    table = lists["block_table"].numpy()
    if not (table[1:, 0] == table[:-1, 0]).any():
        return None
    starts, lens = lists["cu_seqlens_q"].numpy(), lists["kv_lens"].numpy()
    whole = numpy.maximum(lens - numpy.diff(starts), 0) // block_size
    differ = table[1:] != table[:-1]
    links = numpy.where(differ.any(1), differ.argmax(1), table.shape[1])  # blocks of a request that the next has, too
    links = numpy.minimum(links, numpy.minimum(whole[1:], whole[:-1]))
    links[links * block_size < LEAST_KEYS] = 0
    if links.sum() * block_size < LEAST_SAVED:
        return None
    begins, blocks = _runs(links)
    counts = numpy.diff(begins, append=len(lens))
    if ((counts - 1) * blocks).sum() * block_size < LEAST_SAVED:
        return None
    if starts[-1] - starts[0] > MOST_QUERIES * counts[blocks > 0].sum():
        return None
    skipped = numpy.repeat(blocks, counts)
    columns = numpy.minimum(numpy.arange(table.shape[1]) + skipped[:, None], table.shape[1] - 1)
    prefix = starts[numpy.append(begins, len(lens))], blocks * block_size, table[begins, : blocks.max()]
    own = starts, lens - skipped * block_size, numpy.take_along_axis(table, columns, 1)
    names = ("cu_seqlens_q", "kv_lens", "block_table")
    passes = [{name: torch.from_numpy(one.astype(numpy.int32)) for name, one in zip(names, lists)}
              for lists in (prefix, own)]  # fmt: skip
    return Shared(*passes)


def _runs(links: numpy.ndarray) -> Tuple[numpy.ndarray, numpy.ndarray]:
    """Runs of neighbours, neighbour i + 1 of which has links[i] blocks of neighbour i: where they begin, and the blocks
    that all of a run share. No other runs save reading more blocks."""
    count = len(links) + 1
    most, begin = numpy.zeros((2, count + 1), numpy.int64)  # blocks saved before each neighbour, by a run from begin
    least = numpy.full(count, links.max())  # link of a run from each neighbour to the end
    for end, link in enumerate([*links, 0], 1):
        saved = most[:end] + numpy.arange(end - 1, -1, -1) * least[:end]
        begin[end] = saved.argmax()
        most[end] = saved[begin[end]]
        least[:end] = numpy.minimum(least[:end], link)
    ends = [count]
    while begin[ends[-1]]:
        ends.append(begin[ends[-1]])
    ends_of = numpy.array(ends[::-1])
    begins = begin[ends_of]
    return begins, (most[ends_of] - most[begins]) // numpy.maximum(ends_of - begins - 1, 1)


class Plan:
    """Both passes of a kind of layers, which run() as a StepPlan does. prefix, own: StepPlans that give lse."""

    def __init__(self, prefix: Any, own: Any) -> None:
        self._prefix, self._own = prefix, own
        self._parts: Any = None

    def run(
        self, q: torch.Tensor, k: Any = None, v: Any = None, *, out: torch.Tensor, runner: Any, sinks: Any = None,
        **cache: Any,
    ) -> torch.Tensor:
        """A request may share blocks that another writes in this step, so the pass that appends runs first. It has the
        sinks. Layers run one after the other, so they share what is between."""
        if self._parts is None:
            self._parts = q.new_empty((2, *q.shape)), q.new_empty((2, *q.shape[1::-1]), dtype=torch.float32)
        parts, lse = self._parts
        bindings = {} if sinks is None else {"sinks": sinks}
        self._own.run(q, k, v, out=parts[1], lse=lse[1], runner=runner, **cache, **bindings)
        self._prefix.run(q, out=parts[0], lse=lse[0], runner=runner, **cache)
        weights = torch.sigmoid(lse[0] - lse[1]).T.unsqueeze(2)  # of the first part: exp(a) / (exp(a) + exp(b))
        out.copy_(torch.lerp(parts[1].float(), parts[0].float(), weights))
        return out
