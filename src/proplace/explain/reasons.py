"""Reasons for a refusal notice: which features, changed alone or in pairs, would have led to acceptance.

A reason is *responsive*: it names features that, had they been different as the schema allows and all
else the same, would have led to the wanted class under every network of Delta, with the least change of
them and its proof. Single features come first, then pairs of which neither feature is enough alone.
Features that cannot change, and those that never help alone, are named as such; and where nothing helps
because every network refuses whatever the person may become, that is said, with its proof
(:mod:`proplace.explain.fixed`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, overload

import pandas as pd

from proplace.core import markup
from proplace.core.progress import progress_bar
from proplace.core.text import enumerated, visible
from proplace.explain.findings import Finding
from proplace.explain.fixed import fixed
from proplace.explain.packaging import package
from proplace.explain.proving import Clock
from proplace.explain.responses import Changes, Question, Response
from proplace.explain.values import called, pair
from proplace.explain.words import Wording, in_delta, outcome_of, within

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from proplace.certification import Proof
    from proplace.core.network import Array
    from proplace.explain.proplace import Proplace
    from proplace.explain.responses import Features
    from proplace.explain.results import Explanation
    from proplace.schema.problems import BadRow

_TOLD = 4  # reasons that a sentence holds; the table has all
_NAMED = 8  # features that a sentence names
DEFAULT_PAIRS = 100
"""Pairs of features that are searched for one person."""


@dataclass(frozen=True, eq=False)
class Reason:
    """Features that would have led to the wanted class, and the least change of them that does.

    Attributes
    ----------
    features
        Their names.
    explanation
        The least change of these features alone, certified as any answer is.
    """

    features: tuple[str, ...]
    explanation: Explanation

    @property
    def distance(self) -> float:
        """How far the change is, by which reasons are ordered."""
        return self.explanation.distance

    @property
    def change(self) -> str:
        """The change in words: each feature with its new and its old value."""
        e = self.explanation
        known = {} if e.setting is None else e.setting.schema.by_name
        parts = []
        for name, (before, after) in e.changed.items():
            feature = known.get(str(name))
            new, old = pair(feature, before, after)
            parts.append(visible(f"{called(feature) if feature else name} {new} instead of {old}"))
        return enumerated(parts)

    def __repr__(self) -> str:
        return f"Reason({' + '.join(self.features)}, distance {self.distance:.4g})"


@dataclass(frozen=True, eq=False)
class Reasons:
    """The reasons of one person.

    Attributes
    ----------
    status
        ``refused``: see the rest. ``fixed``: it is proved that nothing helps. ``already_valid``: the
        model gives the wanted class. ``bad_input``: the row could not be read.
    about
        The person as explained: for ``fixed`` with its certificate, else for the reason alone.
    alone, together
        Reasons of one feature and of two, the least change first.
    never
        Features that may change and never help alone, whatever value they take.
    unchangeable
        Features that cannot change.
    undecided
        Features of which it is not decided whether they help alone.
    pairs_left
        Pairs of features that were not searched, or not to the end: others may help, too.
    """

    status: Literal["refused", "fixed", "already_valid", "bad_input"]
    about: Explanation
    alone: tuple[Reason, ...] = ()
    together: tuple[Reason, ...] = ()
    never: tuple[str, ...] = ()
    unchangeable: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()
    pairs_left: int = 0

    @property
    def index(self) -> Hashable:
        """Label of the person's row in the table."""
        return self.about.index

    @property
    def certificate(self) -> Proof | None:
        """Proof that nothing helps, where that is so."""
        return self.about.certificate if self.status == "fixed" else None

    @property
    def all(self) -> tuple[Reason, ...]:
        """All reasons: those of one feature first."""
        return self.alone + self.together

    def sentence(self, wording: Wording | None = None) -> str:
        """Say it in words, in original units."""
        wording = wording or Wording()
        if self.status != "refused":
            return self.about.words(wording).sentence
        return visible(" ".join(part for part in self._parts(wording) if part))

    def _parts(self, wording: Wording) -> Iterator[str]:
        setting, outcome = self.about.setting, outcome_of(self.about, wording)
        subject = wording.subject[:1].upper() + wording.subject[1:]
        if self.all:
            promise = ""
            if setting is not None and not setting.alone:
                promise = f", by every network {within(setting)}"
            options = "; or ".join(reason.change for reason in self.all[:_TOLD])
            rest = len(self.all[_TOLD:])
            more = f"; and {rest} more way{'s' * (rest > 1)} of one or two features" if rest else ""
            yield f"{subject} would have been {outcome}{promise}, with {options}{more}."
        else:
            few = "" if self.pairs_left or self.undecided else " or two"
            where = (
                "" if setting is None or setting.alone else f" every network {in_delta(setting)}"
            )
            yield (
                f"No change of one feature{few} was found after which {wording.subject} would be "
                f"{outcome} by{where or ' the model in use'}."
            )
        if self.never:
            yield f"{self._titles(self.never)} alone would not have led to that, at any value."
        if self.undecided:
            yield f"Whether {self._titles(self.undecided)} alone would is not decided."
        if self.unchangeable:
            yield f"{self._titles(self.unchangeable)} cannot change."
        if self.pairs_left:
            yield f"{self.pairs_left} more pairs of features were not looked at to the end."

    def _titles(self, names: Sequence[str]) -> str:
        known = {} if self.about.setting is None else self.about.setting.schema.by_name
        titles = [called(known[name]) if name in known else name for name in names]
        if len(titles) > _NAMED:
            titles = [*titles[:_NAMED], f"{len(titles) - _NAMED} more features"]
        text = enumerated(titles)
        return text[:1].upper() + text[1:] if names is not self.undecided else text

    def table(self) -> pd.DataFrame:
        """The reasons as a table: features, what changes, the distance and whether it is the least."""
        rows = [
            [" + ".join(r.features), r.change, r.distance, r.explanation.status] for r in self.all
        ]
        return pd.DataFrame(rows, columns=["features", "change", "distance", "status"])

    def _repr_html_(self) -> str:
        parts = [markup.paragraph(self.sentence())]
        if self.all:
            rows = [
                (" + ".join(r.features), r.change, f"{r.distance:.4g}", r.explanation.status)
                for r in self.all
            ]
            parts.append(markup.table(["features", "change", "distance", "status"], rows))
        return markup.card(f"{self.index}: {self.status}", *parts)

    def __repr__(self) -> str:
        named = ", ".join(" + ".join(reason.features) for reason in self.all) or "none"
        return f"Reasons({self.index!r}, {self.status}: {named})"


