"""Keras models in memory, layer by layer."""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import MissingExtraError, ModelNotSupportedError, require
from proplace.core.limits import TABLE_COLUMNS
from proplace.loaders.layers import per_column
from proplace.loaders.trace import Trace, Value, check_labels
from proplace.loaders.verify import Reading

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from proplace.core.network import Array, Network
    from proplace.loaders.columns import DType
    from proplace.loaders.layers import Activation, TrainedLayer
    from proplace.loaders.verify import Whole

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_NOTHING = frozenset(
    {
        *("ActivityRegularization", "AlphaDropout", "Dropout", "GaussianDropout", "GaussianNoise"),
        *("Identity", "Masking", "SpatialDropout1D"),
    }
)
_FINAL: dict[str, Activation] = {
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
}
_ACTIVATIONS = ("linear", "relu", *_FINAL)
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


def from_keras(model: object) -> Network:
    """Read a Keras 3 model of Dense layers whose rows are plain numbers.

    Parameters
    ----------
    model
        A Sequential model, or a functional one in which each layer feeds exactly the next. Dense
        layers must have the activation relu, the last one linear, sigmoid or softmax.
        Normalization, Rescaling and BatchNormalization layers in front become the network's input
        transform. Dropout and Flatten are skipped. A model with categories or several inputs is a
        whole model: see ``Model.of``.

        BatchNormalization and Rescaling behind a Dense layer are folded into that layer, between a
        ReLU and a Dense layer into the latter. Their own numbers count as fixed. Shifts (delta)
        still speak of the weights and biases of the Dense layers: see
        :mod:`proplace.core.transforms`. Margins speak of the folded ones. Nothing else touches a
        trained weight.

    Returns
    -------
    Network
        The model and the network are run on random rows and must agree. The precision is
        ``float64`` only if the model computes so, which takes more than float64 weights: Keras
        multiplies matrices in float32 on some of its backends all the same.
    """
    keras = _KerasModel(model)
    if len(keras.inputs) != 1:
        raise ModelNotSupportedError(
            f"{keras.trace.title} has {len(keras.inputs)} inputs and 1 outputs; a network "
            "takes rows of numbers, one input. Read the model whole with Model.of(model), or give "
            "the model itself where a network is asked for"
        )
    if keras.inputs[0].dtype in _INTEGERS and keras.trace.used() & keras.trace.flow.numeric:
        raise ModelNotSupportedError(
            f"{keras.trace.title} takes whole numbers ({keras.inputs[0].dtype}), which rows "
            "of a network need not be; declare its input with dtype='float32', or read it whole with "
            "Model.of(model)"
        )
    return keras.reading().network()


def whole_keras(model: object) -> Whole:
    """Read a Keras model together with all that it does to the table.

    See :func:`from_keras` for the layers. An input of one column is called by its name, several
    columns of an input ``name_0``, ``name_1``, ...; the columns of a single input are x0, x1, ...
    until a schema names them.

    Categories come from StringLookup and IntegerLookup (their vocabulary; an unknown word is not a
    legal value), or are the whole numbers that a CategoryEncoding or Embedding takes. The weights
    of an Embedding are a fixed linear map of the 0/1 columns of its category: shifts (delta) never
    touch them.
    """
    return _KerasModel(model).reading().whole()


def trained_keras(model: object) -> tuple[TrainedLayer, ...]:
    """Return the parameters of each layer: names of layers, the outermost first, then which it is."""
    return _KerasModel(model).trace.chain.trained


