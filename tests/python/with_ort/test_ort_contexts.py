"""Models with EPContext nodes: what attune compiled lies in the model, or beside it, as a signed pack."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import ort_support as support
import pytest
from onnx import helper, numpy_helper
from test_ort_blocks import X, Block
from test_ort_group_query import CASES, make
from test_ort_linear import inputs as linear_inputs
from test_ort_linear import make as make_linear
from test_ort_quantised_cache import make as make_quantised
from test_ort_quantised_cache import quantised

import attune.ort

HERE = Path(__file__).resolve().parent
ATTUNE = os.environ.get("ATTUNE") or str(HERE.parents[2] / "build" / "attune")

pytestmark = pytest.mark.skipif(shutil.which("minisign") is None or not os.path.exists(ATTUNE),
                                reason="minisign or the attune command is missing")


def models():
    given, attributes = CASES["prompt"]
    block = Block()
    cache = quantised(CASES["token"][0], 4, "PER_CHANNEL")
    return {"GroupQueryAttention": (make(given, attributes), support.feeds(given)),
            "quantised_cache": (make_quantised(cache, attributes, 4, "PER_CHANNEL"), support.feeds(cache)),
            "block": (block.model(block.usual()), X),
            "projected": projected()}


def projected():
    """Two nodes Attention of com.microsoft, whose weights are packed: their constants stay in the model."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 5, 24)).astype(np.float32)
    weight = rng.standard_normal((24, 72)).astype(np.float32) / 5
    nodes = [helper.make_node("Attention", [before, "weight"], [after], domain="com.microsoft", num_heads=3)
             for before, after in (("x", "between"), ("between", "y"))]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, [None, None, 24])],
                              [helper.make_tensor_value_info("y", 1, None)],
                              [numpy_helper.from_array(weight, "weight")])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString(), {"x": x}


RUN = """
import sys, numpy as np, attune.ort, onnxruntime
import ort_support as support
feeds = dict(np.load(sys.argv[2]))
results = support.session(sys.argv[1], "ep").run(None, feeds)
np.savez(sys.argv[3], *results)
print({name: count for name, count in attune.ort.stats().items()})
"""


