"""Arguments that the package cannot take: each is refused by name, in one sentence, and nothing is lost silently."""

import pathlib
from array import array

import attune
import numpy as np
import pytest

TEXT = "num_heads=2,seq_q=8,head_dim=8"
OPEN = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=8"


def tensors():
    return {name: np.ones((1, 2, 8, 8), "f4") for name in "qkv"}


def refused(sentence, function, *arguments, kind=attune.Error, **named):
    with pytest.raises(attune.Error, match=sentence) as caught:
        function(*arguments, **named)
    assert isinstance(caught.value, kind) and "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [attune.compile, attune.Plan])
def test_a_scale_that_would_be_ignored(make):
    plain, scaled = make(OPEN), make(OPEN + ",softmax_scale=dynamic")
    for name in ("run", "__call__"):
        call = {**tensors(), **({"out": np.empty((1, 2, 8, 8), "f4")} if name == "run" else {})}
        refused("softmax_scale is 0.5, but .* lacks softmax_scale=dynamic", getattr(plain, name),
                softmax_scale=0.5, **call)
        refused("softmax_scale is nan", getattr(scaled, name), softmax_scale=float("nan"), **call)
        refused("softmax_scale is 'x'", getattr(scaled, name), softmax_scale="x", kind=TypeError, **call)
        getattr(scaled, name)(softmax_scale=0.5, **call)


@pytest.mark.parametrize("name, call", {
    "a problem": lambda: attune.Problem(TEXT + "\0,is_causal=1"),
    "a problem ": lambda: attune.Problem(TEXT, dtype="f32\0x"),
    "schedule": lambda: attune.compile(TEXT, schedule="\0strategy=q_lanes"),
    "isa": lambda: attune.Context(isa="avx2\0x"),
    "machine": lambda: attune.Context(machine="zen4\0x"),
    "target": lambda: attune.Context(target="avx2\0x"),
    "cache_dir": lambda: attune.Context(cache_dir="/tmp/x\0y"),
    "cache_base": lambda: attune.Context(cache_base=pathlib.Path("/tmp/x\0y")),
    "causal_align": lambda: attune.attention(**tensors(), causal_align="top_left\0"),
    "there is no size": lambda: attune.compile(OPEN)(**tensors(), sizes={"batch\0": 1}),
}.items())
def test_text_after_a_nul_is_not_dropped(name, call):
    refused(f"{name.strip()} .*(NUL character|x00)", call, kind=ValueError)


def test_sizes_of_a_plan():
    refused("a name in sizes has a NUL character", attune.Plan(OPEN), **tensors(), sizes={"batch\0": 1})
    refused("the size batch is 1.5", attune.Plan(OPEN), **tensors(), sizes={"batch": 1.5}, kind=TypeError)


@pytest.mark.parametrize("sentence, call", [
    ("a problem is text or an attune.Problem, not bytes", lambda: attune.Problem(b"num_heads=2")),
    ("a problem is text or an attune.Problem, not an int", lambda: attune.Problem(5)),
    ("a problem is text or an attune.Problem, not None", lambda: attune.compile(None)),
    ("a problem is text or an attune.Problem, not an int", lambda: attune.warm([5])),
    ("problems is an int", lambda: attune.warm(5)),
    ("schedule is an int", lambda: attune.compile(TEXT, schedule=5)),
    ("context is an int", lambda: attune.compile(TEXT, context=5)),
    ("max_workers is 1.5", lambda: attune.Context(max_workers=1.5)),
    ("compile_timeout_ms is 'x'", lambda: attune.Context(compile_timeout_ms="x")),
    ("allow_interpreter is 'no'", lambda: attune.Context(allow_interpreter="no")),
    ("cache_dir is an int", lambda: attune.Context(cache_dir=5)),
    ("log is an int", lambda: attune.Context(log=5)),
    ("event is an int", lambda: attune.Context(event=5)),
    ("background_niceness is '1'", lambda: attune.Context(background_niceness="1")),
    ("seconds is 'x'", lambda: attune.tune(TEXT, "x")),
    ("the size batch is 1.5", lambda: attune.check(TEXT, sizes={"batch": 1.5})),
    ("the size batch is 1.5", lambda: attune.compile(TEXT)(**tensors(), sizes={"batch": 1.5})),
    ("sizes is a list", lambda: attune.compile(TEXT)(**tensors(), sizes=["batch"])),
    ("max_threads is 1.5", lambda: attune.compile(TEXT)(**tensors(), max_threads=1.5)),
    ("max_threads is True", lambda: attune.compile(TEXT)(**tensors(), max_threads=True)),
    ("q is an object", lambda: attune.compile(TEXT)(**{**tensors(), "q": object()})),
    ("runner is an int; it must be a runner", lambda: attune.compile(TEXT).run(**tensors(), runner=5)),
])
def test_wrong_types(sentence, call):
    refused(sentence, call, kind=TypeError)


