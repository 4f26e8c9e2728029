"""Counts of the calls that ran in attune, and of those that ran as stock with their reasons."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Dict

import torch

_lock = threading.Lock()
_attune: Counter = Counter()
_stock: Counter = Counter()


def _count(counter: Counter, key: str) -> None:
    # torch.compile traces a call once and cannot trace a lock.
    if not torch.compiler.is_compiling():
        with _lock:
            counter[key] += 1


def count_attune(kind: str) -> None:
    _count(_attune, kind)


def count_stock(reason: str) -> None:
    _count(_stock, reason)


def stats() -> Dict[str, object]:
    """The calls of the implementation "attune" since the start, or since ``reset_stats()``.

    ``attune`` and ``stock`` are numbers of calls. ``masks`` splits the former by the form of the mask: "none",
    "lengths" (padding as ``kv_lens``), "keys" (one boolean for each key), "window", "mask" (a 4-D boolean mask),
    "bias" (a float mask); "append" and "codes" are calls on a cache of another type, "linear" those of linear
    attention, "mla" whole blocks of latent attention, "index" choices of keys, "listed" attention to chosen keys.
    ``reasons`` splits the latter. Calls from code that torch.compile made are not counted.
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
