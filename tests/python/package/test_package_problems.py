"""Problems and calls as a user of Python writes them: text, dtypes, masks of fewer dims, the batch, sizes of 0."""

import inspect
import os
import subprocess
import sys

import attune
import numpy as np
import pytest

SMALL = dict(num_heads=2, seq_q=4, head_dim=8)
NUMBERS = np.random.default_rng(3)


def draw(*shape):
    return NUMBERS.standard_normal(shape).astype("f4")


def attend(q, k, v, seen=True, bias=0.0):
    """The formula, in f64; a row that sees no key gives 0."""
    scores = np.einsum("bhid,bhjd->bhij", q.astype("f8"), k) / np.sqrt(q.shape[-1]) + bias
    scores = np.where(seen, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(top), 0, top))
    total = weights.sum(-1, keepdims=True)
    return np.einsum("bhij,bhjd->bhid", weights / np.where(total == 0, 1, total), v)


def close(ours, theirs):
    np.testing.assert_allclose(ours, theirs, atol=5e-6)


# ---- Text ----


@pytest.mark.parametrize("name, function", [
    ("mask_mod", "q >= kv"), ("mask_mod", "kv <= q"), ("score_mod", "min(score, 3)"), ("score_mod", ' "score * 2" '),
    ("prob_mod", "select(q >= kv, prob, 0)"),
])
def test_functions_are_given_as_text(name, function):
    inner = function.strip().strip('"')
    text = ",".join(f"{key}={value}" for key, value in SMALL.items())
    assert attune.Problem(**SMALL, **{name: function}) == attune.Problem(f'{text},{name}="{inner}"')


def test_tensors_of_functions_are_given_as_text():
    problem = attune.Problem(**SMALL, tensors="t:f32[h], u:f32[q, kv]", score_mod="score + t[h] + u[q, kv]")
    assert [tensor.name for tensor in problem.tensors][-2:] == ["t", "u"]
    assert attune.Problem(**problem.fields) == problem


TEXTS = ["score,is_causal=1", 'score",is_causal="1', '"score",is_causal="1"', 'score"', "score,seq_kv=8", '"',
         ',has_lse=1', '"score",has_lse=1,prob_mod="prob"']


@pytest.mark.parametrize("value", TEXTS)
@pytest.mark.parametrize("name", ["score_mod", "mask_mod", "prob_mod", "tensors", "dtype", "causal_align", "layout",
                                  "attn_mask_dims", "op", "softmax_scale", "seq_kv", "is_causal", "q_strides"])
def test_a_value_never_becomes_another_field(name, value):
    with pytest.raises(attune.InvalidProblemError):
        attune.Problem(**SMALL, **{name: value})


@pytest.mark.parametrize("value", [["4", "4,has_lse=1"], [4, 'x"']])
def test_an_item_never_becomes_another_field(value):
    with pytest.raises(attune.InvalidProblemError):
        attune.Problem(**SMALL, attn_mask_dims=value)


def test_a_name_never_becomes_another_field():
    with pytest.raises(attune.InvalidProblemError, match="'is_causal=1,lse' is not a field"):
        attune.Problem(**SMALL, **{"is_causal=1,lse": 1})


def test_names_of_members():
    assert attune.Problem(**SMALL, has_lse=True, has_sinks=np.True_, is_causal=False) == attune.Problem(
        **SMALL, has_lse=1, has_sinks=1)
    assert attune.Problem(**SMALL, attn_mask_dims="qk") == attune.Problem(**SMALL, attn_mask_dims=[4, 4])
    with pytest.raises(attune.InvalidProblemError, match="did you mean has_kv_lens"):
        attune.Problem(**SMALL, cache_seqlens=True)


def test_a_function_of_python_is_refused():
    with pytest.raises(attune.InvalidTypeError, match="mask_mod is a function; it must be text: flex_attention"):
        attune.Problem(**SMALL, mask_mod=lambda b, h, q, kv: q >= kv)


