"""ONNX Runtime behind the protocol of docs/bench.md. usage: onnxruntime_driver.py THREADS [CPU…]"""
import sys

import numpy
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

from driver import Cannot, serve

METHODS = {
    "attention": ["mha", "attention", "gqa"],
    "block": ["contrib-attention", "mha"],
    "products": ["matmul"],
}
CONTRIB = "com.microsoft"
OPSET = 23  # the first with Attention


class Model:
    """A graph under construction, and its session on bound tensors."""

    def __init__(self):
        self.nodes, self.constants, self.inputs, self.outputs = [], [], {}, {}
        self.aliases = {}  # outputs that lie where an input does

    def constant(self, name, array):
        self.constants.append(numpy_helper.from_array(numpy.ascontiguousarray(array), name))
        return name

    def input(self, name, array):
        self.inputs[name] = numpy.ascontiguousarray(array)
        return name

    def node(self, operator, inputs, outputs, domain="", **attributes):
        self.nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attributes))
        return outputs[0]

    def linear(self, x, weight, bias, result):
        product = self.node("MatMul", [x, weight], [result + "_product"])
        return self.node("Add", [product, bias], [result])

    def session(self, options):
        value = helper.make_tensor_value_info
        types = {name: helper.np_dtype_to_tensor_dtype(array.dtype) for name, array in self.inputs.items()}
        inputs = [value(name, types[name], array.shape) for name, array in self.inputs.items()]
        outputs = [value(n, types.get(self.aliases.get(n), TensorProto.FLOAT), s) for n, s in self.outputs.items()]
        graph = helper.make_graph(self.nodes, "bench", inputs, outputs, self.constants)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])

    def prepare(self, options):
        """The call, and its first output."""
        session = self.session(options)
        binding = session.io_binding()
        values = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in self.inputs.items()}
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        for name, shape in self.outputs.items():
            if name in self.aliases:
                values[name] = values[self.aliases[name]]
            else:
                values[name] = onnxruntime.OrtValue.ortvalue_from_numpy(numpy.zeros(shape, numpy.float32))
            binding.bind_ortvalue_output(name, values[name])
        first = next(iter(self.outputs))
        run = session.run_with_iobinding
        return lambda: run(binding), lambda: values[first].numpy()


def by_token(heads):
    """[batch, heads, length, dim] as [batch, length, heads * dim]."""
    batch, _, length, _ = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(batch, length, -1)


def by_head(tokens, p):
    return tokens.reshape(p.batch, p.rows, p.heads, p.dim).transpose(0, 2, 1, 3)


def contrib_attention(m, p):
    if p.heads != p.kv_heads:
        raise Cannot("MultiHeadAttention has as many KV heads as heads")
    inputs = [m.input(name, by_token(array)) for name, array in zip("qkv", p.read_heads())]
    m.node(
        "MultiHeadAttention",
        inputs,
        ["out"],
        CONTRIB,
        num_heads=p.heads,
        scale=p.scale,
        unidirectional=p.causal,
    )
    m.outputs["out"] = (p.batch, p.rows, p.heads * p.dim)
    return lambda out: by_head(out, p)


def standard_attention(m, p):
    if p.causal and p.rows != p.keys:
        raise Cannot("Attention is causal from the first key on")
    inputs = [m.input(name, array) for name, array in zip("qkv", p.read_heads())]
    m.node("Attention", inputs, ["out"], scale=p.scale, is_causal=p.causal)
    m.outputs["out"] = (p.batch, p.heads, p.rows, p.dim)
    return lambda out: out


