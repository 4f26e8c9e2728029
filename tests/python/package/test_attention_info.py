"""What an attune.Attention has run, and steps that another thread ends."""

import attune
import numpy as np
import pytest


def attention_of(head_dim, **options):
    context = attune.Context(cache_dir="", **options)
    return attune.Attention(num_heads=4, num_kv_heads=2, head_dim=head_dim, is_causal=True, kv="paged", page_size=32,
                            context=context)


def step_of(head_dim):
    """A decoding query on a page."""
    pages = np.ones((1, 32, 2, head_dim), "f4")
    return dict(q=pages[0, :1].repeat(2, 1), k_cache=pages, v_cache=pages)


LISTS = dict(cu_seqlens_q=[0, 1], kv_lens=[20], block_table=[[0]])


@pytest.mark.parametrize("head_dim, options, ran", [(16, {}, "compiled_calls"), (64, {}, "compiled_calls"),
                                                    (64, {"compile_mode": "never"}, "tier0_calls"),
                                                    (56, {"compile_mode": "never"}, "vm_calls")])
def test_what_ran_is_told(head_dim, options, ran):
    attention = attention_of(head_dim, **options)
    assert attention.info == {"compiled_calls": 0, "tier0_calls": 0, "vm_calls": 0, "is_ready": 0}
    attention.run(**step_of(head_dim), **LISTS)
    attention.plan(**LISTS, num_pages=1).run(**step_of(head_dim))
    counts = attention.info
    assert counts.pop(ran) == 2 and not any(counts.values())
    attention.prepare()
    assert attention.info["is_ready"] == 1


def test_a_step_ends_if_its_flag_is_set():
    attention, flag = attention_of(16), np.zeros(1, "i4")
    plan, step = attention.plan(**LISTS, num_pages=1), step_of(16)
    attention.run(**step, **LISTS, cancel=flag)
    plan.run(**step, cancel=flag)
    flag[0] = 1
    for run in (lambda: attention.run(**step, **LISTS, cancel=flag), lambda: plan.run(**step, cancel=flag)):
        with pytest.raises(attune.CancelledError):
            run()


@pytest.mark.parametrize("flag, sentence", [(np.zeros(1), "cancel is float64; it must be int32"),
                                            (np.zeros(2, "i4"), "cancel has 2 elements; it must have 1"),
                                            (np.zeros((1, 1), "i4"), "cancel has 2 dimensions; it must have 1")])
def test_another_flag_is_refused(flag, sentence):
    with pytest.raises(attune.InvalidArgumentError, match=sentence):
        attention_of(16).run(**step_of(16), **LISTS, cancel=flag)
