"""Summaries of the explanations of many people."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from proplace.core.errors import OptionError
from proplace.core.text import did_you_mean, short
from proplace.explain.claims import format_value, is_amount
from proplace.explain.results import STATUSES
from proplace.schema.values import number

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from proplace.explain.results import Explanation, Explanations
    from proplace.schema.rules import AnyFeature

    By: TypeAlias = Hashable | Sequence[Any] | pd.Series[Any] | None

NOT_ASKED = frozenset({"already_valid", "bad_input", "worker_died"})
"""Statuses of people who may not be refused. Shares of answered people exclude them."""

ALL = "all"
"""Name of the only group of a summary without ``by``."""

_UNKNOWN = "unknown"  # the group of a missing value
_FEW = 10  # distinct numbers that form one group each. More are cut into quarters
_MOST = 30  # groups


@dataclass(frozen=True, eq=False)
class Summary:
    """Counts and shares of people with a counterfactual, and the size of the changes.

    A person with several counterfactuals counts once, by the first.

    Attributes
    ----------
    features
        One line per feature, after the name of its group with ``by``. ``changed`` counts the
        people whose counterfactual changes the feature, and ``share`` divides it by the people with
        a counterfactual. ``median_change`` is the median of the new value minus the old one, in
        original units and over the people whose value changes (NaN for categories). ``most_often``
        is the most frequent new category.
    """

    features: pd.DataFrame
    _people: pd.DataFrame
    _known: Mapping[str, AnyFeature]

    def to_frame(self) -> pd.DataFrame:
        """Return one line per group, or a single line named ``all``.

        ``people`` counts everybody in the group. ``refused`` leaves out the statuses
        ``already_valid``, ``bad_input`` and ``worker_died``. ``answered`` counts the refused people
        with a counterfactual. ``share`` is ``answered`` divided by ``refused``, and ``low`` and ``high``
        are its 95% Wilson interval. ``typical`` is the share of typical counterfactuals, among
        those with a plausibility. ``distance``, ``changes`` (changed features) and
        ``plausibility`` are medians over the people with a counterfactual. One column for each
        status that occurs counts its people.
        """
        return self._people.copy()

    def plot(self) -> Figure:
        """Draw the share answered and how often each feature changes (extra ``plot``).

        Save the figure with ``figure.savefig("summary.png")``.
        """
        from proplace.report.summary import summary_figure

        return summary_figure(self)

    def feature(self, name: str) -> AnyFeature | None:
        """Return a feature by its name. None if its schema is unknown."""
        return self._known.get(name)

    def _repr_html_(self) -> str | None:
        """Show both tables in a notebook."""
        frames: Any = self._people, self.features
        return "".join(frame._repr_html_() or "" for frame in frames) or None

    def __repr__(self) -> str:
        return f"{self._people}\n\n{self.features}"


def summarised(result: Explanations, by: By = None) -> Summary:
    """Summarise explanations, over all people or by group (see ``Explanations.summary``)."""
    people = [e for n, e in enumerate(result) if e.rank == 0 or n == 0]
    known = next((e.setting.schema.by_name for e in people if e.setting is not None), {})
    names = list(known) or next(
        (list(map(str, e.original.index)) for e in people if e.original is not None), []
    )
    if by is None:
        groups: dict[Any, list[Explanation]] = {ALL: people}
        index = pd.Index([ALL])
    else:
        column, values = _column(people, by)
        labels, order = _labels(column, values)
        groups = {label: [] for label in order}
        for e, label in zip(people, labels, strict=True):
            groups[label].append(e)
        index = pd.Index(order, name=column, tupleize_cols=False)
    statuses = [status for status in STATUSES if any(e.status == status for e in people)]
    lines = [_line(members, statuses) for members in groups.values()]
    columns = list(_line([], statuses))
    features = (
        pd.concat(
            {label: _features(members, names, known) for label, members in groups.items()},
            names=[index.name],
        )
        if groups
        else _features([], names, known)
    )
    return Summary(
        features.droplevel(0) if by is None else features,
        pd.DataFrame(lines, index=index, columns=columns),
        known,
    )


def _line(people: Sequence[Explanation], statuses: Sequence[str]) -> dict[str, Any]:
    """Describe one group."""
    refused = sum(e.status not in NOT_ASKED for e in people)
    found = [e for e in people if e.found]
    low = high = np.nan
    if refused:
        low, high = binomtest(len(found), refused).proportion_ci(0.95, method="wilson")
    measured = [e for e in found if np.isfinite(e.plausibility)]
    return {
        "people": len(people),
        "refused": refused,
        "answered": len(found),
        "share": len(found) / refused if refused else np.nan,
        "low": float(low),
        "high": float(high),
        "typical": float(np.mean([e.typical for e in measured])) if measured else np.nan,
        "distance": _median([e.distance for e in found]),
        "changes": _median([len(e.changes_by_feature) for e in found]),
        "plausibility": _median([e.plausibility for e in measured]),
        **{status: sum(e.status == status for e in people) for status in statuses},
    }


def _features(
    people: Sequence[Explanation], names: Sequence[str], known: Mapping[str, AnyFeature]
) -> pd.DataFrame:
    """Describe how often each feature changes, and by how much."""
    found = [e.changes_by_feature for e in people if e.found]
    lines = []
    for name in names:
        pairs = [changed[name] for changed in found if name in changed]
        feature = known.get(name)
        amounts = [
            float(after) - float(before) for before, after in pairs if is_amount(feature, before)
        ]
        words = [
            format_value(feature, after)
            for before, after in pairs
            if not is_amount(feature, before)
        ]
        lines.append(
            {
                "changed": len(pairs),
                "share": len(pairs) / len(found) if found else np.nan,
                "median_change": _median(amounts),
                "most_often": max(sorted(set(words)), key=words.count) if words else None,
            }
        )
    columns = ["changed", "share", "median_change", "most_often"]
    return pd.DataFrame(lines, index=pd.Index(names, name="feature"), columns=columns)


def _median(values: Sequence[float]) -> float:
    return float(np.median(values)) if len(values) else np.nan


def _column(people: Sequence[Explanation], by: Any) -> tuple[Hashable, list[Any]]:
    """Return the name of the groups, and one value for each person."""
    if isinstance(by, pd.Series):
        return by.name, _aligned(people, by)
    if not isinstance(by, Hashable) or isinstance(by, (tuple, range)):
        values = list(by)
        if len(values) != len(people):
            raise OptionError(
                f"by has {len(values)} values for {len(people)} people. Give one value for each person",
                name="by",
                value=by,
            )
        return None, values
    cells = [_cells(e) for e in people]
    known = {name for row in cells for name in row}
    if people and by not in known:
        raise OptionError(
            f"by names {short(by)}, which is neither a feature nor an id column"
            f"{did_you_mean(by, known)}. Name one of these, or give a Series with one value for "
            "each person",
            name="by",
            value=by,
        )
    return by, [row.get(by) for row in cells]


def _cells(e: Explanation) -> dict[Hashable, Any]:
    """Return the known values of a person by column."""
    return {**(dict(e.original) if e.original is not None else {}), **dict(e.ids)}


def _aligned(people: Sequence[Explanation], by: pd.Series[Any]) -> list[Any]:
    """Return the values of a Series by the people's own index labels."""
    labels = [e.index for e in people]
    if list(by.index) == labels:  # also with labels that repeat
        return list(by)
    if not by.index.is_unique:
        raise OptionError(
            "the index of by has repeated labels. Give a Series with the index of the explained table",
            name="by",
        )
    values = dict(zip(by.index, by, strict=True))
    missing = next((label for label in labels if label not in values), None)
    if missing is not None:
        raise OptionError(
            f"by has no value for person {short(missing)}. Give a Series with the index of the "
            "explained table",
            name="by",
            value=missing,
        )
    return [values[label] for label in labels]


