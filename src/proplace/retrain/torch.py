"""Training of a torch module within a shift set."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np

from proplace.core.errors import ModelNotSupportedError, OptionError, require
from proplace.loaders.torch import trained_torch
from proplace.retrain.projection import BoxTarget, Projection

if TYPE_CHECKING:
    from types import TracebackType

    from proplace.core.shifts import Delta, Shifts
    from proplace.loaders.layers import TrainedLayer
    from proplace.retrain.projection import Floats


_FREEZE = (
    "statistics and weights of a batch norm must be frozen: for each of them call layer.eval() and "
    "layer.requires_grad_(False), the former again after every module.train()"
)


def stay_within(module: object, shifts: Delta, optimizer: object | None = None) -> BoxProjector:
    """Keep a torch module within a shift set during training.

    The trained module accepts every counterfactual that was proved for the shift set.

    Parameters
    ----------
    module
        Module that ``Model.of`` imports, with float32 or float64 parameters. Batch norm and embeddings
        must be frozen.
    shifts
        Shift set, delta around the module as it is now, or ledger. If the module lies outside, the first
        projection moves it inside.
    optimizer
        Optimizer after whose steps the module is projected. Default: none, so call the result after
        each step.

    Returns
    -------
    BoxProjector
        A callable that projects the module. Its ``check()`` compares the imported network with the shift
        set, exactly. A ``with`` block projects at once and checks at the end.

    Examples
    --------
    >>> import torch  # doctest: +SKIP
    >>> with stay_within(module, shifts, optimizer):  # doctest: +SKIP
    ...     for X, y in batches:
    ...         optimizer.zero_grad()
    ...         loss(module(X), y).backward()
    ...         optimizer.step()
    """
    return BoxProjector(module, shifts, optimizer)


class BoxProjector:
    """Projects a module on a shift set. Made by :func:`stay_within`.

    Attributes
    ----------
    shifts
        The shift set.
    """

    def __init__(self, module: object, shifts: Delta, optimizer: object | None) -> None:
        self._torch = require("torch", "torch", "training a torch module within a box")
        check_batch_norm(self._torch, module)
        self._parameters = TorchParameters(module)
        self._parameters.check_frozen()
        self._target = BoxTarget.of(module, shifts)
        self._parameters.layers = self._target.layers(self._parameters.layers)
        self._ends: dict[str, tuple[Any, Any]] = {}
        self._projection = Projection(self._parameters, self._target.shifts)
        self._hook = None if optimizer is None else self._hooked(optimizer)

    @property
    def shifts(self) -> Shifts:
        """The shift set."""
        return self._target.shifts

    def __call__(self) -> None:
        """Move every parameter of the module to the nearest allowed value."""
        self._parameters.check_frozen()
        with self._torch.no_grad():
            for name in self._projection.ends:
                parameter = self._parameters.tensor(name)
                parameter.clamp_(*self._ends_of(name, parameter))
        self._projection.project_biases(self._parameters)

    def check(self) -> None:
        """Raise unless the imported network lies in the shift set, exactly."""
        self._target.check()

    def remove(self) -> None:
        """Remove the projection from the optimizer."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def __enter__(self) -> Self:
        self()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.remove()
        if kind is None:
            self.check()

    # -- inside ------------------------------------------------------------------------------

    def _ends_of(self, name: str, parameter: Any) -> tuple[Any, Any]:
        """Return the ends of a parameter on its device and in its type."""
        low, high = self._ends.get(name, (None, None))
        if low is None or low.dtype != parameter.dtype or low.device != parameter.device:
            if self._projection.ends[name][0].dtype != self._parameters.get(name).dtype:
                self._projection = Projection(self._parameters, self.shifts)
            low, high = (
                self._torch.as_tensor(end, device=parameter.device)
                for end in self._projection.ends[name]
            )
            self._ends[name] = low, high
        return low, high

    def _hooked(self, optimizer: Any) -> Any:
        if not hasattr(optimizer, "register_step_post_hook"):
            raise OptionError(
                f"optimizer must be a torch optimizer, not {type(optimizer).__name__}. Leave it out and "
                "call the result of stay_within after each step",
                name="optimizer",
                value=optimizer,
            )
        stepped = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not any(id(self._parameters.tensor(name)) in stepped for name in self._projection.ends):
            raise OptionError(
                "the optimizer trains none of the parameters of this module. Give the one that does",
                name="optimizer",
                value=optimizer,
            )
        return optimizer.register_step_post_hook(lambda *_: self())


class TorchParameters:
    """The trained parameters of the layers of a module, by their names."""

    def __init__(self, module: object) -> None:
        self._torch = require("torch", "torch", "training a torch module")
        _check_kind(self._torch, module)
        self.module, layers = trained_torch(module)
        self.layers = self._shared(layers)

    def tensor(self, name: str) -> Any:
        """Return the parameter."""
        return self.module.get_parameter(name)

    def get(self, name: str) -> Floats:
        """Return the present values. bfloat16, which NumPy lacks, becomes float16."""
        tensor = self.tensor(name).detach().cpu()
        if tensor.dtype == self._torch.bfloat16:
            tensor = tensor.half()
        return np.asarray(tensor.numpy())

    def set(self, name: str, values: Floats) -> None:
        """Write values, rounded to the nearest of the parameter's own type."""
        with self._torch.no_grad():
            self.tensor(name).copy_(self._torch.as_tensor(np.array(values)))

    def check_frozen(self) -> None:
        """Raise if training would change numbers outside of the shift set."""
        check_batch_norm(self._torch, self.module)
        known = {
            id(self.tensor(name))
            for layer in self.layers
            for name in (layer.weight, layer.bias)
            if name is not None
        }
        for name, parameter in self.module.named_parameters():
            if parameter.requires_grad and id(parameter) not in known:
                path = name.rpartition(".")[0] or name
                raise ModelNotSupportedError(
                    f"parameter {name!r} is trained, but is not part of the shift set. Freeze it: "
                    f"module.get_submodule({path!r}).requires_grad_(False)",
                    name=name,
                )

    def _shared(self, layers: tuple[TrainedLayer, ...]) -> tuple[TrainedLayer, ...]:
        """Give a parameter that several layers share one name."""
        first: dict[int, str] = {}

        def name(given: str) -> str:
            return first.setdefault(id(self.tensor(given)), given)

        return tuple(layer.renamed(name) for layer in layers)


def check_batch_norm(torch: Any, module: Any) -> None:
    """Raise if a batch norm changes while the module is trained."""
    _check_kind(torch, module)
    for path, leaf in module.named_modules():
        norm = isinstance(leaf, torch.nn.modules.batchnorm._BatchNorm)
        if norm and (leaf.training or any(p.requires_grad for p in leaf.parameters())):
            what = "is in training mode" if leaf.training else "is trained"
            raise ModelNotSupportedError(
                f"layer {path!r} (batch norm) {what}; {_FREEZE}", name=path
            )


def _check_kind(torch: Any, module: Any) -> None:
    if any(kind.__module__.partition(".")[0] == "keras" for kind in type(module).__mro__):
        raise OptionError(
            "this is a Keras model. Give model.fit the callback: "
            "model.fit(X, y, callbacks=[StayWithin(shifts)])",
            name="module",
        )
    if not isinstance(module, torch.nn.Module):
        raise OptionError(
            f"stay_within takes a torch module, not {type(module).__name__}; for scikit-learn there is "
            "refit_within, for Keras the callback StayWithin",
            name="module",
        )
