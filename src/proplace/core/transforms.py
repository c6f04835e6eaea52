r"""Fixed numbers around the trained layers: the input transform, and folded factors.

The input transform precedes the first trained layer,

.. math::
    u = M (s \odot x + t) + c ,

with a factor :math:`s` and a shift :math:`t` per column (a scaler), then a matrix :math:`M` and an
offset :math:`c` (PCA, a selection of columns, an embedding). Every part may be missing. None of it
is a trained parameter of the network: shifts of the parameters never touch it.

Other fixed numbers are folded into trained weights. A batch norm in evaluation mode multiplies and
shifts each neuron by fixed numbers. After a linear layer it scales the rows of that layer
(:math:`r, s`). Between a ReLU and a linear layer it scales the columns of the latter (:math:`g,
t`):

.. math::
    W' = \operatorname{diag}(r)\, W \operatorname{diag}(g), \qquad
    b' = r \odot (b + W t) + s .

If the trained :math:`W, b` move by at most :math:`D, d`, with one number for each of them, the
folded ones move by at most

.. math::
    D'_{ij} = |r_i|\, |g_j|\, D_{ij}, \qquad
    d'_i = |r_i| \Bigl( d_i + \sum_j D_{ij} |t_j| \Bigr) .

Without :math:`t` this box is exactly the image of the trained one. With it, a bias moves together
with the weights of its row, and the box is larger than the image: proofs stay sound, but a robust
row may not be recognised. The bounds are still exact if :math:`g_j t_j \ge 0` for all j, because
the weights that move a pre-activation most also move the bias most.
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
class InputTransform:
    """``u = matrix (scale * x + shift) + offset``, with None for a missing part."""

    scale: Array | None = None
    shift: Array | None = None
    matrix: Array | None = None
    offset: Array | None = None

    @property
    def parts(self) -> dict[str, Array]:
        """The parts that are present, by name."""
        names = ("scale", "shift", "matrix", "offset")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    def __bool__(self) -> bool:
        return bool(self.parts)

    def __call__(self, X: Array) -> Array:
        """Map rows to the inputs of the first trained layer."""
        if self.scale is not None:
            X = X * self.scale
        if self.shift is not None:
            X = X + self.shift
        if self.matrix is not None:  # row by row, so that a row's bits do not depend on other rows
            X = (X[..., None, :] @ self.matrix.T)[..., 0, :]
        return X if self.offset is None else X + self.offset

    def fold(self, W: Array, b: Array) -> tuple[Array, Array]:
        """Return the affine map ``W u + b`` as one of ``x``."""
        if self.offset is not None:
            b = b + W @ self.offset
        W = self._behind(W)
        if self.shift is not None:
            b = b + W @ self.shift
        return (W if self.scale is None else W * self.scale), b

    def pull_back(self, G: Array) -> Array:
        """Turn gradients with respect to ``u`` (rows of G) into those with respect to ``x``."""
        G = self._behind(G)
        return G if self.scale is None else G * self.scale

    def size(self, X: Array) -> Array:
        """Return the sum of the absolute values of all terms of each entry of ``u``."""
        size = np.abs(X)
        if self.scale is not None:
            size = size * np.abs(self.scale)
        if self.shift is not None:
            size = size + np.abs(self.shift)
        if self.matrix is not None:
            size = size @ np.abs(self.matrix).T
        return size if self.offset is None else size + np.abs(self.offset)

    def _behind(self, G: Array) -> Array:
        """Map rows over ``u`` to rows over the inputs of the matrix. Exact zeros stay exact."""
        if self.matrix is None:
            return G
        result: Array = G @ self.matrix
        return result


@dataclass(frozen=True, eq=False)
class Fold:
    """Non-negative factors from moves of trained parameters to moves of folded ones.

    Attributes
    ----------
    rows, columns
        ``|r|``, one number for each neuron, and ``|g|``, one for each input of the layer.
    shift
        ``|t|``, one number for each input.
    bias
        Move of each bias if the trained one moves by 1: ``|r|``, or 0 for a layer that was trained
        without bias.
    """

    rows: Array
    columns: Array
    shift: Array
    bias: Array

    @classmethod
    def none(cls, W: Array, b: Array | None) -> Fold:
        """Return the fold of a layer as it was trained."""
        out, taken = W.shape
        return cls(
            np.ones(out), np.ones(taken), np.zeros(taken), np.full(out, float(b is not None))
        )

    @property
    def arrays(self) -> dict[str, Array]:
        """The factors by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def behind(self, scale: Array, shift: Array) -> Fold:
        """Return the fold with ``scale * h + shift`` before the layer, which had nothing there."""
        return Fold(self.rows, np.abs(scale), np.abs(shift), self.bias)

    def scaled(self, scale: Array) -> Fold:
        """Return the fold with the layer's outputs multiplied by ``scale``."""
        size = np.abs(scale)
        return Fold(self.rows * size, self.columns, self.shift, self.bias * size)

    def with_bias(self) -> Fold:
        """Return the fold with a trained bias added, to outputs that are not scaled."""
        bias = np.where(self.rows == 1.0, 1.0, self.bias + 1.0)
        return Fold(self.rows, self.columns, self.shift, bias)

    def taking(self, places: Iterable[int]) -> Fold:
        """Return the fold of a selection of the layer's outputs."""
        chosen = list(places)
        return Fold(self.rows[chosen], self.columns, self.shift, self.bias[chosen])

    def changes(self, *, biased: bool) -> bool:
        """Test if folded parameters move differently from trained ones."""
        scaled = (self.rows != 1.0).any() or (self.columns != 1.0).any() or self.shift.any()
        return bool(scaled or (biased and (self.bias != 1.0).any()))

    def radii(self, weight: npt.ArrayLike, bias: npt.ArrayLike) -> tuple[Array, Array]:
        """Return the radii of weights and biases for radii of the trained ones, rounded up."""
        D = np.asarray(weight, dtype=np.float64)
        W = _times(_times(self.rows[:, None], self.columns), D)
        carried = np.broadcast_to(
            _times(D, self.shift), (len(self.rows) if D.ndim else 1, W.shape[1])
        )
        sums = _up(np.array([math.fsum(row) for row in carried]))
        b = _times(self.bias, np.asarray(bias, dtype=np.float64)) + _times(self.rows, sums)
        return W, _up(b)


def folds_digest(folds: Iterable[Fold | None]) -> str:
    """Return the SHA-256 of all folds of a network, or an empty text if there are none."""
    sha, found = hashlib.sha256(), False
    for i, fold in enumerate(folds):
        for name, array in ({} if fold is None else fold.arrays).items():
            found = True
            sha.update(f"{name}{i} {len(array)}\n".encode())
            sha.update(np.ascontiguousarray(array + 0.0, dtype="<f8").tobytes())
    return sha.hexdigest() if found else ""


def _up(values: Array) -> Array:
    """Round numbers >= 0 up once more. 0 stays 0."""
    result: Array = np.where(values == 0.0, 0.0, np.nextafter(values, np.inf))
    return result


def _times(a: Array, b: Any) -> Array:
    """Return a product of numbers >= 0, rounded up. A product is 0 only if a factor is 0."""
    result: Array = np.where((a == 0.0) | (b == 0.0), 0.0, np.nextafter(a * b, np.inf))
    return result
