"""Keras models, layer by layer."""

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
from proplace.schema.values import to_python

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from proplace.core.network import Array
    from proplace.loaders.columns import DType
    from proplace.loaders.layers import Activation, TrainedLayer
    from proplace.loaders.model import Model

_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_READ = (
    "only Dense and ReLU layers, BatchNormalization, Dropout, Flatten and a last sigmoid or softmax "
    "are read, and before the first Dense layer Normalization, Rescaling, StringLookup, "
    "IntegerLookup, CategoryEncoding, Embedding, Reshape, Concatenate, selections and arithmetic"
)
_OWN_SPREAD = (
    "It divides each row by that row's own spread, which no fixed layer does. Train the model with "
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


def from_keras(model: object) -> Model:
    """Read a Keras model with all that it does to the table.

    Dense layers must have the activation relu, the last one linear, sigmoid or softmax. Dropout and
    Flatten are skipped.

    BatchNormalization and Rescaling after a Dense layer are folded into that layer, after a ReLU
    into the next Dense layer. Their own numbers count as fixed. Shifts (delta) still refer to the
    weights and biases of the Dense layers: see :mod:`proplace.core.transforms`. The precision is
    ``float64`` only if the model computes so, which takes more than float64 weights: Keras
    multiplies matrices in float32 on some of its backends all the same.

    An input of one column is called by its name, several
    columns of an input ``name_0``, ``name_1``, ... The columns of a single input are x0, x1, ...
    until a schema names them.

    Categories come from StringLookup and IntegerLookup (their vocabulary, so that no other word is
    legal), or are the whole numbers that a CategoryEncoding or Embedding takes. The weights of an
    Embedding are a fixed linear map of the 0/1 columns of its category: shifts (delta) never touch
    them.
    """
    return _KerasModel(model).reading().model()


def trained_keras(model: object) -> tuple[TrainedLayer, ...]:
    """Return the parameters of each layer, by the names of their layers, the outermost first."""
    return _KerasModel(model).trace.chain.trained


@dataclass(frozen=True)
class _Input:
    """One input of a model: its name, the shape of a row, the type of its cells, its columns."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    columns: tuple[str, ...]


class _KerasModel:
    """A model and its trace."""

    def __init__(self, model: Any) -> None:
        self.keras = _require_keras("reading a Keras model")
        if not isinstance(model, self.keras.Model):
            raise ModelNotSupportedError(
                f"a Keras 3 model is read here, not {type(model).__name__}. Models of the old "
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
                "outputs. It must have one output"
            )
        (result,) = self._walk(functional, values, "")
        self.trace.result(f"the output of {self.trace.title}", result)

    def reading(self) -> Reading:
        layers = self.model._flatten_layers(include_self=False)
        names = {str(x.compute_dtype) for x in layers if type(x).__name__ != "InputLayer"}
        dtypes = {name for name in names if "float" in name}
        if any(name.endswith("float16") for name in dtypes):
            raise ModelNotSupportedError(
                f"{self.trace.title} computes in half precision ({', '.join(sorted(dtypes))}), which no "
                "margin covers. Build it again with the dtype policy 'float32' and give that model the "
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
        while isinstance(value, (dict, list, tuple)):
            value = next(iter(value.values() if isinstance(value, dict) else value))
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
                f"{kind.__name__} is a model with its own call(), whose layers cannot be followed. "
                "Build it with keras.Sequential or the functional API"
            )
        if not model.built:
            raise ModelNotSupportedError(
                f"model {model.name!r} has no weights yet. Give it a keras.Input, or call it once"
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
                    f"{where} takes {shape} numbers a row. At most {TABLE_COLUMNS:,} columns are read"
                )
            prefix = f"{name}_" if len(tensors) > 1 else "x"
            alone = width == 1 and len(tensors) > 1
            columns = [name] if alone else [f"{prefix}{i}" for i in range(width)]
            found.append(_Input(name, shape, dtype, tuple(columns)))
        return found

    def _walk(self, functional: Any, values: Sequence[Value], path: str) -> list[Any]:
        """Follow values through a graph of layers, including nested models."""
        held = {id(t): v for t, v in zip(functional._inputs, values, strict=True)}
        nodes = functional._nodes_by_depth
        for depth in sorted(nodes, reverse=True):
            for node in nodes[depth]:
                if node.is_input:
                    continue
                given = [held[id(tensor)] for tensor in node.input_tensors]
                own = node.operation
                inside = f"{path}/{own.name}" if path else own.name
                if isinstance(own, self.keras.Model):
                    found: Any = self._walk(self._functional(own), given, inside)
                else:
                    found = self._taken(_Layer(self, node, given, inside))
                results = found if isinstance(found, (list, tuple)) else [found]
                for tensor, value in zip(node.outputs, results, strict=True):
                    held[id(tensor)] = value
        return [held[id(tensor)] for tensor in functional._outputs]

    def _taken(self, layer: _Layer) -> Any:
        if layer.kind == "Lambda":
            raise ModelNotSupportedError(
                f"{layer.where} holds Python code, which is never read. Write it with layers of Keras"
            )
        if type(layer.own).__module__.partition(".")[0] != "keras":
            raise ModelNotSupportedError(
                f"{layer.where} is a class of your own. Only Keras' own layers are read"
            )
        handler = _HANDLERS.get(layer.kind)
        if handler is None:
            hint = _HINTS.get(layer.kind, "Train the model with those")
            raise ModelNotSupportedError(
                f"{layer.where} is not part of a ReLU network; {_READ}. {hint}"
            )
        return handler(layer)


class _Layer:
    """A layer or an operation of the graph, with its values and its path in the model."""

    def __init__(self, model: _KerasModel, node: Any, values: list[Value], path: str) -> None:
        self.model, self.trace, self.node, self.path = model, model.trace, node, path
        self.own, self.values, self.kind = node.operation, values, type(node.operation).__name__
        title = "layer" if isinstance(self.own, model.keras.layers.Layer) else "operation"
        self.where = f"{title} {self.own.name!r} ({self.kind})"

    @property
    def value(self) -> Value:
        """The one value that comes in."""
        if len(self.values) != 1:
            self.trace.branches(self.where)
        return self.values[0]

    def arguments(self, values: Sequence[Any]) -> list[Any]:
        """Return the arguments with others in place of the values."""
        held = {id(t): v for t, v in zip(self.node.input_tensors, values, strict=True)}
        args, kwargs = self.node.arguments.fill_in(held)
        return [*args, *kwargs.values()]


def _same(layer: _Layer) -> Value:
    return layer.value


def _cast(layer: _Layer) -> Value:
    dtype, value = str(layer.own.dtype), layer.value
    if dtype in _INTEGERS and value.step is None:
        return Value(value.entries, whole=True)
    if dtype not in ("float32", "float64"):
        raise ModelNotSupportedError(f"{layer.where} has dtype={dtype}, which is not read")
    return Value(layer.trace.numbers(layer.where, value)) if value.whole else value


def _moved(layer: _Layer) -> Any:
    """Run an operation that only moves numbers on the positions of the numbers."""
    to_numpy = layer.model.keras.ops.convert_to_numpy

    def function(places: list[Any]) -> Any:
        found = layer.own.call(*layer.arguments(places))
        return [*map(to_numpy, found)] if isinstance(found, (list, tuple)) else to_numpy(found)

    return layer.trace.move(layer.where, layer.values, function)


def _arithmetic(layer: _Layer) -> Value:
    sides = layer.arguments(layer.values)
    if len(sides) == 1:
        (sides,) = sides  # a layer such as Add takes a list
    if not isinstance(sides, list) or len(sides) != 2:
        raise ModelNotSupportedError(
            f"{layer.where} joins more than two tensors. Join two of them at a time"
        )
    left, right = (x if isinstance(x, Value) else layer.model.numbers(x) for x in sides)
    return layer.trace.arithmetic(layer.where, _SIGNS[layer.kind], left, right)


def _dense(layer: _Layer) -> Value:
    own = layer.own
    if getattr(own, "quantization_mode", None) or getattr(own, "lora_enabled", False):
        raise ModelNotSupportedError(
            f"{layer.where} is quantized or has LoRA weights; such layers are not read. Give the model "
            "from before that"
        )
    W = layer.model.numbers(own.kernel).T
    b = layer.model.numbers(own.bias) if own.use_bias else None
    names = f"{layer.path}/kernel", f"{layer.path}/bias" if own.use_bias else None
    return _activated(layer, layer.trace.linear(layer.where, layer.value, W, b, names))


def _activation(layer: _Layer) -> Value:
    return _activated(layer, layer.value)


def _activated(layer: _Layer, value: Value) -> Value:
    """Take the activation that a layer has."""
    function, keras = layer.own.activation, layer.model.keras
    if isinstance(function, keras.layers.ReLU):
        return _rectified(layer, function, value)
    if isinstance(function, keras.layers.Softmax):
        return layer.trace.activation(layer.where, value, "softmax")
    known = (name for name in _ACTIVATIONS if function is getattr(keras.activations, name))
    name = next(known, "")
    if not name:
        title = getattr(function, "__name__", type(function).__name__)
        raise ModelNotSupportedError(
            f"{layer.where} has the activation {title!r}. Only relu is read, and linear, sigmoid or "
            "softmax at the end. Train the model with relu"
        )
    if name == "relu":
        return layer.trace.relu(layer.where, value)
    kind = _FINAL.get(name)
    return layer.trace.activation(layer.where, value, kind) if kind else value


def _last(kind: Activation) -> Callable[[_Layer], Value]:
    return lambda layer: layer.trace.activation(layer.where, layer.value, kind)


def _relu(layer: _Layer) -> Value:
    return _rectified(layer, layer.own, layer.value)


def _rectified(layer: _Layer, own: Any, value: Value) -> Value:
    if own.max_value is not None or own.negative_slope or own.threshold:
        raise ModelNotSupportedError(
            f"{layer.where} has max_value={own.max_value}, negative_slope={own.negative_slope}, "
            f"threshold={own.threshold}. Only the plain ReLU() is read"
        )
    return layer.trace.relu(layer.where, value)


def _rescaling(layer: _Layer) -> Value:
    scale, offset = (per_column(np.asarray(v)) for v in (layer.own.scale, layer.own.offset))
    return layer.trace.affine(layer.where, layer.value, scale, offset)


def _normalization(layer: _Layer) -> Value:
    own, value, numbers = layer.own, layer.value, layer.model.numbers
    if own.axis not in (None, (-1,), (1,), (), -1, 1) or (
        own.axis == (1,) and value.entries.ndim > 1
    ):
        raise ModelNotSupportedError(
            f"{layer.where} has axis={own.axis}. Only axis=-1 or None is read"
        )
    mean, variance = own.input_mean, own.input_variance
    if mean is None and getattr(own, "mean", None) is not None:
        mean, variance = numbers(own.adapt_mean), numbers(own.adapt_variance)
    if mean is None or variance is None:
        raise ModelNotSupportedError(
            f"{layer.where} is not adapted. Call adapt() with the training rows"
        )
    # Keras divides by the standard deviation, but never by less than its epsilon.
    mean = per_column(np.asarray(mean, np.float64))
    deviation = np.sqrt(per_column(np.asarray(variance, np.float64)))
    deviation = np.maximum(deviation, layer.model.keras.backend.epsilon())
    if own.invert:
        return layer.trace.affine(layer.where, value, deviation, mean)
    return layer.trace.standardise(layer.where, value, mean, deviation)


def _batch_norm(layer: _Layer) -> Value:
    own, value, numbers = layer.own, layer.value, layer.model.numbers
    if own.axis not in (-1, value.entries.ndim):
        raise ModelNotSupportedError(f"{layer.where} has axis={own.axis}. Only axis=-1 is read")
    mean = numbers(own.moving_mean)
    deviation = np.sqrt(numbers(own.moving_variance) + own.epsilon)
    factor = numbers(own.gamma) if own.scale else np.ones_like(mean)
    shift = numbers(own.beta) if own.center else np.zeros_like(mean)
    return layer.trace.batch_norm(layer.where, value, mean, deviation, factor, shift)


def _category_encoding(layer: _Layer) -> Value:
    return _hot(layer, layer.value, layer.own.num_tokens)


def _hot(layer: _Layer, value: Value, depth: int) -> Value:
    """Write categories in 0/1 columns."""
    mode = layer.own.output_mode
    single = value.entries.ndim > 0 and value.entries.shape[-1] == 1
    if mode not in ("one_hot", "multi_hot", "count") or (mode != "one_hot" and not single):
        raise ModelNotSupportedError(
            f"{layer.where} has output_mode={mode!r} for values of shape {value.entries.shape}: it "
            "mixes several columns. Give each column an input of its own, of shape (None, 1)"
        )
    found = layer.trace.one_hot(layer.where, value, depth)
    shape = found.entries.shape
    return Value(found.entries.reshape((*shape[:-2], depth) if single else shape))


def _embedding(layer: _Layer) -> Value:
    own = layer.own
    if getattr(own, "quantization_mode", None) or getattr(own, "lora_enabled", False):
        raise ModelNotSupportedError(f"{layer.where} is no plain table of vectors")
    # If number 0 is masked, it is not a category but stands for a missing one.
    table, first = layer.model.numbers(own.embeddings), int(bool(own.mask_zero))
    return layer.trace.vectors(layer.where, layer.value, table, first)


def _lookup(layer: _Layer) -> Value:
    """Take the words of a StringLookup or IntegerLookup for categories."""
    own = layer.own
    if own.invert:
        raise ModelNotSupportedError(
            f"{layer.where} has invert=True, which turns numbers into words. Leave it out"
        )
    indices = own.output_mode == "int"
    words = [to_python(word) for word in own.get_vocabulary()]
    start = int(own.mask_token is not None and indices) + own.num_oov_indices
    labels = words[start:]
    if not labels:
        raise ModelNotSupportedError(
            f"{layer.where} has no vocabulary. Call adapt() with the training column"
        )
    check_labels(layer.where, len(labels))
    codes = range(start, start + len(labels))
    found = layer.trace.categories(layer.where, layer.value, labels, codes=codes)
    padded = getattr(own, "pad_to_max_tokens", False)
    return found if indices else _hot(layer, found, own.max_tokens if padded else len(words))


_FINAL: dict[str, Activation] = {
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
}
_ACTIVATIONS = ("linear", "relu", *_FINAL)
_MOVING = "Concatenate ExpandDims Flatten Flip GetItem Reshape Split Squeeze Stack Take"
_NOTHING = (
    "ActivityRegularization AlphaDropout Dropout GaussianDropout GaussianNoise Identity Masking "
    "SpatialDropout1D"
)
_SIGNS = {"Add": "+", "Divide": "/", "Multiply": "*", "Subtract": "-", "TrueDivide": "/"}
_HANDLERS: dict[str, Callable[[_Layer], Any]] = {
    **dict.fromkeys(_MOVING.split(), _moved),
    **dict.fromkeys(_NOTHING.split(), _same),
    **dict.fromkeys(_SIGNS, _arithmetic),
    **dict.fromkeys(("IntegerLookup", "StringLookup"), _lookup),
    "Activation": _activation,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "CategoryEncoding": _category_encoding,
    "Dense": _dense,
    "Embedding": _embedding,
    "LogSoftmax": _last("log_softmax"),
    "Negative": lambda layer: layer.trace.affine(layer.where, layer.value, -1.0, 0.0),
    "Normalization": _normalization,
    "ReLU": _relu,
    "Relu": lambda layer: layer.trace.relu(layer.where, layer.value),
    "Rescaling": _rescaling,
    "Sigmoid": _last("sigmoid"),
    "Softmax": _last("softmax"),
}


def _require_keras(purpose: str) -> Any:
    try:
        return require("keras", "keras", purpose)
    except MissingExtraError as error:
        missing = getattr(error.__cause__, "name", None) or "keras"
        if importlib.util.find_spec("keras") is None or missing.partition(".")[0] == "keras":
            raise
        # Keras is there, but its backend is not.
        raise MissingExtraError.of(
            "torch",
            "torch",
            f"Keras is set to compute with {missing!r}, which is not installed. Set "
            "KERAS_BACKEND=torch in the environment",
        ) from error
