"""attention() and kernels on NumPy arrays and torch tensors, beside plain NumPy in f64."""

import copy
import ctypes
import pathlib
import pickle
import re
import subprocess
import sys
import textwrap
import threading
import time
import types

import attune
import numpy as np
import pytest
from attune._structs import Runner

TOLERANCE = {"float64": 1e-12, "float32": 5e-6, "float16": 2e-3, "bfloat16": 2e-2}


def reference(q, k, v, attn_mask=None, attn_bias=None, is_causal=False, bottom_right=True, softmax_scale=None,
              window_left=-1, window_right=-1, logits_soft_cap=None, sinks=None, kv_lens=None, alibi_slopes=None):
    """out and lse in f64. A row that sees no key gives 0 and -infinity."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    batch, heads, rows, dim = q.shape
    k, v = (np.repeat(x, heads // x.shape[1], 1) for x in (k, v))
    keys = k.shape[2]
    scores = (softmax_scale if softmax_scale is not None else 1 / np.sqrt(dim)) * np.einsum("bhid,bhjd->bhij", q, k)
    if logits_soft_cap:
        scores = logits_soft_cap * np.tanh(scores / logits_soft_cap)
    lens = np.full(batch, keys) if kv_lens is None else np.asarray(kv_lens)
    position = np.arange(rows)[None, :, None] + (lens[:, None, None] - rows if bottom_right else 0)
    distance = np.arange(keys)[None, None] - position
    if alibi_slopes is not None:
        scores = scores - np.asarray(alibi_slopes)[None, :, None, None] * np.abs(distance)[:, None]
    if attn_bias is not None:
        scores = scores + np.asarray(attn_bias, np.float64)
    seen = np.arange(keys)[None, None] < lens[:, None, None]
    seen = seen & (not is_causal or True) & (distance <= 0 if is_causal else True)
    seen = seen & (window_left < 0 or distance >= -window_left) & (window_right < 0 or distance <= window_right)
    seen = np.broadcast_to(seen[:, None], scores.shape)
    if attn_mask is not None:
        seen = seen & attn_mask
    scores = np.where(seen, scores, -np.inf)
    sink = -np.inf if sinks is None else np.asarray(sinks, np.float64)[None, :, None, None]
    top = np.maximum(scores.max(-1, keepdims=True, initial=-np.inf), sink)
    top = np.where(np.isinf(top), 0, top)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True) + np.exp(sink - top)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + top)[..., 0]
    return np.einsum("bhij,bhjd->bhid", weights / np.where(total == 0, 1, total), v), lse


def draw(seed=0, batch=2, heads=4, kv_heads=2, rows=9, keys=13, dim=32, dim_v=24):
    numbers = np.random.default_rng(seed)
    shapes = (batch, heads, rows, dim), (batch, kv_heads, keys, dim), (batch, kv_heads, keys, dim_v)
    return [numbers.standard_normal(shape) for shape in shapes]


def close(ours, theirs, dtype="float32"):
    np.testing.assert_allclose(np.asarray(ours, np.float64), theirs, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


NUMBERS = np.random.default_rng(5)
OPTIONS = {
    "plain": {},
    "mask": {"attn_mask": NUMBERS.random((2, 1, 9, 13)) < 0.6},
    "mask of rows and keys": {"attn_mask": NUMBERS.random((9, 13)) < 0.6},
    "mask of keys": {"attn_mask": NUMBERS.random((2, 1, 1, 13)) < 0.6},
    "mask without a key": {"attn_mask": np.zeros((9, 13), bool)},
    "bias": {"attn_bias": NUMBERS.standard_normal((4, 9, 13)).astype("f4")},
    "mask and bias": {"attn_mask": NUMBERS.random((9, 13)) < 0.6,
                      "attn_bias": NUMBERS.standard_normal((9, 13)).astype("f4")},
    "causal": {"is_causal": True},
    "scale": {"softmax_scale": 0.3},
    "window": {"window_left": 2, "window_right": 1},
    "window to the right": {"window_right": 3},
    "window to the left": {"window_left": 4, "is_causal": True},
    "cap": {"logits_soft_cap": 1.5},
    "sinks": {"sinks": np.array([0.5, -1, 2, 0], "f4")},
    "lengths": {"kv_lens": np.array([3, 13], "i4")},
    "lengths in a list, one empty": {"kv_lens": [0, 7]},
    "slopes": {"alibi_slopes": [0.5, 0.25, 0.125, 0.0625]},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    q, k, v = (x.astype("f4") for x in draw())
    options = OPTIONS[name]
    out, lse = reference(q, k, v, **options)
    for _ in range(2):  # the second call is a known one
        ours, ours_lse = attune.attention(q, k, v, has_lse=True, **options)
        close(ours, out)
        close(ours_lse, lse)
    close(attune.attention(q, k, v, **options), out)


def test_causal_to_the_top_left():
    q, k, v = (x.astype("f4") for x in draw())
    lens = np.array([10, 13], "i4")
    ours = attune.attention(q, k, v, is_causal=True, causal_align="top_left", kv_lens=lens)
    close(ours, reference(q, k, v, is_causal=True, bottom_right=False, kv_lens=lens)[0])


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_dtypes(dtype):
    q, k, v = (x.astype(dtype) for x in draw())
    out = attune.attention(q, k, v, is_causal=True)
    assert out.dtype == dtype
    close(out, reference(q, k, v, is_causal=True)[0], dtype)


def bf16(values):
    """The nearest bf16 below, as two raw bytes."""
    return (np.asarray(values, "f4").view("u4") >> 16).astype("u2")


def test_bfloat16_as_raw_bytes():
    parts = [bf16(x) for x in draw()]
    wide = [(x.astype("u4") << 16).view("f4") for x in parts]
    out = attune.attention(*(x.view("V2") for x in parts))
    assert out.dtype == "V2"
    close((out.view("u2").astype("u4") << 16).view("f4"), reference(*wide)[0], "bfloat16")


def test_bfloat16_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    parts = [x.astype(ml_dtypes.bfloat16) for x in draw()]
    out = attune.attention(*parts)
    assert out.dtype == ml_dtypes.bfloat16
    close(out, reference(*parts)[0], "bfloat16")


def strided(x, kind):
    """The same values at other places."""
    if kind == "heads inside":
        return np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2)
    if kind == "transposed":
        return np.ascontiguousarray(x.swapaxes(2, 3)).swapaxes(2, 3)
    if kind == "every second":
        return np.repeat(x, 2, -1)[..., ::2]
    return x


@pytest.mark.parametrize("kinds", [(first, second) for second in ("plain", "transposed") for first in
                                   ("heads inside", "transposed", "every second", "backwards")])
def test_strides_are_kept(kinds):
    q, k, v = (x.astype("f4") for x in draw())
    expected, _ = reference(q, k, v)
    q, k, v = strided(q, kinds[0]), strided(k, kinds[1]), strided(v, kinds[0])
    for value in (q, k, v):
        value.flags.writeable = False
    room = strided(np.full(expected.shape, np.nan, "f4"), kinds[0])
    assert attune.attention(q, k, v, out=room) is room
    close(room, expected)


def test_without_a_batch():
    q, k, v = (x[0].astype("f4") for x in draw(batch=1))
    expected, expected_lse = reference(q[None], k[None], v[None])
    out, lse = attune.attention(q, k, v, has_lse=True)
    assert out.shape == (4, 9, 24) and lse.shape == (4, 9)
    close(out, expected[0])
    close(lse, expected_lse[0])


@pytest.mark.parametrize("batch", [2, 0, None])
def test_heads_inside(batch):
    """layout="bshd" is the same with two dimensions exchanged."""
    q, k, v = (x.astype("f4") for x in draw(batch=1 if batch is None else batch))
    expected, expected_lse = attune.attention(q, k, v, is_causal=True, has_lse=True)
    given = [np.ascontiguousarray(x.swapaxes(1, 2)) for x in (q, k, v)]
    if batch is None:
        given, expected, expected_lse = [x[0] for x in given], expected[0], expected_lse[0]
    for _ in range(2):
        out, lse = attune.attention(*given, layout="bshd", is_causal=True, has_lse=True)
        assert out.shape == (*given[0].shape[:-1], 24) and out.flags.c_contiguous
        close(out.swapaxes(-3, -2), expected)
        close(lse, expected_lse)
    wide = np.repeat(given[0], 2, -1)[..., ::2]
    close(attune.attention(wide, *given[1:], layout="bshd", is_causal=True, out=out), out.copy())


@pytest.mark.parametrize("step", [1, 2])
def test_sequences_one_after_the_other(step):
    """layout="thd", of one sequence and of several, contiguous and with wide rows."""
    q, k, v = (np.repeat(x[0].swapaxes(0, 1).astype("f4"), step, -1)[..., ::step] for x in draw(rows=13, keys=17))
    of = {name: x.swapaxes(0, 1)[None] for name, x in dict(q=q, k=k, v=v).items()}
    out, lse = attune.attention(q, k, v, layout="thd", is_causal=True, has_lse=True)
    expected, expected_lse = reference(**of, is_causal=True)
    assert out.shape == (13, 4, 24) and lse.shape == (4, 13)
    close(out, expected[0].swapaxes(0, 1))
    close(lse, expected_lse[0])
    starts, starts_kv = [0, 5, 6, 13], [0, 9, 15, 17]
    for kind in (list, np.array, lambda x: np.array(x, "i4"), lambda x: np.array(x, "i4")):
        out, lse = attune.attention(q, k, v, layout="thd", cu_seqlens_q=kind(starts), cu_seqlens_kv=kind(starts_kv),
                                    window_left=4, logits_soft_cap=3.0, has_lse=True)
        for b in range(3):
            own, keys = slice(*starts[b : b + 2]), slice(*starts_kv[b : b + 2])
            part = dict(q=of["q"][:, :, own], k=of["k"][:, :, keys], v=of["v"][:, :, keys])
            expected, expected_lse = reference(**part, window_left=4, logits_soft_cap=3.0)
            close(out[own], expected[0].swapaxes(0, 1))
            close(lse[:, own], expected_lse[0])
    same = attune.attention(q, k[:13], v[:13], layout="thd", cu_seqlens_q=starts)
    close(same[:5], reference(of["q"][:, :, :5], of["k"][:, :, :5], of["v"][:, :, :5])[0][0].swapaxes(0, 1))
    assert attune.attention(q[:0], k[:0], v[:0], layout="thd", cu_seqlens_q=[0]).shape == (0, 4, 24)
    for sentence, change in (
        ("cu_seqlens_kv is given; it needs cu_seqlens_q", dict(cu_seqlens_kv=starts)),
        ("attn_mask and cu_seqlens_q are both given", dict(cu_seqlens_q=starts, attn_mask=np.ones((13, 17), bool))),
        ("cu_seqlens_q must be one-dimensional", dict(cu_seqlens_q=[])),
        ("cu_seqlens_q must be one-dimensional", dict(cu_seqlens_q=np.array([starts]))),
        ("cu_seqlens_q", dict(cu_seqlens_q=[0, 5, 6, 14], cu_seqlens_kv=starts_kv)),
        ("cu_seqlens_kv", dict(cu_seqlens_q=starts, cu_seqlens_kv=[0, 9])),
    ):
        with pytest.raises(attune.InvalidArgumentError, match=sentence):
            attune.attention(q, k, v, layout="thd", **change)


def test_no_rows_and_no_keys():
    q, k, v = (x.astype("f4") for x in draw())
    assert attune.attention(q[:, :, :0], k, v).shape == (2, 4, 0, 24)
    out, lse = attune.attention(q, k[:, :, :0], v[:, :, :0], has_lse=True)
    assert not out.any() and np.isneginf(lse).all()


def test_lengths_that_vary():
    for rows, keys in [(20, 20), (1, 21), (1, 22), (5, 27), (20, 20), (20, 20), (20, 20), (20, 20)]:
        q, k, v = (x.astype("f4") for x in draw(rows=rows, keys=keys, batch=1 + keys % 3))
        mask = np.tri(rows, keys, keys - rows, dtype=bool)
        close(attune.attention(q, k, v, attn_mask=mask), reference(q, k, v, attn_mask=mask)[0])
        out = attune.attention(q, k, v, is_causal=True)
        close(out, reference(q, k, v, attn_mask=mask)[0])


def test_the_layers_of_a_model_bring_no_kernel_for_their_lengths():
    q, k, v = (x.astype("f4") for x in draw(rows=20, keys=20))
    known = set(attune._attention._sites)
    for kernels, calls in (0, 63), (1, 1):
        for _ in range(calls):
            attune.attention(q, k, v, logits_soft_cap=7.0)
        plan, = (site for key, site in attune._attention._sites.items() if key not in known)
        assert plan.info["specialised_kernels"] == kernels


def test_a_plan_takes_the_scale_of_each_call():
    q, k, v = (x.astype("f4") for x in draw(dim_v=32))
    plan = attune.Plan("num_heads=4,num_kv_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=32,softmax_scale=dynamic")
    for scale in (0.1, 0.4, None):
        out = plan(q=q, k=k, v=v, sizes={"batch": 2}, softmax_scale=scale)
        close(out, reference(q, k, v, softmax_scale=scale)[0])


@pytest.mark.parametrize("change, sentence", [
    (dict(q=[1.0]), "q is a list"),
    (dict(q=np.zeros((3, 4), "f4")), r"q has the shape \[3, 4\]"),
    (dict(k=np.zeros((2, 2, 13, 31), "f4")), "31"),
    (dict(v=np.zeros((2, 2, 12, 24), "f4")), "12"),
    (dict(k=np.zeros((2, 3, 13, 32), "f4")), "num_kv_heads"),
    (dict(q=np.zeros((2, 4, 9, 32), "i4")), "q is int32"),
    (dict(q=np.zeros((2, 4, 9, 32), "c8")), "q is complex64"),
    (dict(q=np.zeros((2, 4, 9, 32), ">f4")), "byte order|>f4"),
    (dict(attn_mask=np.zeros((9, 13), "f4")), "it must be bool"),
    (dict(attn_mask=np.zeros((9, 12), bool)), "seq_kv is 13"),
    (dict(kv_lens=[1, 2, 3]), "kv_lens"),
    (dict(out=np.zeros((2, 4, 9, 23), "f4")), "23"),
    (dict(out=np.zeros((2, 4, 9, 24), "f8")), "out"),
    (dict(logits_soft_cap=-1.0), "soft_cap"),
    (dict(causal_align="left"), "left"),
    (dict(q=np.zeros((2, 4, 9, 32), "f4")[:, :, ::-1]), "stride -32"),
])
def test_refusals(change, sentence):
    q, k, v = (x.astype("f4") for x in draw())
    with pytest.raises(attune.Error, match=sentence) as caught:
        attune.attention(**{**dict(q=q, k=k, v=v), **change})
    assert "\n" not in str(caught.value) and isinstance(caught.value, (ValueError, attune.UnsupportedError))


def test_outputs_that_cannot_be_written():
    q, k, v = (x.astype("f4") for x in draw())
    out = np.empty((2, 4, 9, 24), "f4")
    attune.attention(q, k, v, out=out)
    out.flags.writeable = False
    with pytest.raises(attune.InvalidArgumentError, match="out is read-only"):
        attune.attention(q, k, v, out=out)
    with pytest.raises(attune.InvalidArgumentError, match="overlap"):
        attune.attention(q, q, q, out=q)


def test_strict_mode_is_an_exception_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("ATTUNE_STRICT", "1")
    context = attune.Context(cache_dir=tmp_path)
    with pytest.raises(attune.NotCachedError):
        attune.compile("num_heads=3,seq_q=77,head_dim=24", context=context)


def test_outputs_of_a_kernel():
    q, k, v = (x.astype("f4") for x in draw())
    kernel = attune.compile("batch=2,num_heads=4,num_kv_heads=2,seq_q=9,seq_kv=13,head_dim=32,head_dim_v=24,has_lse=1")
    out, lse = kernel(q=q, k=k, v=v)
    close(out, reference(q, k, v)[0])
    close(lse, reference(q, k, v)[1])
    only = kernel(q=q, k=k, v=v, lse=lse)
    assert isinstance(only, np.ndarray) and (only == out).all()


def test_appending_in_place():
    q, k, v = (x.astype("f4") for x in draw(rows=1, keys=8, dim_v=32))
    kernel = attune.compile("batch=2,num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=8,seq_new=1,head_dim=32,has_kv_lens=1")
    new_k, new_v = k[:, :, 4:5].copy(), v[:, :, 4:5].copy()
    cache_k, cache_v = k.copy(), v.copy()
    cache_k[:, :, 4] = cache_v[:, :, 4] = 9
    lens = np.full(2, 5, "i4")
    out = kernel(q=q, k=cache_k, v=cache_v, k_new=new_k, v_new=new_v, kv_lens=lens)
    assert (cache_k == k).all() and (cache_v == v).all()
    close(out, reference(q, k, v, kv_lens=lens)[0])
    cache_k.flags.writeable = False
    with pytest.raises(attune.InvalidArgumentError, match="k is read-only"):
        kernel(q=q, k=cache_k, v=cache_v, k_new=new_k, v_new=new_v, kv_lens=lens)


def turns_during_a_call(kernel, q, k, v):
    """How far this thread counts while another one is in a long call."""
    out, turns, running = np.empty_like(q), 0, threading.Event()

    def work():
        running.set()
        kernel.run(q=q, k=k, v=v, out=out, max_threads=1)
        running.clear()

    worker = threading.Thread(target=work)
    worker.start()
    running.wait()
    while running.is_set():
        turns += 1
        time.sleep(0)
    worker.join()
    return turns


def test_the_gil_is_released():
    """Another thread counts while a long call runs, though not always where it has to wait for a processor."""
    q, k, v = (np.zeros((1, 8, 2048, 64), "f4") for _ in range(3))
    kernel = attune.compile("num_heads=8,seq_q=2048,head_dim=64")
    assert any(turns_during_a_call(kernel, q, k, v) > 10 for _ in range(20))


def test_threads_of_the_host():
    """Kernels and plans take them as steps do."""
    ranges = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint32)
    asked = []

    @ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    def loop(user, function, argument, count):
        asked.append(count)
        ranges(function)(argument, 0, count, 0)

    struct = Runner(ctypes.sizeof(Runner), ctypes.cast(loop, ctypes.c_void_p), None, None, 2)
    runner = types.SimpleNamespace(pointer=ctypes.addressof(struct))
    q, k, v = (x.astype("f4") for x in draw(1, 1, 8, 8, 128, 512, 64, 64))
    problem = attune.Problem(num_heads=8, seq_q=attune.DYNAMIC, seq_kv=attune.DYNAMIC, head_dim=64)
    out = np.empty_like(q)
    for call in (attune.compile(problem), attune.Plan(problem)):
        asked.clear(), out.fill(0)
        call.run(q=q, k=k, v=v, out=out, runner=runner)
        assert asked
        close(out, reference(q, k, v)[0])


def test_many_threads_with_lengths_of_their_own():
    failures = []

    def work(seed):
        try:
            for step in range(12):
                q, k, v = (x.astype("f4") for x in draw(seed, keys=seed + step + 1))
                close(attune.attention(q, k, v), reference(q, k, v)[0])
        except BaseException as error:
            failures.append(error)

    workers = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failures


def test_buffers_are_given_back():
    data = bytearray(4 * 80)
    kernel = attune.compile("num_heads=2,seq_q=5,head_dim=8")
    kernel.run(q=data, k=data, v=data, out=np.empty((1, 2, 5, 8), "f4"))
    data.append(0)  # a BufferError while somebody holds it


def test_pickled_problems_compile_elsewhere():
    import multiprocessing

    problem = attune.Problem(num_heads=2, seq_q=5, head_dim=8)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(str, (problem,)) == str(problem)
    assert pickle.loads(pickle.dumps([problem] * 2)) == [problem] * 2


def blocks_of(page):
    text = (pathlib.Path(__file__).parents[3] / "docs" / page).read_text("utf-8")
    return re.findall(r"```python\n(.*?)```", text, re.S)


def test_the_snippets_of_the_manual():
    """Pasted one after the other, they run."""
    blocks, names = blocks_of("python.md"), {}
    start = attune.__doc__.partition("Tensors are")[0]
    for block in [*blocks, textwrap.dedent("\n".join(re.findall(r"^    .*", start, re.M)))]:
        exec(block, names)
    assert len(blocks) > 1 and names["out"].shape == (1, 12, 512, 64)


def test_help_is_an_index():
    import pydoc

    listed = [name for name in attune.__all__ if not name.endswith("Error") or name == "Error"]
    for name in listed:
        assert re.search(rf"^    .*\b{name}\b.*  ", attune.__doc__, re.M), name
    text = pydoc.plain(pydoc.render_doc(attune))
    assert "__getattr__(" not in text.partition("\nFUNCTIONS\n")[2]
    with pytest.raises(AttributeError, match="module 'attune' has no attribute 'nothing'"):
        attune.nothing
    assert re.match(r"<attune.Context of \d+ threads?, ", repr(attune.Context(max_workers=2)))


def test_a_block_table_may_be_a_view_of_a_wider_one():
    kernel = attune.compile("batch=2,num_heads=2,seq_q=1,seq_kv=dynamic,head_dim=8,page_size=4,has_kv_lens=1")
    rng = np.random.default_rng(3)
    q = rng.standard_normal((2, 2, 1, 8)).astype("f4")
    k, v = (rng.standard_normal((6, 2, 4, 8)).astype("f4") for _ in range(2))
    table = np.array([[3, 0, 5], [1, 2, 4]], "i4")
    wide = np.full((2, 7), 2**31 - 1, "i4")
    wide[:, :3] = table
    tensors = dict(q=q, k=k, v=v, kv_lens=np.array([5, 12], "i4"))
    expected = kernel(**tensors, block_table=table)
    assert np.array_equal(kernel(**tensors, block_table=wide[:, :3]), expected)
    assert np.array_equal(kernel(**tensors, block_table=wide[:, :3]), expected)
    with pytest.raises(attune.InvalidArgumentError, match="innermost stride of block_table is 2"):
        kernel(**tensors, block_table=wide[:, ::2])


def test_a_context_tells_events_and_is_its_own_copy(tmp_path):
    events = []
    context = attune.Context(cache_dir=tmp_path, event=events.append, background_niceness=19)
    assert copy.copy(context) is context and copy.deepcopy(context) is context
    for _ in range(2):
        attune.compile("seq_q=1,seq_kv=3,head_dim=8", context=context)
    assert [event.kind for event in events] == ["miss", "compile_begin", "compile_end"]
    assert events[2].status == 0 and events[2].milliseconds > 0 and "head_dim=8" in events[0].problem
    again = attune.Context(cache_dir=tmp_path, event=events.append, compile_mode="never", machine_code_only=True)
    attune.compile("seq_q=1,seq_kv=3,head_dim=8", context=again)
    assert events[3].kind == "disk_hit" and events[3].key == events[0].key
    with pytest.raises(attune.Error, match="no cache has|not cached|nothing is compiled|ATTUNE_COMPILE"):
        attune.compile("seq_q=1,seq_kv=4,head_dim=8", context=again)


def test_a_context_is_strict_and_records(tmp_path):
    lacks = tmp_path / "lacks.txt"
    context = attune.Context(cache_dir="", strict=True, record=lacks)
    with pytest.raises(attune.NotCachedError):
        attune.compile("seq_q=1,seq_kv=3,head_dim=8", context=context)
    assert "head_dim=8" in lacks.read_text()


def test_modules_are_imported_when_first_used():
    """All but the private ones and a program."""
    folder = pathlib.Path(attune.__file__).parent
    names = {path.stem for path in folder.iterdir() if path.name[0] not in "_." and path.suffix in ("", ".py")}
    names -= {"flex_cases"}
    assert names == set(attune._MODULES)
    code = "import attune, sys; assert 'attune.ggml' not in sys.modules; attune.ggml.library_path"
    subprocess.run([sys.executable, "-c", code], check=True)
