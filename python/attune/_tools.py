"""Functions of the command in Python: info, warm, tune, check, explain."""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple

from ._context import Context, as_context
from ._draw import Drawn, decode, encode
from ._errors import CheckFailedError, FileError, InvalidTypeError
from ._kernel import Kernel
from ._library import check as _check
from ._library import lib, library_path, schedule_of, version
from ._problem import Problem, TensorInfo, as_problem
from ._structs import Prediction, Reason, TuneOptions, TuneOutcome, sized
from ._tensor import BYTES
from ._values import kind, number

_byref = ctypes.byref
_QUOTED_OR_BAR = re.compile(r'"[^"]*"?|\|')  # functions of a problem have bars of their own


def info(context: Context | None = None) -> Dict[str, Any]:
    """The library, the machine and the caches: version, library, cpu, isa, llvm, cache_dir, statistics …"""
    context = as_context(context)
    return {"version": version, "library": library_path(), **context.machine(), "statistics": context.statistics()}


def _listed(problems: Any) -> Iterator[Tuple[Problem, Optional[str]]]:
    """Problems and schedules of an iterable, or of a file as ATTUNE_RECORD writes it."""
    if isinstance(problems, (str, Problem)):
        problems = [problems]
    elif isinstance(problems, os.PathLike):
        try:
            with open(problems, encoding="utf-8") as file:
                problems = [line for line in map(str.strip, file) if line and not line.startswith("#")]
        except (OSError, ValueError) as error:
            raise FileError(f"{problems} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if not isinstance(problems, Iterable):
        raise InvalidTypeError(f"problems is {kind(problems)}; it must be problems, or the path of a list")
    for item in problems:
        if not isinstance(item, str):
            yield as_problem(item), None
        else:
            bar = next((found.start() for found in _QUOTED_OR_BAR.finditer(item) if found[0] == "|"), len(item))
            yield Problem(item[:bar].strip()), item[bar + 1:].strip() if bar < len(item) else None


def warm(
    problems: str | Problem | os.PathLike[str] | Iterable[str | Problem], context: Context | None = None
) -> Dict[str, int]:
    """Compiles kernels that are not cached, so that later calls and processes find them.

    problems: one, several, or the path (pathlib.Path) of a list that ATTUNE_RECORD wrote.
    Returns how many came from "memory", from "disk" and from the "compiler".
    """
    context, counts = as_context(context), {"memory": 0, "disk": 0, "compiler": 0}
    names = {"memory": "memory_hits", "disk": "disk_hits", "compiler": "compiles"}
    for problem, schedule in list(_listed(problems)):
        before = context.statistics()
        Kernel(problem, schedule, context)
        after = context.statistics()
        for kind, name in names.items():
            counts[kind] += after[name] > before[name]
    return counts


class TuneResult(NamedTuple):
    """The outcome of a search."""

    schedule: str  #: the best one found; the first one unless is_faster
    is_faster: bool  #: significantly
    ratio: float  #: time of the best one / time of the first one
    ratio_low: float
    ratio_high: float
    measured: int  #: schedules timed
    space: int  #: schedules that the model proposed
    seconds: float  #: of the search
    threads: int
    seconds_before: float  #: of a call; 0: not measured
    seconds_after: float
    interrupted: float  #: share of the measurements that another program disturbed


def tune(
    problem: str | Problem,
    seconds: float = 5,
    *,
    sizes: Mapping[str, int] | None = None,
    context: Context | None = None,
) -> TuneResult:
    """Searches for a faster schedule by measuring, on random tensors. compile() uses the winner from then on, in other
    processes, too.

    seconds: how long to search. sizes: those that the problem leaves open, as {"seq_kv": 1024}; 64 by default.
    """
    problem, context = as_problem(problem), as_context(context)
    drawn = Drawn(problem, sizes)
    options, outcome = sized(TuneOptions), sized(TuneOutcome)
    options.budget_seconds = number(seconds, "seconds")
    arguments = (context._pointer, problem._struct, _byref(drawn.arguments), _byref(options), _byref(outcome))
    _check(lib.attune_tune(*arguments))
    if outcome.wrong:
        schedule = outcome.wrong_schedule.decode()
        raise CheckFailedError(f"{outcome.wrong} schedules gave wrong bits, a bug in attune; the first is {schedule}")
    return TuneResult(
        outcome.schedule.decode(), bool(outcome.is_faster), outcome.ratio, outcome.ratio_low, outcome.ratio_high,
        outcome.measured, outcome.space, outcome.seconds, outcome.threads, outcome.seconds_before,
        outcome.seconds_after, outcome.interrupted,
    )


class CheckResult(NamedTuple):
    """The outcome of a check that passed."""

    elements: int  #: of the outputs that were compared
    max_error: Optional[float]  #: of `out` against the same problem in f64; None for a block, merging and weights


def _in_f64(problem: Problem) -> Optional[Problem]:
    """The same problem with f64 in place of every float, or None if its inputs cannot be widened one by one."""
    fields: Dict[str, Any] = dict(problem.fields)
    if "embed_dim" in fields or fields.get("op", "attention") != "attention" or "seq_new" in fields:
        return None
    types = {name: fields.get(name) for name in ("k_dtype", "v_dtype")}
    codes = {name: value for name, value in types.items() if value in ("i8", "f8", "i4")}
    for name in ("dtype", "k_dtype", "v_dtype", "bias_dtype", "softmax_precision", "reproducible"):
        fields.pop(name, None)
    fields.update(codes, dtype="f64")
    return Problem(**fields)


def _error(drawn: Drawn, sizes: Any, seed: int, context: Context) -> Optional[float]:
    """The largest difference of `out` from that of the same problem in f64, on the same numbers."""
    wide = _in_f64(drawn.problem)
    if wide is None:
        return None
    source = {tensor.name: tensor for tensor in drawn.tensors}

    def widened(tensor: TensorInfo) -> Optional[bytes]:
        own = source[tensor.name]
        data = drawn.memory[tensor.name].read()
        return data if own.dtype == tensor.dtype else encode(decode(data, own.dtype), tensor.dtype)

    exact = Drawn(wide, sizes, seed, widened)
    kernel = Kernel(wide, None, context)
    _check(lib.attune_run_with(context._pointer, kernel._pointer, exact.arguments, None))
    ours = decode(drawn.memory["out"].read(), source["out"].dtype)
    theirs = decode(exact.memory["out"].read(), "f64")
    return max((abs(a - b) for a, b in zip(ours, theirs)), default=0.0)


def check(
    problem: str | Problem,
    schedule: str | None = None,
    *,
    sizes: Mapping[str, int] | None = None,
    seed: int = 1,
    context: Context | None = None,
) -> CheckResult:
    """Runs a kernel and the interpreter of its IR on random tensors. Raises CheckFailedError unless all bits agree.

    The interpreter checks every access to memory. It is slow: minutes for long sequences. max_error compares `out` with
    a kernel for the same problem in f64. The command `attune-lab check` also has references and random problems."""
    problem, context = as_problem(problem), as_context(context)
    kernel = Kernel(problem, schedule, context)
    used = str(kernel.info["schedule"])
    drawn, defined = Drawn(problem, sizes, seed), Drawn(problem, sizes, seed)
    _check(lib.attune_run_with(context._pointer, kernel._pointer, drawn.arguments, None))
    _check(lib.attune_run_interpreted(context._pointer, problem._struct, used.encode(), defined.arguments))
    right = defined.outputs()
    for name, data in drawn.outputs().items():
        if data != right[name]:
            raise CheckFailedError(f"{name} of {problem} has other bits than the interpreter's: a bug in attune")
    dtypes = {tensor.name: tensor.dtype for tensor in defined.tensors}
    elements = sum(len(data) // BYTES[dtypes[name]] for name, data in right.items())
    return CheckResult(elements, _error(drawn, sizes, seed, context))


def _reasons(problem: Problem, context: Context) -> Iterator[str]:
    """Lines about the rules without which attune would choose another schedule."""
    reason = sized(Reason)
    while True:
        _check(lib.attune_schedule_reason(context._pointer, problem._struct, reason.row, _byref(reason)))
        if not reason.row:
            return
        yield f"rule      {reason.subject.decode()}, factor {reason.factor.decode()}: {reason.evidence.decode()}"


def explain(problem: str | Problem, schedule: str | None = None, context: Context | None = None) -> str:
    """How a problem is computed, as text: schedule, modelled cost, work and tensors. Compiles nothing."""
    problem, context = as_problem(problem), as_context(context)
    prediction = sized(Prediction)
    arguments = (context._pointer, problem._struct, schedule_of(schedule), _byref(prediction))
    _check(lib.attune_schedule_predict(*arguments))
    machine = context.machine()
    parts = {name: getattr(prediction, name) for name in ("scores", "softmax", "values", "tasks", "products")}
    cycles = sum(parts.values())
    lines = [
        f"problem   {problem}",
        f"schedule  {prediction.schedule.decode()}",
        "why       " + ("tuned" if prediction.is_tuned else "as named" if schedule else "attune's own choice"),
        f"machine   {machine['cpu_description']}, {machine['machine']}, {machine['isa']}",
    ]
    if not schedule and not prediction.is_tuned:
        lines.extend(_reasons(problem, context))
    if cycles:
        shares = ", ".join(f"{name} {100 * part / cycles:.1f} %" for name, part in parts.items() if part)
        lines.append(f"model     {cycles:.3g} cycles of one thread: {shares}")
    if problem.flops > 0:
        lines.append(f"work      {problem.flops:.4g} floating-point operations")
    return "\n".join(lines + [f"tensor    {tensor!r}" for tensor in problem.tensors])
