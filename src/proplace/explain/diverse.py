r"""Diverse answers for one person: paths of their own, not one with a trifle more or less.

With :math:`c_f` the part of the distance that the change of feature :math:`f` takes by itself, an answer
is a path of its own beside a given one if

- at least a third of the cheaper one goes elsewhere: :math:`\sum_f \min(c_f, c'_f) \le \tfrac23
  \min(\sum_f c_f, \sum_f c'_f)`, and
- it does not change all that the given one mainly changes (a tenth of the whole or more) besides others.
"""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from proplace.core.distances import L1
    from proplace.explain.results import Finding
    from proplace.schema import Schema

    Costs = dict[int, float]

_FREEZE = 4  # changed features that are tried, one at a time, for the next answer
_SHARED = 2 / 3  # of the cheaper of two paths, at most
_MAIN = 0.1  # of the whole: a change that is no trifle
_SEARCHES = 8  # for each answer that is asked for, at most


def diverse(
    find: Callable[[frozenset[int]], Finding],
    schema: Schema,
    count: int,
    distance: L1 | None = None,
    *,
    sparse: bool = False,
) -> list[Finding]:
    """Return up to ``count`` answers, nearest first, each a path of its own.

    If ``sparse``, those with fewer changes come first.

    ``find`` searches the nearest answer that keeps some features (by number) as they are. After an
    answer, the features it changes most are kept, one at a time, and the search is repeated; the
    nearest of what that gives comes next. One that is no path of its own is not taken: what it has
    most in common with another is kept, too. What features take is measured by ``distance``, else in
    encoded units.
    """
    ticket = itertools.count()
    first = find(frozenset())
    if not first.found:
        return [first]

    def key(answer: Finding) -> tuple[int, float]:
        return len(_costs(answer, schema, distance)) if sparse else 0, answer.distance

    heap = [(key(first), next(ticket), frozenset[int](), first)]
    taken: list[tuple[Costs, Finding]] = []
    tried: set[frozenset[int]] = {frozenset()}
    while heap:
        _, _, frozen, answer = heapq.heappop(heap)
        costs = _costs(answer, schema, distance)
        alike = next((other for other, _ in taken if not _differs(costs, other)), None)
        if alike is None:
            taken.append((costs, answer))
        if len(taken) == count:
            break
        for features in _next(costs, alike):
            more = frozen | features
            if more in tried or len(tried) >= _SEARCHES * count:
                continue
            tried.add(more)
            other = find(more)
            if other.found:
                heapq.heappush(heap, (key(other), next(ticket), more, other))
    answers = sorted((answer for _, answer in taken), key=key)
    return [replace(answer, rank=rank) for rank, answer in enumerate(answers)]


def _differs(costs: Costs, other: Costs) -> bool:
    """Whether an answer is a path of its own beside another one."""
    shared = sum(min(cost, other.get(feature, 0.0)) for feature, cost in costs.items())
    least = min(sum(costs.values()), sum(other.values()))
    if shared > _SHARED * least or costs.keys() == other.keys():
        return False
    return not _main(other) <= _main(costs)


def _main(costs: Costs) -> frozenset[int]:
    """The changed features without trifles."""
    least = _MAIN * sum(costs.values())
    return frozenset(feature for feature, cost in costs.items() if cost >= least)


def _next(costs: Costs, alike: Costs | None) -> list[frozenset[int]]:
    """Features to keep: one of those that change most, or what two answers have most in common."""
    if alike is None:
        return [frozenset({feature}) for feature in _sorted(costs)[:_FREEZE]]
    shared = {f: min(cost, alike[f]) for f, cost in costs.items() if f in alike}
    allowed = _SHARED * min(sum(costs.values()), sum(alike.values()))
    order = _sorted(shared)
    enough = (n for n in range(1, len(order)) if sum(shared[f] for f in order[n:]) <= allowed)
    return [frozenset(order[: next(enough, len(order))])]


def _sorted(costs: Costs) -> list[int]:
    """The features, those that take most first."""
    return sorted(costs, key=lambda feature: (-costs[feature], feature))


def _costs(answer: Finding, schema: Schema, distance: L1 | None) -> Costs:
    """What the change of each changed feature takes, by itself."""
    x, point = answer.encoded_original, answer.encoded_counterfactual
    assert x is not None and point is not None  # noqa: S101, PT018
    costs: Costs = {}
    for feature, span in enumerate(schema.spans):
        if (x[span] != point[span]).any():
            row = x.copy()
            row[span] = point[span]
            alone = np.abs(row - x).sum() if distance is None else distance.between(x, row)
            costs[feature] = float(alone)
    return costs
