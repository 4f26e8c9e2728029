"""Sessions that come and go, run at once, and end with the process."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime
import ort_support as support
import pytest
from memory_support import growth
from test_ort_blocks import X, Block
from test_ort_group_query import CASES, make

import attune.ort

HERE = Path(__file__).resolve().parent
BLOCK = (lambda block: block.model(block.usual()))(Block())


def session_of(entry, threads=2, case="prompt"):
    """A session of a model of one node, and what it is fed; entry "blocks": of one block, whose weights are packed for
    each session."""
    if entry == "blocks":
        return support.session(BLOCK, "ep", threads), X
    given, attributes = CASES[case]
    return support.session(make(given, attributes), entry, threads), support.feeds(given)


def run_once(entry, threads=2):
    session, feeds = session_of(entry, threads)
    return session.run(None, feeds)


@pytest.mark.sample(1)
@pytest.mark.parametrize("entry", [*support.ENTRIES, "blocks"])
def test_a_hundred_sessions(entry):
    first = run_once(entry)
    for _ in range(20):
        run_once(entry)
    assert growth(lambda: [run_once(entry) for _ in range(100)], most=8 << 20) < 8 << 20
    for have, wanted in zip(run_once(entry), first):
        np.testing.assert_array_equal(have, wanted)


@pytest.mark.parametrize("entry", support.ENTRIES)
def test_bits_do_not_depend_on_threads(entry):
    given, attributes = CASES["long"]
    model = make(given, attributes)
    results = [support.session(model, entry, threads).run(None, support.feeds(given)) for threads in (1, 2, 3, 7)]
    for other in results[1:]:
        for have, wanted in zip(other, results[0]):
            np.testing.assert_array_equal(have, wanted)


@pytest.mark.parametrize("entry", [*support.ENTRIES, "blocks"])
def test_two_sessions_at_once(entry):
    """With other numbers of threads, each called by two threads of the program."""
    (one, feeds), (three, _) = (session_of(entry, threads, "long") for threads in (1, 3))
    sessions = [one, three]
    wanted = one.run(None, feeds)
    wrong = []

    def work(session):
        for _ in range(20):
            got = session.run(None, feeds)
            if not all(np.array_equal(have, want) for have, want in zip(got, wanted)):
                wrong.append(session)

    threads = [threading.Thread(target=work, args=(session,)) for session in sessions * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_no_thread_of_attune():
    """Sessions of one thread start none, whatever attune computes in them. Threads of earlier ones may still end."""
    for entry in support.ENTRIES:
        run_once(entry, threads=1)
        before = set(os.listdir("/proc/self/task"))
        run_once(entry, threads=1)
        assert set(os.listdir("/proc/self/task")) <= before


PROGRAM = """
import sys
import ort_support as support
from test_ort_group_query import CASES, make
given, attributes = CASES["prompt"]
session = support.session(make(given, attributes), sys.argv[1], 2)
session.run(None, support.feeds(given))
{rest}
print("at the end")
"""


@pytest.mark.sample(2)
@pytest.mark.parametrize("entry", support.ENTRIES)
@pytest.mark.parametrize("rest", ["", "del session", "del session; import gc; gc.collect(); session = "
                                  "support.session(make(given, attributes), sys.argv[1]); "
                                  "session.run(None, support.feeds(given))"])
def test_unloading(entry, rest):
    """The library goes with the last session, or with the process: both in a process of their own."""
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(rest=rest), entry], cwd=HERE, text=True,
                          capture_output=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "at the end\n"), done.stderr


def test_both_entries_in_one_session():
    """Custom operators take what the provider would; nothing is computed twice."""
    given, attributes = CASES["prompt"]
    options = onnxruntime.SessionOptions()
    attune.ort.register_ops(options)
    attune.ort.register(options)
    session = onnxruntime.InferenceSession(make(given, attributes), options)
    before = support.ran("GroupQueryAttention")
    session.run(None, support.feeds(given))
    assert support.ran("GroupQueryAttention") == before + 1


STRICT = """
import ort_support as support
from test_ort_group_query import CASES, make
given, attributes = CASES["prompt"]
try:
    support.session(make(given, attributes), "ep").run(None, support.feeds(given))
except Exception as error:
    print(error)
"""


def test_a_kernel_that_cannot_be_had(tmp_path):
    """Strict mode and an empty cache: an error of the run that names the node, and nothing worse."""
    done = subprocess.run([sys.executable, "-c", STRICT], cwd=HERE, text=True, capture_output=True, timeout=120,
                          env=os.environ | {"ATTUNE_STRICT": "1", "ATTUNE_CACHE_DIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "attune, node 'the_node' (GroupQueryAttention): ATTUNE_STRICT: kernel" in done.stdout


def test_library_path():
    assert Path(attune.ort.library_path()).name == "libattune-ort.so"
    assert Path(attune.ort.library_path()).exists()


def test_stats_name_what_was_taken():
    before = attune.ort.stats().get("ep.taken", 0)
    run_once("ep")
    assert attune.ort.stats()["ep.taken"] == before + 1


BESIDE = {
    "torch": """
import torch
import attune.torch
attune.torch.enable()
q = torch.randn(1, 2, 40, 16)
torch.nn.functional.scaled_dot_product_attention(q, q, q)
assert attune.torch.stats()["sdpa.ran"] == 1
""",
    "ort": """
import attune.ort
import ort_support as support
from test_ort_group_query import CASES, make
given, attributes = CASES["prompt"]
support.session(make(given, attributes), "ep", 2).run(None, support.feeds(given))
assert attune.ort.stats()["GroupQueryAttention.ran"] == 1
""",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("order", [("torch", "ort"), ("ort", "torch"), ("ort", "torch", "ort_again")])
def test_beside_torch(order):
    """Both adapters and both engines in one process, in any order."""
    pytest.importorskip("torch")
    parts = [BESIDE.get(name, BESIDE["ort"].replace("== 1", "== 2")) for name in order]
    done = subprocess.run([sys.executable, "-c", "".join(parts)], cwd=HERE, text=True, capture_output=True,
                          timeout=300)
    assert done.returncode == 0, done.stderr


def test_the_module_is_imported_when_first_used():
    code = "import attune; print(attune.ort.library_path())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "libattune-ort" in done.stdout, done.stderr
