r"""Columns of a table on their way to the first trained layer.

Everything that a model does to a table in front of its network is followed as an affine map of *base
columns*: the cell itself for a number, a 0/1 column for each label of a category. A column on its way is
either still one base column, moved and scaled,

.. math:: (b_j - o) / s ,

or a mixture :math:`\sum_j a_j z_j + c` of such columns :math:`z_j`. At the end numbers take their
:math:`(o, s)` with them into the schema (the schema then encodes them just as the model does), scaled
categories become the scale and shift of the network's input transform, and mixtures its matrix.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from proplace.core.errors import ModelNotSupportedError
from proplace.core.transforms import InputTransform
from proplace.schema import Binary, Categorical, Continuous, Ordinal, Schema
from proplace.schema.values import to_python

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label


@dataclass(frozen=True)
class Single:
    """One base column, moved and scaled: ``(b - offset) / scale``.

    ``label`` is the position of a category's label whose 0/1 column is meant, None for the cell as a
    number.
    """

    feature: str
    label: int | None = None
    offset: float = 0.0
    scale: float = 1.0

    def then(self, offset: float, scale: float) -> Single:
        """Move and scale once more: ``(value - offset) / scale``."""
        return replace(self, offset=self.offset + self.scale * offset, scale=self.scale * scale)


@dataclass(frozen=True, eq=False)
class Mixture:
    """``sum of a * column + constant`` over single columns."""

    terms: tuple[tuple[float, Single], ...]
    constant: float = 0.0

    def then(self, offset: float, scale: float) -> Mixture:
        """Move and scale: ``(value - offset) / scale``."""
        terms = tuple((a / scale, column) for a, column in self.terms)
        return Mixture(terms, (self.constant - offset) / scale)


Flowing = Single | Mixture
DType = Literal["float", "integer", "boolean"]


@dataclass
class _Source:
    """One column of the table."""

    name: str
    labels: tuple[Label, ...] | None = None
    ordered: bool = False
    missing: Label | None = None
    dtype: DType = "float"


@dataclass
class Flow:
    """Columns of a table, followed through the steps of a model."""

    sources: dict[str, _Source] = field(default_factory=dict)

    def column(self, name: str, dtype: DType = "float") -> Single:
        """Take a column of the table, as a number unless it is made a category later."""
        self.sources.setdefault(name, _Source(name, dtype=dtype))
        return Single(name)

    @property
    def numeric(self) -> set[str]:
        """Columns that are numbers, not categories."""
        return {source.name for source in self.sources.values() if source.labels is None}

    @property
    def integers(self) -> list[str]:
        """Columns that the model takes as whole numbers."""
        return [source.name for source in self.sources.values() if source.dtype == "integer"]

    def labels(self, where: str, column: Flowing, labels: Sequence[Any], *, ordered: bool) -> str:
        """Make a column of the table a category and return its name."""
        if not isinstance(column, Single) or column != Single(column.feature):
            raise ModelNotSupportedError(
                f"{where} takes categories of a column that was changed before. Apply it to the "
                "column of the table itself"
            )
        source = self.sources[column.feature]
        found = tuple(_label(where, column.feature, label) for label in labels)
        if source.labels is not None and source.labels != found:
            raise ModelNotSupportedError(
                f"{where} knows other categories of {column.feature!r} than another step of the model"
            )
        source.labels, source.ordered = found, ordered
        return column.feature

    def fill(self, where: str, column: Flowing, value: Any) -> None:
        """Note the value that a missing cell of a column counts as."""
        if not isinstance(column, Single) or column.label is not None:
            raise ModelNotSupportedError(
                f"{where} fills missing values of a column that was mixed from others. Put it first"
            )
        source = self.sources[column.feature]
        if source.missing is None:  # a later imputer sees no missing cells any more
            untouched = (column.offset, column.scale) == (0.0, 1.0)
            source.missing = (
                _label(where, column.feature, value)
                if untouched
                else column.offset + column.scale * float(value)
            )

    def used(self, columns: Sequence[Flowing]) -> list[str]:
        """Return the columns of the table that ``columns`` depend on, in the order of their use."""
        return list({single.feature: None for c in columns for _, single in _terms(c)})

    def anything(self, name: str) -> Label:
        """Return some value of a column, for one that the model never looks at."""
        labels = self.sources[name].labels
        return 0.0 if labels is None else labels[0]

    # -- the end -------------------------------------------------------------------------------

    def finish(self, columns: Sequence[Flowing]) -> tuple[Schema, InputTransform]:
        """Return the schema and the input transform from its encoded rows to ``columns``."""
        order = self.used(columns)
        for source in self.sources.values():
            if source.dtype == "boolean" and source.labels is None:
                source.labels = (False, True)
        columns = [self._as_labels(column) for column in columns]
        scalings = {name: _scaling(name, columns) for name in order}
        dropped = {name: self._dropped(name, columns) for name in order}
        features = [self._feature(name, scalings[name], dropped[name]) for name in order]
        schema = Schema(features)
        place = {  # encoded column of each base column, except of a dropped label
            (name, label): start + n
            for name, span in zip(order, schema.spans, strict=True)
            for start in (span.start,)
            for n, label in enumerate(self._kept(name, dropped[name]))
        }
        return schema, _input_transform(columns, place, scalings, schema.width)

    def _as_labels(self, column: Flowing) -> Flowing:
        """Write the number of a category's cell as a mixture of its labels."""
        terms: list[tuple[float, Single]] = []
        constant = column.constant if isinstance(column, Mixture) else 0.0
        changed = False
        for a, single in _terms(column):
            source = self.sources[single.feature]
            if single.label is not None or source.labels is None or source.ordered:
                terms.append((a, single))
                continue
            changed = True
            if source.labels == (False, True):  # counted as 0 and 1
                terms.append((a, replace(single, label=1)))
                continue
            for n, label in enumerate(source.labels):
                if isinstance(label, str):
                    raise ModelNotSupportedError(
                        f"the model takes column {single.feature!r} both as text and as a number"
                    )
                value = (float(label) - single.offset) / single.scale
                terms.append((a * value, Single(single.feature, n)))
        return Mixture(tuple(terms), constant) if changed else column

    def _dropped(self, name: str, columns: Sequence[Flowing]) -> int | None:
        """Label of a category that needs no column of its own: the model never looks at it."""
        source = self.sources[name]
        if source.labels is None or source.ordered:
            return None
        seen = {single.label for c in columns for _, single in _terms(c) if single.feature == name}
        unseen = [n for n in range(len(source.labels)) if n not in seen]
        return unseen[0] if len(unseen) == 1 else None

    def _kept(self, name: str, dropped: int | None) -> list[int | None]:
        source = self.sources[name]
        if source.labels is None or source.ordered:
            return [None]
        return [n for n in range(len(source.labels)) if n != dropped]

    def _feature(self, name: str, scaling: tuple[float, float], dropped: int | None) -> AnyFeature:
        source = self.sources[name]
        if source.labels is None:
            return Continuous(name, scaling=scaling, missing=_number(name, source.missing))
        # The model, too, rejects a label without a code.
        missing = source.missing if source.missing in source.labels else None
        if source.ordered:
            codes = tuple(range(len(source.labels)))
            return Ordinal(name, source.labels, values=codes, scaling=scaling, missing=missing)
        labels = list(source.labels)
        if dropped is None:
            return Categorical(name, labels, missing=missing)
        labels.insert(0, labels.pop(dropped))
        if len(labels) == 2:
            return Binary(name, labels, missing=missing)
        return Categorical(name, labels, encoding="dropfirst", missing=missing)


