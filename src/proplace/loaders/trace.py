r"""One row of a table, followed through a model of any framework.

A reader walks over the operations of its framework and calls one verb of :class:`Trace` for each.
In front of the first trained layer a value holds columns of the table on their way (see
:mod:`proplace.loaders.columns`), behind it the neurons of the layer before
(:mod:`proplace.loaders.layers`). The verbs are

- ``input``: columns of the table enter;
- ``move``: any reshape, selection, concatenation or transposition;
- ``arithmetic``, ``affine``, ``standardise``, ``batch_norm``, ``matrix``: fixed numbers, or sums of
  columns;
- ``categories``, ``one_hot``, ``vectors``: labels and their codes, 0/1 columns or embeddings;
- ``impute``: what a missing cell counts as;
- ``linear``, ``relu``, ``activation``: the trained layers.

What moves numbers around is not described a second time: it is run, by its own framework, on the
places of the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.core.errors import ModelNotSupportedError
from proplace.core.limits import LABELS, TABLE_COLUMNS
from proplace.loaders.columns import DType, Flow, Flowing, Mixture, Single, mixture
from proplace.loaders.layers import Chain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from proplace.core.network import Array
    from proplace.loaders.layers import Activation

ROWS = 7  #: in runs on places: no usual width, so that rows and columns are not confused

Places = npt.NDArray[np.int64]
Entries = npt.NDArray[Any]


class AmbiguousWidth(ModelNotSupportedError):
    """One column stands against several numbers: perhaps the rows have more columns."""


@dataclass(frozen=True)
class Category:
    """The number that stands for a category: ``codes[n]`` for its label ``n``.

    A category is ``ordered`` if its numbers are the levels 0, 1, ... of a scale.
    """

    feature: str
    codes: tuple[float, ...]
    ordered: bool = False


@dataclass(frozen=True, eq=False)
class Value:
    """A tensor, in the shape of one row.

    Attributes
    ----------
    entries
        Columns before the first trained layer, numbers of neurons after it.
    step
        None before the first layer, then the step that the neurons come from, so that branches are seen.
    whole
        True if the numbers were cut to whole ones.
    """

    entries: Entries
    step: int | None = None
    whole: bool = False


class Trace:
    """The path of a row through a model.

    Parameters
    ----------
    title
        Name of the model in messages, such as ``the forward of Net``.
    linear
        Name of a linear layer in the framework.
    """

    def __init__(self, title: str, linear: str) -> None:
        self.title, self.linear_name = title, linear
        self.flow, self.chain = Flow(), Chain(linear)
        self.titles: list[str] = []
        self.columns: list[Flowing] = []  # what enters the first layer
        self.rows = ROWS
        self._step = 0

    # -- the table -----------------------------------------------------------------------------

    def input(self, names: Sequence[str], shape: tuple[int, ...], dtype: DType = "float") -> Value:
        """Take columns of the table, in the shape that one row has."""
        if len(self.titles) + len(names) > TABLE_COLUMNS:
            raise ModelNotSupportedError(
                f"{self.title} takes more than {TABLE_COLUMNS:,} columns. Models of at most that many "
                "are read"
            )
        known = set(self.titles)
        for name in names:
            if name in known:
                raise ModelNotSupportedError(
                    f"two columns of the model would be called {name!r}. Give its inputs other names"
                )
            known.add(name)
            self.titles.append(name)
        return Value(entries([self.flow.column(name, dtype) for name in names]).reshape(shape))

    def used(self) -> set[str]:
        """Columns of the table that the model looks at."""
        return set(self.flow.used(self.columns))

    def table(self, frame: pd.DataFrame) -> pd.DataFrame:
        """Return the columns of the model. Columns without any effect may be absent from ``frame``."""
        used = self.used()
        cells = {
            title: frame[title]
            if title in frame or title in used
            else [self.flow.anything(title)] * len(frame)
            for title in self.titles
        }
        return pd.DataFrame(cells, index=frame.index)

    # -- places --------------------------------------------------------------------------------

    def move(
        self, where: str, values: Sequence[Value], function: Callable[[list[Places]], Any]
    ) -> Any:
        """Lead values through what only moves, selects or reshapes their numbers.

        ``function`` takes and returns arrays of several rows. Number ``j`` of row ``i`` is ``i *
        total + j`` there, and must stay in its row.
        """
        steps = {value.step for value in values}
        if steps != {None}:
            for value in values:
                self._newest(where, value)
        if len(values) > 1:
            if steps != {None}:
                self.branches(where)
            if len({value.whole for value in values}) > 1:
                values = [Value(self.numbers(where, value)) for value in values]
        total = sum(value.entries.size for value in values)
        places, start = [], 0
        for value in values:
            ids = total * np.arange(self.rows)[:, None] + np.arange(
                start, start + value.entries.size
            )
            places.append(ids.reshape(self.rows, *value.entries.shape))
            start += value.entries.size
        try:
            out = function(places)
        except ModelNotSupportedError:
            raise
        except Exception as error:
            raise ModelNotSupportedError(f"{where} cannot be run: {error}") from error
        if not isinstance(out, (tuple, list)):
            return self._moved(where, values, np.asarray(out))
        if len(out) > 1 and steps != {None}:
            self.branches(where)
        return tuple(self._moved(where, values, np.asarray(part)) for part in out)

    def _moved(self, where: str, values: Sequence[Value], ids: Places) -> Value:
        total = sum(value.entries.size for value in values)
        places = ids[0] if ids.ndim else ids
        own = total * np.arange(self.rows).reshape(-1, *[1] * places.ndim) + places
        if ids.shape != own.shape or not np.array_equal(ids, own) or (places >= total).any():
            raise ModelNotSupportedError(
                f"{where} mixes rows; every row must keep its place in the first dimension"
            )
        chosen = places.reshape(-1)
        (first, *_) = values
        if first.step is None:
            known = [entry for value in values for entry in value.entries.reshape(-1)]
            return Value(
                entries([known[i] for i in chosen]).reshape(places.shape), whole=first.whole
            )
        if np.array_equal(chosen, np.arange(total)):
            return Value(places, first.step)
        self.chain.take(where, chosen.tolist())
        return self._neurons(places.shape)

    # -- fixed numbers -------------------------------------------------------------------------

    def affine(self, where: str, value: Value, factor: Any, shift: Any) -> Value:
        """Take ``factor * h + shift``, fixed numbers for all entries or for each."""
        factor, shift = (self._fixed(where, part, value) for part in (factor, shift))
        if value.step is not None:
            return self._folded(where, value, factor, shift)
        return self._each(where, value, _times, factor, shift)

    def standardise(self, where: str, value: Value, offset: Any, scale: Any) -> Value:
        """Take ``(h - offset) / scale``, as scalers write it, whose bits the schema keeps."""
        offset, scale = (self._fixed(where, part, value) for part in (offset, scale))
        if not scale.all():
            raise ModelNotSupportedError(f"{where} divides by zero. Drop that column")
        if value.step is not None:
            return self._folded(where, value, 1.0 / scale, -offset / scale)
        return self._each(where, value, lambda c, o, s: c.then(o, s), offset, scale)

    def add(self, where: str, left: Value, right: Value, sign: float = 1.0) -> Value:
        """Take the sum or the difference of two values."""
        if left.step is not None or right.step is not None:
            self.branches(where)
        a, b = self.numbers(where, left), self.numbers(where, right)
        if a.ndim != b.ndim:
            raise ModelNotSupportedError(
                f"{where} takes rows of shapes {a.shape} and {b.shape}. Give both the same"
            )
        sides = (a, b)
        a, b = np.broadcast_arrays(a, b)
        _check_spread(where, a.shape, *sides)
        row = np.array([1.0, sign])
        sums = [mixture(pair, row) for pair in zip(a.flat, b.flat, strict=True)]
        return Value(entries(sums).reshape(a.shape))

    def arithmetic(self, where: str, sign: str, left: Any, right: Any) -> Value:
        """Take ``left + right``, and likewise -, * and /. One side may be fixed numbers."""
        if isinstance(left, Value) and isinstance(right, Value):
            if left.step is not None or right.step is not None:
                self.branches(where)
            if sign in "+-":
                return self.add(where, left, right, 1.0 if sign == "+" else -1.0)
        elif isinstance(right, Value):
            if sign == "-":
                return self.affine(where, right, -1.0, left)
            if sign != "/":
                return self.arithmetic(where, sign, right, left)
        elif sign == "/" or (sign == "-" and left.step is None):
            offset, scale = (0.0, right) if sign == "/" else (right, 1.0)
            return self.standardise(where, left, offset, scale)
        else:
            factor, shift = {"*": (right, 0.0), "+": (1.0, right), "-": (1.0, -right)}[sign]
            return self.affine(where, left, factor, shift)
        raise ModelNotSupportedError(
            f"{where} multiplies or divides columns by columns, which is no affine map. Compute that "
            "column in the table and give the model the result"
        )

    def batch_norm(
        self, where: str, value: Value, mean: Array, deviation: Array, factor: Array, shift: Array
    ) -> Value:
        """Take ``factor * (h - mean) / deviation + shift``."""
        if value.step is not None:
            scale = factor / deviation
            return self.affine(where, value, scale, shift - scale * mean)
        value = self.standardise(where, value, mean, deviation)
        return self.affine(where, self.affine(where, value, factor, 0.0), 1.0, shift)

    def matrix(self, where: str, value: Value, W: Array) -> Value:
        """Take a fixed linear map of columns, such as a PCA."""
        columns = self.numbers(where, value)
        self.plain_row(where, value)
        if W.ndim != 2 or W.shape[1] != columns.size:
            raise ModelNotSupportedError(
                f"{where} has a matrix of shape {W.shape} for {columns.size} columns"
            )
        return Value(entries([mixture(columns.tolist(), row) for row in W]))

    def total(self, where: str, value: Value, axis: int, *, keepdims: bool) -> Value:
        """Take the sums of columns along an axis, which counts the rows as the first."""
        columns = np.moveaxis(self.numbers(where, value), axis - (axis > 0), -1)
        one = np.ones(columns.shape[-1])
        sums = [mixture(row.tolist(), one) for row in columns.reshape(-1, len(one))]
        found = entries(sums).reshape(columns.shape[:-1])
        return Value(np.expand_dims(found, axis - (axis > 0)) if keepdims else found)

    def _folded(self, where: str, value: Value, factor: Array, shift: Array) -> Value:
        self._newest(where, value)
        if value.entries.ndim > 1:
            self.plain_row(where, value)
        self.chain.batch_norm(where, factor, shift)
        return self._neurons(value.entries.shape)

    def _fixed(self, where: str, part: Any, value: Value) -> Array:
        """Fixed numbers that fit the shape of one row."""
        numbers = np.asarray(part, dtype=np.float64)
        shape = value.entries.shape
        while numbers.ndim > len(shape) and len(numbers) == 1:
            numbers = numbers[0]  # one row for all
        try:
            full = np.broadcast_shapes(numbers.shape, shape)
        except ValueError:
            full = ()
        finite = bool(np.isfinite(numbers).all())
        if numbers.ndim > len(shape) or not finite or (full == () and shape != ()):
            raise ModelNotSupportedError(
                f"{where} takes fixed numbers of shape {numbers.shape} for rows of shape {shape}, or "
                "numbers that are not finite. Give one finite number for each column"
            )
        _check_spread(where, full, value.entries)
        return numbers if value.step is not None else np.broadcast_to(numbers, shape)

    def _each(
        self,
        where: str,
        value: Value,
        function: Callable[[Flowing, float, float], Flowing],
        a: Array,
        b: Array,
    ) -> Value:
        columns = self.numbers(where, value)
        found = [
            function(column, float(x), float(y))
            for column, x, y in zip(columns.flat, a.flat, b.flat, strict=True)
        ]
        return Value(entries(found).reshape(columns.shape))

    # -- categories ----------------------------------------------------------------------------

    def categories(
        self,
        where: str,
        value: Value,
        labels: Sequence[Any],
        *,
        codes: Sequence[float] | None = None,
        ordered: bool = False,
    ) -> Value:
        """Take columns of the table for categories of these labels, with a code for each."""
        self._in_front(where, value)
        known = tuple(range(len(labels)) if codes is None else codes)
        found = [
            Category(self.flow.labels(where, column, labels, ordered=ordered), known, ordered)
            for column in value.entries.flat
        ]
        return Value(entries(found).reshape(value.entries.shape))

    def one_hot(self, where: str, value: Value, depth: int) -> Value:
        """Write the codes 0, 1, ... of categories in ``depth`` columns of 0 and 1.

        A label with a negative code has no column.
        """
        found: list[Flowing] = []
        for category in self._categories(where, value, depth, depth):
            labels: list[list[Single]] = [[] for _ in range(depth)]
            for n, code in enumerate(category.codes):
                if code >= 0:
                    labels[int(code)].append(Single(category.feature, n))
            found += [_any_of(group, len(category.codes)) for group in labels]
        return Value(entries(found).reshape(*value.entries.shape, depth))

    def vectors(self, where: str, value: Value, E: Array, first: int = 0) -> Value:
        """Write row ``k`` of ``E`` for code ``k``, as an embedding does.

        Plain columns become categories, whose labels are the numbers from ``first`` on.
        """
        count, size = E.shape
        found = []
        for category in self._categories(where, value, count, size, first):
            labels = [Single(category.feature, n) for n in range(len(category.codes))]
            chosen = E[[int(code) for code in category.codes]]
            found += [_of_labels(labels, chosen[:, j].tolist()) for j in range(size)]
        return Value(entries(found).reshape(*value.entries.shape, size))

    def _categories(
        self, where: str, value: Value, count: int, size: int, first: int = 0
    ) -> list[Category]:
        """Take entries for categories with codes below ``count``, each written in ``size`` columns."""
        self._in_front(where, value)
        if size * value.entries.size > TABLE_COLUMNS:
            raise ModelNotSupportedError(
                f"{where} makes {size * value.entries.size:,} columns. At most {TABLE_COLUMNS:,} are "
                "read"
            )
        found = []
        for entry in value.entries.flat:
            if isinstance(entry, Category) and not entry.ordered:
                category = entry
            else:
                check_labels(where, count)
                codes = tuple(range(first, count))
                name = self.flow.labels(where, _number(entry), codes, ordered=False)
                category = Category(name, codes)
            if any(code >= count or code != int(code) for code in category.codes):
                raise ModelNotSupportedError(
                    f"{where} takes the numbers below {count}, but column {category.feature!r} has "
                    f"categories up to number {max(category.codes)}. Raise its size and train the "
                    "model again"
                )
            found.append(category)
        return found

    def impute(self, where: str, value: Value, fills: Sequence[Any]) -> Value:
        """Take note of what missing cells count as."""
        self._in_front(where, value)
        for column, fill in zip(value.entries.flat, fills, strict=True):
            if not isinstance(column, Category):  # an encoder takes no missing cell
                self.flow.fill(where, column, fill)
        return value

    def numbers(self, where: str, value: Value) -> Entries:
        """Columns of a value, the codes of categories taken for numbers."""
        if value.whole:
            raise ModelNotSupportedError(
                f"{where} takes a column that was cut to whole numbers; that is read only for an "
                "Embedding or F.one_hot. Leave the cast out. skl2onnx cuts decimals beside whole "
                "numbers: export table.astype(float)[:1], or give the pipeline itself to Model.of"
            )
        found = [_number(entry) for entry in value.entries.flat]
        return entries(found).reshape(value.entries.shape)

    # -- trained layers ------------------------------------------------------------------------

    def linear(
        self, where: str, value: Value, W: Array, b: Array | None, names: tuple[str, str | None]
    ) -> Value:
        """Take a trained layer with ``W`` of shape (out, in)."""
        if value.step is None:
            columns = self.numbers(where, value)
            if not self.chain.at_input:
                self.branches(where)
            self.plain_row(where, value)
            if columns.size != W.shape[1]:
                raise ModelNotSupportedError(
                    f"{where} takes {W.shape[1]} inputs, but a row has {columns.size} columns there"
                )
            self.columns = columns.tolist()
        else:
            self.plain_row(where, self._newest(where, value))
        self.chain.linear(where, W, b, names)
        return self._neurons((len(W),))

    def bias(self, where: str, value: Value, b: Array) -> Value:
        """Take an addition that counts as the trained bias of the layer just taken."""
        self._newest(where, value)
        self.chain.add_bias(where, self._fixed(where, b, value))
        return self._neurons(value.entries.shape)

    def relu(self, where: str, value: Value) -> Value:
        """Take a ReLU."""
        shape = self._shape_behind(where, value)
        self.chain.relu(where)
        return self._neurons(shape)

    def activation(self, where: str, value: Value, kind: Activation) -> Value:
        """Take the activation of the outputs, which is recognised and left out."""
        shape = self._shape_behind(where, value)
        self.chain.finish(where, kind)
        return self._neurons(shape)

    def result(self, where: str, value: Any) -> None:
        """Check that a value is the outputs of the last layer."""
        if not self.columns:
            raise ModelNotSupportedError(f"the model has no {self.linear_name} layer")
        if not isinstance(value, Value) or value.step is None:
            self.branches(where)
        self._newest(where, value)
        if value.entries.ndim > 1:
            self.plain_row(where, value)

    # -- checks --------------------------------------------------------------------------------

    def plain_row(self, where: str, value: Value) -> None:
        """Raise unless a row is a plain list of numbers."""
        if value.entries.ndim != 1:
            raise ModelNotSupportedError(
                f"{where} takes rows of shape {value.entries.shape}, not plain lists of numbers; "
                "bring them into shape (n, d) first, with a Flatten layer, x.flatten(1) or "
                "x.unsqueeze(1)"
            )

    def branches(self, where: str) -> NoReturn:
        """Reject a value that takes two paths after the first layer."""
        raise ModelNotSupportedError(
            f"{self.title} does not equal the chain of its {self.linear_name} layers with a ReLU "
            f"between them: {where} joins two paths after the first layer (a skip "
            "connection or branches), which is read from no other format either. Train the model "
            f"without them: join columns before the first {self.linear_name} layer, and let every "
            "layer take the one before it"
        )

    def _in_front(self, where: str, value: Value) -> None:
        if value.step is not None:
            raise ModelNotSupportedError(
                f"{where} comes after the first {self.linear_name} layer. Categories are read only "
                "before it, from columns of the table"
            )

    def _neurons(self, shape: tuple[int, ...]) -> Value:
        self._step += 1
        return Value(np.arange(int(np.prod(shape, initial=1))).reshape(shape), self._step)

    def _newest(self, where: str, value: Value) -> Value:
        """Return the value of the newest step. Any older value goes two ways."""
        if value.step != self._step:
            self.branches(where)
        return value

    def _shape_behind(self, where: str, value: Value) -> tuple[int, ...]:
        """Return the shape of a row of neurons. The chain refuses it before the first layer."""
        if value.step is not None:
            return self._newest(where, value).entries.shape
        shape: tuple[int, ...] = self.numbers(where, value).shape
        if not self.chain.at_input:
            self.branches(where)
        return shape


def entries(items: Sequence[Any]) -> Entries:
    """Return columns as an array of objects."""
    found = np.empty(len(items), dtype=object)
    found[:] = items
    return found


def check_labels(where: str, count: int) -> None:
    """Raise if a column has more categories than the limit."""
    if count > LABELS:
        raise ModelNotSupportedError(
            f"{where} has {count:,} categories of a column. At most {LABELS:,} are read. "
            "Group the rare ones"
        )


def _check_spread(where: str, shape: tuple[int, ...], *sides: Entries) -> None:
    """Raise if one column stands against several, as rows of fewer columns would pass."""
    if any(side.shape != shape for side in sides):
        raise AmbiguousWidth(
            f"{where} takes one column against several numbers or columns. Write the column as "
            "often as it is used, as in x[:, [0, 0, 0]]"
        )


def _times(column: Flowing, factor: float, shift: float) -> Flowing:
    """``factor * v + shift``."""
    if factor == 0.0:
        return Mixture((), shift)
    if (factor, shift) == (1.0, 0.0):
        return column
    return column.then(-shift / factor, 1.0 / factor)


def _number(entry: Any) -> Flowing:
    """Take the code of a category for what it is."""
    if not isinstance(entry, Category):
        found: Flowing = entry
        return found
    if entry.ordered:
        return Single(entry.feature)
    terms = ((float(code), Single(entry.feature, n)) for n, code in enumerate(entry.codes) if code)
    return Mixture(tuple(terms))


def _any_of(labels: Sequence[Single], known: int) -> Flowing:
    """Return the column that is 1 for these of the ``known`` labels of a category."""
    if len(labels) == known or not labels:
        return Mixture((), float(bool(labels)))
    if len(labels) == 1:
        return labels[0]
    return Mixture(tuple((1.0, label) for label in labels))


def _of_labels(labels: Sequence[Single], values: Sequence[float]) -> Flowing:
    """Return the column that holds ``values[n]`` for label ``n``."""
    if len(labels) == 1 or not any(values):
        return Mixture((), values[0])
    if values.count(0.0) == len(values) - 1 and 1.0 in values:
        return labels[values.index(1.0)]
    return Mixture(tuple(zip(values, labels, strict=True)))