def grouped_attention(m, p):
    """Causal, and the last rows of the keys: the new ones go to the end of a cache that is full afterwards. A cache of
    i8 has a scale for each column of each head here; those of a head are the same."""
    if p.rows != 1 and not (p.causal and p.rows == p.keys):
        raise Cannot("GroupQueryAttention is causal")
    q, k, v = p.read_heads()
    past = p.keys - p.rows
    inputs = [m.input(name, by_token(a)) for name, a in (("q", q), ("k", k[:, :, past:]), ("v", v[:, :, past:]))]
    inputs += [m.input("past_k", k), m.input("past_v", v)] if past else ["", ""]
    quantised = {}
    if p.kv == "i8":
        if p.scales != "head" or not past:
            raise Cannot("codes of a cache, with scales of heads")
        for name in "kv":
            codes, scale = p.read_codes(name)
            inputs["qkv".index(name) + 2] = m.input(f"past_{name}", codes)
            m.input(f"{name}_scale", numpy.repeat(scale, p.dim).reshape(1, p.kv_heads, 1, p.dim))
        quantised = {"k_quant_type": "PER_CHANNEL", "v_quant_type": "PER_CHANNEL", "kv_cache_bit_width": 8}
    inputs += [
        m.input("seqlens_k", numpy.full(p.batch, p.keys - 1, numpy.int32)),
        m.input("total", numpy.array([p.keys], numpy.int32)),
    ]
    if quantised:
        inputs += [""] * 5 + ["k_scale", "v_scale"]
    m.node(
        "GroupQueryAttention",
        inputs,
        ["out", "present_k", "present_v"],
        CONTRIB,
        num_heads=p.heads,
        kv_num_heads=p.kv_heads,
        scale=p.scale,
        **quantised,
    )
    m.outputs["out"] = (p.batch, p.rows, p.heads * p.dim)
    m.outputs["present_k"] = m.outputs["present_v"] = k.shape
    if past:
        m.aliases = {"present_k": "past_k", "present_v": "past_v"}
    return lambda out: by_head(out, p)


def read_projection(m, p, name, outputs):
    """Weights as MatMul has them: [inputs, outputs]."""
    weight = m.constant(f"{name}_weight", p.read(f"{name}_weight", outputs, p.embed).T)
    return weight, m.constant(f"{name}_bias", p.read(f"{name}_bias", outputs))


def block(m, p):
    m.input("x", p.read("x", p.batch, p.rows, p.embed))
    if p.method == "contrib-attention":
        weight, bias = read_projection(m, p, "qkv", 3 * p.embed)
        inputs = ["x", weight, bias]
        m.node("Attention", inputs, ["heads"], CONTRIB, num_heads=p.heads, scale=p.scale, unidirectional=p.causal)
    else:
        weights = numpy.split(p.read("qkv_weight", 3 * p.embed, p.embed), 3)
        bias = m.constant("qkv_bias", p.read("qkv_bias", 3 * p.embed))
        for name, weight in zip("qkv", weights):
            m.node("MatMul", ["x", m.constant(f"{name}_weight", weight.T)], [name])
        m.node(
            "MultiHeadAttention",
            ["q", "k", "v", bias],
            ["heads"],
            CONTRIB,
            num_heads=p.heads,
            scale=p.scale,
            unidirectional=p.causal,
        )
    m.linear("heads", *read_projection(m, p, "out", p.embed), "out")
    m.outputs["out"] = (p.batch, p.rows, p.embed)
    return lambda out: out


def products(m, p):
    m.input("x", p.read("x", p.batch, p.rows, p.embed))
    m.linear("x", *read_projection(m, p, "q", p.embed), "middle")
    m.linear("middle", *read_projection(m, p, "out", p.embed), "out")
    m.outputs["out"] = (p.batch, p.rows, p.embed)
    return lambda out: out


BUILDERS = {"mha": contrib_attention, "attention": standard_attention, "gqa": grouped_attention}


def session_options(threads, cpus):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if threads > 1 and len(cpus) >= threads:  # one for each thread but the caller, counted from 1
        places = ";".join(str(int(cpu) + 1) for cpu in cpus[1:threads])
        options.add_session_config_entry("session.intra_op_thread_affinities", places)
    # Denormals cost some peers much, and attune nothing; inputs here have none, but intermediate results may.
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    return options


def main():
    threads, cpus = int(sys.argv[1]) if len(sys.argv) > 1 else 1, sys.argv[2:]

    def prepare(p):
        if p.dtype != "f32" or p.kv not in ("", "f32", "i8"):
            raise Cannot("no kernels for that dtype on the CPU")
        if p.kv == "i8" and p.method != "gqa":
            raise Cannot("a quantised cache is for GroupQueryAttention")
        if p.method not in METHODS[p.kind]:
            raise Cannot(f"{p.method} is not for that")
        model = Model()
        build = {"attention": BUILDERS.get(p.method), "block": block, "products": products}[p.kind]
        shape = build(model, p)
        call, output = model.prepare(session_options(p.threads or threads, cpus))
        return call, lambda: shape(output())

    methods = sorted({method for methods in METHODS.values() for method in methods})
    serve(methods, f"ONNX Runtime {onnxruntime.__version__}", prepare)


if __name__ == "__main__":
    main()
