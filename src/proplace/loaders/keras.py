"""Networks from Keras 3 models and ``.keras`` files."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.errors import MissingExtra, ModelFileError, ModelNotSupported, ProplaceError
from proplace.loaders._chain import Activation, Chain, per_column
from proplace.loaders._keras_build import FLOATS, SKIPPED, activation_refusal, built, refusal
from proplace.loaders._keras_file import read_model
from proplace.loaders._verify import form_of, probe_rows
from proplace.optional import require

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.network import Array, Network

_SKIPPED = SKIPPED | {"Flatten", "InputLayer"}
# Operations of keras.ops in a functional model, by what they are called as activations.
_OPERATIONS = {
    "Relu": "relu",
    "Sigmoid": "sigmoid",
    "Softmax": "softmax",
    "LogSoftmax": "log_softmax",
    "Identity": "linear",
}
_FINAL: dict[str, Activation] = {
    "sigmoid": "sigmoid",
    "softmax": "softmax",
    "log_softmax": "log_softmax",
}


def read_keras(path: Path) -> Network:
    """Read a model saved with ``model.save('model.keras')``.

    Keras is never asked to read the file. Its configuration and its weights are read as data; then
    the model is built anew by this package, of the layers on its own list and of plain values, and
    read like any other model: it and the network are run on random rows and must agree. Nothing
    else in the file (optimizer, loss, initializers, code of a Lambda layer) is built or run.
    """
    file = read_model(path)
    keras = _require_keras(f"reading the file {path.name}")
    try:
        model = built(keras, file)
    except ProplaceError:
        raise
    except Exception as error:
        raise ModelFileError(
            f"{path.name}: not a readable .keras file ({error}); save the model again with "
            "model.save('model.keras')"
        ) from None
    return from_keras(model)


def from_keras(model: object) -> Network:
    """Read a Keras 3 model of Dense layers.

    Parameters
    ----------
    model
        A Sequential model, or a functional one in which each layer feeds exactly the next. Dense
        layers must have the activation relu, the last one linear, sigmoid or softmax. Normalization
        and Rescaling layers in front become the network's input transform. Dropout and Flatten are
        skipped.

    Returns
    -------
    Network
        The model and the network are run on random rows and must agree. The precision is
        ``float64`` only if the model computes so, which takes more than float64 weights: Keras
        multiplies matrices in float32 on some of its backends all the same.
    """
    keras = _require_keras("reading a Keras model")
    if not isinstance(model, keras.Model):
        raise ModelNotSupported(
            f"from_keras takes a Keras 3 model, not {type(model).__name__}; models of the old "
            "tf.keras must be saved as .keras and loaded with keras 3"
        )
    layers = list(_layers(keras, model))
    _check_input(model, layers)
    chain = Chain("Dense")
    for layer in layers:
        _add(keras, chain, layer)
    return _verified(keras, model, chain)


def _require_keras(purpose: str) -> Any:
    try:
        return require("keras", "keras", purpose)
    except MissingExtra as error:
        missing = getattr(error.__cause__, "name", None) or "keras"
        if importlib.util.find_spec("keras") is None or missing.partition(".")[0] == "keras":
            raise
        # Keras is there but what it computes with is not.
        raise MissingExtra(
            "torch",
            "torch",
            f"Keras is set to compute with {missing!r}, which is not installed; setting "
            "KERAS_BACKEND=torch in the environment",
        ) from error


# -- the model ---------------------------------------------------------------------------------


def _where(layer: Any) -> str:
    return f"layer {layer.name!r} ({type(layer).__name__})"


def _layers(keras: Any, model: Any) -> list[Any]:
    """Return the layers from input to output; models inside the model are unrolled."""
    kind = type(model)
    sequential, functional = keras.Sequential, _functional(keras)
    if not isinstance(model, (sequential, functional)) or kind.call not in (
        sequential.call,
        functional.call,
    ):
        raise ModelNotSupported(
            f"{kind.__name__} is a model with its own call(), whose layers cannot be followed; "
            "build it with keras.Sequential or the functional API"
        )
    if not model.built:
        raise ModelNotSupported(
            f"model {model.name!r} has no weights yet; give it a keras.Input, or call it once"
        )
    path = list(model.layers) if isinstance(model, sequential) else _path(keras, model)
    return [
        inner
        for layer in path
        for inner in (_layers(keras, layer) if isinstance(layer, keras.Model) else [layer])
    ]


def _functional(keras: Any) -> Any:
    x = keras.Input((1,))
    return type(keras.Model(x, x))


def _path(keras: Any, model: Any) -> list[Any]:
    """Follow a functional model from its output back to its input."""
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ModelNotSupported(
            f"model {model.name!r} has {len(model.inputs)} inputs and {len(model.outputs)} "
            "outputs; it must have one of each"
        )
    path: list[Any] = []
    tensor = model.outputs[0]
    while True:
        operation, index, _ = tensor._keras_history
        if isinstance(operation, keras.layers.InputLayer):
            return path[::-1]
        path.append(operation)
        sources = operation._inbound_nodes[index].input_tensors
        if len(sources) != 1:
            raise ModelNotSupported(
                f"{_where(operation)} joins {len(sources)} branches; only models in which each "
                "layer feeds exactly the next are read (no skip connections)"
            )
        tensor = sources[0]


def _check_input(model: Any, layers: list[Any]) -> None:
    shape = model.input_shape
    first = next((layer for layer in layers if type(layer).__name__ != "InputLayer"), None)
    if len(shape) != 2 and type(first).__name__ != "Flatten":
        raise ModelNotSupported(
            f"model {model.name!r} takes inputs of shape {shape}; it must take rows of numbers, "
            "shape (None, d), or begin with a Flatten layer"
        )


def _add(keras: Any, chain: Chain, layer: Any) -> None:
    where, kind = _where(layer), type(layer).__name__
    if isinstance(layer, keras.layers.Dense):
        _add_dense(keras, chain, layer)
    elif kind == "Cast" and str(getattr(layer, "dtype", "")) in FLOATS:
        return  # between layers of different precision, put there by Keras itself
    elif not isinstance(layer, keras.layers.Layer):
        name = _OPERATIONS.get(kind)
        if name is None:
            raise refusal(where, kind)
        _add_activation(chain, where, name)
    elif kind == "Normalization":
        chain.scale(where, *_normalization(keras, layer))
    elif kind == "Rescaling":
        chain.scale(where, per_column(np.asarray(layer.scale)), per_column(layer.offset))
    elif kind == "Activation":
        _add_function(keras, chain, where, layer.activation)
    elif kind == "ReLU":
        if layer.max_value is not None or layer.negative_slope != 0.0 or layer.threshold != 0.0:
            raise ModelNotSupported(
                f"{where} has max_value={layer.max_value}, negative_slope={layer.negative_slope}, "
                f"threshold={layer.threshold}; only the plain ReLU() is read"
            )
        chain.relu(where)
    elif kind == "Softmax":
        chain.finish(where, "softmax")
    elif kind not in _SKIPPED:
        raise refusal(where, kind)


def _add_dense(keras: Any, chain: Chain, layer: Any) -> None:
    where = _where(layer)
    if getattr(layer, "quantization_mode", None) is not None:
        raise ModelNotSupported(
            f"{where} is quantized ({layer.quantization_mode}); give the model from before that"
        )
    bias = _numpy(keras, layer.bias) if layer.use_bias else None
    chain.linear(where, _numpy(keras, layer.kernel).T, bias)
    if isinstance(layer.activation, keras.layers.Layer):
        _add(keras, chain, layer.activation)
    else:
        _add_function(keras, chain, where, layer.activation)


def _add_function(keras: Any, chain: Chain, where: str, function: Any) -> None:
    for name in ("linear", "relu", *_FINAL):
        if function is keras.activations.get(name):
            _add_activation(chain, where, name)
            return
    raise activation_refusal(where, getattr(function, "__name__", str(function)))


def _add_activation(chain: Chain, where: str, name: str) -> None:
    if name == "relu":
        chain.relu(where)
    elif name in _FINAL:
        chain.finish(where, _FINAL[name])


def _normalization(keras: Any, layer: Any) -> tuple[Array, Array]:
    where = _where(layer)
    if layer.mean is None or layer.variance is None:
        raise ModelNotSupported(f"{where} is not adapted; call adapt() with the training rows")
    axis = layer.axis if isinstance(layer.axis, (tuple, list)) else (layer.axis,)
    if tuple(axis) not in ((), (-1,), (1,), (None,)):
        raise ModelNotSupported(f"{where} has axis={layer.axis}; only axis=-1 or None is read")
    mean = per_column(_numpy(keras, layer.mean))
    # Keras divides by the standard deviation, but never by less than its epsilon.
    deviation = np.maximum(
        np.sqrt(per_column(_numpy(keras, layer.variance))), keras.backend.epsilon()
    )
    if layer.invert:
        return deviation, mean
    return 1.0 / deviation, -mean / deviation


def _numpy(keras: Any, tensor: Any) -> Array:
    if str(getattr(tensor, "dtype", "")).startswith("complex"):
        raise ModelNotSupported("the model has complex numbers; a ReLU network has real ones")
    if str(getattr(tensor, "dtype", "")).endswith("float16"):
        tensor = keras.ops.cast(tensor, "float32")  # numpy has no bfloat16
    return np.asarray(keras.ops.convert_to_numpy(tensor), dtype=np.float64)


def _verified(keras: Any, model: Any, chain: Chain) -> Network:
    """Return the network of the chain if the model agrees with it on random rows."""
    network = chain.network("float32")
    # A float64 model may still round its input to float32, so the rows are of that precision.
    X = probe_rows(network).astype(np.float32).astype(np.float64)
    # The input has a type of its own, which no layer computes in.
    layers = [layer for layer in model.layers if type(layer).__name__ != "InputLayer"]
    compute = {str(layer.compute_dtype) for layer in layers}
    try:
        rows = X.reshape((len(X), *model.input_shape[1:]))
        if compute != {"float64"}:
            rows = rows.astype(np.float32)
        outputs = _numpy(keras, model(rows, training=False))
    except Exception as error:
        raise ModelNotSupported(
            f"model {model.name!r} cannot be run on rows of shape (n, {network.inputs}): {error}"
        ) from error
    if compute == {"float64"} and form_of(network, X, outputs, "float64") is not None:
        return chain.network("float64")
    half = any(name.endswith("float16") for name in compute)
    if form_of(network, X, outputs, "half" if half else "float32") is None:
        raise ModelNotSupported(
            f"model {model.name!r} does not compute what the chain of its layers says (a layer of "
            "a subclass with its own call?); build it of plain Dense and ReLU layers"
        )
    return network
