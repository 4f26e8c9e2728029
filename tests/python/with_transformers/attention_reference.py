"""The operators ``attune::attention`` and ``attune::attention_append`` in plain PyTorch and f64: the tests' oracle.

``define()`` gives PyTorch these definitions under attune's names, so that attune.transformers can be tested without
the library: set ATTUNE_TEST_REFERENCE=1.
"""

import torch


def visible_keys(q_length, keys, lengths, is_causal, bottom_right, window_left, window_right):
    """Booleans [B, 1, L, T]: which keys a query sees by its position, and by the length of its entry."""
    j = torch.arange(keys)[None, None, :]
    position = torch.arange(q_length)[None, :, None]
    if bottom_right:
        position = position + (lengths[:, None, None] - q_length)
    seen = j < lengths[:, None, None]
    seen = seen.expand(-1, q_length, -1)
    if is_causal:
        seen = seen & (j <= position)
    if window_left >= 0:
        seen = seen & (j >= position - window_left)
    if window_right >= 0:
        seen = seen & (j <= position + window_right)
    return seen[:, None]


def attention(q, k, v, attn_mask=None, attn_bias=None, kv_lens=None, sinks=None, is_causal=False,
              causal_align="bottom_right", window_left=-1, window_right=-1, logits_soft_cap=0.0,
              softmax_scale=None):  # fmt: skip
    groups, bottom_right = q.shape[1] // k.shape[1], causal_align == "bottom_right"
    keys, values = (rows.double().repeat_interleave(groups, dim=1) for rows in (k, v))
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    scores = q.double() @ keys.transpose(2, 3) * scale
    if logits_soft_cap:
        scores = logits_soft_cap * torch.tanh(scores / logits_soft_cap)
    if attn_bias is not None:
        scores = scores + attn_bias.double()
    lengths = torch.full((q.shape[0],), k.shape[2]) if kv_lens is None else kv_lens
    seen = visible_keys(q.shape[2], k.shape[2], lengths, is_causal, bottom_right, window_left, window_right)
    if attn_mask is not None:
        seen = seen & attn_mask
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)], dim=3)
    lse = scores.logsumexp(3)
    weights = (scores - lse.nan_to_num(neginf=0.0)[..., None]).exp()[..., : k.shape[2]]
    values = torch.where((values.isfinite() | seen.any(2)[..., None]), values, 0.0)
    out = (weights @ values).to(q.dtype)
    return out.transpose(1, 2).contiguous().transpose(1, 2), lse.float()


def encode(rows):
    """Codes of int8 and the scale of each row, as attune's kernels write them."""
    scale = rows.float().abs().amax(-1) / 127
    codes = torch.where(scale[..., None] > 0, rows.float() / scale[..., None], 0.0)
    return codes.round().to(torch.int8), scale


def attention_append(q, k_new, v_new, k_cache, v_cache, k_scale, v_scale, kv_lens, attn_mask=None, sinks=None,
                     is_causal=True, window_left=-1, window_right=-1, logits_soft_cap=0.0,
                     softmax_scale=None):  # fmt: skip
    count = k_new.shape[2]
    wide = []
    for new, cache, scales in ((k_new, k_cache, k_scale), (v_new, v_cache, v_scale)):
        for entry, length in enumerate(kv_lens.tolist()):
            place = slice(length - count, length)
            if scales is None:
                cache[entry, :, place] = new[entry].to(cache.dtype)
            else:
                cache[entry, :, place], scales[entry, :, place] = encode(new[entry])
        wide.append(cache.double() if scales is None else cache.double() * scales.double()[..., None])
    rest = window_left, window_right, logits_soft_cap, softmax_scale
    return attention(q, *wide, attn_mask, None, kv_lens, sinks, is_causal, "bottom_right", *rest)[0]


_SCHEMAS = (
    "attention(Tensor q, Tensor k, Tensor v, Tensor? attn_mask=None, Tensor? attn_bias=None, Tensor? kv_lens=None, "
    "Tensor? sinks=None, bool is_causal=False, str causal_align='bottom_right', int window_left=-1, "
    "int window_right=-1, float logits_soft_cap=0.0, float? softmax_scale=None) -> (Tensor, Tensor)",
    "attention_append(Tensor q, Tensor k_new, Tensor v_new, Tensor(a!) k_cache, Tensor(b!) v_cache, "
    "Tensor(c!)? k_scale, Tensor(d!)? v_scale, Tensor kv_lens, Tensor? attn_mask=None, Tensor? sinks=None, "
    "bool is_causal=True, int window_left=-1, int window_right=-1, float logits_soft_cap=0.0, "
    "float? softmax_scale=None) -> Tensor",
)
_libraries = []


def define():
    """Defines the operators, once for the process."""
    if _libraries:
        return
    library = torch.library.Library("attune", "FRAGMENT")
    for schema, function in zip(_SCHEMAS, (attention, attention_append)):
        library.define(schema)
        library.impl(schema.split("(")[0], function, "CompositeExplicitAutograd")
    _libraries.append(library)
