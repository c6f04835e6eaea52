r"""Fixed numbers, such as batch norm, that were folded into trained weights.

A batch norm in evaluation mode multiplies and shifts each neuron by fixed numbers. Behind a linear layer
it scales the rows of that layer (:math:`r, s`), between a ReLU and a linear layer the columns of the
latter (:math:`g, t`):

.. math::
    W' = \operatorname{diag}(r)\, W \operatorname{diag}(g), \qquad
    b' = r \odot (b + W t) + s .

When the trained :math:`W, b` move by at most :math:`D, d`, one number for each of them, the folded ones
move by at most

.. math::
    D'_{ij} = |r_i|\, |g_j|\, D_{ij}, \qquad
    d'_i = |r_i| \Bigl( d_i + \sum_j D_{ij} |t_j| \Bigr) .

Without :math:`t` this box is the image of the trained one: nothing is lost. With it, a bias moves
together with the weights of its row, and the box holds more than the image: what is proved is proved,
but a row may be robust without being found so. Nothing is lost there either if :math:`g_j t_j \ge 0` for
all j, because the weights that move a pre-activation most also move the bias most.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Fold:
    """How far the parameters of a layer move when the trained ones do: factors, none negative.

    Attributes
    ----------
    rows, columns
        ``|r|``, one number for each neuron, and ``|g|``, one for each input of the layer.
    shift
        ``|t|``, one number for each input.
    bias
        How far each bias moves when the trained one moves by 1: ``|r|``, or 0 for a layer that was
        trained without bias.
    """

    rows: Array
    columns: Array
    shift: Array
    bias: Array

    @classmethod
    def none(cls, W: Array, b: Array | None) -> Fold:
        """Nothing folded into a layer as it was trained."""
        out, taken = W.shape
        return cls(
            np.ones(out), np.ones(taken), np.zeros(taken), np.full(out, float(b is not None))
        )

    @property
    def arrays(self) -> dict[str, Array]:
        """The numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def behind(self, scale: Array, shift: Array) -> Fold:
        """With ``scale * h + shift`` in front of the layer, which has had nothing there."""
        return Fold(self.rows, np.abs(scale), np.abs(shift), self.bias)

    def scaled(self, scale: Array) -> Fold:
        """With the layer's outputs multiplied by ``scale``."""
        size = np.abs(scale)
        return Fold(self.rows * size, self.columns, self.shift, self.bias * size)

    def with_bias(self) -> Fold:
        """With a trained bias added to the layer's outputs; to one that is not scaled it is added."""
        bias = np.where(self.rows == 1.0, 1.0, self.bias + 1.0)
        return Fold(self.rows, self.columns, self.shift, bias)

    def taking(self, places: Iterable[int]) -> Fold:
        """Of some of the layer's outputs."""
        chosen = list(places)
        return Fold(self.rows[chosen], self.columns, self.shift, self.bias[chosen])

    def changes(self, *, biased: bool) -> bool:
        """Whether parameters move otherwise than those of a layer as it is trained."""
        scaled = (self.rows != 1.0).any() or (self.columns != 1.0).any() or self.shift.any()
        return bool(scaled or (biased and (self.bias != 1.0).any()))

    def radii(self, weight: npt.ArrayLike, bias: npt.ArrayLike) -> tuple[Array, Array]:
        """How far weights and biases move when the trained ones move by these radii, rounded up."""
        D = np.asarray(weight, dtype=np.float64)
        W = _times(_times(self.rows[:, None], self.columns), D)
        carried = np.broadcast_to(
            _times(D, self.shift), (len(self.rows) if D.ndim else 1, W.shape[1])
        )
        sums = _up(np.array([math.fsum(row) for row in carried]))
        b = _times(self.bias, np.asarray(bias, dtype=np.float64)) + _times(self.rows, sums)
        return W, _up(b)


def digest(folds: Iterable[Fold | None]) -> str:
    """SHA-256 of what was folded into the layers of a network; empty if nothing was."""
    sha, found = hashlib.sha256(), False
    for i, fold in enumerate(folds):
        for name, array in ({} if fold is None else fold.arrays).items():
            found = True
            sha.update(f"{name}{i} {len(array)}\n".encode())
            sha.update(np.ascontiguousarray(array + 0.0, dtype="<f8").tobytes())
    return sha.hexdigest() if found else ""


def _up(values: Array) -> Array:
    """Numbers >= 0 rounded up once more; 0 stays 0."""
    result: Array = np.where(values == 0.0, 0.0, np.nextafter(values, np.inf))
    return result


def _times(a: Array, b: Any) -> Array:
    """A product of numbers >= 0, rounded up; times 0 it is 0, and otherwise not."""
    result: Array = np.where((a == 0.0) | (b == 0.0), 0.0, np.nextafter(a * b, np.inf))
    return result
