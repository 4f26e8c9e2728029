"""The mask function of the implementation "attune".

It returns the complete boolean 4-D mask that transformers' SDPA would get, or None where SDPA would need none. So a
model may slice the mask, combine it with others, or pass it to another implementation. If attune knows the pattern
(causal, window, padding), a ``Hint`` is attached to the tensor, which the attention function uses instead of the mask.
A model that makes another tensor of the mask loses the hint, but not the mask.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, NamedTuple, Optional, Tuple

import torch
from transformers import masking_utils as stock
from transformers.utils.import_utils import is_tracing

_HINT = "_attune_hint"


class Hint(NamedTuple):
    """A mask as arguments of attune. Queries attend to keys ``first <= j < keys`` of the mask's last dimension only.

    Positions align at the last key (``bottom_right``) or at the first.
    """

    first: int
    keys: int
    causal: bool
    bottom_right: bool
    window_left: int
    window_right: int
    kv_lens: Optional[torch.Tensor]  # int32 [batch]: padding on the right
    key_mask: Optional[torch.Tensor]  # bool [batch, 1, 1, keys - first]: any padding; set where kv_lens is set too
    version: int  # of the mask, to notice changes in place


class _Pattern(NamedTuple):
    causal: bool
    window: int  # 0: none


def _parts(and_mask: Callable) -> Tuple[Callable, ...]:
    return next(cell.cell_contents for cell in and_mask.__closure__ or () if isinstance(cell.cell_contents, tuple))


def _window_of(overlay: Callable) -> int:
    return next(cell.cell_contents for cell in overlay.__closure__ or ())


# The code object of an inner function is the same for every closure, so it identifies the pattern.
_AND = stock.and_masks(stock.causal_mask_function).__code__
_CAUSAL_WINDOW = stock.sliding_window_overlay(1).__code__
_BOTH_WINDOW = stock.sliding_window_bidirectional_overlay(1).__code__


def _recognise(function: Callable) -> Optional[_Pattern]:
    """The pattern of a mask function; None for one that is not known: chunks, packed sequences, a model's own."""
    if function is stock.causal_mask_function:
        return _Pattern(True, 0)
    if function is stock.bidirectional_mask_function:
        return _Pattern(False, 0)
    if getattr(function, "__code__", None) is not _AND:
        return None
    parts = _parts(function)
    if len(parts) != 2:
        return None
    overlay, base = parts
    code, window = getattr(overlay, "__code__", None), 0
    if code in (_CAUSAL_WINDOW, _BOTH_WINDOW):
        window = _window_of(overlay)
    if not isinstance(window, int) or window < 1:
        return None
    if code is _CAUSAL_WINDOW and base is stock.causal_mask_function:
        return _Pattern(True, window)
    if code is _BOTH_WINDOW and base is stock.bidirectional_mask_function:
        return _Pattern(False, window)
    return None


def _span(pattern: _Pattern, offset: int, q_length: int, kv_length: int) -> Optional[Hint]:
    """The hint without padding; None if attune's alignments cannot say where the queries stand."""
    keys = min(kv_length, offset + q_length) if pattern.causal else kv_length
    last = offset + q_length - 1
    if offset < 0 or (pattern.causal and offset + q_length > kv_length):
        return None
    first, left, right = 0, -1, -1
    if pattern.causal:
        if pattern.window and last >= pattern.window:
            if q_length == 1:
                first = keys - pattern.window
            else:
                left = pattern.window - 1
    elif pattern.window:
        if last > pattern.window:
            left = pattern.window
        if keys - 1 - offset > pattern.window:
            right = pattern.window
    positions = left >= 0 or right >= 0 or (pattern.causal and q_length > 1)
    if positions and offset + q_length != keys and offset != 0:
        return None
    causal = pattern.causal and q_length > 1
    return Hint(first, keys, causal, positions and offset != 0, left, right, None, None, 0)


def _with_padding(hint: Hint, padding: torch.Tensor) -> Hint:
    seen = padding[:, hint.first : hint.keys]
    lengths = seen.sum(1)
    if bool((lengths == seen.shape[1]).all()):
        return hint
    hint = hint._replace(key_mask=seen[:, None, None, :].contiguous())
    # kv_lens moves the last key, so positions must not be counted from there.
    if hint.bottom_right or bool((seen[:, 1:] & ~seen[:, :-1]).any()):
        return hint
    return hint._replace(kv_lens=lengths.to(torch.int32))


def _hint(
    pattern: _Pattern,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
    attention_mask: Optional[torch.Tensor],
) -> Optional[Hint]:
    hint = _span(pattern, int(q_offset) - kv_offset, q_length, kv_length)
    if hint is None or attention_mask is None:
        return hint
    padding = stock.prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is None or padding.dim() != 2 or padding.shape[0] != batch_size:
        return None
    return _with_padding(hint, padding[:, kv_offset : kv_offset + kv_length].to(torch.bool))


def _hides_nothing(hint: Hint, kv_length: int) -> bool:
    windows = hint.window_left >= 0 or hint.window_right >= 0
    return hint.key_mask is None and not windows and hint.first == 0 and hint.keys == kv_length


def attune_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable = stock.causal_mask_function,
    attention_mask: Optional[torch.Tensor] = None,
    local_size: Optional[int] = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    use_vmap: bool = False,
    device: object = "cpu",
    **kwargs: object,
) -> Optional[torch.Tensor]:
    """A mask for ``attune_attention``: None, or a boolean 4-D mask, with a hint if attune needs no mask for it.

    None means causal attention of as many queries as keys, one query that attends to every key, or bidirectional
    attention without padding.
    """
    arguments: Dict[str, Any] = dict(
        batch_size=batch_size, q_length=q_length, kv_length=kv_length, q_offset=q_offset, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, local_size=local_size, use_vmap=use_vmap,
        device=device, **kwargs,
    )  # fmt: skip
    tracing = is_tracing(attention_mask) or is_tracing(q_offset)
    pattern = None if use_vmap or tracing else _recognise(mask_function)
    if pattern is None:
        # transformers also skips masks of more keys than queries, for empty static caches. Here None must have one
        # meaning only.
        square = isinstance(q_offset, int) and q_offset + q_length == kv_offset + kv_length
        skip = allow_is_causal_skip and square and (q_length == 1 or q_length == kv_length)
        return stock.sdpa_mask(
            allow_is_causal_skip=skip, allow_is_bidirectional_skip=allow_is_bidirectional_skip, **arguments
        )
    hint = _hint(pattern, batch_size, q_length, kv_length, q_offset, kv_offset, attention_mask)
    skip = allow_is_causal_skip if pattern.causal else allow_is_bidirectional_skip
    if skip and hint is not None and _hides_nothing(hint, kv_length) and not hint.bottom_right:
        return None
    # Tensors of inference_mode() count no versions, so changes in place could not be noticed.
    with torch.inference_mode(False):
        mask = stock.sdpa_mask(allow_is_causal_skip=False, allow_is_bidirectional_skip=False, **arguments)
    if hint is not None and mask is not None and not mask.is_inference():
        setattr(mask, _HINT, hint._replace(version=mask._version))
    return mask


def hint_of(mask: torch.Tensor, q_length: int, kv_length: int) -> Optional[Hint]:
    """The hint of a mask, if the mask is unchanged and has the sizes of this call."""
    hint = getattr(mask, _HINT, None)
    if hint is None or mask._version != hint.version or tuple(mask.shape[-2:]) != (q_length, kv_length):
        return None
    return hint
