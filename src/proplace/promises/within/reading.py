"""Which reading of a model a box speaks of: its layers behind its own scaler, or the whole model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from proplace.core.errors import DeltaError, ModelNotSupported
from proplace.core.shifts import Shifts
from proplace.core.shifts_summary import outside
from proplace.loaders.coordinates import shifts_for
from proplace.loaders.model import Model

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.network import Network
    from proplace.core.shifts import Delta


@dataclass(frozen=True, eq=False)
class Reading:
    """A box, and how the network that must lie in it is read."""

    shifts: Shifts
    network: Callable[[], Network]

    @classmethod
    def of(cls, source: object, delta: Delta, plain: Callable[[object], Network]) -> Reading:
        """Read ``delta`` for a model.

        A box is either of networks as ``plain`` reads them, behind the scaler of the model, or of whole
        models, which scale and encode their tables. Numbers are taken around the model as it is; of a
        ledger, the set is taken in which every open promise is proved.
        """
        if callable(getattr(delta, "promised_set", None)):
            delta = delta.promised_set(source)  # type: ignore[union-attr]
        try:
            return cls(_fitting(plain(source), delta), lambda: plain(source))
        except ModelNotSupported:  # categories: there is no network of plain numbers
            model = Model.of(source)
        except DeltaError:
            if not isinstance(delta, Shifts):
                raise
            model = Model.of(source)
        shifts_for(model, delta)
        return cls(_fitting(model.network, delta), lambda: Model.of(source).network)

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


def _fitting(network: Network, delta: Delta) -> Shifts:
    """Return the box itself, which must be of such networks; numbers are taken around the network."""
    shifts = Shifts.of(network, delta)
    return delta if isinstance(delta, Shifts) else shifts