@pytest.mark.parametrize("given, name", [
    (np.float16, "f16"), (np.dtype("f8"), "f64"), (np.dtype("V2"), "bf16"), (np.zeros(1, "f2").dtype, "f16"),
])
def test_dtypes_of_numpy(given, name):
    assert attune.Problem(**SMALL, dtype=given) == attune.Problem(**SMALL, dtype=name)


@pytest.mark.parametrize("given", [np.float64(0.125), np.float32(0.125), np.float16(0.125), 0.125])
def test_numbers_of_numpy(given):
    assert attune.Problem(**SMALL, softmax_scale=given) == attune.Problem(**SMALL, softmax_scale="0.125")


def test_dtypes_of_torch():
    torch = pytest.importorskip("torch")
    assert attune.Problem(**SMALL, dtype=torch.bfloat16) == attune.Problem(**SMALL, dtype="bf16")
    cached = attune.Problem(**SMALL, kv_dtype=torch.float8_e4m3fn, kv_scales="head")
    assert cached == attune.Problem(**SMALL, kv_dtype="f8", kv_scales="head")
    with pytest.raises(attune.InvalidProblemError, match="dtype is 'torch.complex64'"):
        attune.Problem(**SMALL, dtype=torch.complex64)


# ---- Schedules ----


def test_a_schedule_of_some_numbers():
    kernel = attune.compile(attune.Problem(**SMALL), schedule="strategy=q_lanes")
    assert kernel.info["schedule"].startswith("strategy=q_lanes,lanes=")
    other = attune.compile(attune.Problem(**SMALL), schedule="kv_tile=8")
    assert "kv_tile=8" in other.info["schedule"]
    again = attune.compile(attune.Problem(**SMALL), schedule=other.info["schedule"])
    assert again.info["key"] == other.info["key"]
    assert "kv_tile=8" in attune.explain(attune.Problem(**SMALL), schedule="kv_tile=8")
    assert attune.check(attune.Problem(**SMALL), schedule="kv_tile=8").elements == 64
    with pytest.raises(attune.InvalidScheduleError, match="kv_tile is 0"):
        attune.compile(attune.Problem(**SMALL), schedule="kv_tile=0")


# ---- Masks, the batch ----


def masks(batch, heads, rows, keys):
    for shape in ((keys,), (1, keys), (rows, keys), (1, rows, keys), (heads, rows, keys), (heads, 1, keys),
                  (batch, 1, 1, keys), (batch, 1, rows, keys), (1, heads, 1, keys), (batch, heads, rows, keys)):
        yield NUMBERS.random(shape) < 0.7


@pytest.mark.parametrize("text", [
    "batch=2,seq_q=3,seq_kv=5", "batch=2,seq_q=dynamic,seq_kv=dynamic", "batch=4,seq_q=3,seq_kv=5",
])
@pytest.mark.parametrize("make", [attune.compile, attune.Plan])
def test_masks_of_fewer_dims(make, text):
    q, k, v = draw(2, 4, 3, 16), draw(2, 4, 5, 16), draw(2, 4, 5, 16)
    call = make(text + ",num_heads=4,head_dim=16,attn_mask_dims=bhqk")
    biased = make(text + ",num_heads=4,head_dim=16,attn_bias_dims=bhqk")
    for mask in masks(2, 4, 3, 5):
        out = np.empty_like(q)
        for _ in range(2):  # the second call is a known one
            out[:] = -1
            call.run(q=q, attn_mask=mask, k=k, v=v, out=out)
            close(out, attend(q, k, v, mask))
        close(call(attn_mask=mask, q=q, k=k, v=v), attend(q, k, v, mask))
        bias = mask.astype("f4")
        close(biased(attn_bias=bias, q=q, k=k, v=v), attend(q, k, v, bias=bias))
        close(attune.attention(q, k, v, attn_mask=mask), attend(q, k, v, mask))
        close(attune.attention(q, k, v, attn_bias=bias), attend(q, k, v, bias=bias))