@dataclass(frozen=True)
class _Input:
    """One input of a model: its name, the shape of a row, the type of its cells, its columns."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    columns: tuple[str, ...]


class _KerasModel:
    """A model, and what was read of it."""

    def __init__(self, model: Any) -> None:
        self.keras = _require_keras("reading a Keras model")
        if not isinstance(model, self.keras.Model):
            raise ModelNotSupportedError(
                f"from_keras takes a Keras 3 model, not {type(model).__name__}; models of the old "
                "tf.keras must be saved as .keras and loaded with keras 3"
            )
        self.model = model
        self.trace = Trace(f"model {model.name!r}", "Dense")
        functional = self._functional(model)
        self.inputs = self._inputs(functional._inputs)
        dtypes: dict[str, DType] = dict.fromkeys(_INTEGERS, "integer")
        values = [
            self.trace.input(i.columns, i.shape, dtypes.get(i.dtype, "float")) for i in self.inputs
        ]
        if len(functional._outputs) != 1:
            raise ModelNotSupportedError(
                f"{self.trace.title} has {len(self.inputs)} inputs and {len(functional._outputs)} "
                "outputs; it must have one output"
            )
        (result,) = self._walk(functional, values, "")
        self.trace.result(f"the output of {self.trace.title}", result)
        self._check_text()

    def reading(self) -> Reading:
        dtypes = {
            name
            for layer in self.model._flatten_layers(include_self=False)
            if type(layer).__name__ != "InputLayer"
            and "float" in (name := str(layer.compute_dtype))
        }
        if any(name.endswith("float16") for name in dtypes):
            raise ModelNotSupportedError(
                f"{self.trace.title} computes in half precision ({', '.join(sorted(dtypes))}), which no "
                "margin covers; build it again with the dtype policy 'float32' and give that model the "
                "same weights (set_weights)"
            )
        integers = (c for i in self.inputs if i.dtype in _INTEGERS for c in i.columns)
        return Reading(
            self.trace,
            self.run,
            "float64" if dtypes == {"float64"} else "float32",
            "build it of plain layers",
            has_column_names=len(self.inputs) > 1,
            integers=frozenset(integers),
        )

    def run(self, table: pd.DataFrame) -> Array:
        """Outputs of the model for each row of a table."""
        feeds: dict[str, Any] = {}
        for each in self.inputs:
            kind: Any = np.str_ if each.dtype == "string" else each.dtype
            if each.dtype in ("float16", "bfloat16"):
                kind = np.float32  # the layers round it
            cells = table[list(each.columns)].to_numpy(kind)
            feeds[each.name] = cells.reshape((len(table), *each.shape))
        given = None if isinstance(self.model, self.keras.Sequential) else self.model.input
        arrays: Any = list(feeds.values())
        if isinstance(given, dict):
            names = {key: tensor._keras_history.operation.name for key, tensor in given.items()}
            arrays = {key: feeds[name] for key, name in names.items()}
        elif not isinstance(given, (list, tuple)):
            (arrays,) = arrays
        value = self.model(arrays, training=False)
        if isinstance(value, dict):
            value = next(iter(value.values()))
        elif isinstance(value, (list, tuple)):
            value = value[0]
        return self.numbers(value)

    def numbers(self, tensor: Any) -> Array:
        """Return a tensor or variable as float64 numbers."""
        dtype = str(getattr(tensor, "dtype", ""))
        if dtype.startswith("complex"):
            raise ModelNotSupportedError(
                "the model has complex numbers; a ReLU network has real ones"
            )
        if dtype.endswith("float16"):
            tensor = self.keras.ops.cast(tensor, "float32")  # numpy has no bfloat16
        return np.asarray(self.keras.ops.convert_to_numpy(tensor), dtype=np.float64)

    # -- the graph -----------------------------------------------------------------------------

    def _functional(self, model: Any) -> Any:
        """Return the graph of a Sequential or functional model."""
        kind, keras = type(model), self.keras
        x = keras.Input((1,))
        functional = type(keras.Model(x, keras.layers.Identity()(x)))
        sequential = keras.Sequential
        if not isinstance(model, (sequential, functional)) or kind.call not in (
            sequential.call,
            functional.call,
        ):
            raise ModelNotSupportedError(
                f"{kind.__name__} is a model with its own call(), whose layers cannot be followed; "
                "build it with keras.Sequential or the functional API"
            )
        if not model.built:
            raise ModelNotSupportedError(
                f"model {model.name!r} has no weights yet; give it a keras.Input, or call it once"
            )
        graph = getattr(model, "_functional", model)
        return keras.Model(model.inputs, model.outputs) if graph is None else graph

    def _inputs(self, tensors: Sequence[Any]) -> list[_Input]:
        found = []
        for tensor in tensors:
            name, shape = tensor._keras_history.operation.name, tuple(tensor.shape[1:])
            where = f"input {name!r}"
            if None in shape:
                raise ModelNotSupportedError(
                    f"{where} has the shape {tuple(tensor.shape)}; sizes must be set"
                )
            dtype, width = str(tensor.dtype), math.prod(shape)
            if dtype not in (*_FLOATS, *_INTEGERS, "string"):
                raise ModelNotSupportedError(
                    f"{where} takes {dtype}; declare it with dtype='float32', of 0 and 1"
                )
            if width > TABLE_COLUMNS:
                raise ModelNotSupportedError(
                    f"{where} takes {shape} numbers a row; at most {TABLE_COLUMNS:,} columns are read"
                )
            prefix = f"{name}_" if len(tensors) > 1 else "x"
            alone = width == 1 and len(tensors) > 1
            columns = [name] if alone else [f"{prefix}{i}" for i in range(width)]
            found.append(_Input(name, shape, dtype, tuple(columns)))
        return found

    def _walk(self, functional: Any, values: Sequence[Value], path: str) -> list[Any]:
        """Lead values through a graph of layers, nested models opened."""
        held = {id(t): v for t, v in zip(functional._inputs, values, strict=True)}
        nodes = functional._nodes_by_depth
        for depth in sorted(nodes, reverse=True):
            for node in nodes[depth]:
                if node.is_input:
                    continue
                given = [held[id(tensor)] for tensor in node.input_tensors]
                results = self._operation(node.operation, given, path)
                for tensor, value in zip(node.outputs, results, strict=True):
                    held[id(tensor)] = value
        return [held[id(tensor)] for tensor in functional._outputs]

    def _operation(self, layer: Any, values: list[Value], path: str) -> list[Any]:
        keras, kind = self.keras, type(layer).__name__
        inside = f"{path}/{layer.name}" if path else layer.name
        if isinstance(layer, keras.Model):
            return self._walk(self._functional(layer), values, inside)
        is_layer = isinstance(layer, keras.layers.Layer)
        where = (
            f"layer {layer.name!r} ({kind})" if is_layer else f"operation {layer.name!r} ({kind})"
        )
        if kind == "Lambda" and is_layer:
            raise ModelNotSupportedError(
                f"{where} holds Python code, which is never read; write it with layers of Keras"
            )
        if type(layer).__module__.partition(".")[0] != "keras":
            raise ModelNotSupportedError(
                f"{where} is a class of your own; only Keras' own layers are read"
            )
        if kind == "Concatenate" and is_layer:
            if layer.axis == 0:
                raise ModelNotSupportedError(f"{where} joins rows (axis=0), not columns")
            return [self.trace.move(where, values, lambda p: np.concatenate(p, axis=layer.axis))]
        if len(values) != 1:
            raise ModelNotSupportedError(
                f"{where} joins {len(values)} branches; columns may be joined by Concatenate in front "
                "of the first Dense layer, and behind it each layer must feed exactly the next (no skip "
                "connections)"
            )
        handler = (_LAYERS if is_layer else _OPERATIONS).get(kind)
        if handler is None:
            hint = _HINTS.get(kind, "Train the model with those")
            raise ModelNotSupportedError(f"{where} is not part of a ReLU network; {_READ}. {hint}")
        return [handler(self, _Layer(where, inside, layer), values[0])]

    def _check_text(self) -> None:
        """Refuse text that is no category."""
        used = self.trace.used()
        for each in self.inputs:
            for name in each.columns:
                labels = self.trace.flow.sources[name].labels
                text = labels is not None and isinstance(labels[0], str)
                if name in used and text != (each.dtype == "string"):
                    raise ModelNotSupportedError(
                        f"the model takes column {name!r} as {each.dtype} and uses it as "
                        f"{'text' if text else 'a number'}; give a column of text a StringLookup"
                    )


@dataclass(frozen=True, eq=False)
class _Layer:
    """A layer, what to call it in messages, and its path in the model."""

    where: str
    path: str
    own: Any


def _same(_: _KerasModel, layer: _Layer, value: Value) -> Value:
    return value


def _cast(_: _KerasModel, layer: _Layer, value: Value) -> Value:
    if str(layer.own.dtype) not in ("float32", "float64"):
        raise ModelNotSupportedError(
            f"{layer.where} has dtype={layer.own.dtype}, which is not read"
        )
    return value


def _moved(function: Callable[[Any, Any], Any]) -> Callable[[_KerasModel, _Layer, Value], Value]:
    def handler(read: _KerasModel, layer: _Layer, value: Value) -> Value:
        found: Value = read.trace.move(
            layer.where, [value], lambda places: function(layer.own, places[0])
        )
        return found

    return handler


def _dense(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    own = layer.own
    if getattr(own, "quantization_mode", None) or getattr(own, "lora_enabled", False):
        raise ModelNotSupportedError(
            f"{layer.where} is quantized or has LoRA weights; such layers are not read. Give the model "
            "from before that"
        )
    W = read.numbers(own.kernel).T
    b = read.numbers(own.bias) if own.use_bias else None
    names = f"{layer.path}/kernel", f"{layer.path}/bias" if own.use_bias else None
    value = read.trace.linear(layer.where, value, W, b, names)
    return _activated(read, layer, value)


def _activated(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    """Take the activation that a layer has."""
    function = layer.own.activation
    activations = read.keras.activations
    name = next((n for n in _ACTIVATIONS if function is getattr(activations, n)), None)
    if isinstance(function, read.keras.layers.ReLU):
        return _relu(read, _Layer(layer.where, layer.path, function), value)
    if isinstance(function, read.keras.layers.Softmax):
        name = "softmax"
    if name is None:
        title = getattr(function, "__name__", type(function).__name__)
        raise ModelNotSupportedError(
            f"{layer.where} has the activation {title!r}; only relu is read, and linear, sigmoid or "
            "softmax at the end. Train the model with relu"
        )
    return _by_name(read, layer, value, name)


def _by_name(read: _KerasModel, layer: _Layer, value: Value, name: str) -> Value:
    if name == "relu":
        return read.trace.relu(layer.where, value)
    if name in _FINAL:
        return read.trace.activation(layer.where, value, _FINAL[name])
    return value


def _function(name: str) -> Callable[[_KerasModel, _Layer, Value], Value]:
    return lambda read, layer, value: _by_name(read, layer, value, name)


def _relu(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    own = layer.own
    if own.max_value is not None or own.negative_slope or own.threshold:
        raise ModelNotSupportedError(
            f"{layer.where} has max_value={own.max_value}, negative_slope={own.negative_slope}, "
            f"threshold={own.threshold}; only the plain ReLU() is read"
        )
    return read.trace.relu(layer.where, value)


def _rescaling(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    scale, offset = (per_column(np.asarray(v)) for v in (layer.own.scale, layer.own.offset))
    return read.trace.affine(layer.where, value, scale, offset)


def _normalization(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    own = layer.own
    if own.axis not in (None, (-1,), (1,), (), -1, 1) or (
        own.axis == (1,) and value.entries.ndim > 1
    ):
        raise ModelNotSupportedError(
            f"{layer.where} has axis={own.axis}; only axis=-1 or None is read"
        )
    mean, variance = own.input_mean, own.input_variance
    if mean is None and getattr(own, "mean", None) is not None:
        mean, variance = read.numbers(own.adapt_mean), read.numbers(own.adapt_variance)
    if mean is None or variance is None:
        raise ModelNotSupportedError(
            f"{layer.where} is not adapted; call adapt() with the training rows"
        )
    # Keras divides by the standard deviation, but never by less than its epsilon.
    mean = per_column(np.asarray(mean, np.float64))
    deviation = np.sqrt(per_column(np.asarray(variance, np.float64)))
    deviation = np.maximum(deviation, read.keras.backend.epsilon())
    if own.invert:
        return read.trace.affine(layer.where, value, deviation, mean)
    return read.trace.standardise(layer.where, value, mean, deviation)


def _batch_norm(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    own = layer.own
    if own.axis not in (-1, value.entries.ndim):
        raise ModelNotSupportedError(f"{layer.where} has axis={own.axis}; only axis=-1 is read")
    mean = read.numbers(own.moving_mean)
    deviation = np.sqrt(read.numbers(own.moving_variance) + own.epsilon)
    factor = read.numbers(own.gamma) if own.scale else np.ones(())
    shift = read.numbers(own.beta) if own.center else np.zeros(())
    if value.step is None:
        value = read.trace.standardise(layer.where, value, mean, deviation)
        return read.trace.affine(layer.where, value, factor, shift)
    scale = factor / deviation
    return read.trace.affine(layer.where, value, scale, shift - mean * scale)


def _category_encoding(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    count = layer.own.num_tokens
    return _hot(read, layer, value, count, layer.own.output_mode)


def _hot(read: _KerasModel, layer: _Layer, value: Value, depth: int, mode: str) -> Value:
    """Write categories in 0/1 columns."""
    single = value.entries.ndim > 0 and value.entries.shape[-1] == 1
    if mode not in ("one_hot", "multi_hot", "count") or (mode != "one_hot" and not single):
        raise ModelNotSupportedError(
            f"{layer.where} has output_mode={mode!r} for values of shape {value.entries.shape}: it "
            "mixes several columns. Give each column an input of its own, of shape (None, 1)"
        )
    found = read.trace.one_hot(layer.where, value, depth)
    shape = found.entries.shape
    return Value(found.entries.reshape((*shape[:-2], depth) if single else shape))


def _embedding(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    own = layer.own
    if getattr(own, "quantization_mode", None) or getattr(own, "lora_enabled", False):
        raise ModelNotSupportedError(f"{layer.where} is no plain table of vectors")
    # Where number 0 is masked, it is no category, but stands for a missing one.
    return read.trace.vectors(
        layer.where, value, read.numbers(own.embeddings), int(bool(own.mask_zero))
    )


def _lookup(read: _KerasModel, layer: _Layer, value: Value) -> Value:
    """Take the words of a StringLookup or IntegerLookup for categories; unknown ones are illegal."""
    own = layer.own
    if own.invert:
        raise ModelNotSupportedError(
            f"{layer.where} has invert=True, which turns numbers into words; leave it out"
        )
    mode = own.output_mode
    words = [w.item() if isinstance(w, np.generic) else w for w in own.get_vocabulary()]
    masked = own.mask_token is not None and mode == "int"
    start = masked + own.num_oov_indices
    labels, size = words[start:], len(words)
    if not labels:
        raise ModelNotSupportedError(
            f"{layer.where} has no vocabulary; call adapt() with the training column"
        )
    check_labels(layer.where, len(labels))
    if getattr(own, "pad_to_max_tokens", False) and mode != "int":
        size = own.max_tokens
    found = read.trace.categories(
        layer.where, value, labels, codes=range(start, start + len(labels))
    )
    return found if mode == "int" else _hot(read, layer, found, size, mode)


def _reshape(layer: Any, places: Any) -> Any:
    return places.reshape((len(places), *layer.target_shape))


_LAYERS: dict[str, Callable[[_KerasModel, _Layer, Value], Value]] = {
    **dict.fromkeys(_NOTHING, _same),
    "Activation": _activated,
    "BatchNormalization": _batch_norm,
    "CategoryEncoding": _category_encoding,
    "Dense": _dense,
    "Embedding": _embedding,
    "Flatten": _moved(lambda _, places: places.reshape(len(places), -1)),
    "IntegerLookup": _lookup,
    "Normalization": _normalization,
    "ReLU": _relu,
    "Rescaling": _rescaling,
    "Reshape": _moved(_reshape),
    "Softmax": _function("softmax"),
    "StringLookup": _lookup,
}
_OPERATIONS: dict[str, Callable[[_KerasModel, _Layer, Value], Value]] = {
    "Cast": _cast,
    "Identity": _same,
    "LogSoftmax": _function("log_softmax"),
    "Relu": _function("relu"),
    "Sigmoid": _function("sigmoid"),
    "Softmax": _function("softmax"),
}


def _require_keras(purpose: str) -> Any:
    try:
        return require("keras", "keras", purpose)
    except MissingExtraError as error:
        missing = getattr(error.__cause__, "name", None) or "keras"
        if importlib.util.find_spec("keras") is None or missing.partition(".")[0] == "keras":
            raise
        # Keras is there but what it computes with is not.
        raise MissingExtraError.of(
            "torch",
            "torch",
            f"Keras is set to compute with {missing!r}, which is not installed; setting "
            "KERAS_BACKEND=torch in the environment",
        ) from error
