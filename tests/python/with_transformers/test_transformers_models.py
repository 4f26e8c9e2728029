"""Small random models by attune and by stock: the same logits and the same tokens, padded, cached, by beams."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
pytest.importorskip("attune.torch", reason="attune.torch is missing")

import attune.transformers as at  # noqa: E402
from attune.transformers import AttuneCache  # noqa: E402

at.register()
SIZES = dict(vocab_size=97, hidden_size=64, num_hidden_layers=2, num_attention_heads=4)
SIZES.update(pad_token_id=0, eos_token_id=None)
GROUPED = dict(SIZES, intermediate_size=96, num_key_value_heads=2, head_dim=16, max_position_embeddings=512)
LAYERS = ["sliding_attention", "full_attention"]


def decoder(kind):
    """A model, and the stock implementation that knows all that the model needs."""
    torch.manual_seed(3)
    if kind == "qwen3":
        return transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**GROUPED)), "sdpa"
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=97, n_embd=64, n_layer=2, n_head=4, n_positions=512, pad_token_id=0, eos_token_id=None
        )
        return transformers.GPT2LMHeadModel(config), "sdpa"
    if kind == "gemma2":
        config = transformers.Gemma2Config(
            **GROUPED, sliding_window=8, layer_types=LAYERS, attn_logit_softcapping=2.0, query_pre_attn_scalar=16
        )
        return transformers.Gemma2ForCausalLM(config), "eager"
    if kind == "gemma3":
        config = transformers.Gemma3TextConfig(**GROUPED, sliding_window=8, layer_types=LAYERS)
        return transformers.Gemma3ForCausalLM(config), "sdpa"
    if kind == "llama4":
        config = transformers.Llama4TextConfig(
            **GROUPED, attention_chunk_size=8, layer_types=["chunked_attention", "full_attention"],
            num_local_experts=2, num_experts_per_tok=1, intermediate_size_mlp=96, moe_layers=[],
        )  # fmt: skip
        return transformers.Llama4ForCausalLM(config), "sdpa"
    config = transformers.GptOssConfig(
        **GROUPED, sliding_window=8, layer_types=LAYERS, num_local_experts=2, num_experts_per_tok=1
    )
    model = transformers.GptOssForCausalLM(config)
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks)
    return model, "eager"


DECODERS = ["qwen3", "gpt2", "gemma2", "gemma3", "gpt_oss", "llama4"]


@pytest.fixture(scope="module", params=DECODERS)
def model(request):
    model, stock = decoder(request.param)
    # Logits of a random model lie close together; larger weights keep ties away from the tokens.
    for weight in model.parameters():
        weight.data.mul_(3.0 if weight.dim() > 1 else 1.0)
    model.eval().stock = stock
    model.kind = request.param
    return model


@pytest.fixture(autouse=True)
def fresh_counts():
    at.reset_stats()
    with torch.no_grad():
        yield


def prompts(side, batch=4, length=14):
    torch.manual_seed(5)
    ids = torch.randint(1, 97, (batch, length))
    lengths = torch.tensor([length, length - 5, 3, length - 1])[:batch, None]
    columns = torch.arange(length)
    seen = columns >= length - lengths if side == "left" else columns < lengths
    return dict(input_ids=ids.masked_fill(~seen, 0), attention_mask=seen.long())


def by(model, implementation, inputs, **arguments):
    model.set_attn_implementation(implementation)
    return model(**inputs, **arguments)


@pytest.mark.sample(4)
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits(model, side):
    inputs = prompts(side)
    if side == "none":
        inputs.pop("attention_mask")
        inputs["input_ids"] = inputs["input_ids"].clamp(min=1)
    want = by(model, model.stock, inputs).logits
    got = by(model, "attune", inputs).logits
    seen = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    torch.testing.assert_close(got[seen], want[seen], atol=2e-4, rtol=2e-4)
    assert at.stats()["stock"] == 0 and at.stats()["attune"] == 2


def test_packed_sequences(model):
    if model.kind in ("gpt2", "gpt_oss", "llama4"):
        pytest.skip("the model's positions are no packed sequences to transformers")
    ids = torch.randint(1, 97, (1, 17))
    positions = torch.cat([torch.arange(n) for n in (5, 9, 3)])[None]
    inputs = dict(input_ids=ids, position_ids=positions, use_cache=False)
    want = by(model, model.stock, inputs).logits
    torch.testing.assert_close(by(model, "attune", inputs).logits, want, atol=2e-4, rtol=2e-4)
    alone = by(model, "attune", dict(input_ids=ids[:, 5:14])).logits
    torch.testing.assert_close(want[:, 5:14], alone, atol=2e-4, rtol=2e-4)


def generate(model, implementation, inputs, cache=None, **arguments):
    model.set_attn_implementation(implementation)
    output = model.generate(
        **inputs, max_new_tokens=20, do_sample=False, past_key_values=cache, return_dict_in_generate=True,
        output_logits=True, **arguments,
    )  # fmt: skip
    return output.sequences, output.logits


@pytest.mark.sample(5)
@pytest.mark.parametrize("dtype", ["stock's cache", None, "bf16", "i8"])
def test_greedy_tokens_of_a_padded_batch(model, dtype):
    inputs = prompts("left")
    want, want_logits = generate(model, model.stock, inputs)
    cache = None if dtype == "stock's cache" else AttuneCache(model.config, dtype=dtype)
    got, logits = generate(model, "attune", inputs, cache)
    if dtype in ("bf16", "i8"):
        # The first token sees codes as well, so logits differ by their rounding.
        error = (logits[0] - want_logits[0]).norm() / want_logits[0].norm()
        assert error < 0.1
    else:
        assert torch.equal(got, want)
    assert at.stats()["stock"] == 0 and at.stats()["attune"] == 40


def test_rounded_caches_say_the_same_by_all_implementations(model):
    inputs = prompts("left")
    for dtype in ("bf16", "i8"):
        want, _ = generate(model, model.stock, inputs, AttuneCache(model.config, dtype=dtype))
        got, _ = generate(model, "attune", inputs, AttuneCache(model.config, dtype=dtype))
        assert torch.equal(got, want)


def test_a_padded_batch_gives_the_tokens_of_its_entries_alone(model):
    inputs = prompts("left")
    batch, _ = generate(model, "attune", inputs, AttuneCache(model.config))
    for entry in range(4):
        ids = inputs["input_ids"][entry][inputs["attention_mask"][entry].bool()][None]
        alone, _ = generate(model, "attune", dict(input_ids=ids), AttuneCache(model.config))
        assert torch.equal(alone[0, -20:], batch[entry, -20:])


@pytest.mark.sample(3)
@pytest.mark.parametrize("dtype", [None, "i8"])
def test_beams(model, dtype):
    inputs = prompts("left", batch=2)
    stock = None if dtype is None else AttuneCache(model.config, dtype=dtype)
    want, _ = generate(model, model.stock, inputs, stock, num_beams=3)
    got, _ = generate(model, "attune", inputs, AttuneCache(model.config, dtype=dtype), num_beams=3)
    assert torch.equal(got, want)


def test_a_prompt_in_parts(model):
    ids = prompts("none")["input_ids"].clamp(min=1)
    want = by(model, model.stock, dict(input_ids=ids)).logits
    for dtype in (None, "bf16"):
        cache, parts = AttuneCache(model.config, dtype=dtype), []
        for part in ids.split([5, 1, 6, 2], dim=1):
            parts.append(by(model, "attune", dict(input_ids=part), past_key_values=cache).logits)
        tolerance = 2e-4 if dtype is None else 0.5
        torch.testing.assert_close(torch.cat(parts, 1), want, atol=tolerance, rtol=tolerance)
    assert at.stats()["stock"] == 0


def test_a_static_cache_of_stock(model):
    if model.kind in ("gpt_oss", "llama4"):
        pytest.skip("transformers compiles or restricts static caches of this model")
    inputs, parts = prompts("left"), []
    for implementation in (model.stock, "attune"):
        model.set_attn_implementation(implementation)
        cache = transformers.StaticCache(config=model.config, max_cache_len=40)
        parts.append(model.generate(
            **inputs, max_new_tokens=12, do_sample=False, past_key_values=cache, disable_compile=True
        ))  # fmt: skip
    assert torch.equal(*parts) and at.stats()["stock"] == 0 and at.stats()["attune"] > 0


def test_weights_are_given_on_request():
    model, stock = decoder("qwen3")
    model.eval()
    inputs = prompts("left")
    want = by(model, "eager", inputs, output_attentions=True).attentions
    got = by(model, "attune", inputs, output_attentions=True).attentions
    assert len(got) == len(want) == 2 and at.stats()["reasons"] == {"output_attentions": 2}
    seen = inputs["attention_mask"].bool()
    for mine, other in zip(got, want):
        torch.testing.assert_close(mine.transpose(1, 2)[seen], other.transpose(1, 2)[seen], atol=1e-5, rtol=1e-4)


def test_training_with_dropout_runs_as_stock():
    config = transformers.Qwen3Config(**GROUPED, attention_dropout=0.1)
    model = transformers.Qwen3ForCausalLM(config).train()
    with torch.enable_grad():
        model.set_attn_implementation("attune")
        ids = torch.randint(1, 97, (2, 9))
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert at.stats()["reasons"] == {"dropout": 2} and model.model.layers[0].self_attn.q_proj.weight.grad is not None


@pytest.mark.parametrize("padded", [False, True])
def test_compiled_without_graph_breaks(padded):
    model, _ = decoder("qwen3")
    inputs = prompts("left")
    if not padded:
        inputs.pop("attention_mask")
    want = by(model.eval(), "sdpa", inputs, use_cache=False).logits
    model.set_attn_implementation("attune")
    got = torch.compile(model, fullgraph=True, backend="eager")(**inputs, use_cache=False).logits
    seen = prompts("left")["attention_mask"].bool() if padded else torch.ones(4, 14, dtype=torch.bool)
    torch.testing.assert_close(got[seen], want[seen], atol=2e-4, rtol=2e-4)


def whisper():
    torch.manual_seed(3)
    config = transformers.WhisperConfig(
        vocab_size=97, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=96, decoder_ffn_dim=96, num_mel_bins=8, max_source_positions=50,
        max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=3,
        suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(config).eval()
    return model, dict(input_features=torch.randn(2, 8, 100))


@pytest.mark.parametrize("dtype", [None, "i8"])
def test_whisper(dtype):
    model, inputs = whisper()
    ids = torch.randint(4, 97, (2, 7))
    want = by(model, "sdpa", inputs, decoder_input_ids=ids, use_cache=False).logits
    got = by(model, "attune", inputs, decoder_input_ids=ids, use_cache=False).logits
    torch.testing.assert_close(got, want, atol=2e-4, rtol=2e-4)
    results = []
    for implementation in ("sdpa", "attune"):
        cache = transformers.EncoderDecoderCache(AttuneCache(dtype=dtype), AttuneCache(dtype=dtype))
        steps = [
            by(model, implementation, inputs, decoder_input_ids=part, past_key_values=cache).logits
            for part in ids.split([3, 1, 2, 1], dim=1)
        ]
        results.append(torch.cat(steps, 1))
    torch.testing.assert_close(results[1], results[0], atol=2e-4, rtol=2e-4)
    tolerance = 2e-4 if dtype is None else 0.1
    torch.testing.assert_close(results[1], want, atol=tolerance, rtol=tolerance)
    assert at.stats()["stock"] == 0 and at.stats()["attune"] >= 6


def test_vit():
    torch.manual_seed(3)
    config = transformers.ViTConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8
    )
    model, inputs = transformers.ViTModel(config).eval(), dict(pixel_values=torch.randn(2, 3, 32, 32))
    want = by(model, "sdpa", inputs).last_hidden_state
    torch.testing.assert_close(by(model, "attune", inputs).last_hidden_state, want, atol=1e-4, rtol=1e-4)
    assert at.stats() == {"attune": 2, "stock": 0, "masks": {"none": 2}, "reasons": {}}


@pytest.mark.parametrize("side, form", [("none", "none"), ("right", "lengths"), ("left", "keys")])
def test_bert(side, form):
    torch.manual_seed(3)
    model = transformers.BertModel(transformers.BertConfig(**SIZES, intermediate_size=96)).eval()
    inputs = prompts(side)
    if side == "none":
        inputs["attention_mask"].fill_(1)
    want = by(model, "sdpa", inputs).last_hidden_state
    got = by(model, "attune", inputs).last_hidden_state
    seen = inputs["attention_mask"].bool()
    torch.testing.assert_close(got[seen], want[seen], atol=1e-4, rtol=1e-4)
    assert at.stats() == {"attune": 2, "stock": 0, "masks": {form: 2}, "reasons": {}}
