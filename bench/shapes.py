"""What is measured: the shapes, their work, and the shares of the peak that peers are known to reach."""
import dataclasses

SMALL_FLOPS = 2e7
WIDTH = {"f32": 4, "bf16": 2, "f16": 2, "i8": 1, "f8": 1}


@dataclasses.dataclass(frozen=True)
class Shape:
    name: str
    group: str  # prefill, causal, decode, cache, tiny, block, products, own; in growth what grows
    kind: str  # attention, block, products
    batch: int = 1
    heads: int = 1
    kv_heads: int = 0  # 0: as heads
    rows: int = 1
    keys: int = 0  # 0: as rows
    dim: int = 0  # 0: embed / heads
    embed: int = 0
    causal: int = 0
    kv: str = ""  # dtype of keys and values: f32, bf16, f16, i8 or f8; "": as the rest
    scales: str = ""  # of i8 and f8: one for each head, or each token of a head
    is_short: bool = False  # part of the short run

    def __post_init__(self):
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "keys", self.keys or self.rows)
        object.__setattr__(self, "dim", self.dim or self.embed // self.heads)

    def pairs(self):
        """Queries times the keys they see, of one head."""
        if not self.causal:
            return self.rows * self.keys
        return sum(min(self.keys, i + 1 + self.keys - self.rows) for i in range(self.rows))

    def flops(self):
        attention = 4 * self.batch * self.heads * self.pairs() * self.dim
        product = 2 * self.batch * self.rows * self.embed * self.embed
        return {"attention": attention, "block": attention + 4 * product, "products": 2 * product}[self.kind]

    def is_small(self):
        """So little work that how a call begins and ends matters."""
        return self.flops() < SMALL_FLOPS

    def bytes(self, dtype):
        """What a call has to touch at least."""
        matrices = {"attention": 0, "block": 4, "products": 2}[self.kind] * self.embed * (self.embed + 1)
        if self.kind != "attention":
            return WIDTH[dtype] * (matrices + 2 * self.batch * self.rows * self.embed)
        tokens = self.batch * self.kv_heads * self.keys
        scales = {"": 0, "head": 2 * self.kv_heads, "token": 2 * tokens}[self.scales]
        rows = 2 * self.batch * self.heads * self.rows * self.dim
        return WIDTH[dtype] * rows + WIDTH[self.kv or dtype] * 2 * tokens * self.dim + WIDTH["f32"] * scales

    def dtypes(self, asked):
        """Of those asked for, the ones in which it is measured: of queries and results; a cache of another dtype is
        measured with f32 ones."""
        return [dtype for dtype in asked if not self.kv or dtype == "f32"]

    def words(self):
        """As the drivers read them."""
        names = ["kind", "batch", "heads", "kv_heads", "rows", "keys", "dim", "embed", "causal"]
        names += [name for name in ("kv", "scales") if getattr(self, name)]
        return " ".join(f"{name}={getattr(self, name)}" for name in names)


def prefill(name, heads, dim, rows, short=False, batch=1):
    return Shape(name, "prefill", "attention", batch=batch, heads=heads, rows=rows, dim=dim, is_short=short)


def causal(name, heads, dim, rows, short=False):
    return Shape(name, "causal", "attention", heads=heads, rows=rows, dim=dim, causal=1, is_short=short)


def decode(name, kv_heads, keys, short=False):
    return Shape(name, "decode", "attention", heads=32, kv_heads=kv_heads, keys=keys, dim=128, is_short=short)


def cache(of, kv, scales="", short=False):
    """A shape of decoding whose keys and values are narrower than its queries."""
    name = f"{of.name}_{kv}" + (f"_{scales}" if scales else "")
    return dataclasses.replace(of, name=name, group="cache", kv=kv, scales=scales, is_short=short)


def tiny(name, rows, short=False):
    return Shape(name, "tiny", "attention", heads=8, rows=rows, dim=32, is_short=short)


def block(name, embed, heads, rows, short=False):
    return Shape(name, "block", "block", embed=embed, heads=heads, rows=rows, is_short=short)


def products(name, embed, heads, rows, short=False):
    return Shape(name, "products", "products", embed=embed, heads=heads, rows=rows, is_short=short)


DECODE = [
    decode("decode_h32_k512", 32, 512, short=True),
    decode("decode_h32_k4096", 32, 4096),
    decode("decode_kv8_k512", 8, 512, short=True),
    decode("decode_kv8_k4096", 8, 4096, short=True),
]

SHAPES = [
    prefill("bert_s128", 12, 64, 128, short=True),
    prefill("bert_s512", 12, 64, 512, short=True),
    prefill("bert_b8s128", 12, 64, 128, batch=8),
    prefill("vit_s197", 12, 64, 197, short=True),
    prefill("h32d128_s512", 32, 128, 512, short=True),
    prefill("h32d128_s2048", 32, 128, 2048),
    prefill("h16d64_s1024", 16, 64, 1024),
    prefill("h16d64_s4096", 16, 64, 4096),
    causal("h32d128_s512_causal", 32, 128, 512),
    causal("h32d128_s2048_causal", 32, 128, 2048),
    causal("h16d64_s1024_causal", 16, 64, 1024, short=True),
    causal("h16d64_s4096_causal", 16, 64, 4096),
    *DECODE,
    *(cache(of, kv, short=kv == "bf16" and of is DECODE[3]) for of in DECODE[1:] for kv in ("bf16", "f16")),
    *(cache(of, "i8", scales, short=scales == "token" and of is DECODE[3])
      for of in DECODE[1:] for scales in ("head", "token")),
    *(cache(of, "f8", "head") for of in DECODE[1:]),
    tiny("tiny_16", 16, short=True),
    tiny("tiny_64", 64, short=True),
    block("block_e768_s128", 768, 12, 128),
    block("block_e768_s512", 768, 12, 512, short=True),
    block("block_e1024_s512", 1024, 16, 512),
    products("gemm_128x768", 768, 12, 128),
    products("gemm_512x768", 768, 12, 512, short=True),
    products("gemm_512x1024", 1024, 16, 512),
]


# By group: a shape in words.
TITLES = {
    "prefill": "{heads} heads × {dim}, {rows} tokens",
    "causal": "{heads} heads × {dim}, {rows} tokens, causal",
    "decode": "{heads} heads on {kv_heads} × {dim}, 1 token, {keys} keys",
    "cache": "{heads} heads on {kv_heads} × {dim}, 1 token, {keys} keys, {kv} cache",
    "tiny": "{heads} heads × {dim}, {rows} tokens",
    "block": "a block's attention and projections, {embed} columns, {rows} tokens",
    "products": "two products, {rows} × {embed} × {embed}",
}


def title(shape):
    """`shape` is as a file of results has it."""
    name = TITLES.get(shape["group"], "{name}").format(**shape).replace("i8", "int8")
    return (f"{shape['batch']} × " if shape.get("batch", 1) > 1 else "") + name


def growing(what, number, **fields):
    """One point of a curve of cost: heads of 64 columns, without a mask."""
    return Shape(f"{what}_{number}", what, "attention", dim=64, **fields)


def growth(cpus):
    """How cost grows with the length, the heads, the batch and the threads: shapes, each with its threads."""
    found = [(growing("seq", n, heads=2, rows=n), 1) for n in (64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)]
    found += [(growing("heads", n, heads=n, rows=512), 1) for n in (1, 2, 4, 8, 16, 32)]
    found += [(growing("batch", n, batch=n, heads=4, rows=128), 1) for n in (1, 2, 4, 8, 16, 32, 64)]
    counts = sorted({count for count in (1, 2, 4, 8, 16, 32, 64, 128) if count <= cpus} | {cpus})
    return found + [(growing("threads", n, heads=16, rows=1024), n) for n in counts]


# Beyond so many keys a driver's curve of growth ends: it needs memory by the square of them, or takes too long.
LONGEST = {"onednn": 4096, "onednn_omp": 0, "ggml": 4096, "onnxruntime": 8192, "openblas": 8192}
GROWING = ("seq", "heads", "batch", "threads")
# An older oneDNN whose calls begin faster than those of the newer one, and which has OpenMP's threads: the newer one
# computes on one CPU of two.
ONLY_SMALL = ("onednn_omp",)


def is_for(driver, shape, threads=1):
    """Whether a driver is measured on a shape."""
    if shape.group in GROWING:
        return shape.keys <= LONGEST.get(driver, shape.keys)
    return threads > 1 or shape.is_small() or driver not in ONLY_SMALL


# Per cent of the roofline of one thread (the f32 or the bf16-dot peak, or for decoding mostly the bandwidth) that a
# peer with good settings reached on a CPU with AVX-512 (Zen 5). One that stays more than a tenth below is suspected of
# bad settings.
KNOWN = {
    "f32": {
        "bert_s128": {"onnxruntime": 66, "onednn": 64, "openblas": 68},
        "bert_s512": {"onnxruntime": 60, "onednn": 64, "openblas": 61},
        "bert_b8s128": {"onnxruntime": 39, "onednn": 50, "openblas": 52},
        "vit_s197": {"onnxruntime": 67, "onednn": 61, "openblas": 60},
        "h32d128_s512": {"onnxruntime": 61, "onednn": 72, "openblas": 70},
        "h32d128_s2048": {"onnxruntime": 76, "onednn": 64, "openblas": 70},
        "h16d64_s1024": {"onnxruntime": 62, "onednn": 63, "openblas": 60},
        "h16d64_s4096": {"onnxruntime": 72, "onednn": 59, "openblas": 62},
        "h32d128_s512_causal": {"onnxruntime": 29, "onednn": 31, "openblas": 45},
        "h32d128_s2048_causal": {"onnxruntime": 46, "onednn": 26, "openblas": 61},
        "h16d64_s1024_causal": {"onnxruntime": 31, "onednn": 26, "openblas": 53},
        "h16d64_s4096_causal": {"onnxruntime": 46, "onednn": 21, "openblas": 60},
        "decode_h32_k512": {"onnxruntime": 27, "onednn": 36, "openblas": 45},
        "decode_h32_k4096": {"onnxruntime": 66, "onednn": 46},
        "decode_kv8_k512": {"onnxruntime": 9, "onednn": 19, "openblas": 22},
        "decode_kv8_k4096": {"onnxruntime": 20, "onednn": 20, "openblas": 25},
        "tiny_16": {"onnxruntime": 13, "onednn": 15, "openblas": 24},
        "tiny_64": {"onnxruntime": 53, "onednn": 44, "openblas": 52},
        "block_e768_s128": {"onednn": 71},
        "block_e768_s512": {"onednn": 71},
        "block_e1024_s512": {"onednn": 77},
        "gemm_128x768": {"onednn": 93, "onnxruntime": 92, "openblas": 82},
        "gemm_512x768": {"onednn": 91, "onnxruntime": 84, "openblas": 84},
        "gemm_512x1024": {"onednn": 88, "onnxruntime": 58, "openblas": 80},
    },
    "bf16": {
        "bert_s128": {"onednn": 43},
        "bert_s512": {"onednn": 47},
        "bert_b8s128": {"onednn": 31},
        "vit_s197": {"onednn": 45},
        "h32d128_s512": {"onednn": 56},
        "h32d128_s2048": {"onednn": 53},
        "h16d64_s1024": {"onednn": 48},
        "h16d64_s4096": {"onednn": 39},
        "h32d128_s512_causal": {"onednn": 26},
        "h32d128_s2048_causal": {"onednn": 20},
        "h16d64_s1024_causal": {"onednn": 23},
        "h16d64_s4096_causal": {"onednn": 15},
        "decode_h32_k512": {"onednn": 57},
        "decode_h32_k4096": {"onednn": 60},
        "decode_kv8_k512": {"onednn": 18},
        "decode_kv8_k4096": {"onednn": 33},
        "tiny_64": {"onednn": 26},
        "block_e768_s128": {"onednn": 67},
        "block_e768_s512": {"onednn": 66},
        "block_e1024_s512": {"onednn": 65},
        "gemm_512x768": {"onednn": 95},
    },
}

# Goals of attune, per cent of the roofline, by group, dtype and columns of a head.
GOALS = {
    ("prefill", "f32"): {64: 88, 128: 90},
    ("prefill", "bf16"): {64: 80, 128: 85},
}
SHORT_ROWS = 256  # of prefill: fewer have goals of their own
SHORT_GOALS = {"f32": 82, "bf16": 70}


def goal(shape, dtype):
    """What is to be reached: ("share", per cent of the roofline) or ("ns", of a call); None where there is no goal.
    `shape` is as a file of results has it."""
    group, name = shape["group"], shape["name"]
    if group == "prefill":
        return "share", SHORT_GOALS[dtype] if shape["rows"] < SHORT_ROWS else GOALS[group, dtype][shape["dim"]]
    if group in ("decode", "cache"):
        return "share", 90
    named = {("tiny_16", "f32"): ("ns", 2000), ("tiny_64", "f32"): ("share", 75),
             ("block_e768_s512", "bf16"): ("share", 80)}
    return ("share", 80) if (group, dtype) == ("causal", "f32") else named.get((name, dtype))


def parse(text):
    """A shape of the user's own: key=value,… with the fields of Shape."""
    types = {field.name: field.type for field in dataclasses.fields(Shape) if field.name not in ("is_short", "group")}
    known = {"kind": ("attention", "block", "products"), "kv": tuple(WIDTH), "scales": ("head", "token")}
    values = {"kind": "attention"}
    for pair in text.split(","):
        key, equals, value = pair.partition("=")
        if key not in types or not equals:
            raise ValueError(f"'{pair}' is no field of a shape; there are {', '.join(types)}")
        try:
            values[key] = types[key](value)
        except ValueError:
            raise ValueError(f"{key} must be a number, not '{value}'") from None
    for key, choices in known.items():
        if values.get(key, choices[0]) not in choices:
            raise ValueError(f"there is no {key} '{values[key]}': {', '.join(choices)}")
    may_have_scales = values.get("kv") in ("i8", "f8")
    if (values.get("kv") == "i8" or "scales" in values) and not (may_have_scales and "scales" in values):
        raise ValueError("scales are of kv=i8, which needs them, or of kv=f8")
    needed = ["heads", "rows", "dim" if values["kind"] == "attention" else "embed"]
    missing = [name for name in needed if values.get(name, 0) < 1]
    if missing:
        raise ValueError(f"a shape of kind {values['kind']} needs {' and '.join(missing)}")
    values.setdefault("name", text.replace(",", " "))
    return Shape(group="own", **values)
