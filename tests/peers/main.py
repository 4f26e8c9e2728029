#!/usr/bin/env python3
"""Compares `attune mha` with the blocks of PyTorch, Keras, Flax and JAX on random configurations.

Each configuration is drawn with sizes, masks and ways of calling of its own, computed by the framework, written to
files as a user of it has them, and computed by the command. `make test-torch` runs it; --record writes small ones,
which the normal tests run without Python.
"""
import argparse
import concurrent.futures
import importlib
import json
import os
import pathlib
import re
import shutil
import sys
import tempfile
import warnings
import zlib

import case as cases
import draw
import files

MODULES = ["torch_cases", "keras_cases", "flax_cases", "jax_cases"]
NEEDED = ["torch_cases", "keras_cases"]
DRAWS = 50  # tries to draw a configuration that there was not yet


def load_modules():
    for name in MODULES:
        try:
            yield importlib.import_module(name)
        except ImportError as error:
            if name in NEEDED:
                raise
            print(f"{name}: skipped, {error}", flush=True)


def draw_family(module, family, count, forced, options, seen):
    """Configurations that differ in structure from each other and from all in `seen`."""
    number = 0
    for _ in range(count):
        for _ in range(DRAWS):
            seed = [options.seed, zlib.crc32(family.encode()), number]
            number += 1
            one = module.draw(draw.Draw(seed, options.record is not None), family, forced)
            if one.structure() not in seen:
                break
        else:
            raise RuntimeError(f"{family}: no {count} different configurations")
        seen.add(one.structure())
        yield one


def run_case(attune, one, threads):
    with tempfile.TemporaryDirectory() as folder:
        return cases.run(attune, one, folder, threads)


def show_failure(one, verdict, keep):
    print(f"FAILED {one.call}\n       {one.text()}\n       {'; '.join(verdict.problems)}", flush=True)
    if keep:
        folder = pathlib.Path(keep) / f"failed_{len(list(pathlib.Path(keep).iterdir()))}"
        folder.mkdir()
        description = cases.write(one, folder)
        for name, array in one.expected.items():
            files.write_array(folder / f"expected_{name}.npy", array)
        print("       " + " ".join(cases.command("attune", description, folder, one.expected)))


def run_family(name, drawn, options):
    """One line about it; how many passed and failed."""
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        pending = [(one, pool.submit(run_case, options.attune, one, 1 + i % 2)) for i, one in enumerate(drawn)]
        results = [(one, future.result()) for one, future in pending]
    failed = [(one, verdict) for one, verdict in results if verdict.problems]
    verdicts = [verdict for _, verdict in results]
    line = f"{name}: {len(results) - len(failed)} of {len(results)}"
    if any(one.expected for one, _ in results):
        line += f", largest difference {max(v.share for v in verdicts):.2f} of the tolerance"
        line += f"; {sum(verdict.checked for verdict in verdicts)} compared with the interpreter's bits"
    if any(one.exact for one, _ in results):
        errors = max(v.error for v in verdicts), max(v.peer_error for v in verdicts)
        line += f"; error against f64 {errors[0]:.1e}, the framework's {errors[1]:.1e}"
    print(line, flush=True)
    for one, verdict in failed:
        show_failure(one, verdict, options.keep)
    return len(results) - len(failed), len(failed)


def record(drawn, folder, number):
    """Adds configurations to the folder, counting on from `number`."""
    for one in drawn:
        target = pathlib.Path(folder) / re.sub("[^a-z0-9]+", "_", one.family.lower())
        target.mkdir(parents=True)
        description = cases.write(one, target)
        expected = {key: f"expected_{key}.npy" for key in one.expected}
        for key, array in one.expected.items():
            if one.empty is not None and key == "out":
                array = cases.fill_empty(one, array)
            files.write_array(target / expected[key], array)
        rtol, atol = one.tolerance()
        description |= {"expected": expected, "rtol": rtol, "atol": atol}
        (target / "case.json").write_text(json.dumps(description, indent=2, ensure_ascii=False) + "\n")
        number += 1
    return number


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attune", default="build/attune", help="the command under test")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="families whose name holds this")
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--keep", metavar="DIR", help="keep the files of what failed here")
    parser.add_argument("--record", metavar="DIR", help="write small configurations there instead, in place of the old")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    if options.keep:
        os.makedirs(options.keep, exist_ok=True)
    if options.record:
        for old in pathlib.Path(options.record).glob("*/case.json"):
            shutil.rmtree(old.parent)

    seen, passed, failed, number = set(), 0, 0, 0
    with tempfile.TemporaryDirectory() as cache:
        os.environ["ATTUNE_CACHE_DIR"] = cache
        for module in load_modules():
            for family, count, forced in module.FAMILIES:
                name = f"{module.TITLE}: {family}"
                if options.only not in name or (options.record and family not in module.RECORDED):
                    continue
                drawn = draw_family(module, family, 1 if options.record else count, forced, options, seen)
                if options.record:
                    number = record(drawn, options.record, number)
                    continue
                right, wrong = run_family(name, drawn, options)
                passed, failed = passed + right, failed + wrong
    if options.record:
        print(f"{number} recorded")
        return 0
    print(f"{len(seen)} configurations, no two of the same structure")
    print(f"{passed} passed, {failed} failed")
    return failed > 0 or passed == 0


if __name__ == "__main__":
    sys.exit(main())
