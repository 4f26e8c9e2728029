"""What all files of tests share."""

import os


def pytest_configure(config):
    config.addinivalue_line("markers", "slow: left out of the short form that continuous integration runs")


def pytest_terminal_summary(terminalreporter):
    """What the file took, with the programs that it started: on a shared machine the time of day says little."""
    terminalreporter.write_line(f"{sum(os.times()[:4]):.0f} s of processors")
