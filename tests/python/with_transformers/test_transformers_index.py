"""Models with sparse attention (DeepSeek-V3.2, GLM-5), small and random: attune chooses the keys that stock chooses."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
pytest.importorskip("attune.torch", reason="attune.torch is missing")

import attune.transformers as at  # noqa: E402

at.register()
LAYERS, IDS = 2, 12
SIZES = dict(
    vocab_size=97, hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=4,
    intermediate_size=96, q_lora_rank=48, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=24, v_head_dim=40,
    max_position_embeddings=256, pad_token_id=0, eos_token_id=None, n_routed_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=32, n_group=1, topk_group=1, first_k_dense_replace=1, index_topk=IDS, index_n_heads=8,
    index_head_dim=32,
)  # fmt: skip


@pytest.fixture(scope="module", params=["DeepseekV32", "GlmMoeDsa"])
def model(request):
    torch.manual_seed(3)
    if not hasattr(transformers, f"{request.param}ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no {request.param}")
    config = getattr(transformers, f"{request.param}Config")(**SIZES)
    model = getattr(transformers, f"{request.param}ForCausalLM")(config).eval()
    if at.replace_index(model) != LAYERS:
        pytest.skip(f"transformers {transformers.__version__} computes {request.param} in another way")
    at.restore_index()
    # Logits of a random model lie close together; larger weights keep ties away from the tokens.
    for weight in model.parameters():
        weight.data.mul_(3.0 if weight.dim() > 1 else 1.0)
    return model


@pytest.fixture(autouse=True)
def fresh(model):
    at.reset_stats()
    with torch.no_grad():
        yield
    at.restore_index()
    model.set_attn_implementation("sdpa")


def prompt(length, rows=2):
    torch.manual_seed(5)
    return torch.randint(1, 97, (rows, length))


def indexers(model):
    return [module for module in model.modules() if hasattr(module, "index_topk")]


def chosen_in(model, ids):
    """What each index gives in a call, sorted."""
    given = []
    hooks = [one.register_forward_hook(lambda module, args, out: given.append(out)) for one in indexers(model)]
    model(ids)
    for hook in hooks:
        hook.remove()
    return [lists.sort(-1).values for lists in given]


def test_the_same_keys(model):
    """But for hidden ones, with which lists are filled up."""
    ids = prompt(60)
    want = chosen_in(model, ids)
    assert at.replace_index(model) == LAYERS
    have = chosen_in(model, ids)
    assert at.stats()["masks"] == {"index": LAYERS} and at.stats()["stock"] == 0
    for ours, theirs in zip(have, want):
        assert ours.dtype == torch.int32 and ours.shape == theirs.shape == (2, 60, IDS)
        assert torch.equal(ours[:, IDS:], theirs[:, IDS:])
        for i in range(IDS):
            assert torch.equal(ours[:, i], torch.arange(IDS, dtype=torch.int32).expand(2, -1))


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "attune"])
def test_tokens(model, implementation):
    ids = prompt(30)
    options = dict(max_new_tokens=8, do_sample=False, attention_mask=torch.ones_like(ids))
    model.set_attn_implementation("sdpa")
    want = model.generate(ids, **options)
    at.replace_index(model)
    model.set_attn_implementation(implementation)
    got = model.generate(ids, **options)
    assert torch.equal(got, want)
    counts = at.stats()["masks"]
    assert counts["index"] == 8 * LAYERS and at.stats()["stock"] == 0
    if implementation == "attune":
        assert counts["listed"] == 7 * LAYERS and counts["mask"] == LAYERS


def test_few_keys_and_logits(model):
    """Prompts as short as a list, and longer by one."""
    for length in (1, IDS, IDS + 1):
        ids = prompt(length)
        at.restore_index()
        model.set_attn_implementation("sdpa")
        want = model(ids).logits
        at.replace_index(model)
        model.set_attn_implementation("attune")
        got = model(ids).logits
        torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)


def test_padding_runs_as_stock(model):
    ids = prompt(20)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    want = model(ids, attention_mask=mask).logits
    at.replace_index(model)
    got = model(ids, attention_mask=mask).logits
    assert torch.equal(got, want)
    assert at.stats()["reasons"] == {"index: mask": LAYERS} and at.stats()["attune"] == 0
