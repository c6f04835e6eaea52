"""The answers of one person beside each other, in words."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from proplace.core import markup
from proplace.core.errors import OptionError
from proplace.core.text import short
from proplace.explain.words import Wording, in_words
from proplace.schema.amounts import number

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from proplace.explain.results import Explanation

SAME = "–"
"""What stands where a path leaves a feature as it is."""


@dataclass(frozen=True)
class Paths:
    """Answers beside each other.

    Attributes
    ----------
    names
        What each answer is called.
    features
        Title, the person's own value, and that of each answer, for features that any of them changes.
    facts
        What each answer takes: title, and one cell for each answer.
    """

    names: tuple[str, ...]
    features: tuple[tuple[str, ...], ...]
    facts: tuple[tuple[str, ...], ...]

    def frame(self) -> pd.DataFrame:
        """The table, with the titles of the features as its index."""
        rows = [*self.features, *((title, "", *cells) for title, *cells in self.facts)]
        index = pd.Index([title for title, *_ in rows], name="feature")
        return pd.DataFrame([row[1:] for row in rows], index=index, columns=["now", *self.names])

    def html(self) -> str:
        """The table as a small piece of HTML."""
        rows = [(title, *cells) for title, *cells in self.frame().itertuples()]
        return markup.table(["", "now", *self.names], rows)


def beside(
    answers: Sequence[Explanation], index: Hashable, statuses: Sequence[str] | None = None
) -> Paths:
    """Put the answers of one person beside each other; ``statuses`` are words for that of each."""
    if not answers:
        raise OptionError(f"there is no person {short(index)} among these answers")
    own: dict[Hashable, tuple[str, str]] = {}
    after: list[dict[Hashable, str]] = []
    for e in answers:
        changes = dict(zip(e.changed, in_words(e, Wording()).changes, strict=True))
        own.update({name: (c.title, c.before) for name, c in changes.items()})
        after.append({name: c.goal for name, c in changes.items()})
    order = () if answers[0].original is None else answers[0].original.index
    features = [
        (*own[name], *(changes.get(name, SAME) for changes in after))
        for name in order
        if name in own
    ]
    setting = answers[0].setting
    efforts = setting is not None and setting.efforts is not None
    facts = [("effort" if efforts else "distance", *(_shown(e.distance) for e in answers))]
    facts.append(("status", *(statuses or (e.status for e in answers))))
    if setting is not None and setting.max_effort is not None:
        facts.append(("out of reach", *("yes" if e.out_of_reach else "no" for e in answers)))
    names = [f"path {n}" for n in range(1, len(answers) + 1)]
    return Paths(tuple(names), tuple(features), tuple(facts))


def _shown(value: float) -> str:
    return SAME if np.isnan(value) else number(float(f"{value:.4g}"))


def several(answers: Sequence[Explanation]) -> list[list[Explanation]]:
    """The people with several answers; those of one person follow each other."""
    people = [list(run) for _, run in itertools.groupby(answers, lambda e: e.index)]
    return [run for run in people if sum(e.found for e in run) > 1]
