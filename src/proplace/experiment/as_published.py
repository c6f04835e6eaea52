"""Conditions of the published runs that contradict the text of the paper.

- WCE and ROAR read adjacent 0/1 columns as one-hot pairs. The larger becomes 1 and the other 0 before
  the search, which keeps both.
- WCE, ROAR, RBR and MILP-R leave the range of the data, here up to [-3, 4]. Their 0/1 columns take
  fractions.
- ROAR uses the coefficients for standardised columns as if they were for encoded ones.
- A person without a counterfactual does not count in vdelta. (In l1 and lof such a person never does.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from proplace.schema import Binary, Continuous, Schema

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.experiment.protocol import Problem

_PAIRED = ("WCE", "ROAR")
_UNBOUNDED = ("WCE", "ROAR", "RBR", "MILP-R")
_RANGE = (-3.0, 4.0)


def people(name: str, made: Problem) -> Array:
    """Return the rows that a method starts from."""
    if name not in _PAIRED:
        return made.X
    moved = made.X.copy()
    for a, b in _pairs(made):
        first = moved[:, a] >= moved[:, b]
        moved[:, a], moved[:, b] = first, ~first
    return moved


def schema(name: str, made: Problem) -> Schema:
    """Return the features as a method treats them."""
    if name not in _UNBOUNDED:
        return made.schema
    fixed = {column for pair in _pairs(made) for column in pair} if name in _PAIRED else set()
    return Schema(
        [
            Continuous(f"x{j}", *_RANGE, scaling="none", immutable=j in fixed)
            for j in range(made.X.shape[1])
        ]
    )


def options(name: str) -> dict[str, Any]:
    """Return further options of a method."""
    return {"standardised": True} if name == "ROAR" else {}


def _pairs(made: Problem) -> list[tuple[int, int]]:
    """Adjacent columns of categories whose values are words, from the first on."""
    words = [
        span.start
        for feature, span in zip(made.schema.features, made.schema.spans, strict=True)
        if isinstance(feature, Binary) and isinstance(feature.values[0], str)
    ]
    return list(zip(words[:-1:2], words[1::2], strict=False))
