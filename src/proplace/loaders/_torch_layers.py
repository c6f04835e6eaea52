"""Layers of torch: what is read, what is not, and what to do then."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from proplace.core.network import Array, Precision
    from proplace.loaders._chain import Activation

READ = (
    "only Linear and ReLU layers, BatchNorm1d, Dropout, Identity, Flatten, an Embedding of a column "
    "in front of them and a last Sigmoid, Softmax or LogSoftmax are read"
)
RELU_INSTEAD = f"{READ}. Train the model with ReLU in its place"
_NORMALISED_ROWS = (
    f"{READ}. It divides each row by that row's own spread, which no fixed layer does; train the "
    "model with BatchNorm1d in its place"
)
_OTHERS = f"{READ}. Train the model with those"


def where_of(path: str, leaf: Any) -> str:
    """Return what to call a layer in messages."""
    kind = type(leaf).__name__
    return f"layer {path!r} ({kind})" if path else f"the module ({kind})"


def numpy_of(tensor: Any) -> Array:
    """Return a tensor as float64 numbers."""
    return np.asarray(tensor.detach().cpu().double().numpy(), dtype=np.float64)


def skipped(nn: Any) -> tuple[type, ...]:
    """Layers that do nothing to a row once training is over."""
    # Losses are registered by some training frameworks; the comparison shows that they are unused.
    return (
        nn.modules.dropout._DropoutNd,
        nn.Identity,
        nn.Flatten,
        nn.modules.loss._Loss,
    )


def activation_of(nn: Any, leaf: Any) -> Activation | None:
    """Return the last activation that a layer is, if any."""
    kinds: list[tuple[type, Activation]] = [
        (nn.Sigmoid, "sigmoid"),
        (nn.Softmax, "softmax"),
        (nn.LogSoftmax, "log_softmax"),
    ]
    return next((name for kind, name in kinds if isinstance(leaf, kind)), None)


def check_leaf(nn: Any, path: str, leaf: Any) -> None:
    """Raise unless a layer is one of those that are read."""
    where = where_of(path, leaf)
    if isinstance(leaf, nn.Linear):
        _check_linear(nn, where, leaf)
        return
    if isinstance(leaf, nn.BatchNorm1d):
        _check_batch_norm(nn, where, leaf)
        return
    if isinstance(leaf, nn.Embedding):
        _check_embedding(where, leaf)
        return
    if isinstance(leaf, (nn.ReLU, *skipped(nn))) or activation_of(nn, leaf) is not None:
        return
    raise ModelNotSupportedError(f"{where} is not part of a ReLU network; {_hint(nn, leaf)}")


def _hint(nn: Any, leaf: Any) -> str:
    if isinstance(leaf, (nn.LayerNorm, nn.GroupNorm, nn.modules.instancenorm._InstanceNorm)):
        return _NORMALISED_ROWS
    attends = isinstance(leaf, nn.MultiheadAttention)
    if type(leaf).__module__ == "torch.nn.modules.activation" and not attends:
        return RELU_INSTEAD
    return _OTHERS


def _check_linear(nn: Any, where: str, leaf: Any) -> None:
    if nn.parameter.is_lazy(leaf.weight) or leaf.weight.is_meta:
        raise ModelNotSupportedError(f"{where} has no weights yet; run or load the module first")
    others = [name for name, _ in leaf.named_parameters() if name not in ("weight", "bias")]
    if others:
        raise ModelNotSupportedError(
            f"{where} computes its weights from {', '.join(others)}; bake them in first with "
            f"torch.nn.utils.{_baking(leaf, others)}"
        )


def _baking(leaf: Any, others: list[str]) -> str:
    """Return the call that makes computed weights plain ones."""
    if hasattr(leaf, "parametrizations"):
        return "parametrize.remove_parametrizations(layer, 'weight')"
    if hasattr(leaf, "weight_mask"):
        return "prune.remove(layer, 'weight')"
    return "remove_weight_norm(layer)" if "weight_g" in others else "remove_spectral_norm(layer)"


def _check_batch_norm(nn: Any, where: str, leaf: Any) -> None:
    if leaf.running_mean is None or leaf.running_var is None:
        raise ModelNotSupportedError(
            f"{where} has no running statistics, so what it does to a row depends on the other rows "
            "of the batch; train it with track_running_stats=True, the default"
        )
    if nn.parameter.is_lazy(leaf.running_mean) or leaf.running_mean.is_meta:
        raise ModelNotSupportedError(f"{where} has no weights yet; run or load the module first")
    if leaf.training:
        raise ModelNotSupportedError(
            f"{where} is in training mode, in which it normalises each batch by itself; call "
            "module.eval() first, as for the use of the model"
        )


def _check_embedding(where: str, leaf: Any) -> None:
    if leaf.weight.is_meta:
        raise ModelNotSupportedError(f"{where} has no weights yet; run or load the module first")
    if leaf.max_norm is not None:
        raise ModelNotSupportedError(
            f"{where} has max_norm={leaf.max_norm}, which rescales its weights while it runs; run it "
            "once on every category, so that all are rescaled, then set its max_norm to None"
        )


def batch_norm_of(leaf: Any) -> tuple[Array, Array, Array, Array]:
    """Mean, deviation, factor and shift: ``(h - mean) / deviation * factor + shift``."""
    mean = numpy_of(leaf.running_mean)
    deviation = np.sqrt(numpy_of(leaf.running_var) + leaf.eps)
    factor = np.ones_like(mean) if leaf.weight is None else numpy_of(leaf.weight)
    shift = np.zeros_like(mean) if leaf.bias is None else numpy_of(leaf.bias)
    return mean, deviation, factor, shift


def precision_of(torch: Any, name: str, tensors: Iterable[Any]) -> Precision:
    """Say what a module computes in: what its weights and statistics are stored in.

    One float32 tensor is enough for float32. Anything coarser is rejected.
    """
    kinds = {str(t.dtype).removeprefix("torch.") for t in tensors if t.dtype.is_floating_point}
    if kinds <= {"float32", "float64"}:
        return "float64" if kinds == {"float64"} else "float32"
    raise ModelNotSupportedError(
        f"the weights of {name} are {', '.join(sorted(kinds))}; margins cover the rounding of float32 "
        "and float64 models only. Read module.float() (every weight keeps its value), and use the model "
        "in float32, too"
    )
