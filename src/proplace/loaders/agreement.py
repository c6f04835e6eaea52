r"""Is this really the model in use? What it says of known rows against what was read of it.

The usual mistake is the scaling of the numbers: a network that was trained on scaled numbers sees plain
ones, or scales once more what was scaled already. A *reading* is one way to take the numbers :math:`v`
of a table: the network sees :math:`(v - o) / s` with an offset and a scale for each column. The rows
whose classes are known are read in each of the usual ways, and how often the classes agree tells them
apart.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from proplace.core.errors import ModelDisagrees, TableError
from proplace.core.input_map import InputMap
from proplace.core.text import listing, num, short
from proplace.schema.cells import codes
from proplace.schema.features import Continuous, Ordinal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import numpy.typing as npt
    import pandas as pd

    from proplace.core.network import Array, Network
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.schema.grid import Bools, Integers
    from proplace.schema.rules import AnyFeature

    Tables = Callable[[], Iterable[pd.DataFrame]]
    """The same rows each time it is called, table by table; the index is the number of the row."""

NONE, MINMAX, STANDARD = "none", "minmax", "standard"


def clearly_apart(model: Model, rows: Array, said: npt.NDArray[Any]) -> Integers:
    """Encoded rows whose class is not the label that is said, where rounding cannot be the reason."""
    ours = np.array(model.classes, dtype=object)[model.network.predict(rows)]
    apart = np.flatnonzero(ours != said)
    if not len(apart):
        return apart
    logits = model.network.logits(rows[apart])
    top = np.sort(logits, axis=1)
    near = np.abs(logits[:, 0]) if model.network.outputs == 1 else top[:, -1] - top[:, -2]
    return apart[near > model.rounding(rows[apart])]


@dataclass(frozen=True)
class Reading:
    """A way to take the numbers of a table.

    Attributes
    ----------
    name
        ``none``, ``minmax`` or ``standard``; empty for the reading in use.
    words
        What the network sees then.
    offset, scale
        Of each encoded column; 0 and 1 where it holds no number.
    bare
        Whether the model's own scaling is left out.
    """

    name: str
    words: str
    offset: Array = field(repr=False)
    scale: Array = field(repr=False)
    bare: bool = False


@dataclass(frozen=True)
class Difference:
    """A row for which model and table clearly disagree."""

    row: int
    said: Any
    ours: Any


@dataclass(frozen=True)
class Agreement:
    """How often the classes of a column agree with the model, reading by reading.

    Attributes
    ----------
    column
        The column of the table.
    rows
        Rows whose class is known.
    readings, agree
        The reading in use, then the alternatives; and in how many rows each agrees.
    most_frequent
        In how many rows the most frequent class of the column would agree.
    first
        The first clear difference in the reading in use, and how many there are.
    """

    column: str
    rows: int
    readings: tuple[Reading, ...]
    agree: tuple[int, ...]
    most_frequent: int
    first: Difference | None
    differences: int

    @property
    def better(self) -> Reading | None:
        r"""The alternative that agrees clearly better: by more than chance makes of equal ones.

        Of :math:`n` rows, two readings that are equally good differ by a sum of at most :math:`n`
        signs, whose standard deviation is at most :math:`\sqrt n`; two of them are clear.
        """
        best = int(np.argmax(self.agree))
        gain = self.agree[best] - self.agree[0]
        return self.readings[best] if gain > 2.0 * np.sqrt(self.rows) else None

    @property
    def words(self) -> str:
        """How often which reading agrees."""
        others = "".join(
            f"; {reading.words}: {self._share(count)}"
            for reading, count in zip(self.readings[1:], self.agree[1:], strict=True)
        )
        return (
            f"model and column {short(self.column)} agree in {self.agree[0]:,} of {self.rows:,} rows "
            f"({self._share(self.agree[0])}){others}"
        )

    @property
    def facts(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "column": self.column,
            "rows": self.rows,
            "agree": self.agree[0],
            "most_frequent": self.most_frequent,
            "alternatives": {
                reading.name: count
                for reading, count in zip(self.readings[1:], self.agree[1:], strict=True)
            },
        }

    def warning(self, advice: str) -> str | None:
        """What is suspicious about labels, with what to do where another reading fits; or None."""
        if self.better is not None:
            return (
                f"another reading agrees clearly better with {short(self.column)} ({self.words}); "
                f"is the model really read as it was trained? {advice}"
            )
        if self.agree[0] <= self.most_frequent:
            return (
                f"{self.words}, which is no better than the most frequent class alone "
                f"({self._share(self.most_frequent)}); is this the model, and are these its columns?"
            )
        return None

    def check_predictions(self, path: object, advice: str) -> None:
        """Raise at the first clear difference: predictions are those of the model in use."""
        if self.first is None:
            return
        hint = (
            "No usual scaling of the numbers fits better; is this the model, and are these its columns?"
            if self.better is None
            else advice
        )
        raise ModelDisagrees(
            f"{path}, row {self.first.row}, column {short(self.column)}: the model in use said "
            f"{self.first.said!r}, what was read of it says {self.first.ours!r} "
            f"({self.differences:,} rows differ clearly): {self.words}. {hint}"
        )

    def _share(self, count: int) -> str:
        return f"{num(round(100.0 * count / self.rows, 1))}%"


def compare(model: Model, tables: Tables, column: str) -> Agreement:
    """Compare the model with the classes that a column holds, in the reading in use and others.

    The tables hold legal rows of the model's schema; rows without a class are passed over.
    """
    readings = _readings(model, _Spread.of(model, tables, column))
    predict = [_predictor(model, reading) for reading in readings]
    agree = np.zeros(len(readings), dtype=np.int64)
    counts = np.zeros(len(model.classes), dtype=np.int64)
    classes = np.array(model.classes, dtype=object)
    first, differences = None, 0
    for frame, rows, said in _known(model, tables, column):
        agree += [int((f(rows) == said).sum()) for f in predict]
        counts += np.bincount(said, minlength=len(counts))
        apart = clearly_apart(model, rows, classes[said])
        differences += len(apart)
        if len(apart) and first is None:
            n = int(apart[0])
            ours = model.classes[int(model.network.predict(rows[n])[0])]
            first = Difference(int(frame.index[n]), model.classes[int(said[n])], ours)
    total = int(counts.sum())
    if not total:
        raise TableError(f"column {short(column)} holds no class at all: every cell is missing")
    return Agreement(
        column,
        total,
        readings,
        tuple(int(n) for n in agree),
        int(counts.max()),
        first,
        differences,
    )


def scaled(schema: Schema, reading: Reading) -> list[AnyFeature]:
    """Return the features of a schema with the scaling of a reading."""
    features: list[AnyFeature] = []
    for feature, span in zip(schema.features, schema.spans, strict=True):
        if isinstance(feature, (Continuous, Ordinal)):
            pair = (float(reading.offset[span.start]), float(reading.scale[span.start]))
            scaling: Any = "none" if pair == (0.0, 1.0) else pair
            features.append(dataclasses.replace(feature, scaling=scaling))
        else:
            features.append(feature)
    return features


# -- inside ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Spread:
    """Least, largest and mean number of each encoded column, and its standard deviation."""

    low: Array
    high: Array
    mean: Array
    deviation: Array

    @classmethod
    def of(cls, model: Model, tables: Tables, column: str) -> _Spread:
        """Go through tables once, merging means and squares part by part."""
        width = model.network.inputs
        offset, scale = model.scaling
        low, high = np.full(width, np.inf), np.full(width, -np.inf)
        count, mean, squares = 0, np.zeros(width), np.zeros(width)
        for _, rows, _ in _known(model, tables, column):
            values = offset + scale * rows
            if not len(values):
                continue
            low, high = np.minimum(low, values.min(axis=0)), np.maximum(high, values.max(axis=0))
            total, step = count + len(values), values.mean(axis=0) - mean
            squares += values.var(axis=0) * len(values) + step**2 * (count * len(values) / total)
            mean, count = mean + step * (len(values) / total), total
        return cls(low, high, mean, np.sqrt(squares / max(count, 1)))


def _known(
    model: Model, tables: Tables, column: str
) -> Iterable[tuple[pd.DataFrame, Array, Integers]]:
    """Rows with a class: their table, themselves encoded, and the numbers of their classes."""
    for frame in tables():
        cells = frame[column]
        numbers = codes(cells, model.classes)
        strange = (numbers < 0) & cells.notna().to_numpy()
        if strange.any():
            n = int(np.flatnonzero(strange)[0])
            raise TableError(
                f"row {frame.index[n]}, column {short(column)}: {short(cells.iloc[n])} is no class of "
                f"the model; its classes are {listing(model.classes)}"
            )
        known = numbers >= 0
        part = frame[known]
        yield part, model.schema.encode(part), numbers[known]


def _readings(model: Model, spread: _Spread) -> tuple[Reading, ...]:
    """The reading in use, and the usual others that differ from it."""
    offset, scale = model.scaling
    numeric = _numeric(model)
    zero, one = np.zeros(len(offset)), np.ones(len(offset))

    def mixed(start: Array, size: Array) -> tuple[Array, Array]:
        use = numeric & (size > 0.0)
        return np.where(use, start, zero), np.where(use, size, one)

    low, high = _ranges(model, spread)
    whole = mixed(low, high - low)
    found = [Reading("", "as read", offset, scale)]
    if model.preprocesses:
        plain = "numbers of the table taken as scaled already"
        twice = "numbers scaled to 0 to 1 before the model scales them itself"
        found.append(Reading(NONE, plain, zero, one, bare=True))
        found.append(Reading(MINMAX, twice, whole[0] + whole[1] * offset, whole[1] * scale))
        return tuple(found)
    others = [
        Reading(NONE, "numbers as they are (scaling: none)", zero, one),
        Reading(MINMAX, "numbers scaled to 0 to 1 (scaling: minmax)", *whole),
        Reading(
            STANDARD,
            "numbers scaled by mean and standard deviation",
            *mixed(spread.mean, spread.deviation),
        ),
    ]
    for other in others:
        same = np.allclose(other.offset, offset) and np.allclose(other.scale, scale)
        if not same:
            found.append(other)
    return tuple(found)


def _numeric(model: Model) -> Bools:
    """Which encoded columns hold numbers that a schema may scale."""
    kinds = [
        isinstance(model.schema.features[column.feature], (Continuous, Ordinal))
        for column in model.schema.columns
    ]
    return np.array(kinds, dtype=np.bool_)


def _ranges(model: Model, spread: _Spread) -> tuple[Array, Array]:
    """Range of each number: as declared, else as it is in the table."""
    low, high = spread.low.copy(), spread.high.copy()
    for feature, span in zip(model.schema.features, model.schema.spans, strict=True):
        if isinstance(feature, Ordinal):
            low[span], high[span] = feature.numbers[0], feature.numbers[-1]
        elif isinstance(feature, Continuous) and None not in (feature.lower, feature.upper):
            low[span], high[span] = feature.lower, feature.upper
    return low, high


def _unscaled(net: Network) -> Network:
    """Return a network without the scaling of its own inputs."""
    parts = {k: part for k, part in net.input_map.parts.items() if k in ("matrix", "offset")}
    return net.behind(InputMap(**parts))


def _predictor(model: Model, reading: Reading) -> Callable[[Array], Integers]:
    """Class numbers of encoded rows (of the reading in use) as another reading sees them."""
    offset, scale = model.scaling
    net = _unscaled(model.network) if reading.bare else model.network

    def predict(rows: Array) -> Integers:
        if reading.name == "":
            return net.predict(rows)
        seen = (offset + scale * rows - reading.offset) / reading.scale
        return net.predict(np.where(_numeric(model), seen, rows))

    return predict
