"""attune.jax.attention under jit, vmap, grad, and on several devices."""

import threading

from jax_support import close, jax, jnp, np, tensors

import attune.jax
import pytest
from attune.jax import _plain, attention

stock = jax.nn.dot_product_attention
RULES = {
    "plain": {},
    "causal": dict(is_causal=True),
    "window": dict(local_window_size=(2, 1)),
    "lengths": dict(key_value_seq_lengths=jnp.asarray([5, 11], jnp.int32)),
    "mask": dict(mask=jnp.asarray(np.random.default_rng(2).random((2, 1, 7, 11)) > 0.4).at[..., 0].set(True)),
    "scale": dict(scale=0.4, is_causal=True),
}


def stats_of(call):
    before = attune.jax.stats()
    found = jax.block_until_ready(call())
    return found, {name: count - before[name] for name, count in attune.jax.stats().items()}


# ---- jit ----


def test_jit_compiles_once_for_each_shape():
    attend = jax.jit(lambda *x: attention(*x, is_causal=True))
    q, k, v = tensors(dim=20)
    found, made = stats_of(lambda: attend(q, k, v))
    close(found, stock(q, k, v, is_causal=True))
    assert made["compiles"] + made["disk_hits"] == 1
    _, again = stats_of(lambda: [attend(q, k, v) for _ in range(5)])
    assert again == {"calls": 5, "runs": 5, "compiles": 0, "disk_hits": 0}
    # Another batch and other numbers of heads at the same group share the kernel.
    found, other = stats_of(lambda: attend(*tensors(batch=5, heads=12, kv_heads=4, dim=20)))
    assert other["compiles"] + other["disk_hits"] == 0 and found.shape == (5, 7, 12, 20)


def test_jit_within_a_loop_and_a_larger_program():
    q, k, v = tensors(rows=8, keys=8, heads=2)

    def layers(x, attend):
        return jax.lax.fori_loop(0, 4, lambda _, x: x + jnp.tanh(attend(x, x, x, is_causal=True)), x)

    layers = jax.jit(layers, static_argnums=1)
    close(layers(q, attention), layers(q, stock), factor=4)


# ---- vmap ----


def runs(call):
    return stats_of(call)[1]["runs"]


@pytest.mark.parametrize("batch", [1, 2])
def test_vmap_becomes_a_part_of_the_batch(batch):
    q, k, v = (x.reshape(3, batch, *x.shape[1:]) for x in tensors(batch=3 * batch))
    mapped = jax.vmap(lambda *x: attention(*x, is_causal=True))
    close(mapped(q, k, v), jax.vmap(lambda *x: stock(*x, is_causal=True))(q, k, v))
    assert runs(lambda: mapped(q, k, v)) == 1
    single = jax.vmap(jax.vmap(lambda *x: attention(*x)))
    close(single(q, k, v), jax.vmap(stock)(q, k, v))
    assert runs(lambda: single(q, k, v)) == 1


@pytest.mark.sample(3)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("axes", [(0, None, None), (None, 0, 0), (1, 0, None), (2, None, 0)])
def test_vmap_of_some_operands(axes, batch):
    arrays = []
    for seed, (axis, x) in enumerate(zip(axes, tensors(batch=batch))):
        arrays.append(x if axis is None else jnp.stack([x * (n + 1 + seed) / 4 for n in range(3)], axis))
    mapped = jax.vmap(lambda *x: attention(*x, is_causal=True), in_axes=axes)
    expected = jax.vmap(lambda *x: stock(*x, is_causal=True), in_axes=axes)(*arrays)
    close(mapped(*arrays), expected)
    close(jax.jit(mapped)(*arrays), expected)


