"""Functions of torch.nn.functional on values that are traced: each of a few operations."""

from __future__ import annotations

from typing import Any

from .traced import _OPERATIONS, Traced, _op, _refuse, _traced


def _relu(x: Any, inplace: bool = False) -> Traced:
    return _op("maximum", 0, x)


def _hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Traced:
    return _op("clamp", x, min_val, max_val)


def _relu6(x: Any, inplace: bool = False) -> Traced:
    return _op("clamp", x, 0, 6)


def _leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
    return _op("where", _op("gt", x, 0), x, _op("mul", x, negative_slope))


def _elu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Traced:
    return _op("where", _op("gt", x, 0), x, _op("mul", alpha, _op("expm1", x)))


def _silu(x: Any, inplace: bool = False) -> Traced:
    return _op("mul", x, _op("sigmoid", x))


def _softplus(x: Any, beta: float = 1, threshold: float = 20) -> Traced:
    scaled = _op("mul", x, beta) if beta != 1 else x
    return _op("where", _op("gt", scaled, threshold), x, _op("div", _op("log1p", _op("exp", scaled)), beta))


def _log_sigmoid(x: Any) -> Traced:
    return _op("sub", _op("minimum", x, 0), _op("log1p", _op("exp", _op("neg", _op("abs", x)))))


def _gelu(x: Any, approximate: str = "none") -> Traced:
    if approximate != "tanh":
        raise _refuse("gelu without approximate='tanh'")
    cubic = _op("add", x, _op("mul", 0.044715, _op("pow", x, 3)))
    return _op("mul", _op("mul", 0.5, x), _op("add", 1, _op("tanh", _op("mul", 0.7978845608028654, cubic))))


_OPERATIONS.update({
    "relu": _relu, "hardtanh": _hardtanh, "relu6": _relu6, "leaky_relu": _leaky_relu, "elu": _elu, "silu": _silu,
    "softplus": _softplus, "log_sigmoid": _log_sigmoid, "logsigmoid": _log_sigmoid, "gelu": _gelu,
    "expit": _OPERATIONS["sigmoid"],
})