def test_values_out_of_range():
    refused("max_workers is -3; it must be from 0", attune.Context, max_workers=-3)
    refused("background_niceness is 20; it must be from 0 to 19", attune.Context, background_niceness=20)
    refused("deadline_us is 60000001; it must be from 0 to 60000000", attune.Plan, TEXT, deadline_us=60_000_001)
    refused("memory_cache_bytes is -1", attune.Context, memory_cache_bytes=-1)
    refused("compile_mode is 'x'", attune.Context, compile_mode="x")
    refused("compile_mode is \\[\\]", attune.Context, compile_mode=[])
    refused("max_threads is 1099511627776", attune.compile(TEXT), **tensors(), max_threads=2**40)
    refused("the size batch is 18446744073709551618", attune.compile(TEXT), **tensors(), sizes={"batch": 2**64 + 2})


def test_a_list_that_cannot_be_read(tmp_path):
    refused("/nope cannot be read: No such file", attune.warm, pathlib.Path("/nope"), kind=OSError)
    binary = tmp_path / "list"
    binary.write_bytes(b"\xff\xfe")
    refused("list cannot be read", attune.warm, binary, kind=OSError)


def test_a_problem_is_never_half_made():
    refused("seq_q is not given", attune.Problem.__new__, attune.Problem)
    problem = attune.Problem(TEXT, is_causal=np.bool_(True), softmax_scale=np.float32(0.5))
    assert problem.fields["num_heads"] == 2 and problem.fields["is_causal"] == 1


def draw():
    return {name: np.random.default_rng(1).standard_normal((2, 4, 9, 32)).astype("f4") for name in "qkv"}


@pytest.mark.parametrize("sentence, change", [
    ("attn_mask is a bool", dict(attn_mask=True)),
    ("attn_bias is a float", dict(attn_bias=1.0)),
    ("out is a list", dict(out=[1.0])),
    ("window_left is 1.5", dict(window_left=1.5)),
    ("window_left is True", dict(window_left=True)),
    ("window_right is a tuple", dict(window_right=(1, 2))),
    ("kv_lens is 3.7", dict(kv_lens=[3.7, 4])),
    ("kv_lens is an int", dict(kv_lens=3)),
    ("sinks is 'x'", dict(sinks=["x"] * 4)),
    ("softmax_scale is 'x'", dict(softmax_scale="x")),
    ("logits_soft_cap is 'x'", dict(logits_soft_cap="x")),
    ("max_threads is 1.5", dict(max_threads=1.5)),
    ("is_causal is 'no'; it must be True or False", dict(is_causal="no")),
    ("is_causal is an ndarray", dict(is_causal=np.ones(2, bool))),
    ("causal_align is a list", dict(causal_align=["top_left"])),
    ("has_lse is 'no'", dict(has_lse="no")),
    ("q is a masked array", dict(q=np.ma.array(np.ones((2, 4, 9, 32), "f4")))),
    ("attn_mask is a masked array", dict(attn_mask=np.ma.array(np.ones((9, 9), bool)))),
    ("kv_lens is a masked array", dict(kv_lens=np.ma.array([3, 4]))),
])
def test_wrong_types_of_attention(sentence, change):
    attune.attention(**draw(), window_left=1, has_lse=True)  # True == 1, and must not be taken for it
    refused(sentence, attune.attention, kind=TypeError, **{**draw(), **change})


