r"""One person in encoded space: what may change, and which candidates respect every rule.

Every restriction is one of three things over the encoded columns of a candidate :math:`x'`: a
*limit* :math:`l \le x'_j \le u`, an *inequality* :math:`l \le a^\top x' \le u`, or a
*membership* (a category is one of these). Inequalities are scaled so that
:math:`\|a\|_1 = 1`. Therefore the tolerance is one number in encoded units.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from proplace.core.errors import SchemaError
from proplace.schema.features import Categorical
from proplace.schema.rules import Linear, as_labels
from proplace.schema.values import gap

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from proplace.schema.features import Binary, Numeric
    from proplace.schema.grid import Array, Bools, Column, Integers
    from proplace.schema.rules import IfThen
    from proplace.schema.schema import Schema
    from proplace.schema.values import Label

TOLERANCE = 1e-9


class LinearRules(NamedTuple):
    """The constraints ``lower <= A @ x <= upper`` over all encoded columns, and their names."""

    A: Array
    lower: Array
    upper: Array
    labels: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Limit:
    """Bounds of some columns. ``exact`` ones hold without tolerance: immutable is immutable."""

    label: str
    columns: Integers
    lower: Array
    upper: Array
    exact: bool

    def broken(self, X: Array) -> Bools:
        part = X[:, self.columns]
        slack = 0.0 if self.exact else TOLERANCE
        bad = (part < self.lower - slack) | (part > self.upper + slack)
        return cast("Bools", bad.any(axis=1))


@dataclass(frozen=True, eq=False)
class _Inequality:
    """``lower <= coefficients . x'[columns] <= upper``, for the change ``x' - x`` if relative."""

    columns: Integers
    coefficients: Array
    lower: float
    upper: float
    relative: bool

    def at(self, x: Array) -> _Inequality:
        """Write a relative inequality for a person at ``x`` as one over ``x'``."""
        if not self.relative:
            return self
        start = float(self.coefficients @ x[self.columns])
        return replace(self, lower=self.lower + start, upper=self.upper + start, relative=False)

    def broken(self, X: Array) -> Bools:
        sums = X[:, self.columns] @ self.coefficients
        return (sums < self.lower - TOLERANCE) | (sums > self.upper + TOLERANCE)


@dataclass(frozen=True, eq=False)
class _Membership:
    """``start + sign * sum of columns`` is 1 for the required categories and 0 for the others."""

    columns: Integers
    start: float
    sign: float

    def holds(self, X: Array) -> Bools:
        return cast("Bools", self.start + self.sign * X[:, self.columns].sum(axis=1) > 0.5)


@dataclass(frozen=True, eq=False)
class _Rule:
    """If all of ``when`` then ``inequalities`` and ``members``. A linear rule has no ``when``."""

    label: str
    when: tuple[_Membership, ...]
    becomes: bool
    inequalities: tuple[_Inequality, ...]
    members: tuple[_Membership, ...]

    def fires(self, X: Array) -> Bools:
        fires = np.ones(len(X), dtype=np.bool_)
        for part in self.when:
            fires &= part.holds(X)
        return fires

    def broken(self, X: Array) -> Bools:
        bad = np.zeros(len(X), dtype=np.bool_)
        for inequality in self.inequalities:
            bad |= inequality.broken(X)
        for member in self.members:
            bad |= ~member.holds(X)
        return bad & self.fires(X)


@dataclass(frozen=True, eq=False)
class Compiled:
    """The rules of a schema over its encoded columns, ready for any person."""

    rules: tuple[_Rule, ...]
    ranges: tuple[_Limit, ...]

    @classmethod
    def of(cls, schema: Schema) -> Compiled:
        """Translate the rules of a schema."""
        return cls(tuple(_translate(schema, rule) for rule in schema.rules), _ranges(schema))


