"""attune in a process that does what servers and training scripts do: threads, forks, copies, an unusual order of
imports, an end while it is enabled, and installations that are broken."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import pytest
from memory_support import growth

torch = pytest.importorskip("torch")
attune_torch = pytest.importorskip("attune.torch")
sdpa = torch.nn.functional.scaled_dot_product_attention


def heads(length=40, batch=2, count=3, dim=16, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(batch, count, length, dim, generator=generator) for _ in range(3))


def counts(ending):
    return sum(count for name, count in attune_torch.stats().items() if name.endswith(ending))


def encoder(layers=2):
    torch.manual_seed(1)
    layer = torch.nn.TransformerEncoderLayer(48, 4, 96, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers).eval()


@pytest.fixture
def enabled():
    """attune in the place of PyTorch's operators, on as many threads as before afterwards."""
    threads = torch.get_num_threads()
    with torch.no_grad():
        attune_torch.enable()
        yield
        attune_torch.disable()
    torch.set_num_threads(threads)


def run(program, *options, **settings):
    """A Python program in a process of its own; its output, after it has ended well."""
    done = subprocess.run(
        [sys.executable, *options, "-c", textwrap.dedent(program)],
        env=os.environ | settings, capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    return done


def test_the_number_of_threads_changes(enabled):
    q, k, v = heads(length=300)
    model, x = encoder(), torch.randn(4, 70, 48)
    found = []
    ran = counts("ran")
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        found.append((sdpa(q, k, v, is_causal=True), model(x)))
    assert counts("ran") > ran
    for attention, layers in found[1:]:
        assert torch.equal(attention, found[0][0])
        torch.testing.assert_close(layers, found[0][1])  # PyTorch's own parts may differ in the last bit


def test_two_python_threads_at_once(enabled):
    lengths = [5, 17, 64, 130]
    inputs = [heads(length, seed=length) for length in lengths]
    expected = [sdpa(*each) for each in inputs]
    failures = []

    def work(offset):
        with torch.no_grad():
            for number in range(60):
                which = (number + offset) % len(lengths)
                if not torch.equal(sdpa(*inputs[which]), expected[which]):
                    failures.append(lengths[which])

    ran = counts("ran")
    threads = [threading.Thread(target=work, args=(offset,)) for offset in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert counts("ran") - ran == 120


def test_one_thread_enables_and_disables_while_another_computes(enabled):
    q, k, v = heads(33)
    expected = sdpa(q, k, v)
    done = threading.Event()
    failures = []

    def work():
        with torch.no_grad():
            while not done.is_set():
                try:
                    torch.testing.assert_close(sdpa(q, k, v), expected)
                except Exception as error:
                    failures.append(error)
                    return

    thread = threading.Thread(target=work)
    thread.start()
    for _ in range(50):
        attune_torch.disable()
        attune_torch.enable()
    done.set()
    thread.join()
    assert not failures


class Attended(torch.utils.data.Dataset):
    """Whose items are computed by attention in the worker."""

    def __len__(self):
        return 6

    def __getitem__(self, index):
        with torch.no_grad():
            before = counts("ran")
            out = sdpa(*heads(10 + index, batch=1, seed=index)).sum()
            return out, counts("ran") - before


def test_workers_of_a_data_loader(enabled):
    expected = [Attended()[index] for index in range(6)]
    loader = torch.utils.data.DataLoader(Attended(), batch_size=1, num_workers=2, multiprocessing_context="fork",
                                         timeout=120)
    for index, (out, ran) in enumerate(loader):
        assert out.item() == expected[index][0].item()
        assert ran.item() == expected[index][1] == 1
    q, k, v = heads()
    assert torch.isfinite(sdpa(q, k, v)).all()  # the parent goes on


def test_copies_of_a_module(enabled):
    model, x = encoder(), torch.randn(2, 20, 48)
    expected = model(x)
    for copied in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert torch.equal(copied(x), expected)
        with torch.no_grad():
            for parameter in copied.parameters():
                parameter.mul_(0.5)
        changed = copied(x)
        attune_torch.disable()
        torch.testing.assert_close(changed, copied(x))
        attune_torch.enable()
    assert torch.equal(model(x), expected)  # a copy's weights are its own


@pytest.mark.slow
def test_memory_does_not_grow_with_calls(enabled):
    torch.set_num_threads(1)
    model = encoder()

    def calls(count):
        for number in range(count):
            length = 1 + number % 30
            sdpa(*heads(length))
            if number % 10 == 0:
                model(torch.zeros(1, length, 48))

    calls(1500)
    assert growth(lambda: calls(6000), most=4 << 20) < 4 << 20  # a leak of 1 KiB a call would be 6 MiB


@pytest.mark.slow
def test_memory_does_not_grow_with_modules(enabled):
    torch.set_num_threads(1)
    x = torch.zeros(1, 16, 256)

    def modules(count):
        for _ in range(count):
            torch.nn.MultiheadAttention(256, 4, batch_first=True).eval()(x, x, x, need_weights=False)

    modules(20)
    assert growth(lambda: modules(60), most=30 << 20) < 30 << 20  # the weights of sixty are 60 MiB


@pytest.mark.sample(1)
@pytest.mark.parametrize("ending", ["pass", "os._exit(0)", "raise SystemExit"])
def test_a_process_may_end_while_enabled(ending):
    run(f"""
        import os, sys, torch, attune.torch
        attune.torch.enable()
        q = torch.randn(1, 2, 64, 16)
        with torch.no_grad():
            torch.nn.functional.scaled_dot_product_attention(q, q, q)
            torch.nn.MultiheadAttention(16, 2, batch_first=True).eval()(q[0], q[0], q[0])
        {ending}
    """)


@pytest.mark.sample(1)
@pytest.mark.parametrize("imports", [
    "import attune, torch, attune.torch",
    "import attune.torch, torch",
    pytest.param("import torch, attune, attune.torch", marks=pytest.mark.slow),
    "import numpy, attune; attune.info(); import torch, attune.torch",
])
def test_the_order_of_imports(imports):
    done = run(f"""
        {imports}
        q = torch.randn(1, 2, 40, 16)
        with torch.no_grad():
            expected = torch.nn.functional.scaled_dot_product_attention(q, q, q)
            with attune.torch.enable():
                found = torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.testing.assert_close(found, expected)
        print(attune.torch.stats()["sdpa.ran"])
    """)
    assert done.stdout.strip() == "1"


BROKEN = """
    import warnings, torch, attune.torch
    warnings.simplefilter("always")
    attention = torch.nn.functional.scaled_dot_product_attention
    inputs = [torch.randn(1, 2, length, 16) for length in (8, 40, 77)]
    with torch.no_grad():
        expected = [attention(q, q, q) for q in inputs]
        attune.torch.enable(block=False)
        with warnings.catch_warnings(record=True) as caught:
            for _ in range(3):
                for q, wanted in zip(inputs, expected):
                    assert torch.equal(attention(q, q, q), wanted)
    counts = attune.torch.stats()
    print(counts.get("sdpa.ran", 0), len(caught), *[str(warning.message) for warning in caught], sep="\\n")
"""


def broken(tmp_path, **settings):
    """Calls that attune computed, and the warnings, in an installation where it cannot compile."""
    lines = run(BROKEN, ATTUNE_CACHE_DIR=str(tmp_path / "cache"), **settings).stdout.splitlines()
    return int(lines[0]), int(lines[1]), "\n".join(lines[2:])


def test_without_a_code_generator_stock_runs_with_one_warning(tmp_path):
    ran, warned, text = broken(
        tmp_path, ATTUNE_CODEGEN="/nonexistent/libattune-codegen.so",
        ATTUNE_CODEGEN_WORKER="/nonexistent/attune-codegen-worker",
    )
    assert (ran, warned) == (0, 1)
    assert "code generator" in text


def test_strict_stock_runs_with_one_warning(tmp_path):
    ran, warned, text = broken(tmp_path, ATTUNE_STRICT="1")
    assert (ran, warned) == (0, 1)
    assert "cache" in text


def test_a_cache_that_cannot_be_written_costs_nothing(tmp_path):
    """Kernels stay in memory; attune goes on."""
    (tmp_path / "cache").write_text("a file where the folder should be")
    done = run(BROKEN.replace("torch.equal(attention(q, q, q), wanted)",
                              "torch.allclose(attention(q, q, q), wanted, atol=1e-5)"),
               ATTUNE_CACHE_DIR=str(tmp_path / "cache"))
    ran, warned = (int(line) for line in done.stdout.splitlines()[:2])
    assert (ran, warned) in ((9, 0), (9, 1))


def test_without_a_library_the_import_says_so():
    done = subprocess.run(
        [sys.executable, "-c", "import attune; attune.info()"], env=os.environ | {"ATTUNE_LIBRARY": "/nonexistent.so"},
        capture_output=True, text=True, timeout=300, check=False,
    )
    assert done.returncode == 1
    assert "/nonexistent.so" in done.stderr.splitlines()[-1]
