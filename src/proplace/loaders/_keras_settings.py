"""Settings of Keras layers as plain values, and how layers and settings are refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelNotSupportedError

if TYPE_CHECKING:
    from collections.abc import Mapping

# Layers that do nothing when a trained model is used.
SKIPPED = frozenset(
    {
        "ActivityRegularization",
        "AlphaDropout",
        "Dropout",
        "GaussianDropout",
        "GaussianNoise",
        "Identity",
    }
)
ACTIVATIONS = ("linear", "relu", "sigmoid", "softmax", "log_softmax")
FLOATS = ("float32", "float64", "float16", "bfloat16")
_DTYPES = (*FLOATS, "mixed_float16", "mixed_bfloat16")
_FOR_TRAINING = frozenset(
    {
        "momentum",
        "name",
        "renorm_momentum",
        "trainable",
        "activity_regularizer",
        "moving_mean_initializer",
        "moving_variance_initializer",
    }
    | {
        f"{part}_{what}"
        for part in ("beta", "bias", "embeddings", "gamma", "kernel")
        for what in ("constraint", "initializer", "regularizer")
    }
)
_JOINS = frozenset(
    {"Add", "Average", "Dot", "Maximum", "Minimum", "Multiply", "Subtract", "Concatenate"}
)
_READ = (
    "only Dense and ReLU layers, BatchNormalization, Dropout, Flatten and a last sigmoid or softmax "
    "are read, and in front of the first Dense layer Normalization, Rescaling, StringLookup, "
    "IntegerLookup, CategoryEncoding, Embedding, Reshape and Concatenate"
)
_OWN_SPREAD = (
    "It divides each row by that row's own spread, which no fixed layer does; train the model with "
    "BatchNormalization in its place"
)
_HINTS = {
    "GroupNormalization": _OWN_SPREAD,
    "LayerNormalization": _OWN_SPREAD,
    "RMSNormalization": _OWN_SPREAD,
    "UnitNormalization": _OWN_SPREAD,
    "Discretization": (
        "Cut the column into bins in the table beforehand and give the model the number of the bin, "
        "through CategoryEncoding"
    ),
    "Hashing": "Give the model the categories themselves, through StringLookup or IntegerLookup",
}


def activation_refusal(where: str, name: str) -> ModelNotSupportedError:
    """Return the refusal of an activation that is not read."""
    return ModelNotSupportedError(
        f"{where} has the activation {name!r}; only relu is read, and linear, sigmoid or softmax "
        "in the last layer. Train the model with those"
    )


def refusal(where: str, kind: str) -> ModelNotSupportedError:
    """Return the refusal of a layer of a kind that is not read."""
    hint = _HINTS.get(kind, "Train the model with those")
    return ModelNotSupportedError(f"{where} is not part of a ReLU network; {_READ}. {hint}")


def joins(where: str, kind: str, branches: int) -> ModelNotSupportedError:
    """Return the refusal of a layer that takes the values of several others."""
    if kind not in _JOINS:
        return refusal(where, kind)
    return ModelNotSupportedError(
        f"{where} joins {branches} branches; columns may be joined by Concatenate in front of the "
        "first Dense layer, behind it each layer must feed exactly the next (no skip connections). "
        "Train the model without the other branches"
    )


class Settings:
    """The settings of one layer, each taken out as a plain value of the type it must have."""

    def __init__(self, where: str, values: Mapping[str, Any]) -> None:
        self._where = where
        self._values = values
        self._seen = set(_FOR_TRAINING)

    def raw(self, key: str) -> Any:
        self._seen.add(key)
        return self._values.get(key)

    def check_rest(self) -> None:
        """Refuse settings that no builder asked for, unless they are switched off."""
        for key, value in self._values.items():
            if key not in self._seen and value is not None and value is not False:
                raise ModelNotSupportedError(
                    f"{self._where} has the setting {key[:100]!r}, which is not known here; save "
                    "the model without it, or export it to ONNX"
                )

    def flag(self, key: str, default: bool) -> bool:
        value = self.raw(key)
        return default if value is None else bool(self._typed(key, value, bool))

    def whole(self, key: str) -> int:
        return int(self._typed(key, self.raw(key), int))

    def number(self, key: str) -> float | None:
        value = self.raw(key)
        return None if value is None else float(self._typed(key, value, int, float))

    def choice(self, key: str, choices: tuple[str, ...], default: str) -> str:
        value = self.raw(key)
        if value is None:
            return default
        if value not in choices:
            raise self._wrong(key, value)
        return str(value)

    def sizes(self, key: str) -> tuple[int, ...]:
        """Return a shape, in which one size may be -1."""
        value = unwrapped(self.raw(key))
        if not isinstance(value, list) or not all(type(v) is int and v >= -1 for v in value):
            raise self._wrong(key, value)
        return tuple(value)

    def numbers(self, key: str) -> Any:
        """A number or (nested) lists of them, as an array; None where it is not set."""
        value = unwrapped(self.raw(key))
        if value is None:
            return None
        array = np.asarray(value)  # ragged lists are a ValueError
        if array.dtype.kind not in "fiu":
            raise self._wrong(key, value)
        return array

    def axis(self, key: str, default: int | None) -> int | tuple[int, ...] | None:
        value = unwrapped(self.raw(key)) if key in self._values else default
        if value is None:
            return None
        axes = value if isinstance(value, list) else [value]
        if not all(type(axis) is int and abs(axis) < 32 for axis in axes):
            raise self._wrong(key, value)
        return tuple(axes) if isinstance(value, list) else int(axes[0])

    def dtype(self) -> str:
        value = self.raw("dtype")
        match value:
            case {"class_name": "DTypePolicy" | "FloatDTypePolicy", "config": {"name": str(name)}}:
                value = name
        if value is None:
            return "float32"
        if not isinstance(value, str) or value not in _DTYPES:
            raise ModelNotSupportedError(
                f"{self._where} computes in {str(value)[:200]!r}; quantized layers are not read. "
                "Give the model from before that"
            )
        return value

    def _typed(self, key: str, value: Any, *kinds: type) -> Any:
        if type(value) not in kinds:
            raise self._wrong(key, value)
        return value

    def _wrong(self, key: str, value: Any) -> ModelNotSupportedError:
        return ModelNotSupportedError(
            f"{self._where} has {key}={str(value)[:200]}, which is not read"
        )


def unwrapped(value: Any) -> Any:
    """Return the plain lists inside what Keras writes for arrays and tuples."""
    match value:
        case {"class_name": "__numpy__" | "__tensor__", "config": {"value": inner}}:
            return inner
        case {"class_name": "__tuple__", "items": inner}:
            return inner
    return value
