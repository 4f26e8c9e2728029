"""AttuneCache against transformers' DynamicCache: the same calls, the same contents."""

import copy
import pickle
import random

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
cache_module = pytest.importorskip("attune.transformers._cache", reason="attune.torch is missing")
from attention_reference import encode  # noqa: E402
from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer  # noqa: E402

from attune.transformers import AttuneCache  # noqa: E402
from attune.transformers._codes import CachedTensor  # noqa: E402

HEADS, DIM = 2, 8


def config(window=None):
    fields = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=HEADS, hidden_size=32)
    if window:
        return transformers.Gemma2Config(sliding_window=window, **fields)
    return transformers.LlamaConfig(**fields)


def rows(batch, count, dtype=torch.float32):
    return torch.randn(batch, HEADS, count, DIM).to(dtype)


def plain(tensor):
    return tensor.rows.decode(tensor.which) if isinstance(tensor, CachedTensor) else tensor


def rounded(tensor, dtype):
    """The rows as a cache of this type gives them back."""
    if dtype == "i8":
        codes, scale = encode(tensor)
        return (codes.float() * scale[..., None]).to(tensor.dtype)
    return tensor.to({"bf16": torch.bfloat16, None: tensor.dtype, "f32": torch.float32}[dtype]).to(tensor.dtype)


def same_state(ours, theirs):
    for layer, want in zip(ours.layers, theirs.layers):
        assert layer.get_seq_length() == want.get_seq_length()
        assert layer.get_mask_sizes(3) == want.get_mask_sizes(3)
        if want.is_initialized and want.get_seq_length():
            assert torch.equal(plain(layer.keys), want.keys) and torch.equal(plain(layer.values), want.values)


def step(ours, theirs, dtype, batch, draw):
    """One random call on both caches; the batch afterwards."""
    kind = draw.choice(["update"] * 8 + ["reorder", "repeat", "select", "crop", "copy", "reset"])
    if kind == "update":
        count = draw.choice([1, 1, 1, 2, 5, 17])
        for layer in range(2):
            k, v = rows(batch, count), rows(batch, count)
            got = ours.update(k, v, layer)
            want = theirs.update(rounded(k, dtype), rounded(v, dtype), layer)
            for mine, other in zip(got, want):
                assert torch.equal(plain(mine), other)
    elif not theirs.layers or not theirs.get_seq_length():
        return ours, theirs, batch
    elif kind == "reorder":
        order = torch.tensor([draw.randrange(batch) for _ in range(batch)])
        ours.reorder_cache(order)
        theirs.reorder_cache(order)
    elif kind == "repeat" and batch < 4:
        ours.batch_repeat_interleave(2)
        theirs.batch_repeat_interleave(2)
        batch *= 2
    elif kind == "select":
        kept = torch.tensor(sorted(draw.sample(range(batch), max(1, batch - 1))))
        ours.batch_select_indices(kept)
        theirs.batch_select_indices(kept)
        batch = len(kept)
    elif kind == "crop":
        sliding = [layer for layer in theirs.layers if isinstance(layer, DynamicSlidingWindowLayer)]
        if all(layer.record_past or layer.cumulative_length < layer.sliding_window for layer in sliding):
            count = draw.randrange(0, min(4, theirs.get_seq_length()))
            ours.crop(-count)
            theirs.crop(-count)
    elif kind == "copy":
        ours = copy.deepcopy(ours) if draw.random() < 0.5 else pickle.loads(pickle.dumps(ours))
    elif kind == "reset":
        ours.reset()
        theirs.reset()
    return ours, theirs, batch


@pytest.mark.sample(3)
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("dtype", [None, "bf16", "i8"])
def test_random_calls(dtype, window):
    for seed in range(15):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        capacity = draw.choice([None, 1, 40])
        ours = AttuneCache(config(window), dtype=dtype, capacity=capacity)
        theirs = DynamicCache(config=config(window))
        if draw.random() < 0.5:
            ours.activate_past_recording()
            theirs.activate_past_recording()
        batch = draw.choice([1, 3])
        for _ in range(30):
            ours, theirs, batch = step(ours, theirs, dtype, batch, draw)
            same_state(ours, theirs)


