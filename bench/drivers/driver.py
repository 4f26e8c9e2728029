"""What the drivers written in Python have in common; docs/bench.md has the protocol."""
import dataclasses
import math
import os
import sys
import time

import numpy


@dataclasses.dataclass
class Problem:
    kind: str
    method: str
    data: str  # folder of the inputs
    batch: int = 1
    heads: int = 1
    kv_heads: int = 1
    rows: int = 1
    keys: int = 1
    dim: int = 1
    embed: int = 0
    causal: int = 0
    dtype: str = "f32"
    kv: str = ""  # dtype of keys and values: f32, bf16, f16, i8, f8; "": as the rest
    scales: str = ""  # of i8 and f8: "head", "token" or ""
    threads: int = 0  # at most so many; 0: all

    @property
    def scale(self):
        return 1 / math.sqrt(self.dim)

    def read(self, name, *shape):
        return numpy.fromfile(os.path.join(self.data, name), numpy.float32).reshape(shape)

    def read_heads(self):
        """q, k and v, each [batch, heads, length, dim]."""
        q = self.read("q", self.batch, self.heads, self.rows, self.dim)
        return q, *(self.read(name, self.batch, self.kv_heads, self.keys, self.dim) for name in "kv")

    def read_codes(self, name):
        """Codes of keys or values of dtype i8 [batch, heads, length, dim], and their scales."""
        codes = numpy.fromfile(os.path.join(self.data, f"{name}_codes"), numpy.int8)
        return codes.reshape(self.batch, self.kv_heads, self.keys, self.dim), self.read(f"{name}_scale", -1)


class Cannot(Exception):
    """This peer does not do that."""


def parse(words):
    fields = {field.name: field.type for field in dataclasses.fields(Problem)}
    pairs = dict(word.split("=", 1) for word in words.split())
    return Problem(**{key: fields[key](value) for key, value in pairs.items()})


def run(call, warm, calls):
    """Nanoseconds of one of the calls, by the clock and of the processor."""
    for _ in range(warm):
        call()
    turns = range(calls)
    cpu, start = time.process_time_ns(), time.perf_counter_ns()
    for _ in turns:
        call()
    end, cpu_end = time.perf_counter_ns(), time.process_time_ns()
    return f"{(end - start) / calls:.3f} {(cpu_end - cpu) / calls:.3f}"


def serve(methods, version, prepare):
    """Answers lines until the input ends. `prepare` takes a Problem and returns a function without arguments that does
    one call, and one that gives its result as an array."""
    # Libraries that print do so elsewhere.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    answers.write(f"hello {','.join(methods)} {version}\n")
    answers.flush()
    call = output = None
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        try:
            answer = ""
            if word == "prepare":
                call = output = None
                call, output = prepare(parse(rest))
            elif word == "drop":
                call = output = None
            elif call is None:
                raise Cannot("nothing is prepared")
            elif word == "run":
                answer = run(call, *(int(number) for number in rest.split()))
            elif word == "write":
                answer = run(call, 0, 1)
                numpy.ascontiguousarray(output(), numpy.float32).tofile(rest)
            else:
                raise Cannot(f"what is '{word}'?")
            answers.write(f"ok {answer}".strip() + "\n")
        except Exception as error:  # whatever a library throws is this peer's answer
            answers.write(f"no {' '.join(str(error).split())[:400] or type(error).__name__}\n")
        answers.flush()
