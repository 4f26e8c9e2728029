"""Models with multi-head latent attention (DeepSeek-V2, V3 …), small and random: attune's tokens and logits are
stock's."""

import copy

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
pytest.importorskip("attune.torch", reason="attune.torch is missing")

import attune.transformers as at  # noqa: E402

at.register()
LAYERS = 2
SIZES = dict(
    vocab_size=97, hidden_size=64, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=4,
    intermediate_size=96, kv_lora_rank=32, qk_rope_head_dim=16, qk_nope_head_dim=24, v_head_dim=40,
    max_position_embeddings=256, pad_token_id=0, eos_token_id=None, n_routed_experts=4, num_experts_per_tok=2,
    moe_intermediate_size=32, n_group=1, topk_group=1, first_k_dense_replace=1,
)  # fmt: skip
YARN = dict(rope_type="yarn", rope_theta=10000.0, factor=4.0, mscale=1.0, mscale_all_dim=1.0, beta_fast=32, beta_slow=1,
            original_max_position_embeddings=64)  # fmt: skip
MODELS = {
    "v3": ("DeepseekV3", dict(q_lora_rank=48, attention_bias=True)),
    "v3-yarn-halves": ("DeepseekV3", dict(q_lora_rank=None, rope_interleave=False, rope_parameters=YARN)),
    "v2": ("DeepseekV2", dict(q_lora_rank=48)),
    "v32": ("DeepseekV32", dict(q_lora_rank=48, index_topk=12, index_n_heads=8, index_head_dim=32)),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    torch.manual_seed(3)
    name, more = MODELS[request.param]
    if not hasattr(transformers, f"{name}ForCausalLM"):
        pytest.skip(f"transformers {transformers.__version__} has no {name}")
    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    if at.replace_mla(model) != LAYERS:
        pytest.skip(f"transformers {transformers.__version__} computes {name} in another way")
    at.restore_mla()
    # Logits of a random model lie close together; larger weights keep ties away from the tokens.
    for weight in model.parameters():
        weight.data.mul_(3.0 if weight.dim() > 1 else 1.0)
    return model


@pytest.fixture(autouse=True)
def fresh():
    at.reset_stats()
    with torch.no_grad():
        yield
    at.restore_mla()


def prompt(length=70):
    torch.manual_seed(5)
    return torch.randint(1, 97, (2, length))


def test_logits(model):
    ids = prompt()
    want = model(ids).logits
    assert at.replace_mla(model) == LAYERS
    got = model(ids).logits
    assert at.stats()["masks"] == {"mla": LAYERS} and at.stats()["stock"] == 0
    torch.testing.assert_close(got, want, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("implementation, beams", [("eager", 1), ("sdpa", 3), ("attune", 1)])
def test_tokens(model, implementation, beams):
    ids = prompt(9)
    options = dict(max_new_tokens=12, do_sample=False, num_beams=beams, attention_mask=torch.ones_like(ids))
    model.set_attn_implementation("sdpa")
    want = model.generate(ids, **options)
    at.replace_mla(model)
    model.set_attn_implementation(implementation)
    try:
        got = model.generate(ids, **options)
    finally:
        model.set_attn_implementation("sdpa")
    assert torch.equal(got, want)
    assert at.stats()["masks"]["mla"] == 12 * LAYERS and at.stats()["stock"] == 0


def test_a_prompt_in_parts_beside_stock(model):
    """A cache goes from attune to stock and back, is cut, copied, and grows beyond its room."""
    ids = prompt(20)
    want = model(ids).logits
    cache = transformers.DynamicCache(config=model.config)
    parts = [0, 7, 8, 13, 20]
    for i, (start, end) in enumerate(zip(parts, parts[1:])):
        at.restore_mla() if i == 2 else at.replace_mla(model)
        part = model(ids[:, start:end], past_key_values=cache).logits
        torch.testing.assert_close(part, want[:, start:end], rtol=2e-4, atol=2e-4)
    cache.crop(-5)
    copied = copy.deepcopy(cache)
    for one in (copied, cache):
        torch.testing.assert_close(model(ids[:, 15:], past_key_values=one).logits, want[:, 15:], rtol=2e-4, atol=2e-4)
    more = torch.randint(1, 97, (2, 300))
    got = model(more, past_key_values=cache).logits[:, -1]
    at.restore_mla()
    whole = model(torch.cat([ids, more], 1)).logits[:, -1]
    torch.testing.assert_close(got, whole, rtol=1e-3, atol=1e-3)


def test_shallow_copies_have_rows_of_their_own(model):
    """Two continuations of one prompt."""
    ids = prompt(20)
    at.replace_mla(model)
    cache = transformers.DynamicCache(config=model.config)
    model(ids, past_key_values=cache)
    copied = copy.copy(cache)
    copied.layers = [copy.copy(layer) for layer in cache.layers]
    ends = [ids[:, :4], ids[:, 5:9]]
    for one, end in zip((cache, copied), ends):
        model(end, past_key_values=one)
    got = [model(ids[:, :1], past_key_values=one).logits for one in (cache, copied)]
    at.restore_mla()
    for end, logits in zip(ends, got):
        want = model(torch.cat([ids, end, ids[:, :1]], 1)).logits[:, -1:]
        torch.testing.assert_close(logits, want, rtol=1e-3, atol=1e-3)


def test_changed_weights_are_packed_again(model):
    ids = prompt(5)
    at.replace_mla(model)
    before = model(ids).logits
    weight = model.model.layers[0].self_attn.kv_b_proj.weight
    weight.mul_(1.5)
    try:
        after = model(ids).logits
        at.restore_mla()
        torch.testing.assert_close(after, model(ids).logits, rtol=2e-4, atol=2e-4)
        assert not torch.allclose(after, before, rtol=1e-3)
    finally:
        weight.div_(1.5)


def test_what_runs_as_stock(model):
    ids = prompt(6)
    padded = torch.ones_like(ids)
    padded[0, :2] = 0
    want = model(ids, attention_mask=padded).logits
    at.replace_mla(model)
    torch.testing.assert_close(model(ids, attention_mask=padded).logits, want)
    assert at.stats()["reasons"] == {"mla: mask": LAYERS}
    with torch.enable_grad():
        model(ids).logits.sum().backward()
    assert at.stats()["reasons"]["mla: gradients"] == LAYERS
    model.zero_grad()
    static = transformers.StaticCache(config=model.config, max_cache_len=16)
    model(ids, past_key_values=static)
    assert at.stats()["reasons"]["mla: cache StaticCache"] == LAYERS and "mla" not in at.stats()["masks"]


def test_bf16():
    torch.manual_seed(3)
    config = transformers.DeepseekV3Config(**SIZES, q_lora_rank=48)
    layer = transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3Attention(config, 0).eval()
    config._attn_implementation = "sdpa"
    x = torch.randn(2, 40, 64)
    rotary = transformers.models.deepseek_v3.modeling_deepseek_v3.DeepseekV3RotaryEmbedding(config)
    angles = rotary(x, torch.arange(40)[None])
    want = layer.double()(hidden_states=x.double(), position_embeddings=tuple(a.double() for a in angles),
                          attention_mask=None)[0]  # fmt: skip
    layer.to(torch.bfloat16)
    if not at.replace_mla(layer):
        pytest.skip(f"transformers {transformers.__version__} computes DeepseekV3 in another way")
    got = layer(hidden_states=x.bfloat16(), position_embeddings=angles, attention_mask=None)[0]
    assert at.stats()["masks"] == {"mla": 1}
    assert (got.double() - want).abs().max() < 0.03 * want.abs().max()
