r"""The probability from which a model accepts, as a shift of its output bias.

A model with the cut-off :math:`p` for a label accepts iff the probability of that label is at least
:math:`p`. For the logit :math:`z` of class 1 this is

.. math::
    \sigma(z) \ge p \iff z - \operatorname{logit}(p) \ge 0 , \qquad
    1 - \sigma(z) \ge p \iff z + \operatorname{logit}(p) \le 0 ,

and for two logits :math:`z_L - \operatorname{logit}(p) \ge z_{other}`. So reading a model subtracts the
cut-off from the output bias, and every network accepts at 0. A cut-off of 0.5 changes nothing.
If the probability equals the cut-off exactly, the network keeps its own rule for ties: class 1 for
one logit, class 0 for two.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from proplace.core.errors import OptionError
from proplace.core.network import Network
from proplace.core.text import did_you_mean, listing, short
from proplace.core.transforms import Fold

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.schema.values import Label

Cutoff = Mapping["Label", float] | float
"""A label and its probability, as in ``{"approved": 0.7}``. A number belongs to label 1 or True."""

_TAG = re.compile(r" cutoff ([01]) (\S+)")
_UNIT = 2.0**-24  # unit roundoff of float32
_LEAST = 1e-9  # smallest cut-off: below, 1 - p rounds by more than the margin of a search


class Threshold(NamedTuple):
    """A cut-off that was read: the number of a class, and the probability from which it is given."""

    number: int
    p: float

    @classmethod
    def of(cls, cutoff: object, classes: tuple[Label, ...]) -> Threshold:
        """Read a cut-off for a model with these classes."""
        if len(classes) != 2:
            raise _wrong(
                f"a cut-off divides two classes, and the model has {len(classes)} "
                f"({listing(classes)}). Leave cutoff out",
                cutoff,
            )
        if not isinstance(cutoff, Mapping):
            if any(isinstance(label, str) for label in classes) or tuple(classes) != (0, 1):
                raise _wrong(
                    f"cutoff={short(cutoff)} names no label, and the classes of the model are "
                    f"{listing(classes)}. Give the label: cutoff={{{classes[1]!r}: 0.7}}",
                    cutoff,
                )
            return cls(1, _probability(cutoff, cutoff))
        if len(cutoff) != 1:
            raise _wrong(
                f"cutoff must hold one label, not {len(cutoff)}. Give the label that the model accepts, "
                f"as in {{{classes[1]!r}: 0.7}}",
                cutoff,
            )
        ((label, p),) = cutoff.items()
        return cls(cls._number(label, classes, cutoff), _probability(p, cutoff))

    @staticmethod
    def _number(label: object, classes: tuple[Label, ...], cutoff: object) -> int:
        for number, known in enumerate(classes):
            if isinstance(label, str) == isinstance(known, str) and known == label:
                return number
        raise _wrong(
            f"cutoff names {short(label)}, which is not a class of the model"
            f"{did_you_mean(label, classes)}. Its classes are {listing(classes)}",
            cutoff,
        )

    @classmethod
    def of_box(cls, encoding: str) -> Threshold | None:
        """Read the cut-off in the encoding of a shift set, or None."""
        found = _TAG.search(encoding)
        return None if found is None else cls(int(found[1]), float(found[2]))

    @property
    def tag(self) -> str:
        """Suffix for the encoding of a shift set with this cut-off."""
        return f" cutoff {self.number} {self.p!r}" if self.logit else ""

    @property
    def logit(self) -> float:
        """Logit of the probability, which is 0 for 0.5."""
        return math.log(self.p / (1.0 - self.p))

    @property
    def rounding(self) -> float:
        """Bound on what float32 does to a logit when its probability is compared with the cut-off.

        In logits, a probability that is off by e is off by e / (p (1 - p)).
        """
        return 16.0 * _UNIT / (self.p * (1.0 - self.p)) if self.logit else 0.0

    def offset(self, outputs: int) -> Array:
        """Return what is subtracted from each output bias."""
        if outputs == 1:
            return np.array([self.logit if self.number == 1 else -self.logit])
        return np.where(np.arange(outputs) == self.number, self.logit, 0.0)

    def network(self, net: Network) -> Network:
        """Return the network that gives a class as a model with this cut-off does.

        An output layer that was trained without bias gets a bias that no shift moves.
        """
        if not self.logit:
            return net
        *rest, last = net.layers
        layers = [
            *((layer.W, layer.b) for layer in rest),
            (last.W, last.bias - self.offset(net.outputs)),
        ]
        folds = list(net.folds)
        if last.b is None:
            still = np.zeros(net.outputs)
            folds[-1] = replace(folds[-1] or Fold.none(last.W, None), bias=still)
        parts: dict[str, Any] = net.input_transform.parts
        return Network(layers, **parts, precision=net.precision, folds=folds)


def _probability(p: object, cutoff: object) -> float:
    number = isinstance(p, (int, float, np.number)) and not isinstance(p, bool)
    if not (number and 0.0 < float(p) < 1.0):  # type: ignore[arg-type]
        raise _wrong(f"a cut-off must be a probability between 0 and 1, not {short(p)}", cutoff)
    value = float(p)  # type: ignore[arg-type]
    if not _LEAST <= value <= 1.0 - _LEAST:
        raise _wrong(
            f"a cut-off must be at least {_LEAST:g} and at most 1 - {_LEAST:g}, not {short(p)}: the "
            "rounding of a probability would decide",
            cutoff,
        )
    return value


def _wrong(text: str, cutoff: object) -> OptionError:
    return OptionError(text, name="cutoff", value=cutoff)
