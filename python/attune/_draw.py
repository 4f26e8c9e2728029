"""Random tensors for a call of any problem, for tune() and check(). Needs the standard library only."""

from __future__ import annotations

import ctypes
import math
import random
import struct
from array import array
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence

from ._errors import InvalidArgumentError, UnsupportedError
from ._library import check, lib, quick
from ._problem import Problem, TensorInfo, tensors_of
from ._structs import SIZES, Arguments, Weights, sized
from ._tensor import BYTES
from ._values import integer

_PERIOD = 4093  # values repeat after so many, a prime: no dim divides it
_OPEN = 64  # a length that nothing tells
_PACK = {"f32": "f", "f64": "d", "f16": "e", "i32": "i", "i8": "b", "f8": "B", "bool": "B"}
_BLOB_ALIGN = 64


def encode(values: Sequence[float], dtype: str) -> bytes:
    """Numbers as elements of a dtype; of i8, f8 and bool they are the codes themselves."""
    if dtype == "bf16":
        words = array("I", struct.pack(f"{len(values)}f", *values))
        return struct.pack(f"{len(values)}H", *(word >> 16 for word in words))
    return struct.pack(f"{len(values)}{_PACK[dtype]}", *values)


def decode(data: bytes, dtype: str) -> List[float]:
    """The inverse of `encode`."""
    if dtype == "bf16":
        words = struct.unpack(f"{len(data) // 2}H", data)
        return list(struct.unpack(f"{len(words)}f", struct.pack(f"{len(words)}I", *(word << 16 for word in words))))
    return list(struct.unpack(f"{len(data) // BYTES[dtype]}{_PACK[dtype]}", data))


