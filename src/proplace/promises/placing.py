"""The parameters of a network, put back into a model of the user's framework."""

from __future__ import annotations

import contextlib
import copy
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import InputError, ModelNotSupported
from proplace.loaders.model import Model
from proplace.promises.within.projection import Projection
from proplace.promises.within.reading import Reading

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.network import Array, Network
    from proplace.core.shifts import Shifts
    from proplace.promises.within.projection import Parameters


@dataclass(frozen=True, eq=False)
class Placed:
    """A model with the parameters of a network.

    Attributes
    ----------
    model
        A copy of the source, of the same framework.
    network
        What is really in it: the network that is read of the model.
    rounding
        How far a parameter of it lies from the one that was wanted, at most: 0 where all were floats
        of the model's own precision.
    """

    model: Any
    network: Network
    rounding: float


def place(network: Network, source: object, *, within: Shifts | None = None) -> Placed:
    """Put the parameters of a network into a copy of a model of the same architecture.

    Parameters
    ----------
    network
        What the model shall compute: a network as ``Model.of(source).network`` or
        ``Network.from_torch(source)`` and the like read it, with other parameters.
    source
        A torch module, a Keras model, a scikit-learn ``MLPClassifier`` or ``LogisticRegression``, or a
        pipeline that ends in one. It is not changed. A batch norm has no place for folded weights, and
        is refused.
    within
        Parameters are rounded to the nearest number of the model's own precision; with a box that holds
        the network, to the nearest one in the box.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, place
    >>> from sklearn.neural_network import MLPClassifier
    >>> X = np.random.default_rng(0).normal(size=(100, 2))
    >>> mlp = MLPClassifier((3,), max_iter=5, tol=10.0, random_state=0).fit(X, X[:, 0] > 0.0)
    >>> net = Network.from_sklearn(mlp)
    >>> halves = net.with_layers((layer.W / 2, layer.bias / 2) for layer in net.layers)
    >>> placed = place(halves, mlp)
    >>> placed.rounding, Network.from_sklearn(placed.model) == halves
    (0.0, True)
    """
    with warnings.catch_warnings():  # Keras, of the state of an optimizer that was never used
        warnings.filterwarnings("ignore", "Skipping variable loading for optimizer")
        twin = copy.deepcopy(source)
    parameters, plain = _parameters(twin)
    read = _matching(network, twin, plain)
    if not all(layer.columns is None and not layer.steps for layer in parameters.layers):
        raise ModelNotSupported(
            "the source has a batch norm (or other fixed numbers) behind its first layer, and the "
            "parameters of a network are those with it folded in; fold it into the layers of the source "
            "first (torch.nn.utils.fusion.fuse_linear_bn_eval, or build the model without it), or use "
            "the network itself"
        )
    wanted = _wanted(network, parameters)
    projection = None
    if within is not None:
        reading = Reading.of(twin, within, plain)
        projection = Projection(parameters, reading.shifts)
    for name, values in wanted.items():
        ends = None if projection is None else projection.ends.get(name)
        own = parameters.get(name).dtype
        near = values if ends is None else np.clip(values.astype(own), *ends)
        parameters.set(name, near)
    there = read()
    return Placed(twin, there, _distance(network, there))


def _parameters(source: object) -> tuple[Parameters, Callable[[object], Network]]:
    """The parameters of a model of a framework, and the reader of such models."""
    kinds = {kind.__module__.partition(".")[0] for kind in type(source).__mro__}
    if "keras" in kinds:  # with torch behind it, a Keras model is a torch module too
        from proplace.loaders.keras import from_keras  # noqa: PLC0415  (frameworks on demand)
        from proplace.promises.within.keras import KerasParameters  # noqa: PLC0415

        return KerasParameters(source), from_keras
    if "torch" in kinds:
        from proplace.loaders.torch import from_torch  # noqa: PLC0415
        from proplace.promises.within.torch import TorchParameters  # noqa: PLC0415

        return TorchParameters(source), from_torch
    if "sklearn" in kinds:
        from proplace.loaders.sklearn import from_sklearn  # noqa: PLC0415
        from proplace.promises.within.sklearn import SklearnParameters  # noqa: PLC0415

        return SklearnParameters(source), from_sklearn
    raise ModelNotSupported(
        f"a {type(source).__name__} has no place for parameters; give the torch module, the Keras model "
        "or the scikit-learn model itself, or save the network (network.save)"
    )


def _matching(
    network: Network, source: object, plain: Callable[[object], Network]
) -> Callable[[], Network]:
    """The reader of the source that gives networks like this one."""

    def whole() -> Network:
        return Model.of(source).network

    def bare() -> Network:
        return plain(source)

    there = whole()
    if _alike(network, there):
        return whole
    with contextlib.suppress(ModelNotSupported):  # categories
        if _alike(network, bare()):
            return bare
    raise InputError(
        f"{network!r} and the source, {there!r}, differ in widths, biases or in the scaler in front of "
        "the first layer; give a network as it is read of this source, with other parameters"
    )


def _alike(a: Network, b: Network) -> bool:
    shapes = [[(layer.W.shape, layer.b is None) for layer in net.layers] for net in (a, b)]
    mine, theirs = a.input_map.parts, b.input_map.parts
    return (
        shapes[0] == shapes[1]
        and mine.keys() == theirs.keys()
        and all(np.array_equal(part, theirs[name]) for name, part in mine.items())
    )


def _wanted(network: Network, parameters: Parameters) -> dict[str, Array]:
    """Values of each parameter; those of outputs that are not used stay as they are."""
    wanted: dict[str, Array] = {}
    for here, layer in zip(parameters.layers, network.layers, strict=True):
        for name, values in ((here.weight, layer.W), (here.bias, layer.b)):
            if name is None or values is None:
                continue
            whole = np.array(parameters.get(name), dtype=np.float64)
            if here.taken is None:
                whole = np.array(values)
            else:
                whole[here.taken] = values
            if name in wanted and not np.array_equal(wanted[name], whole):
                raise ModelNotSupported(
                    f"{name} is shared by several layers of the source, for which the network has "
                    "different values; give each layer of the source a parameter of its own"
                )
            wanted[name] = whole
    return wanted


def _distance(a: Network, b: Network) -> float:
    return max(
        float(np.abs(x - y).max())
        for one, other in zip(a.layers, b.layers, strict=True)
        for x, y in ((one.W, other.W), (one.bias, other.bias))
    )
