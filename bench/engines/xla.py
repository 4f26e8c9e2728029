"""JAX: attention alone, and an encoder, with attune.jax.attention in the place of jax.nn.dot_product_attention."""

import os

from engine import Missing, Row, Way, explain, in_turns

LIMITS = {"float32": 1e-5, "bfloat16": 2e-2}


def prepare(threads):
    """XLA's pool has as many threads as the process may use CPUs when JAX starts."""
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])


def modules():
    try:
        import attune.jax
        import jax
    except Exception as error:
        raise Missing(f"attune.jax is not there ({explain(error)})") from error
    return jax, attune.jax


def compare(function, arrays, seconds, limit):
    """What a row with a ratio holds; function(attention) gives the function of the arrays."""
    jax, ours = modules()
    ways = []
    for attention in (jax.nn.dot_product_attention, ours.attention):
        compiled = jax.jit(function(attention))
        ways.append(Way(lambda: None, lambda compiled=compiled: compiled(*arrays).block_until_ready()))
    before = ours.stats()["calls"]
    expected, found = (way.call().astype("float32") for way in ways)
    error = float(abs(found - expected).max() / abs(expected).max())
    if not error <= limit:
        return {"difference": error, "problem": f"wrong by {error:.1e}; {limit:.0e} is allowed"}
    if ours.stats()["calls"] == before:
        return {"problem": "attune did not run"}
    return {"difference": error} | in_turns(*ways, seconds)


def tensors(dtype, *shapes):
    jax, _ = modules()
    keys = jax.random.split(jax.random.key(1), len(shapes))
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes)]


def attention_row(length, goal, dtype="float32", heads=12, kv_heads=12, causal=False):
    def run(threads, seconds):
        shapes = [(1, length, count, 64) for count in (heads, kv_heads, kv_heads)]
        arrays = tensors(dtype, *shapes)
        return compare(lambda attend: lambda *x: attend(*x, is_causal=causal), arrays, seconds, LIMITS[dtype])

    name = f"{heads} heads on {kv_heads}" if heads != kv_heads else f"{heads}"
    causal_text = ", causal" if causal else ""
    return Row(f"JAX attention {name}×{length}×64{causal_text} {'f32' if dtype == 'float32' else 'bf16'}", goal, run)


def norm(x):
    jax, _ = modules()
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5)


def encoder(attend, width=384, heads=12):
    """Layers as in BERT: attention, then two dense layers, each with its residual and a norm."""
    jax, _ = modules()

    def layer(x, weights):
        qkv, out, wide, narrow = weights
        q, k, v = (x @ qkv).reshape(*x.shape[:2], 3, heads, width // heads).transpose(2, 0, 1, 3, 4)
        x = norm(x + attend(q, k, v).reshape(x.shape) @ out)
        return norm(x + jax.nn.gelu(x @ wide) @ narrow), None

    return lambda x, *weights: jax.lax.scan(layer, x, weights)[0]


def encoder_row(length, goal, dtype="float32", layers=6, width=384):
    def run(threads, seconds):
        shapes = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        x, *weights = tensors(dtype, (1, length, width), *((layers, *shape) for shape in shapes))
        arrays = [x, *(matrix / matrix.shape[1] ** 0.5 for matrix in weights)]
        return compare(encoder, arrays, seconds, 5 * LIMITS[dtype])

    return Row(f"JAX encoder {layers}×{width}, S {length} {'f32' if dtype == 'float32' else 'bf16'}", goal, run)


ROWS = [
    attention_row(128, 2.0),
    attention_row(512, 2.5),
    attention_row(2048, None, causal=True),
    attention_row(2048, None, heads=9, kv_heads=3, causal=True),
    attention_row(512, None, dtype="bfloat16"),
    encoder_row(128, None),
    encoder_row(512, 1.5),
]
