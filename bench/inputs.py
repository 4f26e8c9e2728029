"""The inputs of a shape, as files that every driver reads, and its result in double precision."""
import math

import numpy

PRODUCT_KEYS = 2  # of attune's way of computing two products: see attune_driver.c
CHUNK = 1 << 24  # scores at a time


def to_bf16(array):
    """Rounded to the nearest bf16, ties to even, as f32."""
    bits = array.astype(numpy.float32).view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.view(numpy.float32)


class Inputs:
    """Arrays by the names of attune's tensors and weights: normal, the scores of a spread that occurs in models."""

    def __init__(self, shape, dtype, seed=1):
        self.shape, self.arrays = shape, {}
        rng = numpy.random.default_rng(seed)

        def draw(name, *dims, spread=1.0):
            array = (rng.standard_normal(dims, numpy.float32) * numpy.float32(spread)).astype(numpy.float32)
            self.arrays[name] = to_bf16(array) if dtype == "bf16" else array

        s = shape
        if s.kind == "attention":
            draw("q", s.batch, s.heads, s.rows, s.dim)
            draw("k", s.batch, s.kv_heads, s.keys, s.dim)
            draw("v", s.batch, s.kv_heads, s.keys, s.dim)
            return
        draw("x", s.batch, s.rows, s.embed)
        names = {"qkv": 3 * s.embed} if s.kind == "block" else {"q": s.embed}
        for name, outputs in (names | {"out": s.embed}).items():
            draw(f"{name}_weight", outputs, s.embed, spread=1 / math.sqrt(s.embed))
            draw(f"{name}_bias", outputs, spread=0.3)
        if s.kind == "products":
            draw("k", s.batch, s.heads, PRODUCT_KEYS, s.dim)
            draw("v", s.batch, s.heads, PRODUCT_KEYS, s.dim)

    def write(self, folder):
        for name, array in self.arrays.items():
            array.tofile(folder / name)

    def expected(self):
        """What peers compute, and what attune does: the same but for products."""
        exact = {name: array.astype(numpy.float64) for name, array in self.arrays.items()}
        s = self.shape
        if s.kind == "attention":
            out = attend(exact["q"], exact["k"], exact["v"], s)
            return out, out
        if s.kind == "block":
            heads = by_head(project(exact, "qkv", exact["x"]), s, 3)
            out = project(exact, "out", by_token(attend(*heads, s)))
            return out, out
        middle = project(exact, "q", exact["x"])
        heads = attend(by_head(middle, s, 1)[0], exact["k"], exact["v"], s)
        return project(exact, "out", middle), project(exact, "out", by_token(heads))


def project(arrays, name, x):
    return x @ arrays[f"{name}_weight"].T + arrays[f"{name}_bias"]


def by_head(x, s, parts):
    return x.reshape(s.batch, s.rows, parts, s.heads, s.dim).transpose(2, 0, 3, 1, 4)


def by_token(heads):
    batch, _, rows, _ = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(batch, rows, -1)


def attend(q, k, v, s):
    """In double precision, some rows of one head at a time."""
    out = numpy.empty_like(q)
    keys, group = k.shape[2], s.heads // s.kv_heads
    step = max(1, CHUNK // keys)
    for b in range(s.batch):
        for h in range(s.heads):
            for begin in range(0, s.rows, step):
                rows = slice(begin, min(begin + step, s.rows))
                scores = q[b, h, rows] @ k[b, h // group].T / math.sqrt(s.dim)
                if s.causal:
                    last = numpy.arange(rows.start, rows.stop)[:, None] + keys - s.rows
                    scores[numpy.arange(keys)[None, :] > last] = -numpy.inf
                scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
                out[b, h, rows] = scores @ v[b, h // group] / scores.sum(axis=1, keepdims=True)
    return out


def errors(got, expected):
    """Root mean square and maximum of the error, both relative to the root mean square of what is expected."""
    difference = got.reshape(-1).astype(numpy.float64) - expected.reshape(-1)
    size = math.sqrt(float(numpy.mean(numpy.square(expected))))
    rms, most = math.sqrt(float(numpy.mean(numpy.square(difference)))), float(numpy.max(numpy.abs(difference)))
    return rms / size, most / size


# The most that an honest computation may be off. f32: what sums of 4096 products lose in any order; an f32 product done
# in bf16 or tf32 would be a hundred times further off. bf16: probabilities and intermediate results of 8 bits.
LIMITS = {"f32": (1e-5, 1e-3), "bf16": (1.5e-2, 0.3)}
