"""attune.distributed over a LocalCluster: sweeps with a worker that is killed, tuning, random checks."""

import json
import os
import signal
import subprocess
import time
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest

distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
dask = pytest.importorskip("dask")

import attune
import attune.distributed as cluster

dask.config.set({
    "distributed.worker.daemon": True, "distributed.comm.timeouts.connect": "60s",
    # A cluster looks 15 s after it lost a worker, and closes its nanny unless a worker of that name is there. Tests
    # kill one worker twice: the look for the first time could fall into the moments after the second.
    "distributed.deploy.lost-worker-timeout": "1h",
})  # fmt: skip
COMMAND = cluster._command(None)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dask")
    local = distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, local_directory=str(folder)
    )
    with local, distributed.Client(local) as made:
        yield made


def attune_command(*arguments):
    return subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=True).stdout


QUICK = dict(samples=1, max_spread=None)
GRID = "seq_q=2:26,head_dim=4,8,num_heads=1,2,is_causal=0,1"


def test_each_problem_once_though_a_worker_is_killed(client, tmp_path):
    """200 problems on two workers, one of which is killed in the middle, with the command that it runs."""
    output, seen, killed = tmp_path / "out.json", [], []

    def progress(done, count):
        seen.append(done)
        assert count == 200
        if done == 60:
            (address, pid), *_ = client.run(os.getpid).items()
            os.kill(pid, signal.SIGKILL)
            killed.append(address)

    found = cluster.sweep(GRID, client, output=output, progress=progress, **QUICK)
    wanted = [str(attune.Problem(text)) for text in attune_command("sweep", "--dry-run", GRID).splitlines()]
    assert len(killed) == 1 and seen == list(range(1, 201))
    assert [row["problem"] for row in found["results"]] == wanted and len(set(wanted)) == 200
    assert json.loads(output.read_text()) == found
    assert [file.name for file in tmp_path.iterdir()] == ["out.json"]
    assert len(cluster.by_machine(found)) == 1 and found["header"]["threads"] == 1
    client.wait_for_workers(2, timeout=300)
    # The file is one of the command's own: merged, and continued without a measurement.
    assert attune_command("sweep", "merge", str(output)).startswith("200 problems on ")
    again = attune_command("sweep", "--samples=1", "--max-spread=none", "-o", str(output), GRID)
    assert "0 measured now; 200 had results" in again


def test_a_sweep_is_continued(client, tmp_path):
    output, seen = tmp_path / "out.json", []
    grid = ["seq_q=3,4,head_dim=4", "seq_q=5,head_dim=4"]
    first = cluster.sweep(grid[:1], client, output=output, **QUICK)
    whole = cluster.sweep(grid, client, output=output, progress=lambda *now: seen.append(now), **QUICK)
    assert seen == [(3, 3)] and whole["results"][:2] == first["results"]
    with pytest.raises(attune.InvalidArgumentError, match="cannot be continued: it was measured with samples=1"):
        cluster.sweep(grid, client, output=output, samples=2)
    output.write_text("{")
    with pytest.raises(attune.FileError, match="out.json is no sweep that could be continued"):
        cluster.sweep(grid, client, output=output, **QUICK)
    with pytest.raises(attune.FileError, match="cannot write"):
        cluster.sweep(grid, client, output=tmp_path / "no" / "where", **QUICK)


def document(problem, model=1, date="2026-01-01", **settings):
    """As a worker sends it."""
    header = {name: 1 for name in cluster._MACHINE} | {
        "cpu_model": model, "date": date, "cpu_description": f"CPU (family 1, model {model})",
        "machine": "m", "isa": "i",
    }  # fmt: skip
    settings = {"schema": 2, "samples": 1, "sizes": "", "cold_data": False} | settings
    cache = {"hits": 0, "misses": 1, "compile_ms": 2.5}
    return settings | {"header": header, "cache": cache, "results": [{"problem": problem}]}


def file_of(path, *documents):
    """A file of a sweep with these results, and its text."""
    made = cluster._Sweep(path, {})
    for one in documents:
        made.add(one)
    made.write()
    return path.read_text()


def test_a_complete_sweep_stays_as_it_is(client, tmp_path):
    output, grid = tmp_path / "out.json", "seq_q=3,head_dim=4"
    first = cluster.sweep(grid, client, output=output, **QUICK)
    inode = output.stat().st_ino
    assert cluster.sweep(grid, client, output=output, **QUICK) == first
    assert json.loads(output.read_text()) == first and first["schema"] and first["sizes"] == ""
    assert output.stat().st_ino == inode  # not even written again
    assert attune_command("sweep", "merge", str(output)).startswith("1 problem on ")


