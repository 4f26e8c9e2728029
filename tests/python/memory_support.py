"""What the memory of this process grows by."""

import os
from pathlib import Path


def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(work, most, tries=3):
    """The bytes that stay after work(). If they are more than `most`, the least of several times: a leak shows each
    time, what the allocator keeps for threads that ran beside each other by chance does not."""
    least = None
    for _ in range(tries):
        before = resident()
        work()
        grown = resident() - before
        least = grown if least is None else min(least, grown)
        if least < most:
            break
    return least