def _terms(column: Flowing) -> tuple[tuple[float, Single], ...]:
    return ((1.0, column),) if isinstance(column, Single) else column.terms


def mixture(columns: Sequence[Flowing], row: Array) -> Flowing:
    """Return ``row . columns``. A plain selection of one column stays that column."""
    places = np.flatnonzero(row)
    if len(places) == 1 and row[places[0]] == 1.0:
        return columns[int(places[0])]
    terms: dict[Single, float] = {}
    constant = 0.0
    for n in places.tolist():
        column, a = columns[n], float(row[n])
        constant += a * column.constant if isinstance(column, Mixture) else 0.0
        for b, single in _terms(column):
            terms[single] = terms.get(single, 0.0) + a * b
    return Mixture(tuple((a, single) for single, a in terms.items()), constant)


def _scaling(name: str, columns: Sequence[Flowing]) -> tuple[float, float]:
    """Return the scaling of a number in the schema: that of its first use, bit by bit."""
    for column in columns:
        for _, single in _terms(column):
            if single.feature == name and single.label is None and single.scale != 0.0:
                return single.offset, abs(single.scale)
    return 0.0, 1.0


def _input_transform(
    columns: Sequence[Flowing],
    place: dict[tuple[str, int | None], int],
    scalings: dict[str, tuple[float, float]],
    width: int,
) -> InputTransform:
    """Return the smallest input transform from encoded rows to the columns."""
    scale, shift, offset = np.ones(width), np.zeros(width), np.zeros(len(columns))
    known: set[int] = set()
    cells: dict[tuple[int, int], float] = {}  # of a matrix that is the unit matrix for most models
    for i, column in enumerate(columns):
        offset[i] = column.constant if isinstance(column, Mixture) else 0.0
        for a, single in _terms(column):
            j = place[single.feature, single.label]
            s, t = _relative(single, scalings[single.feature])
            if j not in known:
                known.add(j)
                scale[j], shift[j] = s, t
            same = (s, t) == (scale[j], shift[j])
            cells[i, j] = cells.get((i, j), 0.0) + (a if same else a * s / scale[j])
            offset[i] += 0.0 if same else a * (t - s / scale[j] * shift[j])
    diagonal = len(columns) == width and cells == {(i, i): 1.0 for i in range(width)}
    matrix = None
    if diagonal:
        shift, offset = shift + offset, np.zeros(len(columns))
    else:
        matrix = np.zeros((len(columns), width))
        for at, a in cells.items():
            matrix[at] = a
    return InputTransform(
        scale if (scale != 1.0).any() else None,
        shift if (shift != 0.0).any() else None,
        matrix,
        offset if (offset != 0.0).any() else None,
    )


def _relative(single: Single, scaling: tuple[float, float]) -> tuple[float, float]:
    """Factor and shift of a column over its encoded column."""
    if single.label is not None:
        return 1.0 / single.scale, -single.offset / single.scale
    offset, scale = scaling
    if (single.offset, single.scale) == (offset, scale):
        return 1.0, 0.0
    return scale / single.scale, (offset - single.offset) / single.scale


def _label(where: str, name: str, label: Any) -> Label:
    """Return a label as a plain Python value."""
    plain = to_python(label)
    if isinstance(plain, (str, bool, int)) or (isinstance(plain, float) and np.isfinite(plain)):
        return plain
    raise ModelNotSupportedError(
        f"{where} has a category {label!r} of column {name!r}; a category must be text or a number. "
        "Replace missing cells by a word of their own before the model is fitted"
    )


def _number(name: str, value: Label | None) -> float | None:
    if isinstance(value, str):
        raise ModelNotSupportedError(
            f"missing cells of the number {name!r} are filled with {value!r}"
        )
    return None if value is None else float(value)
