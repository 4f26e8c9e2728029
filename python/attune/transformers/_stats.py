"""Counts of the calls that ran in attune, and of those that ran as stock with their reasons."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Dict

_lock = threading.Lock()
_attune: Counter = Counter()
_stock: Counter = Counter()


def count_attune(kind: str) -> None:
    with _lock:
        _attune[kind] += 1


def count_stock(reason: str) -> None:
    with _lock:
        _stock[reason] += 1


def stats() -> Dict[str, object]:
    """The calls of the implementation "attune" since the start, or since ``reset_stats()``.

    ``attune`` and ``stock`` are numbers of calls. ``masks`` splits the former by the form of the mask: "none",
    "lengths" (padding as ``kv_lens``), "keys" (one boolean for each key), "window", "mask" (a 4-D boolean mask), "bias"
    (a float mask); "append" and "codes" are calls on a cache of another type. ``reasons`` splits the latter.
    """
    with _lock:
        return {
            "attune": sum(_attune.values()),
            "stock": sum(_stock.values()),
            "masks": dict(_attune),
            "reasons": dict(_stock),
        }


def reset_stats() -> None:
    """Sets all counts of ``stats()`` to zero."""
    with _lock:
        _attune.clear()
        _stock.clear()
