"""Models with linear attention (Qwen3-Next, Qwen3.5), small and random: attune's tokens and logits are stock's."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
pytest.importorskip("attune.torch", reason="attune.torch is missing")

import attune.transformers as at  # noqa: E402

at.register()
SIZES = dict(
    vocab_size=97, hidden_size=64, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    intermediate_size=96, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
    linear_value_head_dim=16, max_position_embeddings=256, pad_token_id=0, eos_token_id=None,
    layer_types=["linear_attention"] * 3 + ["full_attention"],
)  # fmt: skip
LAYERS = 3


@pytest.fixture(scope="module", params=["qwen3_next", "qwen3_5"])
def model(request):
    torch.manual_seed(3)
    if request.param == "qwen3_next":
        kind, config = "Qwen3NextForCausalLM", "Qwen3NextConfig"
        more = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, shared_expert_intermediate_size=32)
    else:
        kind, config, more = "Qwen3_5ForCausalLM", "Qwen3_5TextConfig", {}
    if not hasattr(transformers, kind):
        pytest.skip(f"transformers {transformers.__version__} has no {kind}")
    model = getattr(transformers, kind)(getattr(transformers, config)(**SIZES, **more)).eval()
    # Logits of a random model lie close together; larger weights keep ties away from the tokens.
    for weight in model.parameters():
        weight.data.mul_(3.0 if weight.dim() > 1 else 1.0)
    return model


@pytest.fixture(autouse=True)
def fresh():
    at.reset_stats()
    with torch.no_grad():
        yield
    at.restore_linear_attention()


def prompt(length=70):
    torch.manual_seed(5)
    return torch.randint(1, 97, (2, length))


def test_logits(model):
    ids = prompt()
    want = model(ids).logits
    assert at.replace_linear_attention(model) == LAYERS
    got = model(ids).logits
    assert at.stats()["masks"] == {"linear": LAYERS} and at.stats()["stock"] == 0
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "attune"])
def test_tokens(model, implementation):
    ids = prompt(9)
    options = dict(max_new_tokens=12, do_sample=False, attention_mask=torch.ones_like(ids))
    model.set_attn_implementation("sdpa")
    want = model.generate(ids, **options)
    at.replace_linear_attention(model)
    model.set_attn_implementation(implementation)
    try:
        got = model.generate(ids, **options)
    finally:
        model.set_attn_implementation("sdpa")
    assert torch.equal(got, want)
    assert at.stats()["masks"]["linear"] == 12 * LAYERS and at.stats()["stock"] == 0


def test_a_prompt_in_parts(model):
    """The cache takes a state from one call to the next, and a call leaves the state that it was given."""
    ids = prompt(20)
    at.replace_linear_attention(model)
    want = model(ids).logits
    first = model(ids[:, :13], use_cache=True)
    rest = model(ids[:, 13:], past_key_values=first.past_key_values)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], 1), want, rtol=2e-4, atol=2e-4)


def test_what_runs_as_stock(model):
    at.replace_linear_attention(model)
    with torch.enable_grad():
        model(prompt(5)).logits.sum().backward()
    assert at.stats()["reasons"] == {"linear: gradients": LAYERS}
    model.zero_grad()


def test_restoring(model):
    home = type(next(one for one in model.modules() if "GatedDeltaNet" in type(one).__name__)).__module__
    stock = vars(__import__("sys").modules[home])["torch_chunk_gated_delta_rule"]
    assert at.replace_linear_attention(model) == at.replace_linear_attention(model) == LAYERS
    assert vars(__import__("sys").modules[home])["torch_chunk_gated_delta_rule"] is not stock
    at.restore_linear_attention()
    assert vars(__import__("sys").modules[home])["torch_chunk_gated_delta_rule"] is stock
    model(prompt(5))
    assert at.stats()["attune"] == 0


def test_a_model_without_such_layers():
    config = transformers.GPT2Config(vocab_size=97, n_embd=32, n_layer=1, n_head=2)
    assert at.replace_linear_attention(transformers.GPT2LMHeadModel(config)) == 0
