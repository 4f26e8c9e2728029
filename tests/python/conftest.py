"""What all files of tests share."""

import os
import random

# The short form is pytest's `-m "not slow"`. Which cases of a sample it runs, this number decides.
SEED = os.environ.get("ATTUNE_TEST_SEED") or str(random.randrange(1 << 32))


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left out of the short form that continuous integration runs")
    config.addinivalue_line("markers", "sample(count): the short form runs so many of the cases, drawn by lot")


def pytest_collection_modifyitems(config, items):
    if config.option.markexpr != "not slow":
        return
    cases = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    left_out = set()
    for name, those in cases.items():
        count = those[0].get_closest_marker("sample").args[0]
        left_out.update(random.Random(SEED + name).sample(those, max(len(those) - count, 0)))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter):
    """What the file took, with the programs that it started: on a shared machine the time of day says little."""
    if terminalreporter.config.option.markexpr == "not slow":
        terminalreporter.write_line(f"ATTUNE_TEST_SEED={SEED}")
    terminalreporter.write_line(f"{sum(os.times()[:4]):.0f} s of processors")
