"""attune inside transformers (version 5 or later): attention, masks and a cache for ``generate()``.

    import attune.transformers
    attune.transformers.register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="attune")
    cache = attune.transformers.AttuneCache(config=model.config)
    model.generate(**inputs, past_key_values=cache)

``register()`` adds the implementation "attune". Calls that attune does not support run as stock PyTorch, and
``stats()`` counts them by reason. ``AttuneCache`` works with every attention implementation.

Three functions let attune compute other parts of a model: ``replace_linear_attention(model)`` layers of linear
attention (Qwen3-Next, Qwen3.5 …), ``replace_mla(model)`` the blocks of multi-head latent attention of DeepSeek-V2, V3
and the like, and ``replace_index(model)`` the index of sparse attention of DeepSeek-V3.2 and GLM-5.
"""

from __future__ import annotations

import re

_OLDEST = 5


def _check_version() -> None:
    try:
        import transformers
    except ImportError as error:
        raise ImportError("attune.transformers needs the package transformers, version 5 or later") from error
    major = re.match(r"\d+", transformers.__version__)
    if not major or int(major.group()) < _OLDEST:
        raise ImportError(
            f"attune.transformers needs transformers {_OLDEST} or later, and this is {transformers.__version__}"
        )


_check_version()

from ._attention import attune_attention  # noqa: E402  (after the version check)
from ._cache import AttuneCache  # noqa: E402
from ._index import replace_index, restore_index  # noqa: E402
from ._linear import replace_linear_attention, restore_linear_attention  # noqa: E402
from ._masks import attune_mask  # noqa: E402
from ._mla import replace_mla, restore_mla  # noqa: E402
from ._stats import reset_stats, stats  # noqa: E402

__all__ = [
    "AttuneCache",
    "NAME",
    "attune_attention",
    "attune_mask",
    "register",
    "replace_index",
    "replace_linear_attention",
    "replace_mla",
    "reset_stats",
    "restore_index",
    "restore_linear_attention",
    "restore_mla",
    "stats",
]

NAME = "attune"


def register() -> None:
    """Adds the attention implementation "attune" to transformers. Repeated calls change nothing.

    Afterwards ``attn_implementation="attune"`` and ``model.set_attn_implementation("attune")`` work. The attention
    function and the mask function are added together: without the second, transformers would drop every mask.
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface

    from . import _ops

    _ops.load()
    AttentionMaskInterface.register(NAME, attune_mask)
    AttentionInterface.register(NAME, attune_attention)
