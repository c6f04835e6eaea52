"""Diverse answers for one person, each changing another set of features."""

from __future__ import annotations

import heapq
import itertools
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from proplace.explain.findings import Finding
    from proplace.schema import Schema

_FREEZE = 4  # changed features that are tried, one at a time, for the next answer


def diverse(
    find: Callable[[frozenset[int]], Finding], schema: Schema, count: int, *, few: bool = False
) -> Iterator[Finding]:
    """Give up to ``count`` answers, nearest first; if ``few``, those with fewer changes come first.

    ``find`` searches the nearest answer that keeps some features (by number) as they are. After an
    answer, the features it changes most are kept, one at a time, and the search is repeated in the
    same region; the nearest of what that gives comes next.
    """
    ticket = itertools.count()
    first = find(frozenset())

    def key(answer: Finding) -> tuple[int, float]:
        return len(_costs(answer, schema)) if few else 0, answer.distance

    start = key(first) if first.found else (0, 0.0)
    heap = [(start, next(ticket), frozenset[int](), first)]
    given: set[frozenset[int]] = set()
    tried: set[frozenset[int]] = set()
    while heap and len(given) < count:
        _, _, frozen, answer = heapq.heappop(heap)
        if not answer.found:
            if not given:
                yield answer
                return
            continue
        costs = _costs(answer, schema)
        changed = frozenset(costs)
        if changed not in given:
            given.add(changed)
            yield replace(answer, rank=len(given) - 1)
        if len(given) == count:
            return
        by_cost = sorted(costs, key=lambda feature: (-costs[feature], feature))
        for feature in by_cost[:_FREEZE]:
            more = frozen | {feature}
            if more in tried:
                continue
            tried.add(more)
            other = find(more)
            if other.found:
                heapq.heappush(heap, (key(other), next(ticket), more, other))


def _costs(answer: Finding, schema: Schema) -> dict[int, float]:
    """How much each changed feature changes, summed over its columns."""
    assert answer.x is not None and answer.point is not None  # noqa: S101, PT018
    costs: dict[int, float] = {}
    for j in np.flatnonzero(answer.x != answer.point):
        feature = schema.columns[int(j)].feature
        costs[feature] = costs.get(feature, 0.0) + abs(float(answer.x[j] - answer.point[j]))
    return costs
