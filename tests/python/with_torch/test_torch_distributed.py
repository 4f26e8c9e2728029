"""examples/python/torch_distributed.py: the bits are independent of which rank does what."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this PyTorch has no gloo", allow_module_level=True)

pytestmark = pytest.mark.slow  # eight processes that load PyTorch
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "python" / "torch_distributed.py"
LINE = re.compile(r"^rank (\d) of (\d): parts \[(.*)\], bits (\w+), error (\S+)$", re.M)


def free_port():
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return made.getsockname()[1]


def run(ranks, *options):
    """The line of each rank."""
    common = os.environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(ranks)}
    command = [sys.executable, str(EXAMPLE), *options]
    started = [
        subprocess.Popen(command, env=common | {"RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    text = "".join(process.communicate(timeout=300)[0] for process in started)
    assert not any(process.returncode for process in started), text
    found = LINE.findall(text)
    assert len(found) == ranks
    return found


def test_bits_do_not_depend_on_the_ranks():
    lines = run(1) + run(2) + run(2, "--shuffle=3") + run(3, "--shuffle=4")
    assert len({bits for *_, bits, _ in lines}) == 1
    assert all(float(error) < 1e-5 for *_, error in lines)
    assert len({parts for _, _, parts, _, _ in lines}) > 5
    for ranks in ("1", "2", "3"):
        parts = [part for _, of, listed, *_ in lines if of == ranks for part in listed.split(", ")]
        assert set(parts) == {str(part) for part in range(8)}
