"""Training of a Keras model within a shift set."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from proplace.core.errors import ModelNotSupportedError, require
from proplace.loaders.keras import trained_keras
from proplace.retrain.projection import BoxTarget, Projection

if TYPE_CHECKING:
    from proplace.core.shifts import Delta, Shifts
    from proplace.loaders.layers import TrainedLayer
    from proplace.retrain.projection import Floats


class StayWithin:
    """A Keras callback that keeps a model within a shift set during training.

    ``model.fit(X, y, callbacks=[StayWithin(shifts)])``. The model is projected before the first step and
    after each batch. At the end, the imported network is compared with the shift set, exactly. The
    trained model accepts every counterfactual that was proved for the shift set.

    Parameters
    ----------
    shifts
        Shift set, delta around the model at the start of training, or ledger. BatchNormalization and
        Embedding layers must be frozen (``layer.trainable = False``).
    """

    model: Any  # set by Keras

    def __new__(cls, shifts: Delta) -> Self:  # noqa: D102  (Keras is imported on demand)
        keras = require("keras", "keras", "training a Keras model within a box")
        own: Any = cls
        made: Self = object.__new__(_callback(own, keras.callbacks.Callback))
        return made

    def __init__(self, shifts: Delta) -> None:
        super().__init__()
        self._given = shifts
        self._target: BoxTarget | None = None

    @property
    def shifts(self) -> Shifts | None:
        """The shift set. None before training."""
        return None if self._target is None else self._target.shifts

    def on_train_begin(self, logs: Any = None) -> None:
        """Project the model, or raise if that is not possible."""
        self._parameters = KerasParameters(self.model)
        self._parameters.check_frozen()
        self._target = BoxTarget.of(self.model, self._given)
        self._parameters.layers = self._target.layers(self._parameters.layers)
        self._projection = Projection(self._parameters, self._target.shifts)
        self.project()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Project the model."""
        self.project()

    def on_train_end(self, logs: Any = None) -> None:
        """Project the model again, and check it."""
        self.project()
        self.check()

    def project(self) -> None:
        """Move every parameter to the nearest allowed value."""
        # NumPy, since some backends of Keras turn float64 into float32.
        self._projection(self._parameters)

    def check(self) -> None:
        """Raise unless the imported network lies in the shift set, exactly."""
        if self._target is not None:
            self._target.check()


@cache
def _callback(cls: Any, base: Any) -> Any:
    """Return the class as a callback of the installed Keras."""
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
        """Return the present values, with weights of shape (out, in)."""
        values = np.asarray(self._keras.ops.convert_to_numpy(self._variables[name].value))
        return values.T

    def set(self, name: str, values: Floats) -> None:
        """Write values, rounded to the nearest of the parameter's own type."""
        variable, held = self._variables[name], np.ascontiguousarray(values.T)
        variable.assign(self._keras.ops.convert_to_tensor(held, dtype=variable.dtype))

    def check_frozen(self) -> None:
        """Raise if training would change numbers outside of the shift set."""
        known = {id(variable) for variable in self._variables.values()}
        for layer in self._model._flatten_layers(include_self=False, recursive=True):
            own = [v for v in layer.trainable_variables if id(v) not in known]
            norm = isinstance(layer, self._keras.layers.BatchNormalization) and layer.trainable
            if norm or (own and not hasattr(layer, "layers")):
                raise ModelNotSupportedError(
                    f"layer {layer.name!r} ({type(layer).__name__}) is trained, but is not part of the "
                    "shift set. Freeze it (layer.trainable = False), then compile and train the model",
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