@pytest.mark.sample(6)
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 2])
@pytest.mark.parametrize("shape", [(1, 1, 7, 11), (1, 6, 1, 1), (1, 1, 1, 1), (1, 1, 1, 11), (2, 6, 7, 11)])
@pytest.mark.parametrize("is_mapped", [False, True])
@pytest.mark.parametrize("name", ["mask", "bias"])
def test_vmap_of_masks_and_biases(name, shape, batch, is_mapped):
    if shape[0] > batch:
        shape = (batch, *shape[1:])
    random = np.random.default_rng(5)
    numbers = random.standard_normal((3, *shape) if is_mapped else shape)
    scores = jnp.asarray(numbers > -0.5) if name == "mask" else jnp.asarray(numbers, jnp.float32)
    q, k, v = (x.reshape(3, batch, *x.shape[1:]) for x in tensors(batch=3 * batch))
    axes = (0, 0, 0, 0 if is_mapped else None)

    def call(function):
        return jax.vmap(lambda q, k, v, s: function(q, k, v, **{name: s}), in_axes=axes)(q, k, v, scores)

    expected = call(stock)
    if name == "mask":  # a row without a key is 0 here
        seen = jnp.broadcast_to(scores if is_mapped else scores[None], (3, batch, 6, 7, 11)).any(-1)
        expected = jnp.where(jnp.swapaxes(seen, 2, 3)[..., None], expected, 0)
    close(call(attention), expected)


@pytest.mark.sample(2)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("is_mapped", [False, True])
def test_vmap_of_lengths_and_sinks(batch, is_mapped):
    q, k, v = (x.reshape(3, batch, *x.shape[1:]) for x in tensors(batch=3 * batch))
    lens = jnp.asarray([[5, 9], [1, 11], [7, 2]], jnp.int32)[:, :batch]
    sinks = jnp.arange(18, dtype=jnp.float32).reshape(3, 6) / 9
    axis = 0 if is_mapped else None
    lens, sinks = (lens, sinks) if is_mapped else (lens[0], sinks[0])

    def call(q, k, v, lens, sinks):
        return attention(q, k, v, key_value_seq_lengths=lens, sinks=sinks)

    found = jax.vmap(call, in_axes=(0, 0, 0, axis, axis))(q, k, v, lens, sinks)
    for n in range(3):
        close(found[n], call(q[n], k[n], v[n], lens[n] if is_mapped else lens, sinks[n] if is_mapped else sinks))


def test_one_number_and_one_key_for_all():
    """Strides of 0 along all dims would mean contiguous."""
    q, k, v = (x.reshape(3, 1, *x.shape[1:]) for x in tensors(batch=3, rows=1, keys=1, heads=1, kv_heads=1))
    for mask in (True, False):
        found = jax.vmap(lambda *x: attention(*x, mask=jnp.full((1, 1, 1, 1), mask)))(q, k, v)
        close(found, v if mask else jnp.zeros_like(v))


# ---- grad ----


def gradients(function, arrays, rules, weights):
    def loss(*arrays):
        return (function(*arrays, **rules).astype(weights.dtype) * weights).sum()

    return jax.grad(loss, argnums=tuple(range(len(arrays))))(*arrays)


@pytest.mark.sample(4)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("rules", RULES.values(), ids=RULES)
def test_gradients(rules, dtype):
    arrays = tensors(dtype)
    weights = jnp.asarray(np.random.default_rng(3).standard_normal(arrays[0].shape), jnp.float32)
    for found, expected in zip(gradients(attention, arrays, rules, weights), gradients(stock, arrays, rules, weights)):
        assert found.dtype == expected.dtype
        close(found, expected, dtype, 10)


def test_gradients_are_those_of_differences():
    q, k, v = tensors("float64", rows=3, keys=5, heads=2, kv_heads=1, dim=4)
    bias = jnp.asarray(np.random.default_rng(4).standard_normal((1, 2, 3, 5)))
    mask = jnp.ones((1, 1, 3, 5), bool).at[0, 0, 1].set(False)  # a row without a key

    def function(q, k, v, bias):
        out, residual = attention(q, k, v, bias, mask, is_causal=True, logits_soft_cap=1.5, return_residual=True)
        return out.sum() + jnp.where(jnp.isfinite(residual), residual, 0).sum()

    grads = jax.grad(function, argnums=(0, 1, 2, 3))(q, k, v, bias)
    random = np.random.default_rng(6)
    for _ in range(3):
        steps = [jnp.asarray(random.standard_normal(x.shape)) for x in (q, k, v, bias)]
        ahead, behind = (
            function(*(x + h * step for x, step in zip((q, k, v, bias), steps))) for h in (1e-5, -1e-5)
        )  # fmt: skip
        expected = (ahead - behind) / 2e-5
        np.testing.assert_allclose(sum((g * s).sum() for g, s in zip(grads, steps)), expected, rtol=1e-6, atol=1e-8)


