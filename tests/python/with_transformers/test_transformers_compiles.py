"""How many kernels generate() needs: lengths vary, so a kernel for each of them would be felt."""

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is missing")
transformers = pytest.importorskip("transformers", reason="transformers is missing")
attune_torch = pytest.importorskip("attune.torch", reason="attune.torch is missing")

import attune.transformers as at  # noqa: E402

at.register()


def model_of(head_dim):
    """A head_dim that no other test has: kernels of the process are not counted again."""
    torch.manual_seed(1)
    config = transformers.Qwen3Config(
        vocab_size=97, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=head_dim, max_position_embeddings=1024, pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    model = transformers.Qwen3ForCausalLM(config).eval()
    model.set_attn_implementation("attune")
    return model


def kernels():
    counts = attune_torch.stats()
    return counts.get("compiles", 0) + counts.get("disk_hits", 0)


@pytest.mark.parametrize("head_dim, dtype", [(20, None), (28, "bf16"), (44, "i8")])
def test_one_generation(head_dim, dtype):
    model, before = model_of(head_dim), kernels()
    cache = at.AttuneCache(model.config, dtype=dtype)
    model.generate(torch.randint(1, 97, (1, 37)), max_new_tokens=256, do_sample=False, past_key_values=cache)
    assert 1 <= kernels() - before <= 3


def test_a_padded_batch():
    model, before = model_of(52), kernels()
    ids = torch.randint(1, 97, (4, 37))
    seen = torch.arange(37) >= torch.tensor([[0], [7], [30], [1]])
    cache = at.AttuneCache(model.config)
    model.generate(ids, attention_mask=seen.long(), max_new_tokens=64, do_sample=False, past_key_values=cache)
    assert 1 <= kernels() - before <= 3


def test_requests_of_many_lengths():
    model, before = model_of(36), kernels()
    lengths = [5 + 7 * (request % 42) for request in range(48)]
    assert len(set(lengths)) == 42
    for length in lengths:
        cache = at.AttuneCache(model.config)
        model.generate(torch.randint(1, 97, (1, length)), max_new_tokens=6, do_sample=False, past_key_values=cache)
    assert 1 <= kernels() - before <= 10