class Person:
    """One person: bounds of every encoded column, and tests of candidates.

    Made by :meth:`Schema.person`. The person's own row need not satisfy the rules, but candidates must.

    Attributes
    ----------
    x
        The person's encoded row.
    lower, upper
        Bounds of each encoded column after range, immutability, direction and relative bounds.

    Examples
    --------
    >>> from proplace.schema import Binary, Continuous, Schema
    >>> schema = Schema([Continuous("age", 20, 70, step=1, direction="increasing"),
    ...                  Binary("sex", immutable=True)])
    >>> person = schema.person([0.5, 1.0])
    >>> person.lower, person.upper
    (array([0.5, 1. ]), array([1., 1.]))
    >>> person.adapt([[0.2, 1.0], [0.8, 0.0]])
    array([[0.5, 1. ],
           [0.8, 0. ]])
    >>> person.allowed([[0.5, 1.0], [0.8, 0.0]])
    array([ True, False])
    >>> person.broken_rules([[0.2, 1.0], [0.8, 0.0]])
    {'age may only increase': 1, 'sex is immutable': 1}
    """

    __slots__ = (
        "_adapted",
        "_bounded",
        "_limits",
        "_profile",
        "_range",
        "_rules",
        "_slack",
        "lower",
        "upper",
        "x",
    )

    def __init__(self, schema: Schema, x: npt.ArrayLike, kept: Collection[int] = ()) -> None:
        self.x: Array = _rows(x, schema.width)[0].copy()
        self._profile = schema.profile_columns
        self._range = schema.lower, schema.upper
        limits = _limits(schema, self.x, kept)
        self._limits = (*limits, *schema.compiled.ranges)
        self.lower, self.upper = schema.lower.copy(), schema.upper.copy()
        self._slack: Array = np.full(schema.width, TOLERANCE)
        adapted = np.isfinite(schema.lower) | np.isfinite(schema.upper)
        adapted[self._profile] = False
        for limit in limits:
            j = limit.columns
            self.lower[j] = np.maximum(self.lower[j], limit.lower)
            self.upper[j] = np.minimum(self.upper[j], limit.upper)
            adapted[j] = True
            if limit.exact:
                self._slack[j] = 0.0
        self._bounded: Integers = np.flatnonzero(adapted)
        adapted[self._profile] = False
        self._adapted: Integers = np.flatnonzero(adapted)
        before = self.x[None, :]
        self._rules = tuple(
            replace(rule, inequalities=tuple(part.at(self.x) for part in rule.inequalities))
            for rule in schema.compiled.rules
            if not (rule.when and rule.becomes and rule.fires(before)[0])
        )
        for array in (self.x, self.lower, self.upper):
            array.setflags(write=False)

    def adapt(self, X: npt.ArrayLike, *, overwrite_categories: bool = False) -> Array:
        """Clip numbers into the person's bounds.

        An immutable number becomes the person's own. With ``overwrite_categories`` immutable
        categories and binaries become the person's, too. Without it, :meth:`allowed` is False for rows
        that differ in one.
        """
        rows = _rows(X, len(self.x)).copy()
        j = self._bounded if overwrite_categories else self._adapted
        rows[:, j] = np.minimum(np.maximum(rows[:, j], self.lower[j]), self.upper[j])
        return rows

    def allowed(self, X: npt.ArrayLike) -> Bools:
        """Test which rows respect every bound and rule."""
        rows = _rows(X, len(self.x))
        inside = (rows >= self.lower - self._slack) & (rows <= self.upper + self._slack)
        good = cast("Bools", inside.all(axis=1))
        for rule in self._rules:
            good &= ~rule.broken(rows)
        return good

    @property
    def reach(self) -> tuple[Array, Array]:
        """Ends of the input box that holds every legal row within the bounds and their tolerance.

        A bound that follows from a change may be missed by rounding in :meth:`allowed`.
        """
        low, high = self.lower - self._slack, self.upper + self._slack
        low = np.where(self.lower >= self._range[0], np.maximum(low, self._range[0]), low)
        high = np.where(self.upper <= self._range[1], np.minimum(high, self._range[1]), high)
        return low, high

    def broken_rules(self, X: npt.ArrayLike) -> dict[str, int]:
        """Count the rows that break each restriction, the most frequent first."""
        rows = _rows(X, len(self.x))
        counts: dict[str, int] = {}
        parts: tuple[_Limit | _Rule, ...] = (*self._limits, *self._rules)
        for part in parts:
            broken = int(np.count_nonzero(part.broken(rows)))
            if broken:
                counts[part.label] = counts.get(part.label, 0) + broken
        return dict(sorted(counts.items(), key=lambda item: -item[1]))

    def linear(self, profile_row: npt.ArrayLike) -> LinearRules:
        """Return linear constraints on candidates with the categories of ``profile_row``.

        These are the linear rules, and the consequences of the if-then rules whose condition the
        profile meets. Only the binary and one-hot columns of ``profile_row`` count. Each
        row of ``A`` has absolute sum 1, so 1e-9 is a fit tolerance.
        """
        row = _rows(profile_row, len(self.x))
        found = [
            (part, rule.label)
            for rule in self._rules
            if rule.fires(row)[0]
            for part in rule.inequalities
        ]
        A = np.zeros((len(found), len(self.x)))
        for i, (part, _) in enumerate(found):
            A[i, part.columns] = part.coefficients
        return LinearRules(
            A,
            np.array([part.lower for part, _ in found], dtype=np.float64),
            np.array([part.upper for part, _ in found], dtype=np.float64),
            tuple(label for _, label in found),
        )

    def profile_allowed(self, profile_row: npt.ArrayLike) -> bool:
        """Test if the categories of ``profile_row`` respect every rule about them alone."""
        row = _rows(profile_row, len(self.x))
        j = self._profile
        if np.any((row[0, j] < self.lower[j]) | (row[0, j] > self.upper[j])):
            return False
        for rule in self._rules:
            if not rule.fires(row)[0]:
                continue
            if not all(member.holds(row)[0] for member in rule.members):
                return False
            about_profile = [p for p in rule.inequalities if np.isin(p.columns, j).all()]
            if any(part.broken(row)[0] for part in about_profile):
                return False
        return True


