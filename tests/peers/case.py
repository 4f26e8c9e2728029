"""A configuration of a framework's block beside attune's problem, and the comparison of their results."""
import dataclasses
import json
import pathlib
import subprocess

import numpy

import files

# torch.testing.assert_close's for each dtype; torch's own tests of MultiheadAttention ask for no more (f32: atol 1e-5).
TOLERANCES = {"float32": (1.3e-6, 1e-5), "float64": (1e-7, 1e-7)}
CHECKED_FLOPS = 2e6  # the interpreter does some ten million a second


@dataclasses.dataclass
class Case:
    family: str
    call: str  # what was called in the framework, for people
    problem: dict  # attune's problem text, by key
    inputs: dict  # x, x_kv, x_v, masks …: arrays by the names of attune's tensors
    weights: dict  # by the framework's names
    expected: dict  # out and weights, as the framework shapes them
    form: str = "safetensors"  # or "directory"
    prefix: str | None = None  # None: not said to the command
    exact: dict = dataclasses.field(default_factory=dict)  # what is expected, computed by the framework in f64
    empty: numpy.ndarray | None = None  # rows of out that see no key in any head, of torch only
    refusal: str | None = None  # attune must refuse, with this in its sentence

    def structure(self):
        """What makes a configuration another one; numbers in arrays do not."""
        shapes = tuple((name, array.shape) for name, array in self.inputs.items())
        return self.call, self.text(), shapes, self.form, self.prefix

    def text(self):
        return ",".join(f"{key}={value}" for key, value in self.problem.items())

    def tolerance(self):
        return TOLERANCES[str(self.inputs["x"].dtype)]

    def flops(self):
        """About as many as there are."""
        x, out = self.inputs["x"], self.expected.get("out", self.inputs["x"])
        keys = self.inputs.get("x_kv", self.inputs.get("x_v", x))
        products = sum(array.size for array in self.weights.values())
        rows = max(x.size // x.shape[-1], keys.size // keys.shape[-1])
        return 2 * rows * products + 4 * (x.size // x.shape[-1]) * keys.shape[-2] * out.shape[-1]


def write(case, folder):
    """Writes the case's files and returns the description that the recorded ones have in case.json."""
    folder = pathlib.Path(folder)
    inputs = {name: f"{name}.npy" for name in case.inputs}
    for name, array in case.inputs.items():
        files.write_array(folder / inputs[name], array)
    is_file = case.form == "safetensors"
    weights = "weights.safetensors" if is_file else "weights"
    (files.write_safetensors if is_file else files.write_directory)(folder / weights, case.weights)
    return {
        "call": case.call,
        "problem": case.text(),
        "inputs": inputs,
        "weights": weights,
        **({"prefix": case.prefix if is_file else case.prefix.replace("/", ".")} if case.prefix else {}),
    }


def command(attune, description, folder, outputs):
    folder = pathlib.Path(folder)
    arguments = [attune, "mha", description["problem"], "--weights", str(folder / description["weights"])]
    options = {"x": ["--x"], "x_kv": ["--x-kv"], "x_v": ["--x-v"]}
    for name, file in description["inputs"].items():
        path = str(folder / file)
        arguments += options[name] + [path] if name in options else ["--tensor", f"{name}={path}"]
    if "prefix" in description:
        arguments += ["--prefix", description["prefix"]]
    for name in outputs:
        arguments += ["--write", f"{name}={folder / ('got_' + name + '.npy')}"]
    return arguments


@dataclasses.dataclass
class Verdict:
    problems: list
    checked: bool = False  # against the interpreter's bits
    share: float = 0  # of the tolerance that the largest difference takes
    error: float = 0  # attune's largest against f64, and the framework's
    peer_error: float = 0


def compare_one(verdict, case, name, got):
    wanted, (rtol, atol) = case.expected[name], case.tolerance()
    if got.size != wanted.size:
        verdict.problems.append(f"{name} has the shape {got.shape} instead of {wanted.shape}")
        return
    got, rows = got.reshape(wanted.shape), numpy.ones(wanted.shape, bool)
    if case.empty is not None and name == "out":
        rows = ~numpy.broadcast_to(case.empty[..., None], wanted.shape)
        if not (got == fill_empty(case, got)).all():
            verdict.problems.append("a row that sees no key is not the bias of the output")
    share = numpy.abs(got - wanted)[rows] / (atol + rtol * numpy.abs(wanted[rows]))
    worst = float(share.max(initial=0))
    verdict.share = max(verdict.share, worst)
    if not worst <= 1:  # a NaN, too
        verdict.problems.append(f"{name} differs by {worst:.3g} times what is tolerated")
    if name in case.exact:
        exact = case.exact[name]
        verdict.error = max(verdict.error, float(numpy.abs(got - exact)[rows].max(initial=0)))
        verdict.peer_error = max(verdict.peer_error, float(numpy.abs(wanted - exact)[rows].max(initial=0)))


def fill_empty(case, out):
    """`out` with the output's bias, which is what attune gives, in rows that see no key."""
    bias = next((array for name, array in case.weights.items() if name.endswith("out_proj.bias")), 0)
    return numpy.where(case.empty[..., None], bias, out).astype(out.dtype)


def run(attune, case, folder, threads):
    """Runs the case by the command in an empty folder."""
    description = write(case, folder)
    verdict = Verdict([], checked=case.refusal is None and case.flops() <= CHECKED_FLOPS)
    arguments = command(attune, description, folder, case.expected) + ["--json", f"--threads={threads}"]
    arguments += ["--check"] * verdict.checked
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    if case.refusal:
        if done.returncode != 1 or case.refusal not in done.stderr:
            verdict.problems.append(f"not refused for '{case.refusal}' but {done.returncode}: {done.stderr.strip()}")
        return verdict
    if done.returncode:
        verdict.problems.append(f"exit status {done.returncode}: {done.stderr.strip()}")
        return verdict
    if verdict.checked and not json.loads(done.stdout)["same_bits"]:
        verdict.problems.append("not the interpreter's bits")
    for name in case.expected:
        compare_one(verdict, case, name, numpy.load(pathlib.Path(folder) / f"got_{name}.npy"))
    return verdict
