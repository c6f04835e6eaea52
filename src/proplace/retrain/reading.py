"""Which reading of a model a box speaks of: its layers behind its own scaler, or the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import DeltaError, ModelNotSupportedError
from proplace.core.shifts import Shifts, outside
from proplace.loaders.coordinates import shifts_for
from proplace.loaders.cutoffs import Threshold
from proplace.loaders.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.network import Network
    from proplace.core.shifts import Delta
    from proplace.loaders.layers import TrainedLayer


@dataclass(frozen=True, eq=False)
class Reading:
    """A box, and how the network that must lie in it is read."""

    shifts: Shifts
    network: Callable[[], Network]
    threshold: Threshold | None = None

    @classmethod
    def of(cls, source: object, delta: Delta, plain: Callable[[object], Network]) -> Reading:
        """Read ``delta`` for a model.

        A box is either of networks as ``plain`` reads them, behind the scaler of the model, or of whole
        models, which scale and encode their tables. Numbers are taken around the model as it is; of a
        ledger, the set is taken in which every open promise is proved. A box of models with a cut-off is
        of networks whose output bias holds it.
        """
        if callable(getattr(delta, "promised_set", None)):
            delta = delta.promised_set(source)  # type: ignore[union-attr]
        threshold = Threshold.of_box(delta.encoding) if isinstance(delta, Shifts) else None

        def of_rows() -> Network:
            return _cut(plain(source), threshold)

        def of_table() -> Network:
            return _cut(Model.of(source).network, threshold)

        try:
            return cls(_fitting(of_rows(), delta), of_rows, threshold)
        except ModelNotSupportedError:  # categories: there is no network of plain numbers
            pass
        except DeltaError:
            if not isinstance(delta, Shifts):
                raise
        model = Model.of(source)
        shifts_for(model if threshold is None else model.with_threshold(threshold), delta)
        return cls(_fitting(of_table(), delta), of_table, threshold)

    def layers(self, layers: tuple[TrainedLayer, ...]) -> tuple[TrainedLayer, ...]:
        """Return the layers of a model with the cut-off behind the last one."""
        if self.threshold is None:
            return layers
        offset = self.threshold.offset(self.shifts.layers[-1].low.W.shape[0])
        return (*layers[:-1], layers[-1].then(np.ones(len(offset)), -offset))

    def check(self) -> None:
        """Raise unless the network that is read of the model now lies in the box, exactly."""
        network = self.network()
        if self.shifts.contains(network):
            return
        Shifts.of(network, self.shifts)  # says why, if it is of another kind
        far = outside(self.shifts, network)
        which = f": {far[0].name} is {far[0].value!r}" if far else " (by less than the last digit)"
        raise DeltaError(
            f"the model has left the box{which}; its parameters were changed after the last projection. "
            "Project once more, and do nothing to them behind it"
        )


def _cut(network: Network, threshold: Threshold | None) -> Network:
    return network if threshold is None else threshold.network(network)


def _fitting(network: Network, delta: Delta) -> Shifts:
    """Return the box itself, which must be of such networks; numbers are taken around the network."""
    shifts = Shifts.of(network, delta)
    return delta if isinstance(delta, Shifts) else shifts
