"""attune.plot: each picture from a file as the commands write it, and one sentence for input that is none."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib")
from attune import plot  # noqa: E402


def result(us, **fields):
    text = ",".join(f"{name}={value}" for name, value in fields.items())
    return {"problem": text, "fields": fields, "median_us": us, "fraction_of_roofline": 0.5, "fraction_of_peak": 0.25}


def document(*results):
    header = {"cpu_description": "a CPU", "isa": "avx2", "date": "2026-11-29T00:00:00Z"}
    return {"header": header, "results": list(results)}


def lines(figure):
    (axes,) = figure.axes
    return {line.get_label(): list(zip(*line.get_data())) for line in axes.get_lines()}


MANY = document(*(result(1, seq_q=q, head_dim=d) for q in (1, 2) for d in range(25)))
SWEEP = document(*(result(q * d, seq_q=q, seq_kv=q, head_dim=d) for q in (4, 8, 16) for d in (8, 16)))


def test_sweep_has_a_line_for_each_other_field_that_varies():
    figure = plot.sweep(SWEEP, y="median_us")
    assert lines(figure) == {
        "head_dim=8": [(4, 32), (8, 64), (16, 128)],
        "head_dim=16": [(4, 64), (8, 128), (16, 256)],
    }
    assert figure.axes[0].get_xlabel() == "seq_q" and figure.axes[0].get_xscale() == "log"


def test_both_axes_of_a_sweep_are_chosen():
    figure = plot.sweep(SWEEP, x="head_dim", y="fraction_of_peak")
    assert set(lines(figure)) == {"seq_q=4", "seq_q=8", "seq_q=16"}
    assert lines(figure)["seq_q=8"] == [(8, 0.25), (16, 0.25)]
    assert figure.axes[0].get_xlabel() == "head_dim"
    figure = plot.sweep(SWEEP, x="median_us", y="fraction_of_roofline")
    assert figure.axes[0].get_xlabel() == "median_us"


def test_sweep_against_words():
    figure = plot.sweep(document(*(result(1, dtype=d, seq_q=4) for d in ("f32", "bf16"))))
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["f32", "bf16"]


def test_sweep_of_several_machines_has_a_line_for_each():
    rows = [dict(result(q, seq_q=q), header={"machine": m}) for q in (4, 8) for m in ("zen3", "zen4")]
    assert set(lines(plot.sweep(document(*rows)))) == {"zen3", "zen4"}


def test_bench_has_a_bar_for_each_problem():
    figure = plot.bench(SWEEP)
    bars = figure.axes[0].patches
    assert [bar.get_width() for bar in bars] == [0.25] * 6
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == [r["problem"] for r in SWEEP["results"]]


def test_weights_show_heads_and_hidden_keys():
    values = np.full((2, 3, 4, 4), 0.25)
    values[1, 2] = np.tri(4) / np.arange(1, 5)[:, None]
    figure = plot.weights(values, heads=[2, 0], batch=1)
    maps = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in figure.axes[:2]] == ["head 2", "head 0"]
    assert np.array_equal(maps[0].mask, np.tri(4) == 0) and not maps[1].mask.any()
    assert maps[0][3, 3] == 0.25
    (mean,) = [axes.images[0] for axes in plot.weights(values, average=True, batch=1).axes if axes.images]
    assert np.allclose(mean.get_array()[0], [0.5, 0.5 / 3, 0.5 / 3, 0.5 / 3])


def test_small_weights_are_shown_where_keys_are_many():
    many, few = np.full((1, 2, 64), 0.01), np.full((1, 2, 8), 0.01)
    assert plot.weights(many).axes[0].images[0].get_array()[0, 0] == pytest.approx(0.1)
    assert plot.weights(many, scale="linear").axes[0].images[0].get_array()[0, 0] == pytest.approx(0.01)
    assert plot.weights(few).axes[0].images[0].get_array()[0, 0] == pytest.approx(0.01)


def test_scores_have_minus_infinity_for_hidden_keys():
    scores = np.array([[[0.0, -np.inf], [-1.0, 2.0]]])
    image = plot.weights(scores).axes[0].images[0]
    assert image.get_array().mask.tolist() == [[False, True], [False, False]] and image.norm.vmin == -1


def test_cliffs_mark_what_jumps():
    walk = {"name": "rows", "grows": "seq_q", "points": [{"size": 1, "us": [2, 3]}, {"size": 2, "us": [9, 8]}]}
    run = {"walks": [walk], "exceptions": [{"walk": "rows", "to": 2, "us": [2, 8]}]}
    curve, marks = plot.cliffs(run).axes[0].get_lines()
    assert list(curve.get_ydata()) == [2, 8] and list(marks.get_xdata()) == [2]


@pytest.mark.parametrize(
    "call, sentence",
    [
        (lambda: plot.weights(np.zeros(3)), "not of shape"),
        (lambda: plot.weights(np.zeros((2, 0, 4))), "not of shape"),
        (lambda: plot.weights(np.ones((2, 3, 4)), heads=[2]), "there is no head 2: they are 0 to 1"),
        (lambda: plot.weights(np.ones((2, 3, 4)), batch=1), "the last sequence is 0"),
        (lambda: plot.weights(np.ones((3, 4)), labels=["a"]), "1 labels for 3 queries"),
        (lambda: plot.sweep({}), "no output of attune bench"),
        (lambda: plot.sweep(document(result(1, seq_q=4))), "nothing to plot against"),
        (lambda: plot.sweep(SWEEP, x="heads"), "they have fraction_of_peak"),
        (lambda: plot.sweep(MANY), "at most 24"),
        (lambda: plot.bench(SWEEP, y="gflops"), "no result has 'gflops'"),
        (lambda: plot.cliffs({}), "it has no walks"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(call, sentence):
    with pytest.raises(ValueError, match=sentence):
        call()


def command(*arguments):
    return subprocess.run([sys.executable, "-m", "attune.plot", *map(str, arguments)], capture_output=True, text=True)


def test_the_command_draws_what_attune_writes(tmp_path):
    attune = os.environ.get("ATTUNE", "build/attune")
    weights, sweep = tmp_path / "w.npy", tmp_path / "s.json"
    run = [attune, "run", "num_heads=2,seq_q=5,head_dim=8,weights_mode=softmax,is_causal=1"]
    for name in ("q", "k", "v"):
        np.save(tmp_path / f"{name}.npy", np.random.default_rng(1).standard_normal((1, 2, 5, 8)).astype("f4"))
        run.append(f"--{name}={tmp_path / name}.npy")
    subprocess.run([*run, f"--write=weights={weights}"], check=True, capture_output=True)
    grid = "num_heads=1,seq_q=4:16:*2,head_dim=8,16"
    measure = [attune, "sweep", "--samples=1", "--max-spread=none", "-o", sweep, grid]
    subprocess.run(measure, check=True, capture_output=True)
    for kind, file, picture in (("weights", weights, "a.png"), ("sweep", sweep, "a.svg"), ("bench", sweep, "b.svg")):
        done = command(kind, file, "-o", tmp_path / picture)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    text = (tmp_path / "a.svg").read_text()
    assert "head_dim=16" in text and "share of the roofline" in text
    command("sweep", sweep, "-o", tmp_path / "c.svg")
    assert (tmp_path / "c.svg").read_text() == text


def test_the_command_refuses_in_one_sentence(tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text(json.dumps({"results": []}))
    for arguments, code, sentence in (
        (("sweep", broken, "-o", tmp_path / "a.svg"), 1, "no output of attune bench"),
        (("sweep", tmp_path / "none", "-o", tmp_path / "a.svg"), 1, "No such file"),
        (("weights", broken, "-o", tmp_path / "a.svg"), 1, "broken.json"),
        (("sweep", broken, "-o", "a.jpg"), 2, "ends in .png, .svg or .pdf"),
        (("weights", broken, "-o", "a.png", "--heads", "x"), 2, "numbers and ranges"),
    ):
        done = command(*arguments)
        assert done.returncode == code and sentence in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "a.svg").exists()
