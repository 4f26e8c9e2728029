"""What a measurement ran on."""
import pathlib
import platform
import time


def cpu_name():
    """With family and model: virtual machines of several generations have one name."""
    words = {}
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        words.setdefault(key.strip(), value.strip())
    name = words.get("model name", platform.processor() or platform.machine())
    return f"{name} (family {words['cpu family']}, model {words['model']})" if "cpu family" in words else name


def seconds(call):
    """By the clock of this thread: other programs take none of it."""
    start = time.thread_time()
    call()
    return time.thread_time() - start