class ReasonsList(Sequence[Reasons]):
    """The reasons of a table, in the order of its rows."""

    def __init__(self, items: Sequence[Reasons]) -> None:
        self._items = tuple(items)

    @overload
    def __getitem__(self, i: int) -> Reasons: ...
    @overload
    def __getitem__(self, i: slice) -> ReasonsList: ...
    def __getitem__(self, i: int | slice) -> Reasons | ReasonsList:
        return ReasonsList(self._items[i]) if isinstance(i, slice) else self._items[i]

    def __len__(self) -> int:
        return len(self._items)

    def to_frame(self) -> pd.DataFrame:
        """One line per reason, with the person's index; a person without reasons has one line."""
        lines: list[dict[str, Any]] = []
        for person in self:
            about = {"person": person.index, "status": person.status}
            lines += [
                {
                    **about,
                    "rank": rank,
                    "features": " + ".join(reason.features),
                    "change": reason.change,
                    "distance": reason.distance,
                }
                for rank, reason in enumerate(person.all)
            ] or [about]
        columns = ["person", "status", "rank", "features", "change", "distance"]
        return pd.DataFrame(lines, columns=columns)

    def _repr_html_(self) -> str:
        rows = [
            (
                person.index,
                person.status,
                "; ".join(reason.change for reason in person.all) or person.about.reason,
            )
            for person in self
        ]
        return markup.card(repr(self), markup.table(["", "status", "what would change it"], rows))

    def __repr__(self) -> str:
        return f"ReasonsList({len(self)} people)"


# -- how they are found --------------------------------------------------------------------------------


@dataclass(eq=False)
class _Found:
    """What was found for one person, by numbers of features."""

    first: Finding
    status: Literal["refused", "fixed", "already_valid", "bad_input"] = "refused"
    responses: list[Response] = field(default_factory=list)
    never: list[int] = field(default_factory=list)
    undecided: list[int] = field(default_factory=list)
    pairs_left: int = 0


