"""The schema: meaning of the columns of a table, encoding and decoding."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.core.errors import DraftWarning, OptionError, SchemaError
from proplace.core.request import tolerance_pairs
from proplace.core.text import did_you_mean, listing, num, short
from proplace.schema import files, values
from proplace.schema.features import Binary, Categorical, Continuous, Feature, Ordinal
from proplace.schema.grid import SNAP
from proplace.schema.infer import code_notes, decision_notes, infer_features
from proplace.schema.person import Compiled, Person
from proplace.schema.rules import IfThen, Linear, Rule
from proplace.schema.values import BadRow, filled, numbers, refuse

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from proplace.core.request import Range, Tolerance
    from proplace.schema.features import Direction
    from proplace.schema.grid import Array, Bools, Column, Integers
    from proplace.schema.rules import AnyFeature

    Frame = pd.DataFrame | npt.ArrayLike

T = TypeVar("T", bound=np.generic)

_TOLD = 12  # missing columns that a message names
_ROUNDING = 2.0**-48  # relative: far more than the rounding of a cell, a sum and a quotient


@dataclass(frozen=True, repr=False)
class Schema(values.Checked):
    """Meaning of the columns of a table: features, their encoding, and rules of change.

    Encoded rows are the inputs of the network: float columns in the order of the features.

    Parameters
    ----------
    features
        :class:`Continuous`, :class:`Ordinal`, :class:`Categorical` and :class:`Binary` features, in
        the order of the network's inputs.
    rules
        :class:`Linear` and :class:`IfThen` rules between features.

    Examples
    --------
    >>> schema = Schema([Continuous("age", 20, 70, step=1, direction="increasing"),
    ...                  Categorical("job", ["clerk", "cook"])])
    >>> frame = pd.DataFrame({"job": ["cook", "clerk"], "age": [45, 20]})
    >>> schema.encode(frame)
    array([[0.5, 0. , 1. ],
           [0. , 1. , 0. ]])
    >>> schema.decode([[0.31, 0.2, 0.7]])
       age   job
    0   36  cook
    >>> schema.encode(frame.assign(job="cooc"))
    Traceback (most recent call last):
    proplace.core.errors.SchemaError: row 0, column 'job': 'cooc' is not a category (did you mean
    'cook'?); allowed: 'clerk', 'cook' (1 more row has problems. See Schema.problems)
    """

    _CONVERT: ClassVar[Mapping[str, values.Convert]] = {
        "features": values.parts(Continuous, Ordinal, Categorical, Binary, word="feature"),
        "rules": values.parts(Linear, IfThen, word="rule", empty=True),
    }

    features: Sequence[Feature]
    rules: Sequence[Rule] = ()

    def _problems(self) -> Iterable[str]:
        names = [feature.name for feature in self.features]
        found = [
            f"features {n}: another feature is called {short(names[n])}" for n in _again(names)
        ]
        if not found:
            columns = [column.name for column in self.columns]
            found = [
                f"features {self.columns[j].feature}: two encoded columns are called {short(columns[j])}"
                for j in _again(columns)
            ]
        for number, rule in enumerate(self.rules):
            place = f"rules {number}" + (f" ({short(rule.name)})" if rule.name else "")
            found += [f"{place}: {problem}" for problem in rule.problems(self.by_name)]
        return found

    def __repr__(self) -> str:
        rules = f", {len(self.rules)} rules" if self.rules else ""
        return f"Schema({len(self.features)} features, {self.width} columns{rules})"

    # -- other ways to make one ----------------------------------------------------------------

    @classmethod
    def encoded(
        cls,
        width: int,
        *,
        names: Sequence[str] | None = None,
        lower: npt.ArrayLike | None = None,
        upper: npt.ArrayLike | None = None,
    ) -> Schema:
        """Make the schema of rows that are already encoded: plain numbers without a scaling.

        Parameters
        ----------
        width
            Number of columns.
        names
            Their names, by default ``x0``, ``x1``, ...
        lower, upper
            Range of each column (one number, or one per column). Default: unbounded.
        """
        if width < 1:
            raise SchemaError(f"width must be at least 1, not {width}", name="width", value=width)
        titles = [f"x{j}" for j in range(width)] if names is None else list(names)
        if len(titles) != width:
            raise SchemaError(
                f"names must be {width}, one per column, not {len(titles)}", name="names"
            )
        low, high = _per_column("lower", lower, width), _per_column("upper", upper, width)
        return cls(
            [
                Continuous(name, a, b, scaling="none")
                for name, a, b in zip(titles, low, high, strict=True)
            ]
        )

    @classmethod
    def infer(
        cls,
        frame: pd.DataFrame,
        *,
        categorical_limit: int = 30,
        immutable: Collection[str] = (),
        increasing: Collection[str] = (),
        decreasing: Collection[str] = (),
        scaling: Literal["minmax", "standard", "model"] = "minmax",
    ) -> Schema:
        """Draft a schema from the feature columns of a table. Read it before you use it.

        - true/false, and numbers that are only 0 and 1: :class:`Binary`
        - other numbers: :class:`Continuous` with a readable step
          (:func:`~proplace.schema.infer.readable_grid`). Ranges are those of the table, rounded
          outwards to multiples of the step
        - text and unordered categories: :class:`Binary` for two values, else
          :class:`Categorical`, sorted (or in the order of the pandas categories)
        - ordered pandas categories: :class:`Ordinal`

        Missing cells are skipped here, and :meth:`encode` reports them. One error names all columns
        without a sensible draft: constant and empty columns, dates, and text with more than
        ``categorical_limit`` different values (names, identifiers). A ``DraftWarning`` points out ages,
        protected traits, and codes such as -9 among numbers.

        Parameters
        ----------
        frame
            Features only: drop the target first.
        categorical_limit
            Largest number of categories of a text column.
        immutable, increasing, decreasing
            Names of features that cannot change, cannot fall, cannot rise.
        scaling
            Encoding of numbers: ``"minmax"``, the range of the table to [0, 1]; ``"standard"`` by
            mean and standard deviation of the table, as ``sklearn.preprocessing.StandardScaler`` does;
            ``"model"``, left to a model that scales its own inputs.
        """
        features = infer_features(frame, categorical_limit=categorical_limit, scaling=scaling)
        drafted = cls(features).restrict(
            immutable=immutable, increasing=increasing, decreasing=decreasing
        )
        notes = decision_notes(drafted.features)
        for feature in drafted.features:
            if isinstance(feature, Continuous):
                notes += code_notes(feature, numbers(frame[feature.name]))
        for note in notes:
            warnings.warn(note, DraftWarning, stacklevel=2)
        return drafted

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Schema:
        """Read a ``.yaml``, ``.yml`` or ``.json`` file, written by :meth:`write` or by hand."""
        return files.read(Path(path), cls)

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write a ``.yaml``, ``.yml`` or ``.json`` file. It appears whole or not at all."""
        files.write(Path(path), self)

    @classmethod
    def from_dict(cls, facts: Mapping[str, Any]) -> Schema:
        """Make a schema of the features and rules that :meth:`to_dict` returned."""
        return files.from_dict(facts, cls)

    def to_dict(self) -> dict[str, Any]:
        """Return the features and rules as JSON holds them."""
        return files.to_dict(self)

    # -- between table and network -------------------------------------------------------------

    def encode(self, frame: Frame) -> Array:
        """Encode a table, shape (n, width), or raise a ``SchemaError`` about the first bad cell.

        Columns are found by name, in any order. Other columns are ignored. Numbers need not lie on
        the grid, which is for counterfactuals, but values within a millionth of a step are snapped to
        it. A schema made by :meth:`encoded` also takes arrays.
        """
        X, problems = self.encode_valid(frame)
        refuse(problems)
        return X

    def encode_valid(self, frame: Frame) -> tuple[Array, dict[int, BadRow]]:
        """Encode all rows, invalid ones as NaN, and return the problems of these by position.

        A missing column still raises.
        """
        return self._read(frame, people=False)

    def encode_people(self, frame: Frame) -> tuple[Array, dict[int, BadRow]]:
        """Encode people as :meth:`encode_valid` does, with any finite numbers of their own.

        A model takes any number, so a person outside of a range can be explained. For them the range
        is wider: :meth:`widened`.
        """
        return self._read(frame, people=True)

    def widened(self, person: npt.ArrayLike) -> Schema:
        """Return the schema with ranges that hold the numbers of an encoded person."""
        row = self._rows(person)[0]
        outside = np.flatnonzero(self.outside(row[None])[0])
        if not len(outside):
            return self
        features = list(self.features)
        for j in outside.tolist():
            number = self.columns[j].feature
            feature = features[number]
            assert isinstance(feature, Continuous)  # noqa: S101  (others have no outside)
            own = float(feature.write_people(row[j : j + 1])[0])
            features[number] = feature.widened(own)
        return self.with_features(features)

    def outside(self, rows: Array) -> Bools:
        """Test which numbers of encoded people lie outside of their ranges."""
        return self._numbers & ((rows < self.lower) | (rows > self.upper))

    def problems(self, frame: Frame) -> dict[int, BadRow]:
        """Return the first problem of each row that cannot be encoded, by position."""
        return self.encode_valid(frame)[1]

    def decode(
        self,
        X: npt.ArrayLike,
        *,
        like: pd.DataFrame | None = None,
        people: npt.ArrayLike | None = None,
    ) -> pd.DataFrame:
        """Write encoded rows in original units, each cell the nearest legal value.

        ``decode(encode(frame))`` returns the cells of ``frame``: exactly on grids, for labels, and for
        numbers of at most 15 significant digits, otherwise up to the last digit. Encoding a decoded
        table again always gives the same bits.

        Parameters
        ----------
        X
            Encoded rows.
        like
            A table with the same rows, such as the people before their change. Its index is kept,
            and so is every cell of it whose code did not change, to the last digit.
        people
            Encoded people, one for each row. Their numbers off the grid are kept in rows that still have
            them, and numbers outside of a range are kept.
        """
        rows = self._rows(X)
        if like is not None and len(like) != len(rows):
            raise SchemaError(
                f"like must have {len(rows)} rows as X has, not {len(like)}", name="like"
            )
        cells = None if like is None else self._by_name(like)
        before = rows if people is None else self._rows(people)
        kept = (rows == before) & self._numbers | self.outside(rows)
        kept &= people is not None
        decoded: dict[str, Any] = {}
        for number, (feature, span) in enumerate(zip(self.features, self.spans, strict=True)):
            values = feature.write(rows[:, span])
            if isinstance(feature, Continuous):
                column = rows[:, span.start]
                own = kept[:, span.start] & (feature.canonical(rows[:, span])[:, 0] != column)
                if own.any():
                    values = np.array(values, dtype=np.float64)
                    values[own] = feature.write_people(column[own])
                if cells is not None:
                    values = _unchanged(feature, cells[number], column, values)
            decoded[feature.name] = values
        return pd.DataFrame(decoded, index=None if like is None else like.index)

    def canonical(self, X: npt.ArrayLike, *, person: npt.ArrayLike | None = None) -> Array:
        """Return the legal rows nearest to ``X``, as :meth:`encode` after :meth:`decode` does.

        ``person`` is an encoded person, whose own numbers count as legal.
        """
        rows = self._rows(X)
        legal = np.hstack(
            [
                feature.canonical(rows[:, span])
                for feature, span in zip(self.features, self.spans, strict=True)
            ]
        )
        if person is None:
            return legal
        before = self._rows(person)
        return np.where((rows == before) & self._numbers, before, legal)

    def on_grids(self, rows: Array) -> Array:
        """Return rows with the numbers of grids at their nearest legal values, all else unchanged."""
        steps = [j for j, column in enumerate(self.columns) if column.kind == "grid"]
        if not steps:
            return rows
        rows = rows.copy()
        for j in steps:
            rows[:, j] = self.columns[j].nearest(rows[:, j])
        return rows

    def legal(self, X: npt.ArrayLike) -> Bools:
        """Test which encoded rows hold legal values only: in range, on the grid, one category each."""
        rows = self._rows(X, finite=False)
        legal = np.ones(len(rows), dtype=np.bool_)
        for j, column in enumerate(self.columns):
            legal &= column.legal(rows[:, j])
        return legal & self._one_category(rows)

    def legal_people(self, X: npt.ArrayLike) -> Bools:
        """Test which encoded rows may be people: legal rows, and results of :meth:`encode_people`."""
        rows = self._rows(X, finite=False)
        legal = self._one_category(rows)
        for j, column in enumerate(self.columns):
            feature = self.features[column.feature]
            number = isinstance(feature, Continuous)
            legal &= np.isfinite(rows[:, j]) if number else column.legal(rows[:, j])
        return legal

    def _one_category(self, rows: Array) -> Bools:
        """Test which rows have one category of each categorical feature."""
        legal = np.ones(len(rows), dtype=np.bool_)
        for feature, span in zip(self.features, self.spans, strict=True):
            if isinstance(feature, Categorical):
                on = rows[:, span].sum(axis=1)
                legal &= (on == 1.0) | (on == 0.0) if feature.first else on == 1.0
        return legal

    def person(self, x: npt.ArrayLike, *, kept: Collection[int] = ()) -> Person:
        """Return a person: what may change and which candidates are allowed.

        ``x`` is an encoded row, and a range that does not hold its number is widened to it. ``kept``
        are numbers of features that keep the person's value.
        """
        return Person(self.widened(x), self._rows(x)[0], kept)

    def with_features(self, features: Sequence[AnyFeature]) -> Schema:
        """Return a schema with other features and the same rules."""
        return Schema(features, rules=self.rules)

    # -- requests ------------------------------------------------------------------------------

    def restrict(
        self,
        *,
        immutable: Collection[str] = (),
        increasing: Collection[str] = (),
        decreasing: Collection[str] = (),
        ranges: Mapping[str, Range] | None = None,
    ) -> Schema:
        """Return a schema that allows less, with the same encoded columns.

        A given range is declared: it replaces a range that was drafted from a table, and narrows a
        declared one. ``None`` leaves an end as it is. Raises OptionError if a name is not a feature, or
        if more would be allowed than before.

        Examples
        --------
        >>> schema = Schema([Continuous("age", 18, 90, step=1), Binary("member")])
        >>> schema.restrict(immutable=["member"], ranges={"age": (30, None)}).features
        (Continuous('age', 30, 90, step=1, default_scaling=(18.0, 72.0)),
         Binary('member', immutable=True))
        """
        ranges = ranges or {}
        options: dict[str, Collection[str]] = {
            "immutable": immutable,
            "increasing": increasing,
            "decreasing": decreasing,
            "ranges": ranges,
        }
        if not any(map(len, options.values())):
            return self
        for option, names in options.items():
            self.check_names(option, names)
        directions: tuple[Direction, Direction] = ("increasing", "decreasing")
        features = {feature.name: feature for feature in self.features}
        for name, ends in ranges.items():
            features[name] = _ranged(features[name], ends)
        for direction in directions:
            for name in options[direction]:
                features[name] = _directed(features[name], direction)
        for name in immutable:
            features[name] = replace(features[name], immutable=True)
        return self.with_features(list(features.values()))

    def check_names(self, option: str, names: Iterable[str]) -> None:
        """Raise OptionError if a name is not the name of a feature."""
        for name in names:
            if name not in self.by_name:
                raise OptionError(
                    f"{option}: {name!r} is not a feature{did_you_mean(name, self.by_name)}; the "
                    f"features are {listing(self.by_name)}",
                    name=option,
                    value=name,
                )

    def check_tolerance(
        self, given: Mapping[str, Tolerance] | None
    ) -> dict[str, tuple[float, float]]:
        """Return the tolerances of each number, below and above, without those that are 0."""
        pairs = tolerance_pairs(given or {})
        self.check_names("tolerance", pairs)
        for name, pair in pairs.items():
            if any(pair) and not isinstance(self.by_name[name], Continuous):
                raise OptionError(
                    f"tolerance: {name!r} is not a number, and only a number can be missed by a little. "
                    "Leave it out",
                    name="tolerance",
                    value=name,
                )
        return {name: pairs[name] for name in self.by_name if any(pairs.get(name, ()))}

    def encode_tolerance(self, pairs: Mapping[str, tuple[float, float]]) -> Array | None:
        r"""Return the tolerances of each encoded column, below and above, or None if all are 0.

        A cell v is encoded as :math:`e = (v - o) / s`. If another cell misses it by no more than t, as
        numbers are written, its code misses e by no more than :math:`t / s`, up to roundings: of the
        cells, by a share of :math:`|v| \le s |e| + |o|`, and of the code, by a share of :math:`|e|`. The
        share of e itself is added at each row (:func:`proplace.core.guarantee.around`), the rest here,
        together with the distance that reading snaps to a step.
        """
        encoded = np.zeros((2, self.width))
        for name, pair in pairs.items():
            feature = self.by_name[name]
            assert isinstance(feature, Continuous)  # noqa: S101  (check_tolerance raises otherwise)
            for row, t in zip(encoded, pair, strict=True):
                if t:
                    reach = t + SNAP * (feature.step or 0.0)
                    reach += _ROUNDING * (abs(feature.offset) + reach)
                    row[self.span(name)] = reach / feature.scale * (1.0 + _ROUNDING)
        return encoded if encoded.any() else None

    @property
    def declared(self) -> frozenset[str]:
        """Names of the features whose values are declared, and not drafted from a table."""
        return frozenset(
            f.name for f in self.features if not (isinstance(f, Continuous) and f.is_drafted)
        )

    def unscaled(self) -> Schema:
        """Return the same features without a scaling, for models that scale their own inputs."""
        features = [
            replace(feature, scaling=None, default_scaling=None)
            if isinstance(feature, Continuous)
            else feature
            for feature in self.features
        ]
        return Schema(features, rules=self.rules)

    def check_settled(self) -> None:
        """Raise unless the encoding of every feature is known."""
        for feature in self.features:
            if isinstance(feature, Continuous) and not feature.settled:
                raise SchemaError(
                    f"feature {feature.name!r} has neither a range nor a scaling, so it cannot be "
                    "encoded: min-max scaling needs lower and upper. Give both, or scaling='none' or "
                    "a pair (offset, scale), or give a model that scales its own inputs",
                    name=feature.name,
                )

    # -- the numeric view ----------------------------------------------------------------------

    @cached_property
    def columns(self) -> tuple[Column, ...]:
        """The encoded columns."""
        return tuple(
            column
            for number, feature in enumerate(self.features)
            for column in feature.columns(number)
        )

    @property
    def width(self) -> int:
        """Number of encoded columns."""
        return len(self.columns)

    @cached_property
    def spans(self) -> tuple[slice, ...]:
        """Encoded columns of each feature."""
        owner = [column.feature for column in self.columns]
        ends = np.cumsum(np.bincount(owner))
        return tuple(
            slice(int(start), int(stop)) for start, stop in zip([0, *ends[:-1]], ends, strict=True)
        )

    @cached_property
    def by_name(self) -> dict[str, AnyFeature]:
        """Features by name."""
        return {feature.name: feature for feature in self.features}

    def span(self, name: str) -> slice:
        """Return the encoded columns of the feature with this name."""
        for feature, span in zip(self.features, self.spans, strict=True):
            if feature.name == name:
                return span
        known = listing(self.by_name)
        hint = did_you_mean(name, self.by_name)
        raise SchemaError(f"{short(name)} is not a feature{hint}; features: {known}", name=name)

    @cached_property
    def lower(self) -> Array:
        """Smallest legal value of each encoded column."""
        return _frozen(np.array([column.lower for column in self.columns]))

    @cached_property
    def upper(self) -> Array:
        """Largest legal value of each encoded column."""
        return _frozen(np.array([column.upper for column in self.columns]))

    @cached_property
    def _numbers(self) -> Bools:
        """True for the encoded columns of numbers, whose ranges people may leave."""
        features = [self.features[column.feature] for column in self.columns]
        return _frozen(np.array([isinstance(f, Continuous) for f in features], dtype=np.bool_))

    def grids(self, x: npt.ArrayLike) -> dict[int, Column]:
        """Return the columns on grids, by number, with a person's own values among the legal ones."""
        row = self._rows(x)[0]
        return {
            j: column.with_value(float(row[j]))
            for j, column in enumerate(self.columns)
            if column.kind == "grid"
        }

    @cached_property
    def profile_columns(self) -> Integers:
        """Numbers of the binary and one-hot columns, which are the profile of a row."""
        return _frozen(np.flatnonzero([column.kind == "binary" for column in self.columns]))

    @cached_property
    def groups(self) -> tuple[Integers, ...]:
        """Numbers of the columns of each categorical feature.

        Exactly one of them is 1. With ``"dropfirst"``, all of them may be 0.
        """
        return tuple(
            _frozen(np.arange(span.start, span.stop))
            for feature, span in zip(self.features, self.spans, strict=True)
            if isinstance(feature, Categorical)
        )

    @cached_property
    def compiled(self) -> Compiled:
        """The rules over the encoded columns."""
        return Compiled.of(self)

    # -- inside --------------------------------------------------------------------------------

    def _rows(self, X: npt.ArrayLike, *, finite: bool = True) -> Array:
        try:
            rows = np.asarray(X, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise SchemaError(f"encoded rows must be numbers: {error}", name="X") from None
        if rows.ndim == 1 and rows.shape[0] == self.width:
            rows = rows[None, :]
        if rows.ndim != 2 or rows.shape[1] != self.width:
            raise SchemaError(
                f"encoded rows must have shape (n, {self.width}) for this schema, not {rows.shape}",
                name="X",
            )
        if finite and not np.isfinite(rows).all():
            i, j = np.argwhere(~np.isfinite(rows))[0]
            raise SchemaError(
                f"row {i}, column {short(self.columns[j].name)}: {rows[i, j]} is not finite",
                name=self.columns[j].name,
                row=int(i),
            )
        return rows

    def _read(self, frame: Frame, *, people: bool) -> tuple[Array, dict[int, BadRow]]:
        """Return encoded rows, NaN in invalid rows, and the first problem of each of these."""
        self.check_settled()
        cells = self._cells(frame)
        X = np.empty((len(cells[0]), self.width))
        bad = np.full(len(X), -1, dtype=np.int64)  # the first feature that cannot be read
        for number, (feature, span) in enumerate(zip(self.features, self.spans, strict=True)):
            if isinstance(feature, Continuous):
                X[:, span], ok = feature.read(cells[number], people=people)
            else:
                X[:, span], ok = feature.read(cells[number])
            bad[~ok & (bad < 0)] = number
        problems = {}
        for i in np.flatnonzero(bad >= 0).tolist():
            feature, series = self.features[bad[i]], cells[bad[i]]
            problems[i] = BadRow(i, feature.name, feature.why(series.iloc[i]), series.index[i])
        X[bad >= 0] = np.nan
        return X, problems

    def _cells(self, frame: Frame) -> list[pd.Series[Any]]:
        if isinstance(frame, pd.DataFrame):
            return self._by_name(frame)
        if not all(isinstance(f, Continuous) and f.scaling == "none" for f in self.features):
            raise SchemaError(
                "a table must be a pandas DataFrame with the columns "
                f"{listing(self.by_name)}, not {type(frame).__name__}",
                name="frame",
            )
        rows = self._rows(frame, finite=False)
        return [pd.Series(rows[:, j]) for j in range(self.width)]

    def _by_name(self, frame: pd.DataFrame) -> list[pd.Series[Any]]:
        missing = [name for name in self.by_name if name not in frame.columns]
        if missing:
            extra = [name for name in frame.columns if name not in self.by_name]
            found = [f"{short(name)}{did_you_mean(name, extra)}" for name in missing[:_TOLD]]
            word = "column is" if len(missing) == 1 else "columns are"
            more = f" and {len(missing) - _TOLD} more" if len(missing) > _TOLD else ""
            raise SchemaError(
                f"{len(missing)} {word} missing in the table: {', '.join(found)}{more}; "
                f"the table has {listing(frame.columns)}",
                name=missing[0],
            )
        cells = [frame[name] for name in self.by_name]
        for name, column in zip(self.by_name, cells, strict=True):
            if not isinstance(column, pd.Series):
                raise SchemaError(f"two columns of the table are called {short(name)}", name=name)
        return cells


def _unchanged(feature: Continuous, cells: pd.Series[Any], codes: Array, values: Any) -> Any:
    """Return decoded values, with the given cell for every unchanged code."""
    before, ok = feature.read(cells, people=True)
    same = ok & (before[:, 0] == codes)
    given = numbers(filled(cells, feature.missing))
    if not (same & (given != values)).any():
        return values
    return np.where(same, given, values)


def _again(names: Sequence[str]) -> list[int]:
    """Return the positions of names that stand before them, too."""
    return [n for n, name in enumerate(names) if name in names[:n]]


def _frozen(array: npt.NDArray[T]) -> npt.NDArray[T]:
    array.setflags(write=False)
    return array


def _per_column(name: str, values: npt.ArrayLike | None, width: int) -> list[float | None]:
    if values is None:
        return [None] * width
    try:
        array = np.broadcast_to(np.asarray(values, dtype=np.float64), (width,))
    except ValueError:
        raise SchemaError(
            f"{name} must be one number or {width}, one per column", name=name
        ) from None
    return [float(v) if np.isfinite(v) else None for v in array]


# -- restricted features ----------------------------------------------------------------------------


def _directed(feature: AnyFeature, direction: Direction) -> AnyFeature:
    """Return a feature that may change in one direction alone."""
    if isinstance(feature, Categorical):
        raise OptionError(
            f"{direction}: {feature.name!r} is a category, and its values have no order. Name it in "
            "immutable, or leave it out",
            name=direction,
            value=feature.name,
        )
    if feature.direction not in (None, direction):
        raise OptionError(
            f"{direction}: {feature.name!r} is {feature.direction} already. Name it in immutable if it "
            "may neither rise nor fall, or leave it out",
            name=direction,
            value=feature.name,
        )
    return replace(feature, direction=direction)


def _ranged(feature: AnyFeature, ends: Range) -> Continuous:
    """Return a number with the range of a request."""
    if not isinstance(feature, Continuous):
        raise OptionError(
            f"ranges: {feature.name!r} has the values {listing(feature.labels)} and no range. Leave it "
            "out",
            name="ranges",
            value=feature.name,
        )
    low, high = ends
    low, high = feature.lower if low is None else low, feature.upper if high is None else high
    if low is not None and high is not None and not low < high:
        raise OptionError(
            f"the range of {feature.name!r} would be {num(low)} to {num(high)}, with one end from the "
            "training table. Give both ends",
            name="ranges",
            value=ends,
        )
    least, most = feature.declared
    beyond = (least is not None and (low is None or low < least)) or (
        most is not None and (high is None or high > most)
    )
    if beyond:
        raise OptionError(
            f"the range of {feature.name!r}, {_words(low, high)}, goes beyond that of the schema, "
            f"{_words(feature.lower, feature.upper)}; a request can only narrow it",
            name="ranges",
            value=ends,
        )
    found = _between(feature, low, high)
    if feature.drafted is None:
        return found
    kept = zip(ends, feature.declared, (found.lower, found.upper), strict=True)
    first, last = (end if given is known is None else None for given, known, end in kept)
    return replace(found, drafted=None if first is last is None else (first, last))


def _between(feature: Continuous, low: float | None, high: float | None) -> Continuous:
    """Return a number with other ends of its range, and the same encoding and grid."""
    if low is not None and high is not None:
        low, high = feature.on_steps(low, high)
        if not low < high:
            raise OptionError(
                f"the range of {feature.name!r} holds no two values in steps of "
                f"{num(feature.step or 0.0)}. Make it wider, or name the feature in immutable",
                name="ranges",
                value=(low, high),
            )
    return feature.with_ends(low, high)


def _words(low: float | None, high: float | None) -> str:
    """Describe two ends."""
    if low is not None and high is not None:
        return f"{num(low)} to {num(high)}"
    if low is None and high is None:
        return "without ends"
    return f"from {num(low)}" if low is not None else f"up to {num(high or 0.0)}"
