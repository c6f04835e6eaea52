"""A Keras model built by this package from the description in a file.

There is one builder for each kind of layer that is read. It takes plain values out of the layer's
settings, looks at each of them, and calls the constructor itself; nothing that Keras could
deserialise is handed on. Settings that are not known are refused unless they are switched off, since a
later Keras may compute differently because of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelFileError, ModelNotSupportedError
from proplace.loaders._keras_file import LOOKUPS
from proplace.loaders._keras_inputs import Lookup, Port
from proplace.loaders._keras_settings import (
    ACTIVATIONS,
    FLOATS,
    SKIPPED,
    Settings,
    activation_refusal,
    joins,
    refusal,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from proplace.loaders._keras_file import FileLayer, FileModel, Node


@dataclass(frozen=True, eq=False)
class Feed:
    """What one input of a model takes: the cells of an input of the source, or their numbers."""

    port: Port
    codes: Mapping[str | int, int] | None = None


@dataclass(frozen=True, eq=False)
class Built:
    """A model and what its inputs take, in their order."""

    model: Any
    feeds: tuple[Feed, ...]


def built(keras: Any, file: FileModel) -> Built:
    """Return the model that the file describes, with its weights.

    Keras needs TensorFlow to look up words, and runs such a model with TensorFlow alone. So the
    model built here takes the number of each word in its place; everything behind is Keras' own.
    """
    return _Builder(keras, file).build()


class _Builder:
    def __init__(self, keras: Any, file: FileModel) -> None:
        self._keras = keras
        self._file = file
        self._layers: dict[int, Any] = {}
        self._names: set[str] = set()
        self._inputs: list[Any] = []
        self._feeds: list[Feed] = []

    def build(self) -> Built:
        nodes = self._file.nodes
        looked_up = {i for node in nodes if _is_lookup(node) for i in node.sources}
        others = {i for node in nodes if not _is_lookup(node) for i in node.sources}
        values: list[Any] = []
        for number, node in enumerate(nodes):
            if not node.sources:
                words_only = number in looked_up and number not in others
                values.append(None if words_only else self._input(node.layer))
            elif _is_lookup(node):
                values.append(self._looked_up(node, nodes[node.sources[0]]))
            else:
                values.append(self._called(node.layer, [values[i] for i in node.sources]))
        outputs = [values[i] for i in self._file.outputs]
        model = self._keras.Model(
            self._inputs[0] if len(self._inputs) == 1 else self._inputs,
            outputs[0] if len(outputs) == 1 else outputs,
            name=self._file.name,
        )
        return Built(model, tuple(self._feeds))

    def _input(self, layer: FileLayer) -> Any:
        return self._take(Feed(Port.of(layer)), layer.name)

    def _looked_up(self, node: Node, source: Node) -> Any:
        """Take the numbers of words, and write them as the lookup does."""
        layer = node.layer
        if source.sources or len(node.sources) != 1:
            raise ModelNotSupportedError(
                f"{layer.where} looks up what another layer has changed; apply it to an input of "
                "the model itself"
            )
        lookup, port = Lookup.of(layer), Port.of(source.layer)
        codes = dict(zip(lookup.labels, lookup.codes, strict=True))
        value = self._take(Feed(port, codes), layer.name, "int64")
        if lookup.mode == "int":
            return value
        name = _unique(f"{layer.name}_columns", self._names)
        encoding = self._keras.layers.CategoryEncoding(
            lookup.depth, output_mode=lookup.mode, name=name
        )
        return encoding(value)

    def _take(self, feed: Feed, name: str, dtype: str | None = None) -> Any:
        value = self._keras.Input(
            feed.port.shape, dtype=dtype or feed.port.dtype, name=_unique(name, self._names)
        )
        self._inputs.append(value)
        self._feeds.append(feed)
        return value

    def _called(self, layer: FileLayer, values: list[Any]) -> Any:
        joining = layer.kind == "Concatenate" and not layer.operation
        if len(values) != 1 and not joining:
            raise joins(layer.where, layer.kind, len(values))
        if id(layer) not in self._layers:
            self._layers[id(layer)] = _layer(self._keras, layer, _unique(layer.name, self._names))
        for value in values:
            _check_width(layer, value)
        made = self._layers[id(layer)]
        result = made(values if joining else values[0])
        if layer.kind in _WEIGHTED:
            made.set_weights(list(layer.weights))
        return result


def _is_lookup(node: Node) -> bool:
    return node.layer.kind in LOOKUPS and not node.layer.operation


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


# -- one builder for each kind ---------------------------------------------------------------------


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
        raise ModelNotSupportedError(
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


def _reshape(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    shape = settings.sizes("target_shape")
    return keras.layers.Reshape(shape, dtype=settings.dtype(), name=name)


def _concatenate(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    axis = settings.axis("axis", -1)
    return keras.layers.Concatenate(axis=axis, dtype=settings.dtype(), name=name)


def _category_encoding(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    return keras.layers.CategoryEncoding(
        settings.whole("num_tokens"),
        output_mode=settings.choice("output_mode", ("one_hot", "multi_hot", "count"), "multi_hot"),
        dtype=settings.dtype(),
        name=name,
    )


def _embedding(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    shape = (settings.whole("input_dim"), settings.whole("output_dim"))
    _check_shapes(layer, [shape])
    settings.flag("mask_zero", False)  # no layer that is read looks at a mask
    return keras.layers.Embedding(
        *shape, embeddings_initializer=keras.initializers.Zeros(), dtype=settings.dtype(), name=name
    )


def _batch_normalization(keras: Any, layer: FileLayer, settings: Settings, name: str) -> Any:
    center, scale = settings.flag("center", True), settings.flag("scale", True)
    width = layer.weights[0].shape if layer.weights else ()
    _check_shapes(layer, [width] * (2 + center + scale))
    return keras.layers.BatchNormalization(
        axis=settings.axis("axis", -1),
        epsilon=settings.number("epsilon") or 0.0,
        center=center,
        scale=scale,
        beta_initializer=keras.initializers.Zeros(),
        gamma_initializer=keras.initializers.Ones(),
        moving_mean_initializer=keras.initializers.Zeros(),
        moving_variance_initializer=keras.initializers.Ones(),
        dtype=settings.dtype(),
        name=name,
    )


def _check_shapes(layer: FileLayer, expected: list[tuple[int, ...]]) -> None:
    shapes = [array.shape for array in layer.weights]
    if shapes != expected:
        raise ModelFileError(
            f"{layer.where} has weights of the shapes {shapes}, not {expected}; save the model again"
        )


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


_Builders = dict[str, "Callable[[Any, FileLayer, Settings, str], Any]"]
_WEIGHTED = ("BatchNormalization", "Dense", "Embedding")
_LAYERS: _Builders = {
    "Activation": _activation_layer,
    "BatchNormalization": _batch_normalization,
    "CategoryEncoding": _category_encoding,
    "Concatenate": _concatenate,
    "Dense": _dense,
    "Embedding": _embedding,
    "Flatten": _flatten,
    "Normalization": _normalization,
    "ReLU": _relu,
    "Rescaling": _rescaling,
    "Reshape": _reshape,
    "Softmax": _softmax,
} | dict.fromkeys(SKIPPED, _nothing)
_OPERATIONS: _Builders = {
    "Cast": _cast,
    "LogSoftmax": _operation_along("log_softmax"),
    "Relu": _operation("relu"),
    "Sigmoid": _operation("sigmoid"),
    "Softmax": _operation_along("softmax"),
}
