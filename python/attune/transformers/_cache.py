"""AttuneCache: keys and values that are appended in place."""

from __future__ import annotations

import functools
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

import torch
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from ._codes import CachedTensor, StoredRows

_DTYPES = {
    "f32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "i8": torch.int8,
    "int8": torch.int8,
}
_LEAST_SPARE = 256


class _Store:
    """Tensors [B, H, capacity, ...] whose dimension 2 counts tokens; those from ``first`` to ``end`` are in use.

    Rows in use never move within their memory: growing takes new memory, so views that were handed out stay right.
    """

    def __init__(self, samples: Sequence[torch.Tensor], capacity: Optional[int]):
        self.samples = [sample[:, :, :0] for sample in samples]
        self.tensors: List[torch.Tensor] = []
        self.wanted = capacity or 0
        self.first = self.end = 0

    @property
    def length(self) -> int:
        return self.end - self.first

    @property
    def capacity(self) -> int:
        return self.tensors[0].shape[2] if self.tensors else 0

    def _allocate(self, batch: int, capacity: int) -> List[torch.Tensor]:
        # A tensor made in inference_mode() could not be written outside of it.
        with torch.inference_mode(False):
            return [
                torch.empty((batch, like.shape[1], capacity, *like.shape[3:]), dtype=like.dtype, device=like.device)
                for like in self.samples
            ]

    def _take(self, fill: Callable[..., Any], batch: int, capacity: int) -> None:
        """New memory, whose first rows ``fill(old, new)`` writes."""
        tensors = self._allocate(batch, capacity)
        if self.length:
            for old, new in zip(self.views(), tensors):
                fill(old, new[:, :, : self.length])
        self.tensors, self.end, self.first = tensors, self.length, 0

    @property
    def batch(self) -> int:
        """The number of sequences; 0 while there are no rows."""
        return self.tensors[0].shape[0] if self.length else 0

    def extend(self, count: int, batch: int) -> None:
        """Makes room for ``count`` more rows and counts them as used."""
        if self.end + count > self.capacity or batch != self.tensors[0].shape[0]:
            needed = self.length + count
            capacity = self.wanted if needed <= self.wanted else needed + max(needed // 2, _LEAST_SPARE)
            self._take(lambda old, new: new.copy_(old), batch, capacity)
        self.end += count

    def views(self) -> List[torch.Tensor]:
        tensors = self.tensors or self.samples
        return [tensor[:, :, self.first : self.end] for tensor in tensors]

    def keep_last(self, count: int) -> None:
        self.first = max(self.first, self.end - count)

    def drop_last(self, count: int) -> None:
        self.end = max(self.first, self.end - count)

    def select(self, indices: torch.Tensor) -> None:
        """Selects these sequences of the batch, in this order."""
        self._take(lambda old, new: torch.index_select(old, 0, indices, out=new), indices.numel(), self.capacity)


class _InPlace:
    """What both kinds of layers share: the store, and the methods of transformers' layers on it."""

    def _begin(self, dtype: Optional[torch.dtype], capacity: Optional[int]) -> None:
        self._stored_dtype, self._capacity = dtype, capacity
        self._store: Optional[_Store] = None
        self._rows: Optional[StoredRows] = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        dtype = self._stored_dtype or key_states.dtype
        self._encoded = dtype != key_states.dtype
        samples = [states[:, :, :0].to(dtype) for states in (key_states, value_states)]
        if dtype == torch.int8:
            samples += [states[:, :, :0, 0].to(torch.float32) for states in (key_states, value_states)]
        self._store = _Store(samples, self._capacity)
        self.is_initialized = True

    def _existing(self) -> _Store:
        """The store, which there is once rows have been appended."""
        assert self._store is not None
        return self._store

    def _settle(self) -> None:
        if self._rows is not None:
            self._rows.settle()

    def _append(self, key_states: torch.Tensor, value_states: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Appends the rows and returns all, the new ones among them."""
        for states in (key_states, value_states):
            if states.requires_grad and torch.is_grad_enabled():
                raise RuntimeError("AttuneCache is written in place and has no backward: call it in torch.no_grad()")
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        count = key_states.shape[-2]
        self._check(key_states, value_states, count)
        self._settle()
        store = self._existing()
        store.extend(count, key_states.shape[0])
        views = store.views()
        if self._encoded:
            self._rows = StoredRows(views, (key_states, value_states), self.dtype)
            return CachedTensor(self._rows, 0), CachedTensor(self._rows, 1)
        for view, states in zip(views, (key_states, value_states)):
            view[:, :, view.shape[2] - count :].copy_(states)
        return views[0], views[1]

    def _check(self, key_states: torch.Tensor, value_states: torch.Tensor, count: int) -> None:
        store = self._existing()
        batch = store.batch or key_states.shape[0]
        for states, sample in zip((key_states, value_states), store.samples):
            want = (batch, sample.shape[1], count, *sample.shape[3:])
            if tuple(states.shape) != want or states.dtype != self.dtype:
                raise ValueError(
                    f"the cache holds {self.dtype} of shape {want}, and the new rows are {states.dtype} of shape "
                    f"{tuple(states.shape)}"
                )

    def _content(self, which: int) -> Optional[torch.Tensor]:
        if self._store is None:
            return None
        if not self._encoded:
            return self._store.views()[which]
        if self._rows is None or self._rows.codes[0].shape[2] != self._store.length:
            self._settle()
            self._rows = StoredRows(self._store.views(), None, self.dtype)
        return CachedTensor(self._rows, which)

    def _assign(self, value: Optional[torch.Tensor]) -> None:
        if value is not None:
            raise AttributeError("AttuneCache keeps its rows in place: use update(), crop() or reorder_cache()")
        self._store = self._rows = None

    keys = property(lambda self: self._content(0), _assign)
    values = property(lambda self: self._content(1), _assign)

    @property
    def capacity(self) -> int:
        """The rows that fit into the allocated memory."""
        return self._store.capacity if self._store is not None else 0

    def offload(self) -> None:
        """Nothing: the cache is in the CPU's memory."""

    prefetch = offload

    def reset(self) -> None:
        """Drops all rows. The next update allocates memory anew."""
        self._store = self._rows = None
        self.is_initialized = False
        if hasattr(self, "cumulative_length"):
            self.cumulative_length = 0

    def reorder_cache(self, beam_idx: torch.LongTensor) -> None:
        self._select(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self._store is not None:
            self._select(torch.arange(self._store.batch).repeat_interleave(repeats))

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        if self._store is not None and self._store.length:
            self._select(torch.arange(self._store.batch)[indices])

    def _select(self, indices: torch.Tensor) -> None:
        if self._store is None or not self._store.length:
            return
        self._settle()
        self._rows = None
        self._store.select(indices.to("cpu", torch.long))

    def _drop(self, count: int) -> None:
        self._settle()
        self._rows = None
        self._existing().drop_last(count)


def _refuse_positive(tokens_to_remove: int) -> None:
    if tokens_to_remove > 0:
        raise ValueError(f"crop takes the negative number of tokens to remove, not {tokens_to_remove}")


class AttuneLayer(_InPlace, DynamicLayer):
    """A layer of full attention."""

    def __init__(self, dtype: Optional[torch.dtype] = None, capacity: Optional[int] = None, **kwargs: object):
        self._begin(dtype, capacity)
        super().__init__(**kwargs)

    def update(self, key_states, value_states, *args, **kwargs):
        """Appends the rows in place and returns views of all rows."""
        return self._append(key_states, value_states)

    def get_seq_length(self) -> int:
        return self._store.length if self._store is not None else 0

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last ``-tokens_to_remove`` rows."""
        _refuse_positive(tokens_to_remove)
        if tokens_to_remove and self._store is not None:
            self._drop(-tokens_to_remove)


class AttuneSlidingLayer(_InPlace, DynamicSlidingWindowLayer):
    """A layer of window attention, which keeps the last ``sliding_window - 1`` rows between calls."""

    def __init__(
        self,
        sliding_window: int,
        dtype: Optional[torch.dtype] = None,
        capacity: Optional[int] = None,
        **kwargs: object,
    ):
        self._begin(dtype, None if capacity is None else min(capacity, 2 * sliding_window + _LEAST_SPARE))
        super().__init__(sliding_window=sliding_window, **kwargs)

    def update(self, key_states, value_states, *args, **kwargs):
        """Appends the rows in place and returns the new ones with those that their windows reach."""
        count = key_states.shape[-2]
        kept = self.sliding_window - 1
        keys, values = self._append(key_states, value_states)
        if not self.record_past:
            self._existing().keep_last(kept)
        elif keys.shape[2] > kept + count:
            keys, values = keys[:, :, -kept - count :], values[:, :, -kept - count :]
        self.cumulative_length += count
        return keys, values

    def get_seq_length(self) -> int:
        return self.cumulative_length

    def crop(self, tokens_to_remove: int) -> None:
        """Forgets the last ``-tokens_to_remove`` rows; beyond the window only after activate_past_recording()."""
        if self._store is None:
            return
        if self.cumulative_length >= self.sliding_window and not self.record_past:
            raise RuntimeError(
                f"crop({tokens_to_remove}) needs rows that the window of {self.sliding_window} let go: call "
                f"activate_past_recording() first"
            )
        _refuse_positive(tokens_to_remove)
        full = self.cumulative_length >= self.sliding_window
        self._drop(-tokens_to_remove)
        if full:
            self.cumulative_length += tokens_to_remove
            self._store.keep_last(self.sliding_window - 1)
        else:
            self.cumulative_length = self._store.length


class AttuneCache(DynamicCache):
    """A cache for ``generate()`` that appends in place, into memory that grows by half when it is full.

    ``config`` is the model's; it says which layers have a sliding window. ``dtype`` is the type of the stored rows:
    None (the model's), "f32", "bf16" or "i8" (int8, with one scale for each row), or PyTorch's type. ``capacity`` is
    the number of tokens to allocate at first.

    Any attention implementation can use the cache. Rows of the model's own type are returned as views. The
    implementation "attune" reads rows of another type in place; for others they are converted in each call. After
    ``crop``, later tokens overwrite the removed rows, also in views that were returned before. There is no backward.
    """

    def __init__(
        self,
        config: Any = None,
        dtype: Union[None, str, torch.dtype] = None,
        capacity: Optional[int] = None,
    ):
        stored: Any = _DTYPES.get(dtype, dtype) if isinstance(dtype, str) else dtype
        if stored is not None and stored not in _DTYPES.values():
            raise ValueError(f"dtype of AttuneCache is None, 'f32', 'bf16' or 'i8', not {dtype!r}")
        if capacity is not None and (not isinstance(capacity, int) or capacity < 1):
            raise ValueError(f"capacity of AttuneCache is a positive number of tokens, not {capacity!r}")
        super().__init__(config=config)
        if config is None:
            layer_class: Any = functools.partial(AttuneLayer, dtype=stored, capacity=capacity)
            self.layer_class_to_replicate = layer_class
        # Other layers (linear attention, shared ones) stay as transformers makes them.
        for index, layer in enumerate(self.layers):
            if type(layer) is DynamicLayer:
                self.layers[index] = AttuneLayer(stored, capacity)
            elif type(layer) is DynamicSlidingWindowLayer:
                self.layers[index] = AttuneSlidingLayer(layer.sliding_window, stored, capacity)