def test_results_of_other_sizes_are_not_mixed(client, tmp_path):
    output, grid = tmp_path / "out.json", "seq_q=3,4,seq_kv=dynamic,head_dim=4,softmax_scale=dynamic"
    sizes = {"softmax_scale": 0.1, "seq_kv": 16}
    first = cluster.sweep(grid, client, output=output, sizes=sizes, **QUICK)
    assert cluster.sweep(grid, client, output=output, sizes=sizes, **QUICK) == first
    text = output.read_text()
    for other in (sizes | {"seq_kv": 512}, {"seq_kv": 16}, None):
        with pytest.raises(attune.InvalidArgumentError, match="it was measured with sizes=seq_kv"):
            cluster.sweep(grid, client, output=output, sizes=other, **QUICK)
    assert output.read_text() == text
    with pytest.raises(attune.Error, match="seq_kv is 'many'"):
        cluster.sweep(grid, client, sizes={"seq_kv": "many"}, **QUICK)


def test_results_of_another_schema_are_not_mixed(tmp_path):
    text = file_of(tmp_path / "out.json", document("a"))
    found = cluster._Sweep(tmp_path / "out.json", {})
    assert "its schema is 3, and that of the others 2" in str(found.add(document("b", schema=3)))
    assert (tmp_path / "out.json").read_text() == text and len(found.rows) == 1


def test_results_of_several_machines_are_kept_apart():
    found = cluster._Sweep(None, {})
    for problem, model in (("a", 1), ("b", 2), ("c", 1)):
        found.add(document(problem, model, f"2026-01-0{model}"))
    whole = found.document(["a", "b", "c"])
    assert [row["problem"] for row in whole["results"]] == ["a", "c", "b"]
    assert "cpu_model" not in whole["header"] and whole["header"]["date"] == "2026-01-02"
    assert whole["cache"] == {"hits": 0, "misses": 3, "compile_ms": 7.5}
    assert {name: len(rows) for name, rows in cluster.by_machine(whole).items()} == {
        "CPU (family 1, model 1), m, i": 2, "CPU (family 1, model 2), m, i": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    "broken, why",
    [
        (lambda whole: whole.pop("cache"), "it has no cache"),
        (lambda whole: whole["cache"].pop("hits"), "it has no hits"),
        (lambda whole: whole.update(cache=[]), "list"),
        (lambda whole: whole.pop("schema"), "it has no schema"),
        (lambda whole: whole["header"].pop("threads"), "it has no threads"),
        (lambda whole: whole["results"][0]["header"].pop("date"), "it has no date"),
        (lambda whole: whole["results"][0].update(header=5), "int"),
        (lambda whole: whole.update(sizes="seq_kv"), "unpack"),
        (lambda whole: whole.update(sizes=None), "NoneType"),
    ],
)
def test_damaged_files_are_refused(tmp_path, broken, why):
    path = tmp_path / "out.json"
    whole = json.loads(file_of(path, document("a")))
    broken(whole)
    path.write_text(json.dumps(whole))
    with pytest.raises(attune.FileError, match=f"out.json is no sweep that could be continued: .*{why}"):
        cluster._Sweep(path, {"samples": 1})


def test_the_file_is_written_once_a_second_and_at_the_end(tmp_path, monkeypatch):
    now, path, counts = [0.0], tmp_path / "out.json", []
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def in_file():
        return [row["problem"] for row in json.loads(path.read_text())["results"]]

    found = cluster._Sweep(path, {})
    with pytest.raises(KeyboardInterrupt), found.kept(["e", "d", "c", "b", "a"]):
        for problem, now[0] in (("a", 0.0), ("b", 0.5), ("c", 0.9), ("d", 1.0), ("e", 1.5)):
            found.add(document(problem))
            counts.append(len(in_file()))
        raise KeyboardInterrupt
    assert counts == [1, 1, 1, 4, 4] and in_file() == ["e", "d", "c", "b", "a"]


class Places(list):
    """An order of problems that counts how often somebody goes through all of it."""

    def __init__(self, *problems):
        super().__init__(problems)
        self.passes = 0

    def __iter__(self):
        self.passes += 1
        return super().__iter__()


def test_a_merged_file_keeps_the_results_of_each_machine(tmp_path):
    path = tmp_path / "out.json"
    file_of(path, document("a", 1), document("a", 2), document("b", 2))
    found, order = cluster._Sweep(path, {}), Places("b", "a", "c")
    assert found.problems() == {"a", "b"}
    found.add(document("c", 1))
    found.write()
    whole = found.document(order)
    assert [(row["problem"], row["header"]["cpu_model"]) for row in whole["results"]] == [
        ("b", 2), ("a", 2), ("a", 1), ("c", 1),
    ]  # fmt: skip
    assert len(json.loads(path.read_text())["results"]) == 4
    assert order.passes == 1


def occupied(path, seconds):
    """A measurement that says when it begins and ends."""
    with cluster._alone() as lock:
        script = f"echo begin >>{path}; sleep {seconds}; echo end >>{path}"
        subprocess.run(["sh", "-c", script], pass_fds=(lock,), check=True)


def test_one_measurement_at_a_time_on_a_machine(client, tmp_path):
    path = tmp_path / "log"
    futures = [client.submit(occupied, str(path), 0.1, pure=False) for _ in range(8)]
    distributed.wait(futures)
    assert not any(future.exception() for future in futures)
    assert path.read_text().split() == ["begin", "end"] * 8


