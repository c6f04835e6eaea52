r"""Diverse alternatives for one person.

Let :math:`c_f` be the distance of the change of feature :math:`f` alone. Two counterfactuals differ if

- they share at most two thirds of the cheaper one: :math:`\sum_f \min(c_f, c'_f) \le \tfrac23
  \min(\sum_f c_f, \sum_f c'_f)`, and
- the second does not contain all main changes of the first (a tenth of its distance or more).
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

_FREEZE = 4  # changed features that are kept, one at a time, for the next alternative
_SHARED = 2 / 3  # largest shared part of the cheaper of two alternatives
_MAIN = 0.1  # smallest share of a main change
_SEARCHES = 8  # largest number of searches per requested alternative


def diverse(
    find: Callable[[frozenset[int]], Finding],
    schema: Schema,
    count: int,
    distance: L1 | None = None,
    *,
    sparse: bool = False,
) -> list[Finding]:
    """Return up to ``count`` different alternatives, nearest first.

    If ``sparse``, alternatives with fewer changes come first.

    ``find`` returns the nearest counterfactual that keeps some features (by number) unchanged. For the
    next alternative, the features with the largest changes are kept, one at a time, and the nearest
    result is next. If it does not differ from an earlier one, the features that they share most are
    kept as well. Changes are measured by ``distance``, or in encoded units without one.
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
    """Test if a counterfactual differs from another one."""
    shared = sum(min(cost, other.get(feature, 0.0)) for feature, cost in costs.items())
    least = min(sum(costs.values()), sum(other.values()))
    if shared > _SHARED * least or costs.keys() == other.keys():
        return False
    return not _main(other) <= _main(costs)


def _main(costs: Costs) -> frozenset[int]:
    """Return the features with main changes."""
    least = _MAIN * sum(costs.values())
    return frozenset(feature for feature, cost in costs.items() if cost >= least)


def _next(costs: Costs, alike: Costs | None) -> list[frozenset[int]]:
    """Return sets of features to keep: one with a large change, or those that two results share."""
    if alike is None:
        return [frozenset({feature}) for feature in _sorted(costs)[:_FREEZE]]
    shared = {f: min(cost, alike[f]) for f, cost in costs.items() if f in alike}
    allowed = _SHARED * min(sum(costs.values()), sum(alike.values()))
    order = _sorted(shared)
    enough = (n for n in range(1, len(order)) if sum(shared[f] for f in order[n:]) <= allowed)
    return [frozenset(order[: next(enough, len(order))])]


def _sorted(costs: Costs) -> list[int]:
    """Return the features, the largest changes first."""
    return sorted(costs, key=lambda feature: (-costs[feature], feature))


def _costs(answer: Finding, schema: Schema, distance: L1 | None) -> Costs:
    """Return the distance of the change of each changed feature alone."""
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