def test_masks_of_attention_may_lack_keys():
    q, k, v = draw(2, 4, 3, 16), draw(2, 4, 5, 16), draw(2, 4, 5, 16)
    for shape in (3, 1), (1,), (), (2, 4, 1, 1), (4, 3, 1):
        mask = NUMBERS.random(shape) < 0.7
        close(attune.attention(q, k, v, attn_mask=np.array(mask)), attend(q, k, v, mask))
        bias = draw(*shape)
        close(attune.attention(q, k, v, attn_bias=np.array(bias, "f4")), attend(q, k, v, bias=bias))


def test_masks_of_torch():
    torch = pytest.importorskip("torch")
    q, k, v = draw(2, 4, 3, 16), draw(2, 4, 5, 16), draw(2, 4, 5, 16)
    call = attune.compile("batch=2,seq_q=3,seq_kv=5,num_heads=4,head_dim=16,attn_mask_dims=bhqk")
    for mask in masks(2, 4, 3, 5):
        out = call(attn_mask=torch.tensor(mask), q=torch.tensor(q), k=torch.tensor(k), v=torch.tensor(v))
        close(out.numpy(), attend(q, k, v, mask))


def test_a_mask_that_does_not_broadcast():
    q, k = draw(2, 4, 3, 16), draw(2, 4, 5, 16)
    per_keys = r"attn_mask has the shape \[2, 5\], but seq_q is 3; for .* keys give attn_mask\[:, None, None"
    with pytest.raises(attune.InvalidArgumentError, match=per_keys):
        attune.attention(q, k, k, attn_mask=np.ones((2, 5), bool))
    call = attune.compile("batch=2,seq_q=3,seq_kv=5,num_heads=4,head_dim=16,attn_mask_dims=bhqk")
    with pytest.raises(attune.InvalidArgumentError, match="attn_mask has 2 at dimension 2, but seq_q is 3"):
        call(q=q, k=k, v=k, attn_mask=np.ones((2, 5), bool))
    with pytest.raises(attune.InvalidArgumentError, match="attn_mask has 1 at dimension 3, but (mask_)?seq_kv is 5"):
        call(q=q, k=k, v=k, attn_mask=np.ones((3, 1), bool))
    with pytest.raises(attune.InvalidArgumentError, match="attn_mask has 5 dimensions; it needs 4"):
        call(q=q, k=k, v=k, attn_mask=np.ones((1, 1, 1, 3, 5), bool))


@pytest.mark.parametrize("make", [attune.compile, attune.Plan])
def test_the_batch_is_that_of_the_tensors(make):
    call = make("num_heads=4,seq_q=3,seq_kv=5,head_dim=16,batch=7")
    for batch in 1, 2, 7:
        q, k, v = draw(batch, 4, 3, 16), draw(batch, 4, 5, 16), draw(batch, 4, 5, 16)
        close(call(q=q, k=k, v=v), attend(q, k, v))
    with pytest.raises(attune.InvalidArgumentError, match="k has 2 at dimension 0, but batch is 7"):
        call(q=draw(7, 4, 3, 16), k=draw(2, 4, 5, 16), v=draw(2, 4, 5, 16))
    with pytest.raises(attune.InvalidArgumentError, match="q has 7 at dimension 0, but batch is 2"):
        call(q=draw(7, 4, 3, 16), k=draw(7, 4, 5, 16), v=draw(7, 4, 5, 16), sizes={"batch": 2})


@pytest.mark.parametrize("make", [attune.compile, attune.Plan])
def test_the_batch_is_that_of_cu_seqlens(make):
    call = make("num_heads=4,seq_q=dynamic,seq_kv=dynamic,head_dim=16,is_ragged=1")
    q = draw(1, 4, 9, 16)
    for ends in ([9], [4, 9], [2, 2, 5, 9]):
        cu = np.array([0, *ends], "i4")
        ours = call(q=q, k=q, v=q, cu_seqlens_q=cu, cu_seqlens_kv=cu)
        for begin, end in zip(cu, cu[1:]):
            part = q[:, :, begin:end]
            close(ours[:, :, begin:end], attend(part, part, part))


# ---- Nothing ----


