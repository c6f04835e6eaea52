"""Write-back of a repaired last layer into a model of the user's framework."""

from __future__ import annotations

import copy
import os
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import InputError, ModelNotSupportedError
from proplace.core.network import Network
from proplace.loaders.model import Model

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.loaders.cutoffs import Threshold
    from proplace.retrain.projection import Parameters


def with_last_layer(source: object, network: Network, threshold: Threshold | None = None) -> Any:
    """Return a copy of a model that has the last layer of a network.

    ``threshold`` is the cut-off that the network holds and the model does not.

    ``network`` is the network of the source but for its last layer. For a network, a ``Model`` or a file
    it is returned itself, since they have no framework to write to.

    Raises
    ------
    ModelNotSupportedError
        The model cannot store such a layer: it shares the parameter, or has a batch norm.
    InputError
        The model would round the layer.
    """
    if isinstance(source, (Network, Model, str, os.PathLike)):
        return network
    with warnings.catch_warnings():  # Keras, of the state of an optimizer that was never used
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        twin = copy.deepcopy(source)
    parameters = _parameters(twin)
    if not all(layer.columns is None and not layer.steps for layer in parameters.layers):
        raise ModelNotSupportedError(
            "the model has a batch norm (or other fixed numbers) behind its first layer, and the "
            "repaired layer is that with it folded in; fold it into the layers of the model first "
            "(torch.nn.utils.fusion.fuse_linear_bn_eval, or build the model without it), or use "
            "Repair.network"
        )
    last, layer = parameters.layers[-1], network.layers[-1]
    _write(parameters, last.weight, last.taken, layer.W)
    if last.bias is not None and layer.b is not None:
        offset = (
            np.zeros(network.outputs) if threshold is None else threshold.offset(network.outputs)
        )
        _write(parameters, last.bias, last.taken, layer.b, offset)
    there = Model.of(twin).network
    _check(network, there if threshold is None else threshold.network(there))
    return twin


def _parameters(source: object) -> Parameters:
    """Return the parameters of a model of a framework."""
    kinds = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    if "keras" in kinds:  # with torch behind it, a Keras model is a torch module too
        from proplace.retrain.keras import KerasParameters  # noqa: PLC0415  (on demand)

        return KerasParameters(source)
    if "torch" in kinds:
        from proplace.retrain.torch import TorchParameters  # noqa: PLC0415

        return TorchParameters(source)
    from proplace.retrain.sklearn import SklearnParameters  # noqa: PLC0415

    return SklearnParameters(source)


def _write(
    parameters: Parameters, name: str, taken: Any, values: Array, offset: Array | float = 0.0
) -> None:
    """Write values of the last layer plus ``offset``; outputs that are not used stay as they are."""
    before = parameters.get(name)
    after = np.array(before, dtype=np.float64)
    used = slice(None) if taken is None else taken
    after[used] = np.where(after[used] - offset == values, after[used], values + offset)
    if np.array_equal(after, before):
        return
    if any(name in (layer.weight, layer.bias) for layer in parameters.layers[:-1]):
        raise ModelNotSupportedError(
            f"{name} is shared by several layers of the model, and the repair changes the last one "
            "alone; give the last layer a parameter of its own",
            name=name,
        )
    parameters.set(name, after)


def _check(network: Network, there: Network) -> None:
    """Raise unless the network that is read of the model is the repaired one."""
    moved = max(
        float(np.abs(x - y).max())
        for one, other in zip(network.layers, there.layers, strict=True)
        for x, y in ((one.W, other.W), (one.bias, other.bias))
    )
    if moved:
        raise InputError(
            f"the model rounds the parameters by {moved:.2g}, so that what was proved of the "
            "network is not proved of it; read and use the model in the precision that it stores"
        )
