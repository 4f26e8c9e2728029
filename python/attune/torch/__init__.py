"""attune inside PyTorch (2.10 or newer): kernels for scaled_dot_product_attention, and operators of attune's own.

    import attune.torch
    attune.torch.enable()            # until disable()
    with attune.torch.enable():      # until the end of the block
        model(...)
    attune.torch.stats()             # what ran here, what ran as stock PyTorch, and why

Calls that attune does not support run as stock PyTorch, counted by reason in stats(). Calls that fail because something
is broken, such as a missing code generator, run as stock too, with one warning. All work is done on PyTorch's threads.
"""

from __future__ import annotations

import warnings
from typing import Dict, Optional, Union

import torch as _torch

from . import _block, _native

__all__ = ["enable", "disable", "stats", "refresh"]


class _Enabled:
    """What enable() returns: as a context manager it gives the kernels back that were there before."""

    def __init__(self, before: int) -> None:
        self._before: Optional[int] = before

    def __enter__(self) -> "_Enabled":
        return self

    def __exit__(self, *_: object) -> None:
        if self._before is not None:
            _set(self._before)
            self._before = None


class _SetEnabled(_torch.autograd.Function):
    """Registers kernels where PyTorch hands its warnings to Python, as within any function of autograd."""

    @staticmethod
    def forward(ctx: object, bits: int) -> None:
        failure = _native.library().attune_torch_set_enabled(bits)
        if failure:
            raise RuntimeError(failure.decode())


def _set(bits: int) -> None:
    with warnings.catch_warnings():
        # PyTorch warns, once per process, that a kernel is overridden: that is what was asked for.
        warnings.filterwarnings("ignore", message="(?s).*verriding a previously registered kernel")
        _SetEnabled.apply(bits)


def enable(sdpa: bool = True, block: Union[bool, str] = True, reproducible: bool = False) -> _Enabled:
    """Lets attune compute torch.nn.functional.scaled_dot_product_attention on the CPU (sdpa), and whole blocks of
    nn.MultiheadAttention and nn.TransformerEncoderLayer (block).

    For the whole process, until disable(), or until the end of a `with` block. What is enabled already stays so.

    A row's bits do not depend on the batch that it is in. With reproducible=True they do not depend on the other rows
    and lengths either, so a token alone has the bits that it has in a prompt; attune's own operators then do the same.
    That costs some speed, most for single rows.

    Weights of blocks are packed once, and again after they have changed. A change shows in PyTorch's version counter,
    in the tensor's memory, or in a sample of its values, which finds whole tensors that are written through .data, by
    NumPy or by another process. A change of a few values in such a way may not be found: call refresh(), or enable with
    block="verify", which compares all values in every call."""
    if block not in (True, False, "verify"):
        raise ValueError(f"block is {block!r}, expected True, False or 'verify'")
    if block:
        _block.prepare()
        _block.verify(block == "verify")
    before = _native.library().attune_torch_enabled()
    wanted = ((_native.SDPA, sdpa), (_native.BLOCK, block), (_native.REPRODUCIBLE, reproducible))
    _set(before | sum(bit for bit, is_wanted in wanted if is_wanted))
    return _Enabled(before)


def disable() -> None:
    """Gives PyTorch its own kernels back."""
    _set(0)


def stats() -> Dict[str, int]:
    """Counts since the process began: "sdpa.ran" (computed by attune), "sdpa.stock.<reason>" (run as stock PyTorch),
    "block.ran", "block.stock.<reason>", "block.packed" (how often weights were packed),
    "broken" (run as stock although attune supports it; a warning said why), "compiles", "disk_hits"."""
    return _native.counters()


def refresh(module: Optional["_torch.nn.Module"] = None) -> None:
    """Forgets the packed weights of one module, or of all: the next call packs them again. Needed only after changes
    that PyTorch does not see; see enable()."""
    _block.refresh(module)


_native.library()  # defines the operators
from . import _ops  # noqa: E402
