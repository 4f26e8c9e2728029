"""Options that all calls share: threads of the host, and a flag by which another thread ends the call."""

import inspect

import attune
import attune.blocks
import numpy as np
import pytest

F4 = np.random.default_rng(5).standard_normal


def rows(*dims):
    return F4(dims).astype("f4")


def mla():
    shapes = {"q_proj.weight": (96, 64), "kv_a_proj_with_mqa.weight": (48, 64), "kv_a_layernorm.weight": (32,),
              "kv_b_proj.weight": (128, 32), "o_proj.weight": (64, 64)}
    return attune.MLA({name: rows(*shape) for name, shape in shapes.items()}, num_heads=2, qk_nope_head_dim=32,
                      qk_rope_head_dim=16)


Q, K, V = rows(1, 2, 5, 16), rows(1, 2, 7, 16), rows(1, 2, 7, 16)


def kernel():
    return attune.compile("num_heads=2,seq_q=5,seq_kv=7,head_dim=16")


def plan():
    return attune.Plan("num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16")


# Each function that computes, as one of its options.
CALLS = {
    "attention": lambda **o: attune.attention(Q, K, V, **o),
    "flex_attention": lambda **o: attune.flex_attention(Q, K, V, lambda score, b, h, i, j: score + i, **o),
    "Kernel": lambda **o: kernel()(q=Q, k=K, v=V, **o),
    "Kernel.run": lambda **o: kernel().run(q=Q, k=K, v=V, out=np.empty_like(Q), **o),
    "Plan": lambda **o: plan()(q=Q, k=K, v=V, **o),
    "linear_attention": lambda **o: attune.linear_attention(Q, Q, Q, rule="linear", **o),
    "causal_conv": lambda **o: attune.causal_conv(rows(1, 9, 8), rows(8, 4), **o),
    "index": lambda **o: attune.index(rows(1, 5, 2, 16), rows(1, 7, 16), rows(1, 5, 2), 3, **o),
    "MLA.run": lambda **o: mla().run(rows(1, 6, 64), np.zeros((1, 6, 48), "f4"), rows(6, 8), rows(6, 8), **o),
    "blocks.attention": lambda **o: attune.blocks.attention(Q, K, V, np.ones((1, 1, 1), bool), **o),
    "blocks.scores": lambda **o: attune.blocks.scores(rows(1, 2, 128, 16), rows(1, 2, 128, 16), **o),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_ends_if_its_flag_is_set(name):
    call, flag = CALLS[name], np.zeros(1, "i4")
    call(cancel=flag)
    flag[0] = 1
    for _ in range(2):
        with pytest.raises(attune.CancelledError):
            call(cancel=flag)
    call()
    with pytest.raises(attune.InvalidArgumentError, match="cancel has 2 elements; it must have 1"):
        call(cancel=np.zeros(2, "i4"))


@pytest.mark.parametrize("name", CALLS)
def test_a_call_runs_on_threads_of_the_host(name):
    pytest.importorskip("torch")
    import attune.torch

    CALLS[name](runner=attune.torch.runner())


def test_a_call_with_one_of_these_options_has_all():
    """Also those that are added later."""
    homes = [attune, attune.blocks, attune.Kernel, attune.Plan, attune.Attention, attune.StepPlan, attune.MLA]
    found = [getattr(home, name) for home in homes for name in dir(home) if name[0] != "_" or name == "__call__"]
    signatures = {one: inspect.signature(one).parameters for one in found if inspect.isroutine(one)}
    given = {one: [name for name in ("max_threads", "runner", "cancel") if name in names]
             for one, names in signatures.items() if "max_threads" in names and one.__name__ != "workspace_bytes"}
    assert len(given) > 10
    assert [one for one, names in given.items() if len(names) != 3] == []


def test_the_workspace_of_a_call_on_other_threads():
    torch = pytest.importorskip("torch")
    import attune.torch

    threads = torch.get_num_threads()
    assert kernel().workspace_bytes(runner=attune.torch.runner()) == kernel().workspace_bytes(max_threads=threads)
