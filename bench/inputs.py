"""The inputs of a shape, as files that every driver reads, and its result in double precision."""
import math

import numpy

PRODUCT_KEYS = 2  # of attune's way of computing two products: see drivers/attune_driver.c
CHUNK = 1 << 24  # scores at a time


F8_EXPONENT_BIAS, F8_LARGEST, I8_LARGEST = 7, 448.0, 127.0
CHECKED_PAIRS = 1 << 26  # of queries and keys: of larger shapes some rows of each head are checked
CHECKED_ROWS = 48


def to_bf16(array):
    """Rounded to the nearest bf16, ties to even, as f32."""
    bits = array.astype(numpy.float32).view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return rounded.view(numpy.float32)


def f8_values():
    """What the codes from 0 to 0x7e of e4m3 stand for, in ascending order."""
    codes = numpy.arange(0x7F)
    exponent, fraction = codes >> 3, codes & 7
    normal = (8 + fraction) * 2.0 ** (exponent - F8_EXPONENT_BIAS - 3)
    return numpy.where(exponent > 0, normal, fraction * 2.0 ** (1 - F8_EXPONENT_BIAS - 3))


def quantise(array, kv, scales):
    """Codes (one byte each) and scales (f32) of keys or values [batch, heads, length, dim], and what they stand for."""
    axes = (0, 2, 3) if scales == "head" else (3,)
    largest = I8_LARGEST if kv == "i8" else F8_LARGEST
    if scales:
        scale = (numpy.abs(array).max(axis=axes, keepdims=True) / largest).astype(numpy.float32)
    else:
        scale = numpy.ones((1, 1, 1, 1), numpy.float32)
    exact = array.astype(numpy.float64) / scale
    if kv == "i8":
        codes = numpy.clip(numpy.rint(exact), -largest, largest).astype(numpy.int8)
        values = codes.astype(numpy.float64)
    else:
        table = f8_values()
        place = numpy.searchsorted(0.5 * (table[1:] + table[:-1]), numpy.abs(exact)).astype(numpy.uint8)
        codes = place | (numpy.signbit(exact).astype(numpy.uint8) << 7)
        values = numpy.where(numpy.signbit(exact), -table[place], table[place])
    return codes, scale, values * scale


class Inputs:
    """Arrays by the names of attune's tensors and weights: normal, the scores of a spread that occurs in models."""

    def __init__(self, shape, dtype, seed=1):
        self.shape, self.arrays, self.exact = shape, {}, {}
        rng = numpy.random.default_rng(seed)

        def draw(name, *dims, spread=1.0):
            array = (rng.standard_normal(dims, numpy.float32) * numpy.float32(spread)).astype(numpy.float32)
            self.arrays[name] = to_bf16(array) if dtype == "bf16" else array

        s = shape
        if s.kind == "attention":
            draw("q", s.batch, s.heads, s.rows, s.dim)
            draw("k", s.batch, s.kv_heads, s.keys, s.dim)
            draw("v", s.batch, s.kv_heads, s.keys, s.dim)
            for name in "kv" if s.kv else "":
                self.narrow(name)
            return
        draw("x", s.batch, s.rows, s.embed)
        names = {"qkv": 3 * s.embed} if s.kind == "block" else {"q": s.embed}
        for name, outputs in (names | {"out": s.embed}).items():
            draw(f"{name}_weight", outputs, s.embed, spread=1 / math.sqrt(s.embed))
            draw(f"{name}_bias", outputs, spread=0.3)
        if s.kind == "products":
            draw("k", s.batch, s.heads, PRODUCT_KEYS, s.dim)
            draw("v", s.batch, s.heads, PRODUCT_KEYS, s.dim)

    def narrow(self, name):
        """Keys or values become numbers of the cache's dtype; codes and scales are files of their own."""
        array = self.arrays[name]
        if self.shape.kv in ("i8", "f8"):
            codes, scale, exact = quantise(array, self.shape.kv, self.shape.scales)
            self.exact[name] = exact
            self.arrays |= {name: exact.astype(numpy.float32), f"{name}_codes": codes, f"{name}_scale": scale}
        elif self.shape.kv != "f32":
            wide = array.astype(numpy.float16).astype(numpy.float32) if self.shape.kv == "f16" else to_bf16(array)
            self.arrays[name] = wide

    def checked_rows(self):
        """Which rows of each head are checked: all, or if those are too many some, with the first and the last."""
        s = self.shape
        if s.kind != "attention" or s.batch * s.heads * s.rows * s.keys <= CHECKED_PAIRS:
            return numpy.arange(s.rows)
        return numpy.unique(numpy.linspace(0, s.rows - 1, CHECKED_ROWS).astype(int))

    def write(self, folder):
        for name, array in self.arrays.items():
            array.tofile(folder / name)

    def expected(self):
        """What peers compute, and what attune does: the same but for products."""
        s = self.shape
        names = "qkv" if s.kind == "attention" else self.arrays
        exact = {name: self.exact.get(name, self.arrays[name]).astype(numpy.float64) for name in names}
        if s.kind == "attention":
            out = attend(exact["q"], exact["k"], exact["v"], s, self.checked_rows())
            return out, out
        if s.kind == "block":
            heads = by_head(project(exact, "qkv", exact["x"]), s, 3)
            out = project(exact, "out", by_token(attend(*heads, s, numpy.arange(s.rows))))
            return out, out
        middle = project(exact, "q", exact["x"])
        heads = attend(by_head(middle, s, 1)[0], exact["k"], exact["v"], s, numpy.arange(s.rows))
        return project(exact, "out", middle), project(exact, "out", by_token(heads))


def project(arrays, name, x):
    return x @ arrays[f"{name}_weight"].T + arrays[f"{name}_bias"]


def by_head(x, s, parts):
    return x.reshape(s.batch, s.rows, parts, s.heads, s.dim).transpose(2, 0, 3, 1, 4)


def by_token(heads):
    batch, _, rows, _ = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(batch, rows, -1)


def attend(q, k, v, s, wanted):
    """In double precision, some of the wanted rows of one head at a time."""
    out = numpy.empty((s.batch, s.heads, len(wanted), s.dim))
    keys, group = k.shape[2], s.heads // s.kv_heads
    step = max(1, CHUNK // keys)
    for b in range(s.batch):
        for h in range(s.heads):
            for begin in range(0, len(wanted), step):
                some = slice(begin, begin + step)
                rows = wanted[some]
                scores = q[b, h, rows] @ k[b, h // group].T / math.sqrt(s.dim)
                if s.causal:
                    last = rows[:, None] + keys - s.rows
                    scores[numpy.arange(keys)[None, :] > last] = -numpy.inf
                scores = numpy.exp(scores - scores.max(axis=1, keepdims=True))
                out[b, h, some] = scores @ v[b, h // group] / scores.sum(axis=1, keepdims=True)
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


def limits(shape, dtype):
    """Peers that cannot mix dtypes may have queries as narrow as a cache that is narrower, too."""
    return LIMITS["bf16" if shape.kv not in ("", "f32") else dtype]
