"""attune inside PyTorch (2.10 or newer): kernels for scaled_dot_product_attention, and operators of attune's own.

    import attune.torch
    attune.torch.enable()            # until disable()
    with attune.torch.enable():      # until the end of the block
        model(...)
    attune.torch.stats()             # counts of calls that attune computed, and that ran as stock PyTorch, by reason

Calls that attune does not support run as stock PyTorch, counted by reason in stats(). Calls that fail, for example
without a code generator, run as stock, too, with one warning. attune computes on PyTorch's threads.

flash_attn_func, flash_attn_varlen_func and flash_attn_with_kvcache are FlashAttention's functions for tensors on the
CPU. Only they run on attune's own threads, as many as torch.get_num_threads() says.
"""

from __future__ import annotations

import os
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Dict, List, Optional, Union

import torch as _torch

from . import _block, _native
from ._flash import flash_attn_func, flash_attn_varlen_func, flash_attn_with_kvcache

__all__ = [
    "enable",
    "disable",
    "stats",
    "refresh",
    "runner",
    "flash_attn_func",
    "flash_attn_varlen_func",
    "flash_attn_with_kvcache",
]


def runner() -> _native.Runner:
    """PyTorch's threads for the steps of an attune.Attention: attention.run(…, runner=attune.torch.runner()).

    It has as many as torch.get_num_threads() says now, and may be used by any thread.
    """
    return _native.Runner()


class _Enabled:
    """What enable() returns: as a context manager it ends what this call has enabled, and nothing else."""

    def __init__(self, bits: int) -> None:
        self._bits = bits

    def __enter__(self) -> "_Enabled":
        return self

    def __exit__(self, *_: object) -> None:
        with _lock:
            if self in _active:
                _set([other for other in _active if other is not self])


_active: List[_Enabled] = []  # all that has been enabled and has not ended, in any order
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


class _SetEnabled(_torch.autograd.Function):
    """Registers kernels where PyTorch hands its warnings to Python, as within any function of autograd."""

    @staticmethod
    def forward(bits: int) -> None:
        _set_bits(bits)

    @staticmethod
    def setup_context(ctx: object, inputs: object, output: object) -> None:
        pass


def _set_bits(bits: int) -> None:
    failure = _native.library().attune_torch_set_enabled(bits)
    if failure:
        raise RuntimeError(failure.decode())


def _register(bits: int) -> None:
    with warnings.catch_warnings():
        # PyTorch warns, once per process, that a kernel is overridden: that is what was asked for.
        warnings.filterwarnings("ignore", message="(?s).*verriding a previously registered kernel")
        _SetEnabled.apply(bits)


def _set(active: List[_Enabled]) -> None:
    """Enables what these have asked for. Under the lock."""
    bits = 0
    for one in active:
        bits |= one._bits
    if bits & (_native.SDPA | _native.BLOCK) & ~_native.library().attune_torch_registered():
        # Not in this thread, which may be within torch.vmap or torch.func.grad.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(_register, bits).result()
    else:
        _set_bits(bits)
    _active[:] = active


def enable(sdpa: bool = True, block: Union[bool, str] = True, reproducible: bool = False) -> _Enabled:
    """Lets attune compute torch.nn.functional.scaled_dot_product_attention on the CPU (sdpa), and whole blocks of
    nn.MultiheadAttention and nn.TransformerEncoderLayer (block).

    It holds for the whole process, until disable() or the end of a `with` block; `with` blocks may be nested, and end
    in any order. The first call must not be made while another thread is within one of these operators.

    A row has the same bits in every batch. With reproducible=True they do not depend on the other rows and lengths
    either, also in attune's own operators: a token alone has the bits that it has in a prompt. That costs speed, most
    for single rows.

    Weights of blocks are packed once, and again after they have changed. attune finds a change by PyTorch's version
    counter, by the tensor's memory, and by a sample of its values. A few values that are written through .data, by
    NumPy or by another process may not be found: call refresh() after that, or enable with block="verify", which
    compares all values in every call."""
    if block not in (True, False, "verify"):
        raise ValueError(f"block is {block!r}, expected True, False or 'verify'")
    if block:
        _block.prepare()
    wanted = (
        (_native.SDPA, sdpa),
        (_native.BLOCK, block),
        (_native.REPRODUCIBLE, reproducible),
        (_native.VERIFY, block == "verify"),
    )
    result = _Enabled(sum(bit for bit, is_wanted in wanted if is_wanted))
    with _lock:
        _set([*_active, result])
    return result


def disable() -> None:
    """Ends all that enable() has enabled, `with` blocks included: everything runs as stock PyTorch again."""
    with _lock:
        _set([])


def stats() -> Dict[str, int]:
    """Counts since the process began: "sdpa.ran" (computed by attune), "sdpa.stock.<reason>" (run as stock PyTorch),
    "block.ran", "block.stock.<reason>", "block.packed" (how often weights were packed),
    "broken" (run as stock although attune supports it; a warning said why), "compiles", "disk_hits"."""
    return _native.counters()


def refresh(module: Optional["_torch.nn.Module"] = None) -> None:
    """Frees the packed weights of one module, or of all: the next call packs them again. Needed only after changes that
    attune may not find; see enable()."""
    _block.refresh(module)


_native.library()  # defines the operators
from . import _blocks_op, _index_op, _linear_op, _ops, _step_ops  # noqa: E402