@pytest.mark.parametrize("sentence, change", [
    ("window_left is -2; it must be from -1", dict(window_left=-2)),
    ("layout is 'hsd'; it must be 'thd', 'bshd' or 'bhsd'", dict(layout="hsd")),
    (r"q has the shape \[2, 4, 9, 32\]; it must be \[tokens, heads, dim\]", dict(layout="thd")),
    ("cu_seqlens_q is given; it needs layout='thd'", dict(cu_seqlens_q=[0, 9])),
    ("kv_lens is 4294967297", dict(kv_lens=[3, 2**32 + 1])),
    ("kv_lens is 4294967297", dict(kv_lens=np.array([3, 2**32 + 1]))),
    ("kv_lens is -1", dict(kv_lens=np.array([3, -1]))),
    ("kv_lens is float64; it must be int32", dict(kv_lens=np.array([3.0, 4.0]))),
    ("softmax_scale is nan", dict(softmax_scale=float("nan"))),
    ("sinks is float64; it must be float32", dict(sinks=np.zeros(4))),
    ("out is float64; it must be float32", dict(out=np.zeros((2, 4, 9, 32)))),
    ("q is int64; it must be one of float32, float16, bfloat16, float64", dict(q=np.zeros((2, 4, 9, 32), "i8"))),
    ("attn_bias is bool; it must be one of float32, float16, bfloat16", dict(attn_bias=np.zeros((9, 9), bool))),
    ("^attn_mask is uint8; it must be bool", dict(attn_mask=np.zeros((9, 9), "u1"))),
    ("^attn_mask has 5 dimensions; it may have at most 4", dict(attn_mask=np.zeros((1, 1, 1, 9, 9), bool))),
])
def test_wrong_values_of_attention(sentence, change):
    refused(sentence, attune.attention, kind=ValueError, **{**draw(), **change})


def test_lengths_of_any_integer_type():
    wanted = attune.attention(**draw(), kv_lens=[3, 4])
    for kind in ("i8", "u8", "u1", "i4", ">i8"):
        assert (attune.attention(**draw(), kv_lens=np.array([3, 4], kind)) == wanted).all()
    assert (attune.attention(**draw(), is_causal=np.bool_(True)) == attune.attention(**draw(), is_causal=True)).all()
    assert (attune.attention(**draw(), window_left=-1) == attune.attention(**draw())).all()


def test_tensors_of_a_kernel():
    kernel, given = attune.compile(TEXT), {**tensors(), "out": np.empty((1, 2, 8, 8), "f4")}
    flat = array("f", bytes(4 * 127))

    class Broken:
        def __dlpack__(self, **options):
            return 5

    def change(sentence, **tensor):
        refused(sentence, kernel.run, kind=ValueError, **{**given, **tensor})

    change("^v is missing$", v=None)
    change("^q has 127 elements; it needs 128$", q=flat)
    change("^q has 511 bytes; it needs 512$", q=bytes(511))
    change("^q is float64; it must be float32$", q=given["q"].astype("f8"))
    change("^q has 1 dimension; it needs 4$", q=np.ones(128, "f4"))
    change("^q has 3 dimensions; it needs 4$", q=given["q"][0])
    change("q: its __dlpack__ gave an int", q=Broken())
    change("q is a masked array", q=np.ma.array(given["q"]))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors():
    torch = pytest.importorskip("torch")
    parts = [torch.ones(4, 9, 32), torch.ones(4, 7, 32)]
    for how in (torch.strided, torch.jagged):
        nested = torch.nested.nested_tensor(parts, layout=how)
        refused("q is a nested tensor", attune.attention, nested, nested, nested, kind=TypeError)
    q, k, v = (torch.from_numpy(x) for x in draw().values())
    wanted = attune.attention(q, k, v, kv_lens=[3, 4])
    assert (attune.attention(q, k, v, kv_lens=torch.tensor([3, 4])) == wanted).all()
