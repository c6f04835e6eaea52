r"""Adam (AMSGrad variant), for a batch of points, each on its own.

.. math::
    m \leftarrow .9 m + .1 g, \quad v \leftarrow .999 v + .001 g^2, \quad
    \hat v \leftarrow \max(\hat v, v), \quad
    x \leftarrow x - \eta \frac{m / (1 - .9^t)}{\sqrt{\hat v / (1 - .999^t)} + 10^{-8}} .
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

    from proplace.core.network import Array


@dataclass
class Adam:
    """State of the optimiser; ``step`` gives the change of the points for their gradients."""

    shape: tuple[int, ...]
    rate: float
    _mean: Array = field(init=False)
    _square: Array = field(init=False)
    _largest: Array = field(init=False)
    _count: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        self._mean, self._square, self._largest = np.zeros((3, *self.shape))

    def step(self, gradient: Array, rows: npt.NDArray[np.int64]) -> Array:
        """Return what to add to the points ``rows``, which have been stepped each time so far."""
        self._count += 1
        self._mean[rows] = 0.9 * self._mean[rows] + 0.1 * gradient
        self._square[rows] = 0.999 * self._square[rows] + 0.001 * gradient**2
        self._largest[rows] = np.maximum(self._largest[rows], self._square[rows])
        mean = self._mean[rows] / (1.0 - 0.9**self._count)
        root = np.sqrt(self._largest[rows] / (1.0 - 0.999**self._count))
        result: Array = -self.rate * mean / (root + 1e-8)
        return result
