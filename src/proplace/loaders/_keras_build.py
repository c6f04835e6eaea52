"""A Keras model built by this package from the description in a file.

There is one builder for each kind of layer that is read. It takes plain values out of the layer's
settings, looks at each of them, and calls the constructor itself; nothing that Keras could
deserialise is handed on. Settings that are not known are refused unless they are switched off, since a
later Keras may compute differently because of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.errors import ModelFileError, ModelNotSupported
from proplace.loaders._files import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proplace.loaders._keras_file import FileLayer, FileModel

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
_INPUT_DTYPES = (*FLOATS, "int8", "int16", "int32", "int64", "uint8", "bool")
_FOR_TRAINING = frozenset(
    {
        "activity_regularizer",
        "bias_constraint",
        "bias_initializer",
        "bias_regularizer",
        "kernel_constraint",
        "kernel_initializer",
        "kernel_regularizer",
        "name",
        "trainable",
    }
)


def built(keras: Any, file: FileModel) -> Any:
    """Return the model that the file describes, with its weights."""
    layers: dict[int, Any] = {}
    names: set[str] = set()
    values: list[Any] = []
    inputs: list[Any] = []
    for node in file.nodes:
        layer = node.layer
        if not node.sources:
            values.append(_input(keras, layer, _unique(layer.name, names)))
            inputs.append(values[-1])
            continue
        if id(layer) not in layers:
            layers[id(layer)] = _layer(keras, layer, _unique(layer.name, names))
        if len(node.sources) != 1:
            raise ModelNotSupported(
                f"{layer.where} joins {len(node.sources)} branches; only models in which each "
                "layer feeds exactly the next are read (no skip connections)"
            )
        value = values[node.sources[0]]
        _check_width(layer, value)
        values.append(layers[id(layer)](value))
        if layer.kind == "Dense":
            layers[id(layer)].set_weights(list(layer.weights))
    outputs = [values[i] for i in file.outputs]
    return keras.Model(
        inputs[0] if len(inputs) == 1 else inputs,
        outputs[0] if len(outputs) == 1 else outputs,
        name=file.name,
    )


def _unique(name: str, names: set[str]) -> str:
    # Two models inside the model may call their layers alike.
    number, free = 0, name
    while free in names:
        number += 1
        free = f"{name}_{number}"
    names.add(free)
    return free


def _check_width(layer: FileLayer, value: Any) -> None:
    """Refuse a layer that does not fit, before Keras makes room for weights that do."""
    if layer.kind == "Dense" and layer.weights[0].shape[0] != value.shape[-1]:
        raise ModelFileError(
            f"{layer.where} takes {layer.weights[0].shape[0]} inputs but is given "
            f"{value.shape[-1]}; save the model again"
        )


def _layer(keras: Any, layer: FileLayer, name: str) -> Any:
    builders = _OPERATIONS if layer.operation else _LAYERS
    if layer.kind not in builders:
        raise refusal(layer.where, layer.kind)
    settings = Settings(layer.where, layer.settings)
    made = builders[layer.kind](keras, layer, settings, name)
    settings.check_rest()
    return made


def refusal(where: str, kind: str) -> ModelNotSupported:
    """Return the refusal of a layer of a kind that is not read."""
    if kind == "BatchNormalization":
        hint = "fold it into the Dense layer before it after training, or train without it"
    else:
        hint = (
            "only Dense and ReLU layers, Normalization and Rescaling in front, Dropout, Flatten "
            "and a last sigmoid or softmax are read. Train the model with those"
        )
    return ModelNotSupported(f"{where} is not part of a ReLU network; {hint}")


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
                raise ModelNotSupported(
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

    def numbers(self, key: str) -> Any:
        """A number or (nested) lists of them, as an array; None where it is not set."""
        value = _unwrapped(self.raw(key))
        if value is None:
            return None
        array = np.asarray(value)  # ragged lists are a ValueError
        if array.dtype.kind not in "fiu":
            raise self._wrong(key, value)
        count_of(f"{self._where}: {key}", array.shape)
        return array

    def axis(self, key: str, default: int | None) -> int | tuple[int, ...] | None:
        value = _unwrapped(self.raw(key)) if key in self._values else default
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
            raise ModelNotSupported(
                f"{self._where} computes in {str(value)[:200]!r}; quantized layers are not read. "
                "Give the model from before that"
            )
        return value

    def _typed(self, key: str, value: Any, *kinds: type) -> Any:
        if type(value) not in kinds:
            raise self._wrong(key, value)
        return value

    def _wrong(self, key: str, value: Any) -> ModelNotSupported:
        return ModelNotSupported(f"{self._where} has {key}={str(value)[:200]}, which is not read")


def _unwrapped(value: Any) -> Any:
    """Return the plain lists inside what Keras writes for arrays and tuples."""
    match value:
        case {"class_name": "__numpy__" | "__tensor__", "config": {"value": inner}}:
            return inner
        case {"class_name": "__tuple__", "items": inner}:
            return inner
    return value


# -- one builder for each kind ---------------------------------------------------------------------


def _input(keras: Any, layer: FileLayer, name: str) -> Any:
    settings = Settings(layer.where, layer.settings)
    shape = _unwrapped(settings.raw("batch_shape"))
    if layer.kind != "InputLayer" or not isinstance(shape, list) or len(shape) < 2:
        raise ModelFileError(f"{layer.where} does not say the shape of its rows")
    sizes = shape[1:]
    if not all(type(size) is int for size in sizes):
        raise ModelNotSupported(
            f"{layer.where} has the shape {str(shape)[:200]}; sizes must be set"
        )
    count_of(layer.where, sizes)
    dtype = settings.choice("dtype", _INPUT_DTYPES, "float32")
    for key in ("ragged", "optional", "sparse"):
        settings.flag(key, False)
    settings.check_rest()
    return keras.Input(tuple(sizes), dtype=dtype, name=name)


def _dense(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    units, bias = settings.whole("units"), settings.flag("use_bias", True)
    shapes = [array.shape for array in layer.weights]
    if len(shapes) != 1 + bias or len(shapes[0]) != 2 or shapes[0][1] != units:
        raise ModelFileError(
            f"{layer.where} has {units} outputs and weights of the shapes {shapes}; save the model "
            "again"
        )
    return keras.layers.Dense(
        units,
        activation=_activation(keras, layer, settings),
        use_bias=bias,
        kernel_initializer=keras.initializers.Zeros(),
        bias_initializer=keras.initializers.Zeros(),
        dtype=settings.dtype(),
        name=name,
    )


def _activation(keras: Any, layer: FileLayer, settings: Settings) -> Any:
    value = settings.raw("activation")
    if value is None:
        value = "linear"
    if isinstance(value, str):
        if value in ACTIVATIONS:
            return getattr(keras.activations, value)
        raise activation_refusal(layer.where, value)
    match value:
        case {
            "class_name": ("ReLU" | "Softmax") as kind,
            "module": "keras.layers",
            "registered_name": None,
            "config": dict(inner),
        }:
            part = Settings(layer.where, inner)
            made = _LAYERS[kind](keras, layer, part, f"{layer.name}_activation")
            part.check_rest()
            return made
        case {"class_name": kind}:
            raise activation_refusal(layer.where, str(kind)[:200])
    raise activation_refusal(layer.where, str(value)[:200])


def activation_refusal(where: str, name: str) -> ModelNotSupported:
    """Return the refusal of an activation that is not read."""
    return ModelNotSupported(
        f"{where} has the activation {name!r}; only relu is read, and linear, sigmoid or softmax "
        "in the last layer. Train the model with those"
    )


def _activation_layer(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    activation = _activation(keras, layer, settings)
    return keras.layers.Activation(activation, dtype=settings.dtype(), name=name)


def _relu(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    return keras.layers.ReLU(
        max_value=settings.number("max_value"),
        negative_slope=settings.number("negative_slope") or 0.0,
        threshold=settings.number("threshold") or 0.0,
        dtype=settings.dtype(),
        name=name,
    )


def _softmax(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    axis = settings.axis("axis", -1)
    return keras.layers.Softmax(axis=axis, dtype=settings.dtype(), name=name)


def _normalization(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    mean, variance = settings.numbers("mean"), settings.numbers("variance")
    if mean is None and variance is None and len(layer.weights) == 3:
        mean, variance = layer.weights[:2]
    if mean is None or variance is None:
        raise ModelNotSupported(
            f"{layer.where} is not adapted; call adapt() with the training rows"
        )
    return keras.layers.Normalization(
        axis=settings.axis("axis", -1),
        mean=mean,
        variance=variance,
        invert=settings.flag("invert", False),
        dtype=settings.dtype(),
        name=name,
    )


def _rescaling(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    scale, offset = settings.numbers("scale"), settings.numbers("offset")
    if scale is None:
        raise ModelFileError(f"{layer.where} has no scale; save the model again")
    plain = [value.tolist() for value in (scale, np.zeros(()) if offset is None else offset)]
    return keras.layers.Rescaling(*plain, dtype=settings.dtype(), name=name)


def _flatten(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    order = settings.choice("data_format", ("channels_last", "channels_first"), "channels_last")
    return keras.layers.Flatten(data_format=order, dtype=settings.dtype(), name=name)


def _nothing(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    for key in ("rate", "stddev", "seed", "noise_shape", "l1", "l2"):
        settings.raw(key)
    return keras.layers.Identity(dtype=settings.dtype(), name=name)


def _operation(function: str) -> Callable[[Any, FileLayer, Settings, str], Any]:
    def build(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
        settings.dtype()
        return getattr(keras.ops, function)

    return build


def _operation_along(function: str) -> Callable[[Any, FileLayer, Settings, str], Any]:
    def build(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
        settings.dtype()
        axis = settings.axis("axis", -1)
        return lambda value: getattr(keras.ops, function)(value, axis=axis)

    return build


def _cast(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    dtype = settings.choice("dtype", FLOATS, "float32")
    return lambda value: keras.ops.cast(value, dtype)


_Builder = dict[str, "Callable[[Any, FileLayer, Settings, str], Any]"]
_LAYERS: _Builder = {
    "Activation": _activation_layer,
    "Dense": _dense,
    "Flatten": _flatten,
    "Normalization": _normalization,
    "ReLU": _relu,
    "Rescaling": _rescaling,
    "Softmax": _softmax,
} | dict.fromkeys(SKIPPED, _nothing)
_OPERATIONS: _Builder = {
    "Cast": _cast,
    "LogSoftmax": _operation_along("log_softmax"),
    "Relu": _operation("relu"),
    "Sigmoid": _operation("sigmoid"),
    "Softmax": _operation_along("softmax"),
}