def test_what_a_dead_worker_left_behind_keeps_the_machine(client, tmp_path):
    path, pids = tmp_path / "log", client.run(os.getpid)
    address, pid = next(iter(pids.items()))
    future = client.submit(occupied, str(path), 1.5, pure=False, workers=[address], allow_other_workers=True)
    deadline = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < deadline, "no measurement has begun"
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    future.result(timeout=120)  # done again by another worker
    assert path.read_text().split() == ["begin", "end"] * 2
    client.wait_for_workers(2, timeout=300)


def test_a_problem_that_cannot_be_measured_is_named(client):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = cluster.sweep("seq_q=dynamic,3,seq_kv=4,head_dim=4", client, **QUICK)
    assert len(found["results"]) == 1
    assert any("has no result: " in str(w.message) and "seq_q" in str(w.message) for w in caught)
    with pytest.raises(attune.Error, match="'heads' is not a field"):
        cluster.sweep("heads=3", client)
    with pytest.raises(attune.InvalidArgumentError, match="grid is empty"):
        cluster.sweep([], client)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cluster.sweep("seq_q=3,head_dim=4", client, command="/no/attune", **QUICK)
    assert any("/no/attune cannot be run on " in str(w.message) for w in caught)


def test_tuning_databases_flow_together(client, tmp_path, monkeypatch):
    problems = ["seq_q=33,head_dim=16,num_heads=2", "seq_q=40,head_dim=16,num_heads=2"]
    mine = tmp_path / "mine"
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(mine))  # of the client; the workers have another one
    seen = []
    found = cluster.tune(problems, client, seconds=0.2, progress=lambda *now: seen.append(now))
    assert seen == [(1, 2), (2, 2)]
    assert {row["problem"] for row in found["results"]} == {str(attune.Problem(text)) for text in problems}
    assert all(row["header"]["machine"] for row in found["results"])
    assert (mine / "tuning.db").exists()
    for text in problems:
        assert "tun" in attune_command("explain", "--dry-run", text)


def test_what_was_tuned_is_not_lost(client, tmp_path, monkeypatch):
    """Named workers may be one address; databases that cannot be written cost no result."""
    monkeypatch.setenv("ATTUNE_CACHE_DIR", str(tmp_path / "mine"))
    problem, (address, *_) = "seq_q=35,head_dim=16,num_heads=2", client.scheduler_info()["workers"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(cluster.tune(problem, client, seconds=0.1, workers=address)["results"]) == 1
    take_in = cluster._take_in

    def refuse(results, command):
        if os.getpid() == me:
            raise attune.FileError("the disk is full")
        take_in(results, command)

    me = os.getpid()
    monkeypatch.setattr(cluster, "_take_in", refuse)
    with pytest.warns(RuntimeWarning, match="the database of the client has no result of .*: the disk is full"):
        assert len(cluster.tune(problem, client, seconds=0.1, share=False)["results"]) == 1
    monkeypatch.setattr(cluster, "_take_in", lambda results, command: 1 / 0 if os.getpid() != me else None)
    with pytest.warns(RuntimeWarning, match="tcp://.* has not taken in the results of tuning: division by zero"):
        assert len(cluster.tune(problem, client, seconds=0.1)["results"]) == 1
    monkeypatch.setattr(cluster, "_take_in", lambda results, command: None)
    monkeypatch.setattr(client, "run", lambda *arguments, **options: 1 / 0)
    with pytest.warns(RuntimeWarning, match="were not handed to workers: division by zero"):
        assert len(cluster.tune(problem, client, seconds=0.1)["results"]) == 1


def test_the_sentence_of_the_command_is_kept(tmp_path):
    command = tmp_path / "attune"
    command.write_text("#!/bin/sh\necho 'attune: the kernel crashed' >&2\n[ $1 = silent ] || echo text\nexit 1\n")
    command.chmod(0o755)
    assert cluster._run(["speaks"], str(command), good=(0, 1)) == "text\n"
    with pytest.raises(attune.Error, match="^the kernel crashed"):
        cluster._run(["silent"], str(command), good=(0, 1))


def test_random_checks(client):
    seen = []
    found = cluster.check(client, 30, seed=5, chunk=8, isa="x86-64", progress=lambda *now: seen.append(now[0]))
    assert found == cluster.Checked(30, 0, []) and sorted(seen)[-1] == 30 and len(seen) == 4
    broken = cluster.check(client, 4, command="/no/attune")
    assert (broken.passed, broken.failed) == (0, 4) and "problems 0 to 3 have no result" in broken.failures[0]["reason"]
    with pytest.raises(attune.InvalidArgumentError, match="count is 0"):
        cluster.check(client, 0)


def test_the_command_is_found(monkeypatch, tmp_path):
    assert Path(COMMAND).name == "attune" and cluster._command("x") == "x"
    monkeypatch.setenv("ATTUNE_COMMAND", "/other")
    assert cluster._command(None) == "/other"
    monkeypatch.delenv("ATTUNE_COMMAND")
    monkeypatch.setattr(cluster, "library_path", lambda: str(tmp_path / "libattune.so"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(attune.Error, match="the command attune was not found on "):
        cluster._command(None)
