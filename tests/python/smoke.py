"""The package attune with the standard library only, as TAP: tests/python/test_python.sh.

Every case is a function of its own; the doc string is its name.
"""

import copy
import math
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import traceback
from array import array

import attune

TEXT = "num_heads=2,seq_q=5,seq_kv=7,head_dim=8"


def drawn(count, seed):
    numbers = random.Random(seed)
    return array("f", [numbers.uniform(-1, 1) for _ in range(count)])


def attend(q, k, v, heads, rows, keys, dim):
    """out of contiguous q, k, v, by the formula."""
    out = array("f", bytes(4 * len(q)))
    for h in range(heads):
        for i in range(rows):
            at = (h * rows + i) * dim
            scores = [sum(q[at + d] * k[(h * keys + j) * dim + d] for d in range(dim)) / math.sqrt(dim)
                      for j in range(keys)]
            weights = [math.exp(score - max(scores)) for score in scores]
            for d in range(dim):
                total = sum(weight * v[(h * keys + j) * dim + d] for j, weight in enumerate(weights))
                out[at + d] = total / sum(weights)
    return out


def call():
    q, k, v = drawn(80, 1), drawn(112, 2), drawn(112, 3)
    return q, k, v, attend(q, k, v, 2, 5, 7, 8)


def near(ours, theirs):
    assert len(ours) == len(theirs)
    assert max(abs(a - b) for a, b in zip(ours, theirs)) < 1e-5


def refused(kind, sentence, function, *arguments, **named):
    try:
        function(*arguments, **named)
    except kind as error:
        assert sentence in str(error), f"it says: {error}"
        assert isinstance(error, attune.Error) and "\n" not in str(error)
        return error
    raise AssertionError("nothing was raised")


def flat_arrays():
    """flat arrays are run as contiguous tensors"""
    q, k, v, wanted = call()
    out = array("f", bytes(4 * 80))
    attune.compile(TEXT).run(q=q, k=k, v=v, out=out)
    near(out, wanted)


def shaped_views():
    """memoryviews with a shape, read-only ones and bytes are read"""
    q, k, v, wanted = call()
    shaped = memoryview(q).cast("B").cast("f", (1, 2, 5, 8)).toreadonly()
    out = bytearray(4 * 80)
    attune.compile(TEXT).run(q=shaped, k=k.tobytes(), v=v, out=out)
    near(memoryview(out).cast("f"), wanted)


def read_only_output():
    """a read-only output is refused"""
    q, k, v, _ = call()
    refused(ValueError, "out is read-only", attune.compile(TEXT).run, q=q, k=k, v=v, out=bytes(4 * 80))


def wrong_tensors():
    """tensors of a wrong size, type or name are refused by name"""
    q, k, v, _ = call()
    out, kernel = array("f", bytes(4 * 80)), attune.compile(TEXT)
    refused(attune.InvalidArgumentError, "q", kernel.run, q=q[:-1], k=k, v=v, out=out)
    refused(attune.InvalidArgumentError, "k", kernel.run, q=q, k=array("d", k), v=v, out=out)
    refused(attune.InvalidArgumentError, "v is a list", kernel.run, q=q, k=k, v=list(v), out=out)
    refused(attune.InvalidArgumentError, "no tensor named 'mask'", kernel.run, q=q, k=k, v=v, out=out, mask=q)
    refused(attune.InvalidArgumentError, "v", kernel.run, q=q, k=k, out=out)
    refused(attune.InvalidArgumentError, "max_threads is -1", kernel.run, q=q, k=k, v=v, out=out, max_threads=-1)
    refused(attune.InvalidArgumentError, "'lenght'", kernel.run, sizes={"lenght": 1}, q=q, k=k, v=v, out=out)


def problems():
    """problems: text, keywords, comparison, pickle, deepcopy"""
    problem = attune.Problem(TEXT, is_causal=True)
    assert problem == attune.Problem(num_heads=2, seq_q=5, seq_kv=7, head_dim=8, is_causal=1)
    assert problem != attune.Problem(TEXT) and len({problem, attune.Problem(str(problem))}) == 1
    assert pickle.loads(pickle.dumps(problem)) == problem == copy.deepcopy(problem)
    assert [tensor.name for tensor in problem.tensors] == ["q", "k", "v", "out"]
    error = refused(attune.InvalidProblemError, "did you mean num_heads?", attune.Problem, "nmheads=3")
    assert error.status == 2 and pickle.loads(pickle.dumps(error)).args == error.args
    refused(ValueError, "head_dim", attune.Problem, seq_q=1, head_dim=0)


def kernels():
    """kernels: facts, pickle, schedules"""
    kernel = attune.compile(TEXT)
    again = pickle.loads(pickle.dumps(kernel))
    assert again.info["key"] == kernel.info["key"] and copy.deepcopy(kernel) is kernel
    assert attune.compile(TEXT, schedule=kernel.info["schedule"]).info["schedule"] == kernel.info["schedule"]
    assert kernel.workspace_bytes() > 0
    refused(attune.InvalidScheduleError, "lanse", attune.compile, TEXT, schedule="lanse=4")


def dynamic_sizes():
    """sizes that the problem leaves open come from sizes="""
    q, k, v, wanted = call()
    out = array("f", bytes(4 * 80))
    kernel = attune.compile("num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8")
    kernel.run(q=q, k=k, v=v, out=out, sizes={"seq_q": 5, "seq_kv": 7}, max_threads=1)
    near(out, wanted)


