"""llama_cpp_python.py MODEL: logits through llama-cpp-python without attune, then with it: for the 24 tokens that
follow a prompt, each given the text's own tokens before it. The probabilities hardly differ, but not all bits are the
same: ggml's sums over keys of f16 are f16, and attune's are f32. What either would answer is not compared, because it
may differ from the first token on whose two best words are as probable."""

import sys

import llama_cpp
import numpy as np

import attune.ggml

GIVEN = 24
TEXT = open("docs/promises.md", "rb").read()[:3000]


def log_probabilities() -> np.ndarray:
    """[GIVEN, words], in f64."""
    model = llama_cpp.Llama(sys.argv[1], n_ctx=1024, n_threads=2, flash_attn=True, verbose=False)
    tokens = model.tokenize(TEXT)
    model.eval(tokens[:-GIVEN])
    rows = []
    for token in tokens[-GIVEN:]:
        row = np.ctypeslib.as_array(llama_cpp.llama_get_logits(model.ctx), (model.n_vocab(),)).astype(np.float64)
        rows.append(row - row.max() - np.log(np.exp(row - row.max()).sum()))
        model.eval([token])
    return np.array(rows)


before = log_probabilities()
attune.ggml.load()
attune.ggml.load()  # changes nothing
after = log_probabilities()
divergence = (np.exp(before) * (before - after)).sum(-1).mean()
others = (before.argmax(-1) != after.argmax(-1)).sum()
print(f"llama-cpp-python: divergence {divergence:.2e}, another favourite {others} of {GIVEN}")
sys.exit(not divergence < 0.02 or np.array_equal(before, after))