def test_gradients_of_bias_and_sinks():
    q, k, v = tensors("float64")
    sinks = jnp.linspace(-1, 1, 6, dtype=jnp.float32)
    bias = jnp.zeros((1, 6, 1, 11), jnp.float64)
    options = _plain.Options(0.25, False, False, (-1, -1), 0.0, False, False)

    def ours(bias, sinks):
        return (attention(q, k, v, bias, sinks=sinks) ** 2).sum()

    def plain(bias, sinks):
        return (_plain.attention(options, q, k, v, bias, sinks, None, None)[0] ** 2).sum()

    for found, expected in zip(jax.grad(ours, (0, 1))(bias, sinks), jax.grad(plain, (0, 1))(bias, sinks)):
        close(found, expected)
        assert jnp.abs(found).max() > 0


def test_transforms_of_transforms():
    arrays = [x.reshape(3, 2, *x.shape[1:]) for x in tensors(batch=6)]

    def loss(function):
        return lambda *x: jnp.sin(function(*x, is_causal=True)).sum()

    ours, theirs = (jax.jit(jax.vmap(jax.grad(loss(f), (0, 1, 2)))) for f in (attention, stock))
    for found, expected in zip(ours(*arrays), theirs(*arrays)):
        close(found, expected, factor=10)
    q, k, v = (x[0] for x in arrays)
    curvature = [jax.grad(lambda q: (jax.grad(loss(f))(q, k, v) ** 2).sum())(q) for f in (attention, stock)]
    close(*curvature, factor=50)
    remat = jax.grad(jax.checkpoint(loss(attention)))(q, k, v)
    close(remat, jax.grad(loss(stock))(q, k, v), factor=10)


def test_forward_mode_says_that_there_is_none():
    q, k, v = tensors()
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(lambda q: attention(q, k, v), (q,), (q,))


# ---- Devices and threads ----


def test_several_devices():
    assert len(jax.devices()) == 2
    q, k, v = tensors(batch=4)
    expected = stock(q, k, v, is_causal=True)
    mesh = jax.sharding.Mesh(np.asarray(jax.devices()), ("data",))
    spec = jax.sharding.PartitionSpec("data")
    placed = [jax.device_put(x, jax.sharding.NamedSharding(mesh, spec)) for x in (q, k, v)]
    call = lambda *x: attention(*x, is_causal=True)  # noqa: E731
    shards = jax.jit(jax.shard_map(call, mesh=mesh, in_specs=spec, out_specs=spec))
    found, made = stats_of(lambda: shards(*placed))
    assert made["calls"] == 2 and found.sharding.spec == spec
    close(found, expected)
    close(jax.jit(call)(*placed), expected)  # without shard_map XLA brings all to each device
    there = jax.device_put(q, jax.devices()[1])
    assert attention(there, *(jax.device_put(x, jax.devices()[1]) for x in (k, v))).devices() == {jax.devices()[1]}


def test_several_threads_get_the_same_bits():
    q, k, v = tensors(batch=2, rows=200, keys=200, heads=8, kv_heads=8, dim=32)
    attend = jax.jit(lambda *x: attention(*x, is_causal=True))
    expected = attend(q, k, v)
    results = []

    def work():
        results.extend(bool((attend(q, k, v) == expected).all()) for _ in range(20))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80


def test_no_thread_of_attunes_own():
    import pathlib

    q, k, v = tensors(batch=2, rows=300, keys=300, heads=8, kv_heads=8, dim=32)
    attention(q, k, v).block_until_ready()
    names = [(task / "comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
    assert names and not [name for name in names if name.startswith("attune")]
