"""attune in PyTorch and transformers, as the bench switches it on and off; and times, taken in turns."""

import dataclasses
import statistics
import time
import traceback

SAMPLE_SECONDS = 0.02
FEWEST_ROUNDS = 5


class Missing(Exception):
    """Something that a row needs is not there; the text says what."""


def explain(error):
    """An error in one line."""
    words = " ".join(str(error).split())
    return words[:200] if isinstance(error, Missing) else f"{type(error).__name__}: {words[:200]}"


def attune_torch():
    """The module attune.torch."""
    try:
        import attune.torch
    except Exception as error:
        raise Missing(f"attune.torch is not there ({explain(error)})") from error
    return attune.torch


def attune_transformers():
    """The module attune.transformers, registered."""
    try:
        import attune.transformers
    except Exception as error:
        raise Missing(f"attune.transformers is not there ({explain(error)})") from error
    attune.transformers.register()
    return attune.transformers


def calls_run():
    """How many calls attune has computed in this process, in PyTorch's own operators or in attune's."""
    counts = attune_torch().stats()
    return sum(count for name, count in counts.items() if name.endswith("ran"))


def stock_reasons(counts, earlier):
    return [name for name, count in counts.items() if count > earlier.get(name, 0) and "stock" in name]


class Way:
    """One side of a comparison: how to switch to it, and the call. `steps` are the calls that `call` stands for."""

    def __init__(self, switch, call, steps=1):
        self.switch, self.call, self.steps = switch, call, steps


def overriding(call, sdpa=True, block=False):
    """The call by stock PyTorch, and with attune in the place of PyTorch's operators."""
    module = attune_torch()

    def enable():
        module.disable()
        module.enable(sdpa=sdpa, block=block)

    return Way(module.disable, call), Way(enable, call)


def sample(way):
    """Nanoseconds of a call: the mean of as many as last SAMPLE_SECONDS, after one that does not count."""
    way.switch()
    way.call()
    calls, start = 0, time.perf_counter_ns()
    while True:
        way.call()
        calls += 1
        spent = time.perf_counter_ns() - start
        if spent >= SAMPLE_SECONDS * 1e9:
            return spent / calls / way.steps


def in_turns(stock, ours, seconds):
    """Samples of both, one of each in every round. Rounds begin with either in turn."""
    samples = {"stock": [], "attune": []}
    ways = [("stock", stock), ("attune", ours)]
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(samples["stock"]) < FEWEST_ROUNDS:
        for name, way in ways:
            samples[name].append(sample(way))
        ways.reverse()
    stock.switch()
    return samples


def difference(stock, ours):
    """The largest difference of the two results, relative to the largest element of the first."""
    stock.switch()
    expected = stock.call().double()
    ours.switch()
    found = ours.call().double()
    stock.switch()
    error = (found - expected).abs().max() / expected.abs().max()
    return float(error) if error == error else float("inf")


def compare(stock, ours, seconds, limit):
    """What a row with a ratio holds. Results are compared before anything is timed, unless limit is None. A row in
    which stock PyTorch ran on both sides says so, with the reasons that attune gave."""
    found = {}
    module = attune_torch()
    before, ran = module.stats(), calls_run()
    if limit is None:
        ours.switch()
        ours.call()
    else:
        found["difference"] = difference(stock, ours)
        if not found["difference"] <= limit:
            return found | {"problem": f"wrong by {found['difference']:.1e}; {limit:.0e} is allowed"}
    if calls_run() == ran:
        reasons = ", ".join(stock_reasons(module.stats(), before)) or "no reason was counted"
        return found | {"problem": f"attune did not run ({reasons})"}
    return found | in_turns(stock, ours, seconds)


@dataclasses.dataclass
class Row:
    """One line of the tables. `run` takes the number of threads and the seconds to spend, and returns the samples
    "stock" and "attune" in nanoseconds, or a "value" and perhaps "is_good". `goal` is the least ratio, or a text."""

    name: str
    goal: object
    run: object
    threads: tuple = (1, 2)


def measure(row, threads, seconds):
    """The row's samples; whatever fails becomes a row that says so."""
    found = {"row": row.name, "threads": threads, "goal": row.goal}
    try:
        return found | row.run(threads, seconds)
    except Missing as error:
        return found | {"problem": f"not there: {explain(error)}"}
    except Exception as error:
        traceback.print_exc()
        return found | {"problem": explain(error)}


def ratio(found):
    """stock / attune: the median over rounds."""
    return statistics.median(stock / ours for stock, ours in zip(found["stock"], found["attune"]))
