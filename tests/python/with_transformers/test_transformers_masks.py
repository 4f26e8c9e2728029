"""The mask function of attune.transformers: whatever it returns says the same as transformers' own mask."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
pytest.importorskip("transformers", reason="transformers is missing")
from transformers import masking_utils as stock  # noqa: E402

masks = pytest.importorskip("attune.transformers._masks", reason="attune.torch is missing")
from attention_reference import visible_keys  # noqa: E402


def full_mask(arguments):
    arguments = dict(arguments, allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    return stock.sdpa_mask(**arguments)


def expand(hint, batch, q_length, kv_length):
    """The boolean mask that a hint stands for."""
    keys = hint.keys - hint.first
    seen = torch.zeros(batch, 1, q_length, kv_length, dtype=torch.bool)
    results = []
    for lengths, padding in ((hint.kv_lens, None), (None, hint.key_mask)):
        lengths = torch.full((batch,), keys) if lengths is None else lengths
        windows = hint.window_left, hint.window_right
        part = visible_keys(q_length, keys, lengths, hint.causal, hint.bottom_right, *windows)
        result = seen.clone()
        result[..., hint.first : hint.keys] = part if padding is None else part & padding
        results.append(result)
    return results if hint.kv_lens is not None else results[1:]


def check(arguments):
    """The form that the mask function chose."""
    batch, q_length, kv_length = (arguments[name] for name in ("batch_size", "q_length", "kv_length"))
    mask, want = masks.attune_mask(**arguments), full_mask(arguments)
    if mask is None:
        causal = arguments["mask_function"] is not stock.bidirectional_mask_function and q_length > 1
        assert not causal or q_length == kv_length
        lengths = torch.full((batch,), kv_length)
        assert torch.equal(visible_keys(q_length, kv_length, lengths, causal, False, -1, -1), want)
        return "none"
    assert torch.equal(mask, want)
    hint = masks.hint_of(mask, q_length, kv_length)
    if hint is None:
        return "mask"
    for said in expand(hint, batch, q_length, kv_length):
        assert torch.equal(said, want)
    return "lengths" if hint.kv_lens is not None else "keys" if hint.key_mask is not None else "window"


def paddings(batch, total):
    columns = torch.arange(total)
    lengths = torch.randint(0, total + 1, (batch, 1))
    return {
        "no": None,
        "all seen": torch.ones(batch, total, dtype=torch.bool),
        "right": columns < lengths,
        "left": columns >= lengths,
        "holes": torch.rand(batch, total) < 0.7,
        "short": torch.ones(batch, max(1, total - 3), dtype=torch.bool),
    }


FUNCTIONS = {
    "causal": lambda: stock.causal_mask_function,
    "bidirectional": lambda: stock.bidirectional_mask_function,
    "window": lambda: stock.sliding_window_causal_mask_function(4),
    "window of both sides": lambda: stock.sliding_window_bidirectional_mask_function(3),
    "chunks": lambda: stock.chunked_causal_mask_function(4, torch.zeros(3, dtype=torch.long)),
    "packed": lambda: stock.and_masks(
        stock.packed_sequence_mask_function(torch.arange(16).div(5).expand(3, 16)),
        stock.remap_positions_for_packed_sequence(
            stock.causal_mask_function, torch.arange(16).remainder(5).expand(3, 16)
        ),
    ),
}


@pytest.mark.sample(8)
@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("pattern", FUNCTIONS)
def test_every_mask_says_what_stock_says(pattern, inference):
    torch.manual_seed(7)
    forms = set()
    with torch.inference_mode(inference):
        for q_length, q_offset, kv_offset, more in [
            (1, 0, 0, 0), (1, 9, 0, 0), (1, 9, 6, 0), (1, 2, 0, 9), (6, 0, 0, 0), (6, 0, 0, 7), (5, 8, 0, 0),
            (5, 8, 6, 0), (4, 3, 0, 6), (9, 0, 0, 0), (3, 4, 0, 0), (16, 0, 0, 0),
        ]:  # fmt: skip
            kv_length = q_offset + q_length - kv_offset + more
            if pattern == "packed" and (q_offset or more or q_length > 16):
                continue
            for padding in paddings(3, kv_offset + kv_length).values():
                for skip in (True, False):
                    forms.add(
                        check(
                            dict(
                                batch_size=3, q_length=q_length, kv_length=kv_length, q_offset=q_offset,
                                kv_offset=kv_offset, mask_function=FUNCTIONS[pattern](), attention_mask=padding,
                                allow_is_causal_skip=skip and pattern in ("causal", "window"),
                                allow_is_bidirectional_skip=skip and pattern.endswith(("directional", "sides")),
                            )  # fmt: skip
                        )
                    )
    known = {"none", "lengths", "keys", "window"}
    assert forms - {"mask"} >= (set() if pattern in ("chunks", "packed") else known)
    assert pattern not in ("chunks", "packed") or forms == {"mask"}


def plain(**changes):
    arguments = dict(batch_size=2, q_length=5, kv_length=5, mask_function=stock.causal_mask_function)
    return dict(arguments, attention_mask=torch.ones(2, 5, dtype=torch.bool), **changes)


def test_a_function_of_the_model_is_never_taken_for_a_known_one():
    def sees_little(batch_idx, head_idx, q_idx, kv_idx):
        return (kv_idx <= q_idx) & (kv_idx % 2 == 0)

    for function in (
        sees_little,
        stock.and_masks(stock.causal_mask_function, sees_little),
        stock.or_masks(stock.sliding_window_overlay(2), stock.causal_mask_function),
        stock.and_masks(stock.sliding_window_overlay(2), stock.bidirectional_mask_function),
        stock.and_masks(stock.sliding_window_overlay(2), stock.causal_mask_function, sees_little),
        stock.and_masks(stock.sliding_window_overlay(torch.tensor(2)), stock.causal_mask_function),
    ):
        assert check(plain(mask_function=function, allow_is_causal_skip=False)) == "mask"


def test_a_changed_mask_has_no_hint():
    padding = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    mask = masks.attune_mask(**dict(plain(), attention_mask=padding))
    assert masks.hint_of(mask, 5, 5).kv_lens.tolist() == [3, 5]
    assert masks.hint_of(mask, 4, 5) is None and masks.hint_of(mask[:, :, :4], 4, 5) is None
    assert masks.hint_of(mask & True, 5, 5) is None
    with torch.inference_mode():
        mask[0, 0, 0, 0] = False
    assert masks.hint_of(mask, 5, 5) is None


def test_masks_that_must_not_be_left_out_are_not():
    assert masks.attune_mask(**plain()) is None
    assert masks.attune_mask(**plain(allow_is_causal_skip=False)) is not None
    # An empty static cache: more keys than queries, which stock leaves to SDPA's alignment.
    assert masks.attune_mask(**dict(plain(), kv_length=9)) is not None
