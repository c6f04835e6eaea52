"""What a reader of whole models hands over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.transforms import InputTransform
from proplace.schema import Continuous, Schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import pandas as pd

    from proplace.core.network import Network
    from proplace.schema.cells import Label


@dataclass(frozen=True, eq=False)
class Whole:
    """A model from the table to the class.

    Attributes
    ----------
    network
        Takes the rows that ``schema`` encodes.
    schema
        The columns of the table that the model looks at, encoded as the model encodes them.
    classes
        Label of each class of the network, or None where the model does not say.
    predict
        The model's own labels (or class numbers) for a table, or None where it cannot be run.
    columns
        All columns of the table, those that the model never looks at among them.
    has_column_names
        Whether the model knows its columns by name.
    probabilities
        The model's own probability of each class for a table, one column each, or None where it
        cannot be run or has none.
    """

    network: Network
    schema: Schema
    classes: tuple[Label, ...] | None
    predict: Callable[[pd.DataFrame], Any] | None
    columns: tuple[str, ...]
    has_column_names: bool
    probabilities: Callable[[pd.DataFrame], Any] | None = None


def whole_network(net: Network) -> Whole:
    """Take a network of numbers for a whole model; its scaling goes into the schema."""
    scale = np.ones(net.inputs) if net.scale is None else net.scale
    shift = np.zeros(net.inputs) if net.shift is None else net.shift
    names = [f"x{i}" for i in range(net.inputs)]
    movable = (net.input_transform.matrix is None) & (scale > 0.0)
    s, t = np.where(movable, scale, 1.0), np.where(movable, shift, 0.0)
    features = [
        Continuous(name, scaling="none" if (a, b) == (1.0, 0.0) else (-b / a, 1.0 / a))
        for name, a, b in zip(names, s.tolist(), t.tolist(), strict=True)
    ]
    parts = dict(net.input_transform.parts)
    for name, rest in (("scale", scale / s), ("shift", shift - t * (scale / s))):
        parts.pop(name, None)
        if (rest != (1.0 if name == "scale" else 0.0)).any():
            parts[name] = rest
    network = net.with_input_transform(InputTransform(**parts))
    return Whole(
        network, Schema(features), None, None, columns=tuple(names), has_column_names=False
    )