@pytest.mark.parametrize("batch, rows, keys", [(2, 3, 0), (2, 0, 5), (2, 0, 0), (0, 3, 5), (0, 0, 0)])
@pytest.mark.parametrize("step", [1, 2])
def test_sizes_of_0(batch, rows, keys, step):
    q = draw(batch, 4, rows, 32)[..., ::step]
    k = draw(batch, 2, keys, 32)[..., ::step]
    shapes = [None, (rows, keys), (keys,), (batch, 1, 1, keys), (batch, 4, rows, keys), (4, 1, keys), (1,)]
    for shape in shapes:
        for name, dtype in (("attn_mask", "?"), ("attn_bias", "f4")):
            given = {} if shape is None else {name: np.ones(shape, dtype)}
            for _ in range(2):  # the second call is a known one
                out, lse = attune.attention(q, k, k, has_lse=True, **given)
                assert out.shape == q.shape and lse.shape == q.shape[:-1]
                assert not out.any() and (lse == -np.inf).all()


def test_sizes_of_0_of_torch():
    torch = pytest.importorskip("torch")
    out = attune.attention(torch.ones(2, 4, 3, 16), torch.ones(2, 4, 0, 16), torch.ones(2, 4, 0, 16),
                           attn_mask=torch.ones(3, 0, dtype=torch.bool))
    assert out.shape == (2, 4, 3, 16) and not out.any()


def test_wrong_sizes_beside_0():
    q, none = draw(2, 4, 3, 16), draw(2, 4, 0, 16)
    with pytest.raises(attune.InvalidArgumentError, match=r"attn_mask has the shape \[3, 2\], but seq_kv is 0"):
        attune.attention(q, none, none, attn_mask=np.ones((3, 2), bool))
    with pytest.raises(attune.InvalidArgumentError, match=r"attn_bias has the shape \[3, 0\], but seq_kv is 3"):
        attune.attention(q, q, q, attn_bias=np.ones((3, 0), "f4"))
    with pytest.raises(attune.InvalidArgumentError, match="k has 2 at dimension 0, but batch is 0"):
        attune.attention(q[:0], q, q)
    with pytest.raises(attune.InvalidProblemError, match="num_kv_heads"):
        attune.attention(q[:0], draw(0, 3, 3, 16), draw(0, 3, 3, 16))


@pytest.mark.parametrize("make", [attune.compile, attune.Plan])
@pytest.mark.parametrize("field", ["attn_mask_dims=qk", "attn_mask_dims=k", "attn_bias_dims=bhqk"])
def test_kernels_of_sizes_of_0(make, field):
    call = make("batch=2,num_heads=4,seq_q=dynamic,seq_kv=dynamic,head_dim=16," + field)
    name, _, letters = field.partition("_dims=")
    for rows, keys in ((3, 0), (0, 5), (0, 0), (3, 5)):
        sizes = dict(b=2, h=4, q=rows, k=keys)
        shape = [sizes[letter] if letter in letters else 1 for letter in "bhqk"]
        mask = np.ones(shape, "f4" if "bias" in name else "?")
        q, k = draw(2, 4, rows, 16), draw(2, 4, keys, 16)
        close(call(q=q, k=k, v=k, **{name: mask}), attend(q, k, k))


# ---- Tier 0 ----


def tier_0():
    """Whether the library has machine code of its own for the problem that is asked for here."""
    import attune

    problem = attune.Problem(num_heads=2, seq_q=3, seq_kv=7, head_dim=64)
    kernel = attune.compile(problem)
    print(kernel.info["origin"], kernel.info["engine"], attune.check(problem).elements)


@pytest.mark.parametrize("tier0, origin", [("", "tier0 jit"), ("off", "vm vm")])
def test_facts_of_tier_0(tier0, origin):
    environment = {**os.environ, "ATTUNE_COMPILE": "never", "ATTUNE_CACHE_DIR": "", "ATTUNE_TIER0": tier0}
    if not tier0:
        del environment["ATTUNE_TIER0"]
    ran = subprocess.run([sys.executable, "-c", inspect.getsource(tier_0) + "\ntier_0()"], env=environment, text=True,
                         capture_output=True)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == f"{origin} 384\n"
