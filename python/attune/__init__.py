"""attune: attention kernels for the CPU, compiled for exactly your problem.

    import attune, numpy as np
    q, k, v = (np.random.rand(1, 12, 512, 64).astype("f4") for _ in range(3))
    out = attune.attention(q, k, v, is_causal=True)

attention takes NumPy arrays and torch CPU tensors. For everything else that the C library can do, describe the problem,
compile it, and run the kernel on tensors given by name:

    problem = attune.Problem(num_heads=12, seq_q=512, head_dim=64, is_causal=True)
    kernel = attune.compile(problem)
    kernel.run(q=q, k=k, v=v, out=out)      # or out = kernel(q=q, k=k, v=v)

Tensors are anything with __dlpack__ or the buffer protocol, with strides, and are never copied. The GIL is released
while a kernel runs. Compiled kernels are cached in memory and on disk. A failure raises attune.Error or one of its
subclasses, with one sentence.

    attention                  softmax(q k^T) v, in one function
    Attention                  described once, then run step by step: ragged batches, caches, appending
    StepPlan                   a step of an Attention whose lengths are checked once, for all layers
    PagedCache, CacheSize      pages for the sequences of an Attention; how large a cache is
    flex_attention             attention with functions on scores and masks, as PyTorch's
    linear_attention           a state in place of keys and values, as in Qwen3-Next
    causal_conv                the convolution before linear attention
    MLA                        a block of multi-head latent attention, as in DeepSeek-V3
    index, IndexResult         the keys that each query attends to, chosen as in DeepSeek V3.2
    Problem, DYNAMIC           what is computed; a size that is known only at run time
    compile, Kernel            one problem, compiled
    Plan                       one handle for lengths that vary
    TensorInfo                 a tensor of a problem: name, dtype, shape
    Context, default_context   caches and threads
    Event                      what a context reports: a miss, a compile, a hit …
    warm                       compiles ahead of time
    tune, TuneResult           searches for a faster schedule
    check, CheckResult         compares a kernel with the interpreter, bit by bit
    explain, info              how a problem is computed; the library, the machine and the caches
    library_path               the C library in use
    Error …                    exceptions; attune.Error.__subclasses__() lists them

attune.torch, attune.transformers, attune.vllm, attune.ort (ONNX Runtime) and attune.jax put attune into these engines,
attune.tvm into any framework by TVM-FFI, attune.ggml into llama.cpp. attune.blocks chooses blocks of keys and attends
to them. attune.onnx computes ONNX's FlexAttention, attune.distributed measures on a cluster, attune.plot draws what the
commands wrote. These modules are imported when first used; `import attune` needs the standard library only.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any

from ._attention import attention
from ._context import Context, Event, default_context
from ._conv import causal_conv
from ._errors import (
    CancelledError,
    CheckFailedError,
    CodegenError,
    Error,
    FileError,
    InvalidArgumentError,
    InvalidProblemError,
    InvalidScheduleError,
    InvalidTypeError,
    NotCachedError,
    OutOfMemoryError,
    UnsupportedError,
)
from ._flex import flex_attention
from ._index import IndexResult, index
from ._kernel import Kernel, compile
from ._library import library_path
from ._library import version as __version__
from ._linear import linear_attention
from ._mla import MLA
from ._paged_cache import PagedCache
from ._plan import Plan
from ._problem import DYNAMIC, Problem, TensorInfo
from ._step_plan import StepPlan
from ._steps import Attention, CacheSize
from ._tools import CheckResult, TuneResult, check, explain, info, tune, warm

__all__ = [
    "attention",
    "Attention",
    "StepPlan",
    "PagedCache",
    "CacheSize",
    "flex_attention",
    "linear_attention",
    "causal_conv",
    "MLA",
    "index",
    "IndexResult",
    "Problem",
    "DYNAMIC",
    "TensorInfo",
    "compile",
    "Kernel",
    "Plan",
    "Context",
    "Event",
    "default_context",
    "library_path",
    "info",
    "warm",
    "tune",
    "TuneResult",
    "check",
    "CheckResult",
    "explain",
    "Error",
    "InvalidArgumentError",
    "InvalidTypeError",
    "InvalidProblemError",
    "InvalidScheduleError",
    "UnsupportedError",
    "OutOfMemoryError",
    "FileError",
    "CodegenError",
    "CheckFailedError",
    "NotCachedError",
    "CancelledError",
]

# Their home for help() and pickle, whatever file they are written in.
for _name in __all__:
    if getattr(globals()[_name], "__module__", "").startswith(__name__ + "._"):
        globals()[_name].__module__ = __name__
del _name


_MODULES = (
    "torch", "transformers", "vllm", "ort", "jax", "tvm", "ggml", "blocks", "onnx", "distributed", "plot",
)  # fmt: skip


class _Module(types.ModuleType):
    """Imports the engines when they are first used. A function __getattr__ would appear in help(attune)."""

    def __getattr__(self, name: str) -> Any:
        if name in _MODULES:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _Module