def _labels(name: Hashable, values: list[Any]) -> tuple[list[Any], list[Any]]:
    """Return each person's group, and the groups in order. Many numbers are cut into quarters."""
    column = pd.Series(values, dtype=object)
    missing = np.asarray(column.isna())
    present = column[~missing]
    try:
        distinct = set(present)
    except TypeError:
        raise OptionError(
            "by must have single values, such as a text or a number for each person", name="by"
        ) from None
    if len(distinct) > _FEW and all(_is_number(v) for v in distinct):
        amounts = present.astype(float)
        part = pd.qcut(amounts, 4, labels=False, duplicates="drop")
        ends = amounts.groupby(part).agg(["min", "max"])
        words = {p: _between(low, high) for p, low, high in ends.itertuples()}
        column[~missing] = [words[p] for p in part]
        order: list[Any] = list(dict.fromkeys(words.values()))
    elif len(distinct) > _MOST:
        raise OptionError(
            f"by {'' if name is None else short(name) + ' '}has {len(distinct)} groups, but at most "
            f"{_MOST} are allowed. Combine some of them first.",
            name="by",
            value=name,
        )
    else:
        try:
            order = sorted(distinct)
        except TypeError:  # values of different types
            order = sorted(distinct, key=str)
    column[missing] = _UNKNOWN
    return list(column), order + [_UNKNOWN] * bool(missing.any() and _UNKNOWN not in order)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.number)) and not isinstance(value, bool)


def _between(low: float, high: float) -> str:
    """Name a group of numbers."""
    return number(low) if low == high else f"{number(low)} to {number(high)}"