def test_rows_are_appended_in_place():
    cache = AttuneCache(capacity=64)
    first = cache.update(rows(1, 10), rows(1, 10), 0)[0]
    second = cache.update(rows(1, 1), rows(1, 1), 0)[0]
    assert first.data_ptr() == second.data_ptr() and torch.equal(first, second[:, :, :10])
    assert cache.layers[0].capacity == 64


def test_memory_grows_rarely_and_views_stay_right():
    cache = AttuneCache()
    places, views = set(), []
    for _ in range(2000):
        views.append(cache.update(rows(1, 1), rows(1, 1), 0)[0])
        places.add(views[-1].data_ptr())
    assert len(places) <= 6
    for count, view in enumerate(views, 1):
        assert torch.equal(view, views[-1][:, :, :count])


def test_a_window_keeps_its_rows_only():
    cache = AttuneCache(config(9))
    for _ in range(3000):
        cache.update(rows(1, 1), rows(1, 1), 0)
    assert cache.layers[0].keys.shape[2] == 8 and cache.layers[0].capacity <= 1000


def test_inference_mode_does_not_lock_the_cache():
    cache = AttuneCache()
    with torch.inference_mode():
        cache.update(rows(1, 3), rows(1, 3), 0)
    cache.update(rows(1, 2), rows(1, 2), 0)
    with torch.inference_mode():
        assert cache.update(rows(1, 1), rows(1, 1), 0)[0].shape[2] == 6


def test_a_row_that_is_not_finite_reads_as_nan():
    cache = AttuneCache(dtype="i8")
    k = rows(1, 3)
    k[0, 0, 1, 2], k[0, 1, 2, 0], k[0, 0, 0] = torch.nan, torch.inf, 0
    keys = plain(cache.update(k, rows(1, 3), 0)[0])
    assert keys[0, 0, 1].isnan().all() and keys[0, 1, 2].isnan().all()
    assert (keys[0, 0, 0] == 0).all() and keys[0, 1, :2].isfinite().all()


def test_stored_rows_are_widened_for_everybody_else():
    for dtype in ("bf16", "i8"):
        cache = AttuneCache(dtype=dtype)
        k, v, q = rows(2, 7), rows(2, 7), rows(2, 3)
        keys, values = cache.update(k, v, 0)
        want = torch.nn.functional.scaled_dot_product_attention(q, rounded(k, dtype), rounded(v, dtype))
        assert torch.equal(torch.nn.functional.scaled_dot_product_attention(q, keys, values), want)
        assert torch.equal(keys.transpose(1, 2).contiguous(), rounded(k, dtype).transpose(1, 2))
        assert keys.shape == k.shape and keys.dtype == k.dtype and "CachedTensor" in repr(keys)


def test_refusals_name_the_value():
    with pytest.raises(ValueError, match="not 'i4'"):
        AttuneCache(dtype="i4")
    with pytest.raises(ValueError, match="not torch.float16"):
        AttuneCache(dtype=torch.float16)
    with pytest.raises(ValueError, match="not 0"):
        AttuneCache(capacity=0)
    cache = AttuneCache()
    cache.update(rows(2, 3), rows(2, 3), 0)
    with pytest.raises(ValueError, match=r"\(1, 2, 1, 8\)"):
        cache.update(rows(1, 1), rows(1, 1), 0)
    with pytest.raises(ValueError, match="torch.bfloat16"):
        cache.update(rows(2, 1, torch.bfloat16), rows(2, 1, torch.bfloat16), 0)
    with pytest.raises(RuntimeError, match="no_grad"):
        cache.update(rows(2, 1).requires_grad_(), rows(2, 1), 0)
    with pytest.raises(ValueError, match="not 2"):
        cache.crop(2)
    with pytest.raises(AttributeError, match="in place"):
        cache.layers[0].keys = rows(2, 1)
    assert cache.get_seq_length() == 3