def threads():
    """many threads share a kernel, and each gets its own errors"""
    q, k, v, wanted = call()
    kernel, failures = attune.compile(TEXT), []

    def work():
        try:
            for _ in range(50):
                out = array("f", bytes(4 * 80))
                kernel.run(q=q, k=k, v=v, out=out)
                near(out, wanted)
                refused(attune.InvalidArgumentError, "no tensor named", kernel.run, nothing=q)
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures, failures


def forks():
    """a child runs kernels of its parent, and compiles"""
    q, k, v, wanted = call()
    kernel = attune.compile(TEXT)
    child = os.fork()
    if not child:
        status = 1
        try:
            for runner in (kernel, attune.compile(TEXT + ",is_causal=0,has_lse=1")):
                out, lse = array("f", bytes(4 * 80)), array("f", bytes(4 * 10))
                runner.run(q=q, k=k, v=v, out=out, lse=lse if runner is not kernel else None)
                near(out, wanted)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0


def contexts():
    """contexts have options, statistics, and a sentence for what they refuse"""
    messages = []
    context = attune.Context(cache_dir="", max_workers=1, log=lambda level, message: messages.append((level, message)))
    attune.compile(TEXT, context=context)
    assert context.statistics()["compiles"] == 1 and context.machine()["max_workers"] == 1
    assert any(level == 2 for level, _ in messages), messages
    refused(attune.Error, "z80", attune.Context, isa="z80")
    refused(attune.Error, "stderr_level is 'loud'; it must be", attune.Context, stderr_level="loud")


def debug_mode():
    """a context with check refuses NaN, and a level writes lines to stderr"""
    kernel = attune.compile("seq_q=1,head_dim=2", context=attune.Context(cache_dir="", check=True))
    bad = array("f", [0.0, float("nan")])
    refused(attune.InvalidArgumentError, "ATTUNE_CHECK: k[0, 0, 0, 1] is nan: key 0 of sequence 0", kernel,
            q=array("f", [1, 1]), k=bad, v=array("f", [1, 1]), out=array("f", [0, 0]))
    program = ("import attune; "
               "attune.compile('seq_q=1,head_dim=2', context=attune.Context(cache_dir='', stderr_level='info'))")
    ran = subprocess.run([sys.executable, "-c", program], stderr=subprocess.PIPE, universal_newlines=True, check=True)
    assert re.match(r"attune\[\d+\] \d+\.\d{3} info: kernel [0-9a-f]{32} is in no cache: ", ran.stderr), ran.stderr


def tools():
    """info, warm, check, explain and tune"""
    assert attune.info()["version"] == attune.__version__ and attune.info()["isa"]
    other = "num_heads=3,seq_q=5,head_dim=8"
    assert attune.warm([TEXT, other, other])["memory"] >= 1
    for problem in (other, "dtype=bf16,num_heads=4,num_kv_heads=2,seq_q=9,head_dim=16,has_lse=1,is_causal=1"):
        result = attune.check(problem)
        assert result.elements > 0 and 0 < result.max_error < 0.05
    assert attune.check("embed_dim=16,num_heads=2,seq_q=3").max_error is None
    assert "q_lanes" in attune.explain(other) or "d_lanes" in attune.explain(other)
    result = attune.tune(other, 0.1, context=attune.Context(cache_dir=""))
    assert result.schedule and result.space > 0


def plans():
    """a plan runs all lengths"""
    text = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8"
    q, k, v, wanted = call()
    plan, out = attune.Plan(text), array("f", bytes(4 * 80))
    plan.run(q=q, k=k, v=v, out=out, sizes={"seq_q": 5, "seq_kv": 7})
    near(out, wanted)
    assert sum(plan.info[name] for name in ("few_calls", "many_calls", "specialised_calls")) == 1
    assert pickle.loads(pickle.dumps(plan)).problem == plan.problem


def lengths_that_come_back():
    """a plan compiles for lengths after as many calls as it was told, and a copy does as well"""
    text = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8"
    q, k, v = drawn(320, 1), drawn(320, 2), drawn(320, 3)
    plan = attune.Plan(text, repeats=2)
    for each in plan, pickle.loads(pickle.dumps(plan)):
        for kernels in 0, 1, 1:
            each.run(q=q, k=k, v=v, out=array("f", bytes(4 * 320)), sizes={"seq_q": 20, "seq_kv": 20})
            assert each.info["specialised_kernels"] == kernels
        assert each.info["specialised_calls"] == 1
    refused(attune.InvalidArgumentError, "repeats is 0; it must be from 1 to 1000", attune.Plan, text, repeats=0)
    refused(attune.InvalidTypeError, "repeats is 1.5", attune.Plan, text, repeats=1.5)


def no_engines():
    """nothing imports NumPy or torch"""
    assert not {"numpy", "torch", "transformers"} & set(sys.modules)


def main():
    cases = [case for name, case in globals().items() if getattr(case, "__doc__", None) and name != "__doc__"
             and getattr(case, "__module__", "") == __name__ and case.__code__.co_argcount == 0]
    print(f"1..{len(cases)}", flush=True)
    failures = 0
    for number, case in enumerate(cases, 1):
        try:
            case()
            print(f"ok {number} - {case.__doc__}", flush=True)
        except Exception:
            failures += 1
            print(f"not ok {number} - {case.__doc__}")
            print("# " + traceback.format_exc().replace("\n", "\n# "), flush=True)
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
