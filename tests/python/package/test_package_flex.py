"""attune.flex_attention: functions written for PyTorch's, beside attention with written out masks and scores."""

import functools
import operator
import types

import attune
import numpy as np
import pytest

torch = pytest.importorskip("torch")
F = torch.nn.functional

B, H, Q, KV, D = 2, 4, 37, 53, 16
SLOPES = torch.linspace(0.1, 0.7, H)
BIAS = torch.randn(B, H, Q, KV, generator=torch.Generator().manual_seed(3))
LENS = torch.tensor([30, 53])  # int64
SPARSE = SLOPES.to_sparse()
DOC_Q = torch.arange(Q).div(9, rounding_mode="floor").repeat(B, 1)
DOC_KV = torch.arange(KV).floor_divide(11).repeat(B, 1)


def inputs(dtype=torch.float32, kv_heads=H):
    g = torch.Generator().manual_seed(7)
    return [torch.randn(B, heads, rows, D, generator=g).to(dtype)
            for heads, rows in ((H, Q), (kv_heads, KV), (kv_heads, KV))]


def expected(q, k, v, score_mod=None, mask_mod=None):
    """In f64, from the definition; the functions are asked for all pairs at once."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(H // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / D**0.5
    at = torch.meshgrid(*(torch.arange(n) for n in (B, H, Q, KV)), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *at)
    if mask_mod is not None:
        scores = torch.where(mask_mod(*at), scores, -float("inf"))
    weights = torch.softmax(scores, -1).nan_to_num(0)
    return weights @ v, torch.logsumexp(scores, -1)


def causal(b, h, q_idx, kv_idx):
    return q_idx >= kv_idx


def together(*masks):
    """As torch.nn.attention.flex_attention.and_masks."""
    def both(b, h, q_idx, kv_idx):
        result = b.new_ones((), dtype=torch.bool)
        for mask in masks:
            result = result & mask(b, h, q_idx, kv_idx)
        return result
    return both


class Documents:
    def __init__(self):
        self.of_query, self.of_key = DOC_Q, DOC_KV

    def mask(self, b, h, q_idx, kv_idx):
        return self.of_query[b, q_idx] == self.of_key[b, kv_idx]


def unpacked_in_two(slopes):
    first, second = slopes
    return first + second


def without_end(s):
    return without_end(s + 1)


def sqrt(s, b, h, q, kv):
    """Its name is that of a function of torch which it calls."""
    return torch.sqrt(torch.abs(s)) + torch.sqrt(kv + 1.0)


def halved(s, times):
    return s if times == 0 else halved(s * 0.5, times - 1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes, self.parts = SLOPES, types.SimpleNamespace(rows=torch.arange(Q) / 7.0)

    def score_mod(self):
        return lambda s, b, h, q, kv: s + self.slopes[h] * self.twice[h] + self.parts.rows[q]

    @property
    def twice(self):
        return 2 * self.slopes


def in_place(s, b, h, q, kv):
    before = s.clone()
    s.mul_(2).add_(q, alpha=0.5)
    return s + before.clamp_(max=1)


def in_place_of_torch(s, b, h, q, kv):
    """Other names of a value see what becomes of it, as do its own after a call without a result."""
    same = s
    s += 0.5
    torch.clamp_(s, -1, 1)
    F.relu(same, inplace=True)
    return same * s


def types_in_place(s, b, h, q, kv):
    """A result in place has the type of the value, and masked_fill has it, too."""
    positive, three, early = s.clone(), q - kv, (q >= kv).masked_fill(kv < 4, 1)
    positive.gt_(0)
    three.eq_(3)
    return s + positive + positive - 0.25 * ~three - three.masked_fill(q > kv, 0.5) + (~early) * 2


def by_name(s, b, h, q, kv):
    s = torch.where(s.masked_fill(mask=q + 20 < kv, value=-3.0) > 0, input=s, other=q.add(other=h, alpha=2))
    return torch.pow(s, exponent=2) + torch.lerp(s, end=0.5 * s, weight=0.25) + s.where(condition=q > kv, other=s + 1)


class Named(float):
    """A number whose text is none."""

    def __repr__(self):
        return "named"


def at_most(limit, b, h, q_idx, kv_idx):
    return torch.abs(q_idx - kv_idx) <= limit


SCORES = {
    "alibi": lambda s, b, h, q, kv: s + SLOPES[h] * (kv - q),
    "soft cap": lambda s, b, h, q, kv: 20.0 * torch.tanh(s / 20.0),
    "parity": lambda s, b, h, q, kv: torch.where((q + kv) % 2 == 0, s, s * 0.5),
    "bias": lambda s, b, h, q, kv: s + BIAS[b, h, q, kv],
    "gate": lambda s, b, h, q, kv: s * torch.sigmoid(s) - 0.5 * s**2,
    "constant": lambda s, b, h, q, kv: s * torch.tensor(0.5) + 1 / (1 + (q - kv).abs()),
    "hides": lambda s, b, h, q, kv: torch.where(q >= kv, s, -float("inf")),
    "counted": lambda s, b, h, q, kv: s + 1.5 * ((q > kv) + (q > 3)) + (q > 5) * 2,
    "as positions": lambda s, b, h, q, kv: s + s.to(q) // 2,
    "as a condition": lambda s, b, h, q, kv: s + ~(q - kv).to(q > kv),
    "as a tensor": lambda s, b, h, q, kv: s + 3 * (s.to(LENS) / 2) + (q // 2).type_as(SLOPES) / 2,
    "as a constant": lambda s, b, h, q, kv: s + s.to(torch.tensor(7)) // 2 + s.to("cpu", torch.int64),
    "whole": lambda s, b, h, q, kv: s + (SLOPES * 2)[h] + torch.exp(SLOPES)[h] + BIAS.transpose(2, 3)[b, h, kv, q],
    "made inside": lambda s, b, h, q, kv: s + torch.arange(H)[h] + torch.tensor([0.5, 2.0])[q % 2]
    + BIAS[:, 0][b, q, kv],
    "same name": sqrt,
    "calls itself": lambda s, b, h, q, kv: halved(s, 3),
    "object": Model().score_mod(),
    "in place": in_place,
    "in place of torch": in_place_of_torch,
    "types in place": types_in_place,
    "by name": by_name,
    "squares of conditions": lambda s, b, h, q, kv: s + ((q > kv) ** 2 + torch.square(q > 3)),
    "new tensors": lambda s, b, h, q, kv: s * s.new_tensor(0.5) + s.new_tensor([0.5, 2.0])[q % 2] * Named(0.25),
    "types": lambda s, b, h, q, kv: torch.where(q + 16 > kv, s, torch.finfo(s.dtype).min) + (q - kv).to(s.dtype) / 8,
    "like": lambda s, b, h, q, kv: s + torch.tensor(0.5, dtype=s.dtype, device=s.device) + torch.zeros_like(s)
    + torch.full_like(s, 2) * torch.ones_like(q),
    "where of a tensor": lambda s, b, h, q, kv: s.where(q + 20 >= kv, torch.tensor(-3.0))
    + torch.tensor(1.0).where(q > kv, s),
    "filled": lambda s, b, h, q, kv: s.masked_fill(q + 20 < kv, -1e4) + torch.lerp(s, 2 * s, 0.25) * torch.sign(q - kv),
    "rounded": lambda s, b, h, q, kv: torch.ceil(3 * s) - torch.trunc(s) + torch.div(q - kv, 4, rounding_mode="trunc")
    + torch.fmod(q - kv, -3) + torch.fmod(s, 0.75),
    "logarithms": lambda s, b, h, q, kv: s - torch.log1p((q - kv).abs()) + torch.expm1(-0.01 * kv),
    "powers": lambda s, b, h, q, kv: s * 2.0 ** -(h + 1) + 0.95 ** (q - kv).abs() + (kv + 1) ** -1.5
    + s ** torch.tensor(3),
    "alpha": lambda s, b, h, q, kv: torch.add(s, q, alpha=0.25) - torch.rsub(kv, 1, alpha=2) / 9
    + torch.addcmul(s, q, h),
    "infinite": lambda s, b, h, q, kv: torch.where(torch.isinf(s / (kv % 2)) | torch.isnan(s), 0.5, s),
    "relu": lambda s, b, h, q, kv: F.relu(s) + F.relu6(3 * s) - F.hardtanh(s) + F.leaky_relu(s, 0.1) + F.elu(s),
    "silu": lambda s, b, h, q, kv: F.silu(s) + F.softplus(s) + F.logsigmoid(s) + F.gelu(s, approximate="tanh"),
    "special": lambda s, b, h, q, kv: torch.special.expit(s) + F.sigmoid(s) + F.tanh(s),
    "clamped": lambda s, b, h, q, kv: s + BIAS[b, h, q, torch.clamp(kv - q, 0, KV - 1)],
}
MASKS = {
    "causal": causal,
    "window": lambda b, h, q, kv: (q >= kv) & (q - kv <= 16),
    "lengths": lambda b, h, q, kv: kv < LENS[b],
    "documents": Documents().mask,
    "blocks": lambda b, h, q, kv: ~((q // 16) != (kv // 16)) | (kv < 3),
    "both": together(causal, Documents().mask),
    "inside": lambda b, h, q, kv: b.new_ones((), dtype=torch.bool, device=b.device) & (q >= kv),
    "wheres": lambda b, h, q, kv: torch.where(kv >= 24, (kv - 24) // 4, kv // 4)
    <= torch.where((q >= 24) == 1, 5, q // 4),
    "partial": functools.partial(at_most, 5),
    "none": lambda b, h, q, kv: kv < 0,
    "sum": lambda b, h, q, kv: ~((q > kv) + (q % 2 == 0)),
    "product": lambda b, h, q, kv: ~((q > kv) * (q % 2 == 0)),
    "larger": lambda b, h, q, kv: ~torch.maximum(q > kv, q % 2 == 0),
    "smaller": lambda b, h, q, kv: ~torch.minimum(q > kv, q % 2 == 0),
}


@pytest.mark.sample(16)
@pytest.mark.parametrize("kv_heads", [H, 2])
@pytest.mark.parametrize("name", list(SCORES) + list(MASKS))
def test_function(name, kv_heads):
    q, k, v = inputs(kv_heads=kv_heads)
    score_mod, mask_mod = SCORES.get(name), MASKS.get(name)
    out, lse = attune.flex_attention(q, k, v, score_mod, mask_mod=mask_mod, enable_gqa=True, return_lse=True)
    wanted, wanted_lse = expected(q, k, v, score_mod, mask_mod)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse.double(), wanted_lse, rtol=1e-4, atol=1e-5)


def test_arrays_and_bf16():
    q, k, v = inputs()
    wanted, _ = expected(q, k, v, SCORES["alibi"], causal)
    slopes = SLOPES.numpy()
    ours = attune.flex_attention(*(x.numpy() for x in (q, k, v)), lambda s, b, h, i, j: s + slopes[h] * (j - i),
                                 mask_mod=causal)
    np.testing.assert_allclose(ours, wanted.numpy(), rtol=1e-4, atol=1e-5)
    half = attune.flex_attention(*inputs(torch.bfloat16), SCORES["alibi"], mask_mod=causal)
    torch.testing.assert_close(half.double(), wanted, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("queries, keys", [(0, KV), (Q, 0), (0, 0)])
def test_lengths_of_0(queries, keys):
    q, k, v = inputs()
    out, lse = attune.flex_attention(q[:, :, :queries], k[:, :, :keys], v[:, :, :keys], SCORES["alibi"],
                                     mask_mod=MASKS["lengths"], return_lse=True)
    assert out.shape == (B, H, queries, D) and (out == 0).all()
    assert lse.shape == (B, H, queries) and (lse == -float("inf")).all()


def test_no_entries():
    q, k, v = (x[:0] for x in inputs())
    out, lse = attune.flex_attention(q, k, v, SCORES["alibi"], mask_mod=causal, return_lse=True)
    assert out.shape == (0, H, Q, D) and lse.shape == (0, H, Q)
    with pytest.raises(attune.Error, match="'sin' cannot be traced"):
        attune.flex_attention(q, k, v, lambda s, b, h, i, j: torch.sin(s))


def test_calls_like_one_before():
    """Such a call takes the arguments of that one: all that may differ without another layout does so here."""
    factor, table = 0.5, torch.linspace(0, 1, H)

    def scaled(score, b, h, q_idx, kv_idx):
        return score * factor + table[h]

    def check(*tensors):
        torch.testing.assert_close(attune.flex_attention(*tensors, scaled), expected(*tensors, scaled)[0].float(),
                                   atol=1e-5, rtol=1e-5)

    q, k, v = inputs()
    first = attune.flex_attention(q, k, v, scaled)
    for _ in range(2):
        check(q, k, v)
    check(v[:, :, :Q].contiguous(), k, v)
    factor = -2.0
    check(q, k, v)
    table = torch.linspace(2, 3, 2 * H)[::2]  # the same dims, other strides
    check(q, k, v)
    table = torch.linspace(2, 3, H, dtype=torch.float64)
    check(q, k, v)
    out, lse = attune.flex_attention(q, k, v, scaled, return_lse=True)
    torch.testing.assert_close(lse, expected(q, k, v, scaled)[1].float(), atol=1e-5, rtol=1e-5)
    kept = torch.full_like(q, 7)
    for _ in range(2):
        assert attune.flex_attention(q, k, v, scaled, out=kept.zero_()) is kept
        torch.testing.assert_close(kept, out, atol=0, rtol=0)
    assert not torch.equal(first, out)  # an output is never used twice
    with pytest.raises(attune.Error, match="enable_gqa"):
        attune.flex_attention(q, k, v, scaled, enable_gqa=1.5)
    with pytest.raises(attune.InvalidTypeError, match="out is an int"):
        attune.flex_attention(q, k, v, scaled, out=3)


def test_other_values_of_a_tensor_are_read():
    """The text is the same, so the kernel is; what it reads is that of the call."""
    q, k, v = inputs()
    for slopes in (SLOPES, 2 * SLOPES):
        f = lambda s, b, h, i, j: s + slopes[h] * (j - i)  # noqa: E731
        torch.testing.assert_close(attune.flex_attention(q, k, v, f).double(), expected(q, k, v, f)[0],
                                   rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("score_mod, message", [
    (lambda s, b, h, q, kv: s if q > kv else 0, "a condition in `if`"),
    (lambda s, b, h, q, kv: torch.sin(s), "'sin' cannot be traced"),
    (lambda s, b, h, q, kv: (s + SLOPES)[h], "the tensor SLOPES as a whole"),
    (lambda s, b, h, q, kv: (SLOPES + s)[h], "'add' of the whole tensor SLOPES and a value that depends on positions"),
    (lambda s, b, h, q, kv: s + BIAS[b, h], "the tensor BIAS as a whole"),
    (lambda s, b, h, q, kv: s + BIAS[b, h, q].sum(), "arithmetic on a row of the tensor BIAS"),
    (lambda s, b, h, q, kv: s + torch.dot(BIAS[b, h, q], BIAS[b, h, q]), "arithmetic on a row of the tensor BIAS"),
    (lambda s, b, h, q, kv: s + torch.where(q > kv, SLOPES, s), "the tensor SLOPES as a whole"),
    (lambda s, b, h, q, kv: s + BIAS[b, h, q, :kv], "an index of BIAS"),
    (lambda s, b, h, q, kv: s + SLOPES[h, q], "SLOPES has 1 dims, and gets 2 indices"),
    (lambda s, b, h, q, kv: s + [1, 2, 3, 4][h], "an index into a list"),
    (lambda s, b, h, q, kv: s + max(q, kv), "`min` or `max`"),
    (lambda s, b, h, q, kv: s + 2 ** h, "a power of integers (write 2.0 ** x)"),
    (lambda s, b, h, q, kv: torch.nn.functional.gelu(s), "gelu without approximate='tanh'"),
    (lambda s, b, h, q, kv: torch.stack([s, q]), "'stack' cannot be traced"),
    (lambda s, b, h, q, kv: without_end(s), "score_mod cannot be traced: it calls itself without an end"),
    (lambda s, b, h, q, kv: s + ((q > kv) - (q > 3)), "a difference of two conditions"),
    (lambda s, b, h, q, kv: s + -(q > kv), "the negative of a condition"),
    (lambda s, b, h, q, kv: s ** kv, "a power that is no constant"),
    (lambda s, b, h, q, kv: s * float("nan"), "a constant NaN"),
    (lambda s, b, h, q, kv: s + BIAS[b, h, q, KV], "the index 53 of BIAS is outside of a dim of 53"),
    (lambda s, b, h, q, kv: s + SLOPES[-H - 1], "the index -5 of SLOPES is outside of a dim of 4"),
    (lambda s, b, h, q, kv: s + SLOPES[torch.tensor(4)], "the index 4 of SLOPES is outside of a dim of 4"),
    (lambda s, b, h, q, kv: s + unpacked_in_two(SLOPES), "score_mod cannot be traced: too many values to unpack"),
    (lambda s, b, h: s, "score_mod cannot be traced"),
    (lambda s, b, h, q, kv: s + SLOPES.sum("all"), "an invalid combination of arguments - got (str)"),
    (lambda s, b, h, q, kv: None, "score_mod: the function returns None"),
    (lambda s, b, h, q, kv: "s", "score_mod: an operand of type str cannot be traced"),
    (lambda s, b, h, q, kv: s + SPARSE[h], "the tensor SPARSE_0 is torch.sparse_coo; functions read strided tensors"),
    (lambda s, b, h, q, kv: s + q // (kv - 1), "may be 0"),
    (lambda s, b, h, q, kv: (q - kv).mul_(s), "an operation in place that makes a number of an integer"),
    (lambda s, b, h, q, kv: operator.iadd(q > kv, 1), "an operation in place that makes an integer of a condition"),
    (lambda s, b, h, q, kv: torch.tensor(1.0).add_(s), "'add_' in place of a tensor"),
    (lambda s, b, h, q, kv: torch.div(s, 3, rounding_mode="nearest"), "a division with rounding_mode='nearest'"),
])
def test_refusals(score_mod, message):
    with pytest.raises(attune.Error) as raised:
        attune.flex_attention(*inputs(), score_mod)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_indices_one_by_one():
    q, k, v = inputs()
    ours = attune.flex_attention(q, k, v, lambda s, b, h, i, j: s + BIAS[b][h, i][j])
    torch.testing.assert_close(ours, attune.flex_attention(q, k, v, SCORES["bias"]), rtol=0, atol=0)


def test_iteration():
    q, k, v = inputs()
    table = torch.arange(6.0).reshape(2, 3) / 7

    def score_mod(s, b, h, i, j):
        first, second = table
        assert len(second) == 3 and tuple(second.shape) == (3,)
        return s * sum(first) - second[-1] * i + sum(x * j for row in table for x in row)

    torch.testing.assert_close(attune.flex_attention(q, k, v, score_mod).double(), expected(q, k, v, score_mod)[0],
                               rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("last", [0, 1, 2])
def test_block_masks_without_a_function(last):
    """Blocks of 16 x 16: all of the first row are listed, and `last` of the second."""
    from torch.nn.attention.flex_attention import BlockMask

    q, k, v = (x[:, :, :32] for x in inputs())
    listed = torch.full((1, 1, 2), 2, dtype=torch.int32)
    listed[..., 1] = last
    mask = BlockMask.from_kv_blocks(listed, torch.tensor([0, 1]).int().expand(1, 1, 2, 2), BLOCK_SIZE=16)
    at = torch.arange(32)
    seen = (at[:, None] < 16) | (at < 16 * last)
    wanted = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(attune.flex_attention(q, k, v, block_mask=mask), wanted, rtol=1e-4, atol=1e-5)
    with pytest.raises(attune.InvalidArgumentError, match="is for 32 queries and 32 keys, and here are"):
        attune.flex_attention(*inputs(), block_mask=mask)


def test_strict_index():
    with pytest.raises(attune.InvalidProblemError, match="may be negative; write clamp"):
        attune.flex_attention(*inputs(), lambda s, b, h, q, kv: s + SLOPES[q - kv], strict_index=True)


def test_problems_with_functions_in_python():
    problem = attune.Problem(num_heads=4, seq_q=8, head_dim=16, tensors='"t:f32[h, 8], u:i32[b]"',
                             score_mod='"score + t[h, 3] * u[b]"')
    assert problem.fields["tensors"] == '"t:f32[h, 8], u:i32[b]"'
    assert problem.fields["score_mod"] == '"score + t[h, 3] * float(u[b])"'
    assert [t.name for t in problem.tensors][-2:] == ["t", "u"]


def test_bars_in_functions_of_a_list(tmp_path):
    problem = 'num_heads=2,seq_q=8,head_dim=16,mask_mod="q >= kv | kv < 2"'
    schedule = attune.compile(problem).info["schedule"]
    manifest = tmp_path / "list"
    manifest.write_text(f"{problem} | {schedule}\n{problem}\n")
    assert sum(attune.warm(manifest).values()) == 2


def test_prob_mod():
    """PyTorch has none: the probabilities are written out."""
    q, k, v = inputs()
    at = torch.meshgrid(*(torch.arange(n) for n in (B, H, Q, KV)), indexing="ij")
    weights = torch.softmax(q.double() @ k.double().mT / D**0.5 + SLOPES[at[1]], -1)
    wanted = torch.where(weights > 0.02, weights * SLOPES[at[1]], 0) @ v.double()
    got = attune.flex_attention(q, k, v, lambda s, b, h, i, j: s + SLOPES[h],
                                prob_mod=lambda p, b, h, i, j: torch.where(p > 0.02, p * SLOPES[h], 0))
    torch.testing.assert_close(got.double(), wanted, atol=1e-5, rtol=0)
