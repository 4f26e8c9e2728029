"""Data for serving.py: four requests, rows of q, k and v in place of a model's projections, and the check of what comes
out by NumPy in f64. examples/serving_data.h has the same in C."""

import numpy as np

HEADS, KV_HEADS, DIM, NEW_TOKENS = 8, 2, 64, 12
PROMPTS = {"Ada": 150, "Ben": 7, "Cleo": 300, "Dan": 64}  # requests and the lengths of their prompts
TOTALS = {name: prompt + NEW_TOKENS for name, prompt in PROMPTS.items()}


def _values(tensor, request, tokens, heads):
    """f32 [token, head, column]: multiples of 1/128 from -1 to 1, which bf16 holds exactly."""
    token, head, column = np.ogrid[tokens.start : tokens.stop, :heads, :DIM]
    x = ((tensor * 4 + request) * 512 + token) * 8 + head
    x = (x * 64 + column) * 2654435761 & 0xFFFFFFFF
    return (((x ^ x >> 16) % 257) / 128 - 1).astype("f4")


def _rows(name, tokens):
    request = list(PROMPTS).index(name)
    return [_values(tensor, request, tokens, heads) for tensor, heads in enumerate((HEADS, KV_HEADS, KV_HEADS))]


def rows(chunks):
    """q, k and v in bf16 [token, head, column]: the tokens of `chunks`, {request: range}, one after the other."""
    tensors = (np.concatenate(x) for x in zip(*[_rows(*chunk) for chunk in chunks.items()]))
    return [(x.view("u4") >> 16).astype("u2").view("V2") for x in tensors]


def _expected(name):
    q, k, v = (x.astype("f8") for x in _rows(name, range(TOTALS[name])))
    k, v = (np.repeat(x, HEADS // KV_HEADS, 1) for x in (k, v))
    p = np.exp(np.einsum("ihd,jhd->hij", q, k) / np.sqrt(DIM)) * np.tri(len(q))
    return np.einsum("hij,jhd->ihd", p / p.sum(-1, keepdims=True), v)


def check(outputs, path=None):
    """Prints the largest difference of {request: [bf16 rows]} from NumPy. `path`: what serving.c has written there is
    compared, too. Returns 0 if all is well."""
    expected = {name: _expected(name) for name in PROMPTS}
    bits = {name: np.concatenate(pieces).view("u2").astype("u4") << 16 for name, pieces in outputs.items()}
    largest = max(np.abs(bits[name].view("f4") - expected[name]).max() for name in PROMPTS)
    print(f"largest difference: {largest:.1e}")
    if path:
        theirs = np.fromfile(path, "f4").reshape(len(PROMPTS), max(TOTALS.values()), HEADS, DIM)
        pairs = zip(theirs, expected.values())
        largest = max(largest, *[np.abs(of_c[: len(own)] - own).max() for of_c, own in pairs])
        print(f"largest difference, of {path} too: {largest:.1e}")
    return int(largest > 4e-3)  # bf16 keeps 8 bits