class Place:
    """A directory with keys, and processes that run models there."""

    def __init__(self, folder):
        self.folder = folder
        self.keys = folder / "keys"
        self.keys.mkdir(mode=0o755)
        subprocess.run(["minisign", "-G", "-W", "-f", "-p", self.keys / "fleet.pub", "-s", folder / "fleet.key"],
                       input=b"\n", check=True, capture_output=True)
        (self.keys / "fleet.pub").chmod(0o644)

    def environment(self, **more):
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ATTUNE_CACHE")}
        return {**kept, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path]), "ATTUNE_CACHE_KEYS": str(self.keys),
                "ATTUNE_CACHE_DIR": "", **more}

    def run(self, model, feeds, **more):
        """The results, and the counters of the process."""
        np.savez(self.folder / "feeds.npz", **feeds)
        done = subprocess.run([sys.executable, "-c", RUN, model, self.folder / "feeds.npz", self.folder / "out.npz"],
                              env=self.environment(**more), capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        with np.load(self.folder / "out.npz") as results:
            return [results[name] for name in results.files], eval(done.stdout)

    def pack(self, model, feeds):
        """A signed pack of what the model needs, as ATTUNE_RECORD tells."""
        manifest, pack = self.folder / "manifest", self.folder / "kernels.pack"
        manifest.unlink(missing_ok=True)
        wanted, _ = self.run(model, feeds, ATTUNE_RECORD=str(manifest))
        environment = self.environment(ATTUNE_CACHE_DIR=str(self.folder / "cache"))
        for command in ([ATTUNE, "cache", "pack", "-o", pack, manifest],
                        ["minisign", "-S", "-s", self.folder / "fleet.key", "-m", f"{pack}.index"],
                        [ATTUNE, "cache", "seal", pack]):
            subprocess.run(command, env=environment, check=True, capture_output=True, input=b"\n")
        return pack, wanted


@pytest.fixture
def place(tmp_path, monkeypatch):
    made = Place(tmp_path)
    monkeypatch.setenv("ATTUNE_CACHE_KEYS", str(made.keys))
    return made


def plain(place, name):
    """A model as a file, and what it is fed with."""
    model, feeds = models()[name]
    path = place.folder / "plain.onnx"
    path.write_bytes(model)
    return path, feeds


def write_context(place, model, pack, embeds=True):
    path, written = place.folder / "model.onnx", place.folder / "model_ctx.onnx"
    path.write_bytes(model)
    written.unlink(missing_ok=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_embed_mode", "1" if embeds else "0")
    options.add_session_config_entry("ep.context_file_path", str(written))
    attune.ort.register(options, context_pack=pack)
    onnxruntime.InferenceSession(str(path), options)
    return written


NO_COMPILER = {"ATTUNE_CODEGEN": "/nonexistent", "ATTUNE_CODEGEN_WORKER": "/nonexistent", "ATTUNE_STRICT": "1"}


@pytest.mark.sample(4)
@pytest.mark.parametrize("embeds", [True, False])
@pytest.mark.parametrize("name", list(models()))
def test_runs_without_a_compiler(place, name, embeds):
    path, feeds = plain(place, name)
    pack, wanted = place.pack(path, feeds)
    written = write_context(place, path.read_bytes(), pack, embeds)
    nodes = [node for node in onnx.load(written).graph.node if node.op_type == "EPContext"]
    assert nodes and {helper.get_node_attr_value(node, "source") for node in nodes} == {b"AttuneExecutionProvider"}
    assert (place.folder / "model_ctx_attune.pack").exists() != embeds
    pack.unlink()
    results, counters = place.run(written, feeds, **NO_COMPILER)
    for have, want in zip(results, wanted):
        np.testing.assert_array_equal(have, want)
    assert counters.get("compiles", 0) == 0 and counters["disk_hits"] > 0 and counters["ep.contexts"] == len(nodes)


def test_linear_attention_in_a_context(place):
    """Its rule is a text in a model, and a number in a note. The state has a type of its own."""
    pack, _ = place.pack(*plain(place, "GroupQueryAttention"))
    given = linear_inputs("gated", dtype=np.float16, state=np.float32)
    model = make_linear(given, rule="gated")
    wanted = support.session(model, "ep").run(None, support.feeds(given))
    written = write_context(place, model, pack)
    assert [node.op_type for node in onnx.load(written).graph.node] == ["EPContext"]
    for have, want in zip(support.session(str(written), "ep").run(None, support.feeds(given)), wanted, strict=True):
        np.testing.assert_array_equal(have, want)


RUN_SHARED = """
import sys, numpy as np, attune.ort, onnxruntime
sessions = []
for path in sys.argv[1:3]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("ep.share_ep_contexts", "1")
    attune.ort.register(options)
    sessions.append(onnxruntime.InferenceSession(path, options))
for session, feeds, results in zip(sessions, sys.argv[3:5], sys.argv[5:7]):
    np.savez(results, *session.run(None, dict(np.load(feeds))))
"""


def test_sessions_that_share_contexts(place):
    """ep.share_ep_contexts changes nothing: each model brings its own pack, and all sessions have one library."""
    arguments, expected = [[], [], []], []
    for name in ("GroupQueryAttention", "block"):
        model, feeds = models()[name]
        path = place.folder / "plain.onnx"
        path.write_bytes(model)
        pack, wanted = place.pack(path, feeds)
        expected.append(wanted)
        files = [place.folder / f"{name}{suffix}" for suffix in (".onnx", ".npz", "-out.npz")]
        write_context(place, model, pack).rename(files[0])
        np.savez(files[1], **feeds)
        for list_of, file in zip(arguments, files):
            list_of.append(file)
    subprocess.run([sys.executable, "-c", RUN_SHARED, *sum(arguments, [])],
                   env=place.environment(**NO_COMPILER), check=True)
    for file, wanted in zip(arguments[2], expected):
        with np.load(file) as results:
            for name, want in zip(results.files, wanted):
                np.testing.assert_array_equal(results[name], want)


def test_a_pack_that_is_in_use_stays(place):
    """Writing the context again gives the name to a new file: who reads the one of before keeps it."""
    model, feeds = models()["GroupQueryAttention"]
    path = place.folder / "plain.onnx"
    path.write_bytes(model)
    pack, _ = place.pack(path, feeds)
    write_context(place, model, pack, False)
    written = place.folder / "model_ctx_attune.pack"
    with open(written, "rb") as in_use:
        first = os.fstat(in_use.fileno())
        write_context(place, model, pack, False)
        assert in_use.read() == written.read_bytes()
        assert written.stat().st_ino != first.st_ino
    assert [name for name in os.listdir(place.folder) if "attune.pack." in name] == []


def changed(written, change):
    """The model with one attribute of its first EPContext node changed."""
    proto = onnx.load(written)
    node = next(node for node in proto.graph.node if node.op_type == "EPContext")
    change({attribute.name: attribute for attribute in node.attribute}, node)
    onnx.save(proto, written)
    return str(written)


def refused(written, sentence):
    with pytest.raises(Exception) as raised:
        support.session(written, "ep")
    assert sentence in str(raised.value), raised.value


def set_note(line):
    """A note with another line of the same name, or without its first line."""
    def change(attributes, node):
        name = line.split(":")[0].encode()
        lines = [old for old in attributes["notes"].s.split(b"\n") if old.split(b":")[0] != name]
        lines.insert(1, line.encode())
        attributes["notes"].s = b"\n".join(lines)
    return change


def flip(place):
    def change(attributes, node):
        content = bytearray(attributes["ep_cache_context"].s)
        content[place if place >= 0 else len(content) + place] ^= 1
        attributes["ep_cache_context"].s = bytes(content)
    return change


def put(name, value):
    def change(attributes, node):
        setattr(attributes[name], "s" if isinstance(value, bytes) else "i", value)
    return change


def drop(name):
    def change(attributes, node):
        node.attribute.remove(attributes[name])
    return change


WRONG = {
    "index": (flip(100), "was changed, or key"),
    "truncated": (put("ep_cache_context", b"attnpack"), "it is too short for a pack"),
    "nothing": (put("ep_cache_context", b""), "it is too short for a pack"),
    "no content": (drop("ep_cache_context"), "it has no ep_cache_context"),
    "no main": (put("main_context", 0), "the graph has no main EPContext node of attune's"),
    "another version": (put("notes", b"attune context 2\n"), "its notes are none of this version of attune"),
    "no note": (drop("notes"), "its notes are none of this version of attune"),
    "a long note": (put("notes", b"attune context 1\n" + 3000 * b"x" + b"\n"), "none of this version"),
    "an operator": (set_note("op: 77"), "its notes name no operator"),
    "inputs": (set_note("inputs: 0 1 99"), "its notes name inputs or outputs that it does not have"),
    "outputs": (set_note("outputs: 3 -1 -1 -1"), "its notes name inputs or outputs that it does not have"),
    "heads": (set_note("num_heads: -4"), "its number of heads is -4"),
    "no number": (set_note("num_heads: four"), "its number of heads is 0"),
    "a path": (lambda attributes, node: (put("embed_mode", 0)(attributes, node),
                                         put("ep_cache_context", b"../kernels.pack")(attributes, node)),
               "ep_cache_context names no file beside the model"),
    "no file": (lambda attributes, node: (put("embed_mode", 0)(attributes, node),
                                          put("ep_cache_context", b"none.pack")(attributes, node)),
                "none.pack cannot be opened"),
}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """One good model with its place."""
    made = Place(tmp_path_factory.mktemp("contexts"))
    model, feeds = models()["GroupQueryAttention"]
    path = made.folder / "plain.onnx"
    path.write_bytes(model)
    made.good, made.wanted = made.pack(path, feeds)
    before = os.environ.get("ATTUNE_CACHE_KEYS")
    os.environ["ATTUNE_CACHE_KEYS"] = str(made.keys)
    made.written = write_context(made, model, made.good)
    yield made
    if before is None:
        del os.environ["ATTUNE_CACHE_KEYS"]
    else:
        os.environ["ATTUNE_CACHE_KEYS"] = before


@pytest.mark.parametrize("name", list(WRONG))
def test_wrong_contexts_are_refused(kept, tmp_path, name):
    change, sentence = WRONG[name]
    copy = tmp_path / "model_ctx.onnx"
    shutil.copy(kept.written, copy)
    refused(changed(copy, change), sentence)


def test_a_damaged_kernel_never_runs(kept, tmp_path):
    """The pack's signature is right, and one kernel in it is not: it is as if it were not there."""
    copy = tmp_path / "model_ctx.onnx"
    shutil.copy(kept.written, copy)
    _, feeds = models()["GroupQueryAttention"]
    path = changed(copy, flip(-1))
    results, counters = kept.run(path, feeds)
    for have, want in zip(results, kept.wanted):
        np.testing.assert_array_equal(have, want)
    assert counters["compiles"] == 1
    with pytest.raises(RuntimeError, match="is not cached"):
        kept.run(path, feeds, **NO_COMPILER)


def test_types_are_checked_in_each_call(kept, tmp_path):
    """The model says that an input is of another type than the node was written for."""
    proto = onnx.load(kept.written)
    name = proto.graph.node[0].input[1]
    value = next(value for value in proto.graph.input if value.name == name)
    value.type.tensor_type.elem_type = onnx.TensorProto.FLOAT16
    path = tmp_path / "types.onnx"
    onnx.save(proto, path)
    _, feeds = models()["GroupQueryAttention"]
    feeds = {**feeds, name: feeds[name].astype(np.float16)}
    with pytest.raises(Exception, match="must have the type of the first input"):
        support.session(str(path), "ep").run(None, feeds)


def test_another_provider_s_context_is_left(kept, tmp_path):
    copy = tmp_path / "model_ctx.onnx"
    shutil.copy(kept.written, copy)
    with pytest.raises(Exception, match="EPContext"):
        support.session(changed(copy, put("source", b"QNNExecutionProvider")), "ep")


def test_keys_are_asked_when_a_session_is_made(kept):
    (kept.keys / "fleet.pub").rename(kept.keys / "fleet")
    try:
        refused(str(kept.written), "which is none of the 0 keys in")
    finally:
        (kept.keys / "fleet").rename(kept.keys / "fleet.pub")


def test_what_is_embedded_must_be_trusted(place):
    model, _ = models()["GroupQueryAttention"]
    with pytest.raises(Exception, match="a context needs a signed pack of kernels"):
        write_context(place, model, None)
    unsigned = place.folder / "unsigned.pack"
    environment = place.environment(ATTUNE_CACHE_DIR=str(place.folder / "cache"))
    (place.folder / "manifest").write_text("num_heads=2,seq_q=4,head_dim=8\n")
    subprocess.run([ATTUNE, "cache", "pack", "-o", unsigned, place.folder / "manifest"], check=True,
                   capture_output=True, env=environment)
    with pytest.raises(Exception, match="unsigned.pack is not signed"):
        write_context(place, model, unsigned)