def reasons_of(
    explainer: Proplace,
    people: tuple[Array, dict[int, BadRow], pd.DataFrame | None],
    target: int,
    pairs: int,
    *,
    progress: bool = False,
) -> ReasonsList:
    """Find the reasons of some people."""
    rows, problems, table = people
    low, high = explainer.rows_.min(axis=0), explainer.rows_.max(axis=0)
    assert explainer.prover_ is not None  # noqa: S101  (this method has a delta)
    question = Question(
        explainer.net_,
        explainer.schema_,
        explainer.prover_,
        explainer.distance_,
        explainer.slack,
        explainer.search,
        explainer.solver,
        low,
        high,
        target,
    )
    found: list[_Found] = []
    with progress_bar("reasons", len(rows), show=progress) as advance:
        for i, x in enumerate(rows):
            if i in problems:
                found.append(_Found(Finding("bad_input", problems[i].reason), "bad_input"))
            elif explainer.net_.predict(x)[0] == target:
                found.append(_Found(explainer.already_valid(x, target), "already_valid"))
            else:
                found.append(_reasons(explainer, question, x, pairs))
            advance(1)
    findings = [
        [
            one.first,
            *(
                replace(response.finding, rank=rank)
                for rank, response in enumerate(one.responses)
                if response.finding is not None
            ),
        ]
        for one in found
    ]
    packaged = iter(
        package(
            explainer.model_,
            explainer.setting,
            target,
            findings,
            table,
            provenance=explainer.provenance(target),
            others=explainer.others_,
        )
    )
    return ReasonsList([_packed(explainer, one, packaged) for one in found])


def _reasons(explainer: Proplace, question: Question, x: Array, pairs: int) -> _Found:
    """The reasons of one person whom the model in use refuses."""
    clock = Clock.of(explainer.time_limit)
    schema, changes = question.schema, Changes(question, x, clock.search)
    free = [n for n, feature in enumerate(schema.features) if not feature.immutable]
    found = _Found(Finding("not_found", "", x=x))
    alone = _responses(changes, [(n,) for n in free])
    found.responses = [response for response in alone if response.status == "found"]
    found.never = [response.features[0] for response in alone if response.status == "none"]
    found.undecided = [response.features[0] for response in alone if response.status == "open"]
    if not found.responses and not clock.over:
        judges = question.prover.judges
        proved = fixed(schema, judges, explainer.rows_, x, question.target, clock.search)
        if proved is not None:
            return _Found(proved, "fixed", never=free)
    rest = sorted({*found.never, *found.undecided})
    wanted = changes.hopeful(list(itertools.combinations(rest, 2))) if pairs else []
    both = [changes.response(features) for features in wanted[:pairs]]
    found.responses += [response for response in both if response.status == "found"]
    found.pairs_left = sum(response.status == "open" for response in both) + len(wanted[pairs:])
    return found


def _responses(changes: Changes, sets: list[Features]) -> list[Response]:
    """What each of some sets of features can do, in their order."""
    hopeful = set(changes.hopeful(sets))
    return [
        changes.response(features) if features in hopeful else Response(features, "none")
        for features in sets
    ]


def _packed(explainer: Proplace, found: _Found, packaged: Iterator[Explanation]) -> Reasons:
    """The reasons of one person in original units; the explanations come in order."""
    names = [feature.name for feature in explainer.schema_.features]
    about = next(packaged)
    reasons = [
        Reason(tuple(names[n] for n in response.features), next(packaged))
        for response in found.responses
    ]
    kept = [reason for reason in reasons if reason.explanation.found]  # the model has the last word
    kept.sort(key=lambda reason: reason.distance if math.isfinite(reason.distance) else math.inf)
    immutable = [feature.name for feature in explainer.schema_.features if feature.immutable]
    return Reasons(
        found.status,
        about,
        tuple(reason for reason in kept if len(reason.features) == 1),
        tuple(reason for reason in kept if len(reason.features) > 1),
        tuple(names[n] for n in found.never),
        tuple(immutable) if found.status in ("refused", "fixed") else (),
        tuple(names[n] for n in found.undecided),
        found.pairs_left,
    )
