"""What all files of tests share."""

import os

# The short form is pytest's `-m "not slow"`. All random data have fixed seeds.


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left out of the short form that continuous integration runs")
    config.addinivalue_line("markers", "sample(count): the short form runs so many of the cases, evenly spaced")


def pytest_collection_modifyitems(config, items):
    if config.option.markexpr != "not slow":
        return
    cases = {}
    for item in items:
        if item.get_closest_marker("sample") and not item.get_closest_marker("slow"):
            cases.setdefault(item.nodeid.split("[")[0], []).append(item)
    left_out = set()
    for those in cases.values():
        count = min(those[0].get_closest_marker("sample").args[0], len(those))
        taken = {i * len(those) // count for i in range(count)}
        left_out.update(item for i, item in enumerate(those) if i not in taken)
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]


def pytest_terminal_summary(terminalreporter):
    """What the file took, with the programs that it started: on a shared machine the time of day says little."""
    terminalreporter.write_line(f"{sum(os.times()[:4]):.0f} s of processors")
