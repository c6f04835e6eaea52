"""A Keras model in memory, described in the same form as one in a file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelNotSupportedError
from proplace.loaders._keras_file import Reader, foreign, holds_code

if TYPE_CHECKING:
    from collections.abc import Mapping

    from proplace.core.network import Array
    from proplace.loaders._keras_file import Entry, FileModel, Values


def described(keras: Any, model: Any) -> FileModel:
    """Describe a Sequential or functional model by its configuration and its weights."""
    _check_model(keras, model)
    _check_layers(keras, model)
    # As Keras itself would save it: each layer with its settings, and what it is called on.
    flat = keras.Model(model.inputs, model.outputs, name=model.name)
    title = f"model {model.name!r}"
    entry = {
        "class_name": "Functional",
        "module": "keras.models",
        "registered_name": None,
    }
    try:
        config = json.loads(json.dumps(flat.get_config()))
        return Reader(title, "", _Memory(keras, flat)).model({**entry, "config": config})
    except (ValueError, TypeError, LookupError, NotImplementedError, RecursionError) as error:
        raise ModelNotSupportedError(
            f"{title} cannot be followed from layer to layer ({error}); build it with "
            "keras.Sequential or the functional API, of layers that Keras can save"
        ) from None


def as_numpy(keras: Any, tensor: Any) -> Array:
    """Return a tensor or variable of Keras as float64 numbers."""
    dtype = str(getattr(tensor, "dtype", ""))
    if dtype.startswith("complex"):
        raise ModelNotSupportedError("the model has complex numbers; a ReLU network has real ones")
    if dtype.endswith("float16"):
        tensor = keras.ops.cast(tensor, "float32")  # numpy has no bfloat16
    return np.asarray(keras.ops.convert_to_numpy(tensor), dtype=np.float64)


def _check_model(keras: Any, model: Any) -> None:
    kind = type(model)
    x = keras.Input((1,))
    # Some versions of Keras reject a model whose output is its input.
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


def _check_layers(keras: Any, model: Any) -> None:
    """Refuse what Keras could save, if at all, only by the name of a class of the user's own."""
    for layer in model._flatten_layers(include_self=False):
        where = f"layer {layer.name!r} ({type(layer).__name__})"
        if isinstance(layer, keras.layers.Lambda):
            raise holds_code(where)
        if type(layer).__module__.partition(".")[0] != "keras":
            raise foreign(where, f"{type(layer).__module__}.{type(layer).__qualname__}")


@dataclass(frozen=True, eq=False)
class _Memory:
    """The numbers of the layers of a model, by the names of the layers."""

    keras: Any
    model: Any

    def inside(self, entry: Entry, group: str) -> _Memory:
        return _Memory(self.keras, self.model.get_layer(entry.name))

    def weights(self, entry: Entry, group: str) -> tuple[Values, ...]:
        layer = self.model.get_layer(entry.name)
        return tuple(as_numpy(self.keras, variable) for variable in layer.weights)

    def vocabulary(self, entry: Entry, group: str) -> list[Any]:
        words = self.model.get_layer(entry.name).get_vocabulary(include_special_tokens=True)
        return [word.item() if isinstance(word, np.generic) else word for word in words]

    def check_order(
        self, entry: Entry, parts: Mapping[str, Any], ordered: Any, outputs: Any
    ) -> None:
        """Names are enough here."""