# -- limits of one feature -------------------------------------------------------------------------


def _limits(schema: Schema, x: Array, kept: Collection[int]) -> tuple[_Limit, ...]:
    """Return limits that follow from the person's own values."""
    found: list[_Limit] = []
    for number, (feature, span) in enumerate(zip(schema.features, schema.spans, strict=True)):
        j = np.arange(span.start, span.stop)
        here = x[j]
        if feature.immutable or number in kept:
            how = "is immutable" if feature.immutable else "keeps its value"
            found.append(_Limit(f"{feature.title} {how}", j, here, here, exact=True))
        if isinstance(feature, Categorical):
            continue
        column = schema.columns[span.start].with_value(float(here[0]))
        if feature.direction == "increasing":
            label = f"{feature.title} may only increase"
            found.append(_above(label, j, column, here[0]))
        if feature.direction == "decreasing":
            label = f"{feature.title} may only decrease"
            found.append(_below(label, j, column, here[0]))
        if feature.kind == "binary":
            continue
        if feature.max_increase is not None:
            label = f"{feature.title} may rise by at most {gap(feature, feature.max_increase)}"
            bound = here[0] + feature.max_increase / feature.scale
            found.append(_below(label, j, column, bound))
        if feature.max_decrease is not None:
            label = f"{feature.title} may fall by at most {gap(feature, feature.max_decrease)}"
            bound = here[0] - feature.max_decrease / feature.scale
            found.append(_above(label, j, column, bound))
    return tuple(found)


def _above(label: str, j: Integers, column: Column, bound: float) -> _Limit:
    return _Limit(label, j, np.array([column.ceil(float(bound))]), np.array([np.inf]), exact=False)


def _below(label: str, j: Integers, column: Column, bound: float) -> _Limit:
    upper = np.array([column.floor(float(bound))])
    return _Limit(label, j, np.array([-np.inf]), upper, exact=False)


def _ranges(schema: Schema) -> tuple[_Limit, ...]:
    return tuple(
        _Limit(
            f"{feature.title} stays in its range",
            np.arange(span.start, span.stop),
            schema.lower[span],
            schema.upper[span],
            exact=False,
        )
        for feature, span in zip(schema.features, schema.spans, strict=True)
    )


# -- rules -----------------------------------------------------------------------------------------


def _translate(schema: Schema, rule: Linear | IfThen) -> _Rule:
    label = rule.words(schema.by_name)
    if isinstance(rule, Linear):
        part = _inequality(schema, rule.terms, rule.lower, rule.upper, relative=False)
        return _Rule(label, (), False, (part,), ())
    return _Rule(
        label,
        tuple(_membership(schema, name, as_labels(labels)) for name, labels in rule.when.items()),
        rule.becomes,
        tuple(
            _inequality(
                schema, {part.feature: 1.0}, part.at_least, part.at_most, relative=part.change
            )
            for part in rule.then
            if part.category is None
        ),
        tuple(
            _membership(schema, part.feature, as_labels(part.category))
            for part in rule.then
            if part.category is not None
        ),
    )


def _inequality(
    schema: Schema,
    terms: Mapping[str, float],
    lower: float | None,
    upper: float | None,
    *,
    relative: bool,
) -> _Inequality:
    """Write the sum of c (o + s e) in encoded units. The offsets cancel in a change."""
    used = [name for name, coefficient in terms.items() if coefficient]
    features = [cast("Numeric", schema.by_name[name]) for name in used]
    columns = np.array([schema.span(name).start for name in used], dtype=np.int64)
    a = np.array([terms[name] * f.scale for name, f in zip(used, features, strict=True)])
    base = sum(terms[name] * f.offset for name, f in zip(used, features, strict=True))
    start, size = (0.0 if relative else base), float(np.abs(a).sum())
    return _Inequality(
        columns,
        a / size,
        -np.inf if lower is None else (lower - start) / size,
        np.inf if upper is None else (upper - start) / size,
        relative,
    )


def _membership(schema: Schema, name: str, labels: Sequence[Label]) -> _Membership:
    feature = cast("Categorical | Binary", schema.by_name[name])
    start = schema.span(name).start
    wanted = np.array([label in labels for label in feature.labels])
    # A binary column is a one-hot pair whose first column was dropped.
    dropped = feature.first if isinstance(feature, Categorical) else 1
    with_column = wanted[dropped:]
    if dropped and wanted[0]:  # no column of its own: it is met unless another column is on
        return _Membership(start + np.flatnonzero(~with_column), 1.0, -1.0)
    return _Membership(start + np.flatnonzero(with_column), 0.0, 1.0)


def _rows(X: npt.ArrayLike, width: int) -> Array:
    rows = np.asarray(X, dtype=np.float64)
    if rows.ndim == 1:
        rows = rows[None, :]
    if rows.ndim != 2 or rows.shape[1] != width:
        raise SchemaError(f"encoded rows must have shape (n, {width}), not {np.shape(X)}", name="X")
    return rows
