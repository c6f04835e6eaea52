"""Training of a Keras model within a box of networks."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from proplace.core.errors import ModelNotSupportedError, require
from proplace.loaders.keras import trained_keras
from proplace.retrain.projection import Projection, Reading

if TYPE_CHECKING:
    from proplace.core.shifts import Delta, Shifts
    from proplace.loaders.layers import TrainedLayer
    from proplace.retrain.projection import Floats


class StayWithin:
    """A Keras callback that keeps a model within a box of networks while it is trained.

    ``model.fit(X, y, callbacks=[StayWithin(shifts)])``. The model is projected before the first step and
    after each batch; when training ends, what the package reads of the model is compared with the box,
    exactly. Every answer that was proved for the box is then accepted by the trained model as well.

    Parameters
    ----------
    shifts
        The box; also a number, or a pair for each layer: then around the model as it is when training
        begins. BatchNormalization and Embedding layers are no part of it and must be frozen
        (``layer.trainable = False``).
    """

    model: Any  # set by Keras

    def __new__(cls, shifts: Delta) -> Self:  # noqa: D102  (Keras is imported when it is needed)
        keras = require("keras", "keras", "training a Keras model within a box")
        own: Any = cls
        made: Self = object.__new__(_callback(own, keras.callbacks.Callback))
        return made

    def __init__(self, shifts: Delta) -> None:
        super().__init__()
        self._given = shifts
        self._reading: Reading | None = None

    @property
    def shifts(self) -> Shifts | None:
        """The box; None for numbers while no training has begun."""
        return None if self._reading is None else self._reading.shifts

    def on_train_begin(self, logs: Any = None) -> None:
        """Project the model, or say why it cannot be."""
        self._parameters = KerasParameters(self.model)
        self._parameters.check_frozen()
        self._reading = Reading.of(self.model, self._given)
        self._parameters.layers = self._reading.layers(self._parameters.layers)
        self._projection = Projection(self._parameters, self._reading.shifts)
        self.project()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Project the model."""
        self.project()

    def on_train_end(self, logs: Any = None) -> None:
        """Project the model once more, and check it."""
        self.project()
        self.check()

    def project(self) -> None:
        """Take every parameter to the nearest value that the box allows."""
        # In numpy: operations of Keras take float64 for float32 on some of its backends.
        self._projection(self._parameters)

    def check(self) -> None:
        """Raise unless the network that is read of the model lies in the box, exactly."""
        if self._reading is not None:
            self._reading.check()


@cache
def _callback(cls: Any, base: Any) -> Any:
    """The class as a callback of the Keras that is installed."""
    return type(cls.__name__, (cls, base), {"__module__": cls.__module__, "__doc__": cls.__doc__})


class KerasParameters:
    """The trained parameters of the layers of a model."""

    def __init__(self, model: Any) -> None:
        self._keras = require("keras", "keras", "training a Keras model")
        self._model = model
        layers = trained_keras(model)
        self._variables: dict[str, Any] = {}
        self.layers = self._shared(layers)

    def get(self, name: str) -> Floats:
        """The present values, with weights of shape (out, in)."""
        values = np.asarray(self._keras.ops.convert_to_numpy(self._variables[name].value))
        return values.T

    def set(self, name: str, values: Floats) -> None:
        """Write values, rounded to the nearest of the parameter's own type."""
        variable, held = self._variables[name], np.ascontiguousarray(values.T)
        variable.assign(self._keras.ops.convert_to_tensor(held, dtype=variable.dtype))

    def check_frozen(self) -> None:
        """Raise if training would change numbers that count as fixed."""
        known = {id(variable) for variable in self._variables.values()}
        for layer in self._model._flatten_layers(include_self=False, recursive=True):
            own = [v for v in layer.trainable_variables if id(v) not in known]
            norm = isinstance(layer, self._keras.layers.BatchNormalization) and layer.trainable
            if norm or (own and not hasattr(layer, "layers")):
                raise ModelNotSupportedError(
                    f"layer {layer.name!r} ({type(layer).__name__}) is trained, and is no part of the "
                    "box; freeze it (layer.trainable = False), then compile and train the model",
                    name=layer.name,
                )

    def _variable(self, path: str) -> Any:
        *names, which = path.split("/")
        layer = self._model
        for name in names:
            layer = layer.get_layer(name)
        return layer.weights[0 if which == "kernel" else 1]

    def _shared(self, layers: tuple[TrainedLayer, ...]) -> tuple[TrainedLayer, ...]:
        """Give a parameter that several layers share one name."""
        first: dict[int, str] = {}

        def name(path: str) -> str:
            variable = self._variable(path)
            known = first.setdefault(id(variable), path)
            self._variables[known] = variable
            return known

        return tuple(layer.renamed(name) for layer in layers)