class Memory:
    """Memory of one tensor, aligned to 64 bytes."""

    def __init__(self, bytes: int) -> None:
        self.bytes = bytes
        self._raw = (ctypes.c_char * (bytes + _BLOB_ALIGN))()
        self.address = -(-ctypes.addressof(self._raw) // _BLOB_ALIGN) * _BLOB_ALIGN

    def fill(self, pattern: bytes) -> None:
        """Writes a pattern again and again."""
        times = -(-self.bytes // max(len(pattern), 1))
        ctypes.memmove(self.address, (pattern * times)[: self.bytes], self.bytes)

    def read(self) -> bytes:
        return ctypes.string_at(self.address, self.bytes)


def extent(tensor: TensorInfo) -> int:
    """Elements from a tensor's first to after its last one."""
    if 0 in tensor.shape:
        return 0
    return 1 + sum((dim - 1) * abs(stride) for dim, stride in zip(tensor.shape, tensor.strides))


class Drawn:
    """The arguments of a call and the memory that they point to. The same seed gives the same values.

    `values` gives the elements of a tensor in place of random ones (None: draw them).
    """

    def __init__(
        self,
        problem: Problem,
        sizes: Optional[Mapping[str, int]] = None,
        seed: int = 1,
        values: Optional[Callable[[TensorInfo], Optional[bytes]]] = None,
    ) -> None:
        self.problem, self._fields = problem, problem.fields
        self.arguments = sized(Arguments)
        check(quick.attune_arguments_init_sized(self.arguments, ctypes.sizeof(Arguments), problem._struct))
        self._settle(dict(sizes or {}))
        self.memory: Dict[str, Memory] = {}
        self.tensors = tensors_of(problem, ctypes.byref(self.arguments))
        for tensor in self.tensors:
            if -1 in tensor.shape:
                raise UnsupportedError(f"{tensor.name} has the shape {list(tensor.shape)}: give its sizes", 5)
            self.memory[tensor.name] = self._draw(tensor, random.Random(f"{seed}:{tensor.name}"), values)
            place = ctypes.addressof(self.arguments) + tensor.pointer_offset
            ctypes.c_void_p.from_address(place).value = self.memory[tensor.name].address

    def _number(self, name: str, default: int) -> int:
        value = self._fields.get(name)
        return value if isinstance(value, int) else default

    def _settle(self, sizes: Dict[str, int]) -> None:
        """Fills in sizes that the problem leaves open and the caller does not tell."""
        a = self.arguments
        unknown = set(sizes) - SIZES
        if unknown:
            known = ", ".join(sorted(SIZES))
            raise InvalidArgumentError(f"there is no size named {sorted(unknown)[0]!r}: sizes are {known}")
        for name, value in sizes.items():
            setattr(a, name, integer(value, f"the size {name}", -(2**63), 2**63 - 1))

        def settle(name: str, value: int) -> None:
            if getattr(a, name) < 0:
                setattr(a, name, value)

        settle("seq_q", min(_OPEN, self._number("max_seq_q", _OPEN) or _OPEN))
        settle("seq_kv", min(_OPEN, self._number("max_seq_kv", _OPEN) or _OPEN))
        settle("seq_new", min(a.seq_q, a.seq_kv))
        settle("num_rows", min(4, a.seq_q))
        settle("total_q", a.batch * a.seq_q)
        settle("total_kv", a.batch * a.seq_kv)
        page = self._number("page_size", 0) or 1
        settle("max_pages", -(-a.seq_kv // page))
        settle("num_pages", a.batch * a.max_pages)
        settle("rotary_positions", a.seq_q + a.seq_kv)

    def _integers(self, tensor: TensorInfo) -> List[int]:
        a, count = self.arguments, extent(tensor)
        if tensor.name == "kv_lens":
            return [a.seq_kv] * count
        if tensor.name in ("cu_seqlens_q", "cu_seqlens_kv"):
            length, total = (a.seq_q, a.total_q) if tensor.name.endswith("_q") else (a.seq_kv, a.total_kv)
            return [min(b * length, total) for b in range(count)]
        if tensor.name == "block_table":
            return [i % max(a.num_pages, 1) for i in range(count)]
        if tensor.name == "position_ids":
            return [i % max(a.seq_q, 1) for i in range(count)]
        if tensor.name == "row_ids":
            return [i % max(a.seq_q, 1) for i in range(count)]
        return [0] * count

    def _numbers(self, tensor: TensorInfo, draw: random.Random) -> List[float]:
        count = min(extent(tensor), _PERIOD)
        if tensor.dtype == "bool":
            return [int(draw.random() < 0.8) for _ in range(count)]
        if tensor.name in ("k", "v") and str(self._fields.get(f"{tensor.name}_scales")).startswith("inline"):
            return [draw.randint(0x18, 0x28) for _ in range(count)]  # any two bytes are a small f16, too
        if tensor.dtype == "i8":
            return [draw.randint(-127, 127) for _ in range(count)]
        if tensor.dtype == "f8":
            return [draw.randint(0x20, 0x40) | draw.choice((0, 0x80)) for _ in range(count)]
        if tensor.name in ("k_scale", "v_scale"):
            return [draw.uniform(0.005, 0.02) for _ in range(count)]
        if tensor.name in ("cos", "sin"):
            function = math.cos if tensor.name == "cos" else math.sin
            angles = random.Random("angles")
            return [function(angles.uniform(-3, 3)) for _ in range(count)]
        return [draw.gauss(0, 1) for _ in range(count)]

    def _draw(self, tensor: TensorInfo, draw: random.Random, values: Any) -> Memory:
        if tensor.name == "packed_weights":
            return self._pack(draw)
        memory = Memory(extent(tensor) * BYTES[tensor.dtype])
        given = values(tensor) if values and tensor.is_input else None
        if given is not None:
            memory.fill(given)
        elif tensor.dtype == "i32":
            memory.fill(encode(self._integers(tensor), "i32"))
        elif tensor.is_input:
            memory.fill(encode(self._numbers(tensor, draw), tensor.dtype))
        return memory

    def _pack(self, draw: random.Random) -> Memory:
        """Random weights of a block as a blob."""
        weights, kept = sized(Weights), []
        size = ctypes.c_size_t()
        check(quick.attune_mha_weights_init_sized(ctypes.byref(weights), weights.struct_size, self.problem._struct, 0))
        dtype = str(self._fields.get("w_dtype", ""))
        if dtype in ("", "i8", "i4"):  # codes are made of numbers of any type
            dtype = str(self._fields.get("dtype", "f32"))
        for index in range(8):  # separate matrices and biases, not those of qkv in one
            weight = weights.tensor[index]
            if not weight.rank:
                continue
            count = math.prod(weight.dims[: weight.rank])
            wide = math.sqrt(weight.dims[weight.rank - 1])
            memory = Memory(count * BYTES[dtype])
            memory.fill(encode([draw.gauss(0, 1) / wide for _ in range(min(count, _PERIOD))], dtype))
            kept.append(memory)
            weight.data = memory.address
        check(quick.attune_packed_weights_size(self.problem._struct, ctypes.byref(size)))
        blob = Memory(size.value)
        check(lib.attune_pack_weights(self.problem._struct, ctypes.byref(weights), blob.address, size.value))
        return blob

    def outputs(self) -> Dict[str, bytes]:
        """The bytes of all outputs."""
        return {tensor.name: self.memory[tensor.name].read() for tensor in self.tensors if tensor.is_output}
