r"""What a change of category does, as arrays: the margin in each category that comes into question.

Categories have no place on a map. Instead the answer is compared with rows that differ from it in
categories alone: with the category that is left as it is today, and, where one feature changes its
category, with every other category that the person may take. Each row has the margin of the model in
use and the least margin over Delta, a proved lower bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from proplace.explain.geometry import needed, worst_margins
from proplace.explain.values import shown
from proplace.schema.features import Binary, Categorical

if TYPE_CHECKING:
    from proplace.core.network import Array
    from proplace.explain.results import Explanation

MOST = 8
"""Rows of one picture beside the person and the answer."""


@dataclass(frozen=True, eq=False)
class CategoryPicture:
    """Rows that differ in categories: the person first, the answer last.

    Attributes
    ----------
    names
        What each row is.
    rows
        The rows as the network sees them.
    margin, worst
        Margin of each under the model in use, and its least over Delta (a proved bound).
    titles
        Features whose category changes.
    more
        How many categories are left out: those with the lowest worst margin.
    """

    names: tuple[str, ...]
    rows: Array
    margin: Array
    worst: Array
    titles: tuple[str, ...]
    more: int


def changed_categories(e: Explanation) -> list[Binary | Categorical]:
    """Features whose category an answer changes."""
    features = needed(e).schema.by_name
    changed = (features[str(name)] for name in e.changed)
    return [f for f in changed if isinstance(f, (Binary, Categorical))]


def category_picture(e: Explanation) -> CategoryPicture | None:
    """Evaluate the networks in the categories that come into question; None if none changes."""
    setting, features = needed(e), changed_categories(e)
    if not features:
        return None
    assert e.x is not None and e.point is not None  # noqa: S101, PT018  (checked above)
    between = _left(e, features) + (_others(e, features[0]) if len(features) == 1 else [])
    whole = np.array([e.x, *(row for _, row in between), e.point])
    worst = worst_margins(e, whole, np.array([1.0]))[0]
    best = sorted(range(1, len(whole) - 1), key=lambda n: -worst[n])[:MOST]
    kept = [0, *sorted(best), len(whole) - 1]
    names = ["now", *(name for name, _ in between), "the answer"]
    if len(features) == 1:
        name = features[0].name
        was, will = (shown(features[0], v, quotes=True) for v in e.changed[name])
        names[0], names[-1] = f"now: {was}", f"the answer: {will}"
    return CategoryPicture(
        tuple(names[n] for n in kept),
        whole[kept],
        setting.net.margin(whole[kept], e.target),
        worst[kept],
        tuple(f.title for f in features),
        len(whole) - len(kept),
    )


def _left(e: Explanation, features: list[Binary | Categorical]) -> list[tuple[str, Array]]:
    """The answer with each of the categories left as it is today, where that is not the person."""
    schema, found = needed(e).schema, []
    assert e.x is not None and e.point is not None  # noqa: S101, PT018
    for feature in features:
        row, span = e.point.copy(), schema.span(feature.name)
        row[span] = e.x[span]
        if (row != e.x).any():
            was = shown(feature, e.changed[feature.name][0], quotes=True)
            name = f"the answer, but {feature.title} {was}"
            found.append((name, row))
    return found


def _others(e: Explanation, feature: Binary | Categorical) -> list[tuple[str, Array]]:
    """The answer in each other category that the person may take."""
    schema = needed(e).schema
    assert e.x is not None and e.point is not None  # noqa: S101, PT018
    span, person, found = schema.span(feature.name), schema.person(e.x), []
    if not isinstance(feature, Categorical):
        return []
    for label in feature.labels:
        if label in e.changed[feature.name]:
            continue
        row = e.point.copy()
        row[span] = [float(other == label) for other in feature.labels[feature.first :]]
        if person.allowed(row)[0]:
            found.append((shown(feature, label, quotes=True), row))
    return found
