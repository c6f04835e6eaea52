"""Fixed predictions: people whom no network of Delta accepts, whatever they change.

Where no answer was found, it is asked whether there can be any: whether every network of a set refuses
every input that the schema allows the person (:mod:`proplace.region.pieces`), whether the data hold
such people or not. A yes is proved (:mod:`proplace.certification.fixed`). Without a proof nothing is
said: some input may be accepted by some network, or the time was too short.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING

import numpy as np

from proplace.certification import FixedPredictionSearch, required_margins
from proplace.core.guarantee import CURRENT_MODEL
from proplace.core.text import enumerated
from proplace.explain.claims import display_title, format_range
from proplace.explain.results import Finding
from proplace.region.pieces import admissible
from proplace.schema.features import Continuous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification import Space
    from proplace.core.guarantee import Guarantee, Member
    from proplace.core.network import Array
    from proplace.schema import Schema
    from proplace.schema.rules import AnyFeature

SECONDS = 2.0
"""The most that is spent on the question for one person."""
_SAMPLE = 2000  # training rows that are tried first: one that is accepted answers the question
_NAMED = 6  # features that a reason names


def fixed(
    schema: Schema, guarantee: Guarantee, rows: Array, x: Array, target: int, deadline: float
) -> Finding | None:
    """The finding that a prediction is fixed; None without a proof.

    Parameters
    ----------
    schema
        What the person may change.
    guarantee
        The networks. It is enough that all networks of one member refuse.
    rows
        Training rows.
    x
        The person.
    target
        The class that is wanted.
    deadline
        When to stop, by ``time.monotonic``; never later than ``SECONDS`` from now.
    """
    start = time.monotonic()
    deadline = min(deadline, start + SECONDS)
    spaces = admissible(schema, x)
    if not spaces:
        return None
    person = schema.person(x)
    known = schema.canonical(person.adapt(rows[:_SAMPLE], overwrite_categories=True), person=x)
    known = known[person.allowed(known)]
    for member in guarantee.members:
        if member.contains_network and (member.network.predict(known) == target).any():
            continue
        rounding = functools.partial(_rounding, member)
        refusal = FixedPredictionSearch(member.network, member.shifts, target, rounding)
        trees = refusal.prove(spaces, deadline=deadline)
        if trees is not None:
            return Finding(
                "fixed_prediction",
                f"{_everyone(member)} {_whatever(schema, spaces)}; this is proved",
                encoded_original=x,
                certificate=refusal.certificate(trees),
                seconds=time.monotonic() - start,
            )
    return None


def _rounding(member: Member, low: Array, high: Array) -> Array:
    """Return what the float32 rounding of a deployed model can do to a margin, on boxes."""
    if member.deployment is None:
        return np.zeros(len(low))
    return np.broadcast_to(required_margins(member, low, (low, high)), len(low))


def _everyone(member: Member) -> str:
    """Who refuses."""
    if member.shifts.is_single_network:
        return f"{member.name or CURRENT_MODEL} refuses"
    if member.name.startswith("the box of"):
        return f"every network of {member.name} refuses"
    where = "of the box of shifts" if member.shifts.trained_radii is None else "within delta"
    whose = "" if member.name in ("", CURRENT_MODEL) else f" of {member.name}"
    return f"every network {where}{whose} refuses"


def _whatever(schema: Schema, spaces: Sequence[Space]) -> str:
    """What is refused: all values of the features that may change."""
    low = np.min([space.low for space in spaces], axis=0)
    high = np.max([space.high for space in spaces], axis=0)
    free = {schema.columns[j].feature for j in np.flatnonzero(low < high).tolist()}
    if not free:
        return "it, and nothing may change"
    features = list(enumerate(schema.features))
    moves = [_with_range(schema, spaces, feature) for n, feature in features if n in free]
    stays = [display_title(feature) for n, feature in features if n not in free]
    what = enumerated(moves)
    if len(moves) > _NAMED:
        what = f"the {len(moves)} features that may change"
    why = f" ({enumerated(stays)} cannot change)" if 0 < len(stays) <= _NAMED else ""
    return f"it whatever {what} may become{why}"


def _with_range(schema: Schema, spaces: Sequence[Space], feature: AnyFeature) -> str:
    """Return the title of a feature, with the range of a number that was searched."""
    title = display_title(feature)
    if not isinstance(feature, Continuous):
        return title
    j = schema.span(feature.name).start
    wide = [space for space in spaces if space.low[j] < space.high[j]]
    if not wide:
        return title
    ends = min(space.low[j] for space in wide), max(space.high[j] for space in wide)
    low, high = feature.write(np.array(ends)[:, None]).tolist()
    low = low if feature.lower is None else max(low, feature.lower)
    high = high if feature.upper is None else min(high, feature.upper)
    return f"{title} ({format_range(feature, low, high)})"
