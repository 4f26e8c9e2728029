"""PagedCache: the pages of an Attention's cache, handed out to sequences."""

from __future__ import annotations

import sys
from typing import Any, Dict, Hashable, Iterable, List, Sequence, Tuple

from ._errors import InvalidArgumentError, InvalidTypeError, OutOfMemoryError
from ._steps import Attention
from ._tensor import empty, is_torch
from ._values import integer, kind

_CACHES = ("k_cache", "v_cache", "k_scale", "v_scale")
_MOST = 2**31 - 1


class _Sequence:
    __slots__ = ("length", "pages")

    def __init__(self) -> None:
        self.length = 0
        self.pages: List[int] = []


class PagedCache:
    """The cache of an `Attention` with kv="paged", with the pages of each sequence.

        cache = attune.PagedCache(attention, num_pages=1024)
        cache.append("a", len(prompt))
        out = attention.run(q, k, v, cu_seqlens_q=[0, len(prompt)], **cache.batch(["a"]))

    The name of a sequence is anything that can be a key of a dict. fork() shares the pages of a prefix; append() copies
    a shared page before it makes room in it. One thread at a time may change the cache, and none while a step runs on
    it.

    like: a torch tensor: the cache has torch tensors. Otherwise it has NumPy arrays, in bf16 with the dtype of like.
    k_cache, v_cache, k_scale, v_scale: the tensors, None if the attention has none. They are not initialised. Scales of
    heads and channels belong to no page and are NaN: set them before the first step.
    """

    def __init__(self, attention: Attention, num_pages: int, *, like: Any = None) -> None:
        if not isinstance(attention, Attention):
            raise InvalidTypeError(f"attention is {kind(attention)}; it must be an attune.Attention")
        if attention.kv != "paged":
            raise InvalidArgumentError(f"the attention's kv is {attention.kv!r}; a PagedCache needs 'paged'")
        self.num_pages = integer(num_pages, "num_pages", 1, _MOST)
        self.page_size = attention.page_size
        self.tensors: Dict[str, Any] = {}
        self._paged: List[str] = []
        for name in _CACHES:
            place = attention._places.get(name)
            if place is None:
                continue
            shape = [self.num_pages if dim == "num_pages" else int(dim) for dim in place.dims]
            tensor = empty(() if like is None else (like,), place.info.dtype, shape)
            if len(shape) < 3:
                tensor[...] = float("nan")
            else:
                self._paged.append(name)
            self.tensors[name] = tensor
        self.k_cache, self.v_cache = self.tensors.get("k_cache"), self.tensors.get("v_cache")
        self.k_scale, self.v_scale = self.tensors.get("k_scale"), self.tensors.get("v_scale")
        self._free = list(range(self.num_pages - 1, -1, -1))
        self._users = [0] * self.num_pages
        self._sequences: Dict[Hashable, _Sequence] = {}

    @property
    def free_pages(self) -> int:
        """The number of pages that no sequence has."""
        return len(self._free)

    @property
    def sequences(self) -> List[Hashable]:
        """The names of the sequences."""
        return list(self._sequences)

    def __contains__(self, seq: Hashable) -> bool:
        return seq in self._sequences

    def length(self, seq: Hashable) -> int:
        """The tokens of a sequence; 0 for one that the cache does not have."""
        return self._sequences[seq].length if seq in self._sequences else 0

    def _of(self, seq: Hashable) -> _Sequence:
        if seq not in self._sequences:
            raise InvalidArgumentError(f"the cache has no sequence {seq!r}")
        return self._sequences[seq]

    def _take(self) -> int:
        page = self._free.pop()
        self._users[page] = 1
        return page

    def _give_back(self, pages: Sequence[int]) -> None:
        for page in reversed(pages):
            self._users[page] -= 1
            if not self._users[page]:
                self._free.append(page)

    def append(self, seq: Hashable, n: int = 1) -> None:
        """Makes room for n more tokens of a sequence, an old or a new one: the next step writes them.

        Raises OutOfMemoryError if there are too few pages; then nothing has changed.
        """
        n = integer(n, "n", 0, _MOST)
        sequence = self._sequences.get(seq) or _Sequence()
        last = sequence.length // self.page_size  # the page that the first new token goes to
        is_shared = n > 0 and last < len(sequence.pages) and self._users[sequence.pages[last]] > 1
        wanted = -(-(sequence.length + n) // self.page_size) - len(sequence.pages)
        if wanted + is_shared > len(self._free):
            raise OutOfMemoryError(
                f"sequence {seq!r} needs {wanted + is_shared} more pages for {n} tokens, and {len(self._free)} of"
                f" {self.num_pages} are free"
            )
        if is_shared:
            page = self._take()
            for name in self._paged:
                self.tensors[name][page] = self.tensors[name][sequence.pages[last]]
            self._give_back([sequence.pages[last]])
            sequence.pages[last] = page
        sequence.pages += [self._take() for _ in range(wanted)]
        sequence.length += n
        self._sequences[seq] = sequence

    def truncate(self, seq: Hashable, length: int) -> None:
        """Cuts a sequence to its first `length` tokens, as after a rejected draft, and frees the pages of the rest."""
        sequence = self._of(seq)
        sequence.length = integer(length, "length", 0, sequence.length)
        count = -(-sequence.length // self.page_size)
        self._give_back(sequence.pages[count:])
        del sequence.pages[count:]

    def free(self, seq: Hashable) -> None:
        """Ends a sequence. Pages that no other one shares are free again."""
        self._give_back(self._of(seq).pages)
        del self._sequences[seq]

    def fork(self, seq: Hashable, new: Hashable) -> None:
        """Begins a sequence with the tokens of another one, whose pages both then share."""
        source = self._of(seq)
        if new in self._sequences:
            raise InvalidArgumentError(f"the cache has a sequence {new!r} already")
        copy = _Sequence()
        copy.length, copy.pages = source.length, list(source.pages)
        for page in copy.pages:
            self._users[page] += 1
        self._sequences[new] = copy

    def _integers(self, values: List[int], shape: Tuple[int, ...]) -> Any:
        """An int32 tensor of the kind of the caches."""
        result = empty(list(self.tensors.values()), "i32", shape)
        result.reshape(-1)[:] = sys.modules["torch"].tensor(values) if is_torch(result) else values
        return result

    def batch(self, seqs: Iterable[Hashable]) -> Dict[str, Any]:
        """The arguments of `Attention.run` for these sequences: the caches, kv_lens, block_table."""
        those = [self._of(seq) for seq in seqs]
        columns = max([len(one.pages) for one in those], default=0) or 1
        lens = self._integers([one.length for one in those], (len(those),))
        rows = [page for one in those for page in one.pages + [0] * (columns - len(one.pages))]
        table = self._integers(rows, (len(those), columns))
        return {**self.tensors, "kv_lens": lens, "block_table": table}

    def __repr__(self) -> str:
        return (f"<attune.PagedCache of {len(self._sequences)} sequences, {self.free_pages} of {self.num_pages} pages"
                " free>")
