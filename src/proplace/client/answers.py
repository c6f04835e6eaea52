"""Answers of a service: the fields of an :class:`proplace.Explanation` that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, overload

import pandas as pd

from proplace.certification import canonical, read_proof
from proplace.client.errors import ServiceError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping

    from proplace.certification import Proof

Label = str | int | float | bool


@dataclass(frozen=True, eq=False)
class Answer:
    """One counterfactual for one person, or the reason why there is none.

    Attributes
    ----------
    index
        Label of the person's row in the table that was asked about.
    status, reason, distance, bound, margin, rank, holds, effort, efforts, out_of_reach
        As of :class:`proplace.Explanation`.
    label
        The wanted class.
    original, counterfactual
        The person and the answer in original units (None without an answer).
    filled
        Features whose cell was missing.
    sentence
        The answer in words.
    certificate
        The proof, which can be checked here: ``answer.certificate.check(network)``.
    person, options, model
        What was asked of which model: :meth:`Client.issue` asks it again.
    facts
        All that the service said.
    """

    index: Hashable
    status: str
    reason: str
    label: Label | None
    original: pd.Series[Any] | None = None
    counterfactual: pd.Series[Any] | None = None
    distance: float = math.nan
    bound: float = math.nan
    margin: float = math.nan
    rank: int = 0
    holds: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    effort: float = math.nan
    efforts: Mapping[str, float] = field(default_factory=dict)
    out_of_reach: bool = False
    filled: tuple[str, ...] = ()
    sentence: str = ""
    certificate: Proof | None = field(default=None, repr=False)
    person: Mapping[str, Any] = field(default_factory=dict, repr=False)
    options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    model: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def found(self) -> bool:
        """Whether there is an answer."""
        return self.counterfactual is not None

    @property
    def changed(self) -> dict[str, tuple[Any, Any]]:
        """What changes: both values of each changed feature."""
        changes = self.facts.get("changes", {})
        return {name: (change["from"], change["to"]) for name, change in changes.items()}

    @property
    def changes(self) -> pd.DataFrame:
        """What changes: one row per changed feature, with columns ``from`` and ``to``."""
        rows = [list(both) for both in self.changed.values()]
        return pd.DataFrame(rows, index=list(self.changed), columns=["from", "to"], dtype=object)

    def __str__(self) -> str:
        """The sentence, or the reason."""
        return self.sentence or self.reason


class Answers(Sequence[Answer]):
    """Answers in the order of the people, the nearest of a person first."""

    def __init__(self, answers: Sequence[Answer]) -> None:
        self._answers = tuple(answers)

    def __len__(self) -> int:
        return len(self._answers)

    def __iter__(self) -> Iterator[Answer]:
        return iter(self._answers)

    @overload
    def __getitem__(self, number: int) -> Answer: ...
    @overload
    def __getitem__(self, number: slice) -> Answers: ...
    def __getitem__(self, number: int | slice) -> Answer | Answers:
        """One of them, or some."""
        some = self._answers[number]
        return Answers(some) if isinstance(some, tuple) else some

    def of(self, index: Hashable) -> Answers:
        """The answers of one person."""
        return Answers([answer for answer in self if answer.index == index])

    def __repr__(self) -> str:
        found = sum(answer.found for answer in self)
        return f"Answers({len(self)}, {found} of them found)"


@dataclass(frozen=True)
class Question:
    """What was asked: each answer carries it."""

    model: str
    people: list[dict[str, Any]]
    labels: list[Hashable]
    options: dict[str, Any]

    def answers(self, parts: Sequence[Any]) -> Answers:
        """Answers of what came back, one part for each person."""
        if len(parts) != len(self.people):
            raise ServiceError(
                f"the service answered for {len(parts)} of {len(self.people)} people"
            )
        return Answers([one for number, part in enumerate(parts) for one in self._of(number, part)])

    def _of(self, number: int, part: Any) -> list[Answer]:
        if isinstance(part, dict):  # a search that was ended
            status = part.get("status", "not_found")
            return [self._without(number, status, part["error"])]
        return [self._answer(number, facts) for facts in part]

    def _without(self, number: int, status: str, reason: str) -> Answer:
        index, person = self.labels[number], self.people[number]
        return Answer(
            index, status, reason, None, person=person, options=self.options, model=self.model
        )

    def _answer(self, number: int, facts: dict[str, Any]) -> Answer:
        proof = facts["certificate"]
        certificate = None if proof is None else read_proof(canonical(proof).encode())
        if certificate is not None and certificate.digest != facts["certificate_digest"]:
            raise ServiceError("a certificate was changed on its way")
        return Answer(
            index=self.labels[number],
            status=facts["status"],
            reason=facts["reason"],
            label=facts["target"],
            original=_series(facts["original"], self.labels[number]),
            counterfactual=_series(facts["counterfactual"], self.labels[number]),
            distance=_number(facts["distance"]),
            bound=_number(facts["bound"]),
            margin=_number(facts["margin"]),
            rank=facts["rank"],
            holds={name: (ends[0], ends[1]) for name, ends in facts.get("holds", {}).items()},
            effort=_number(facts["effort"]),
            efforts=facts["efforts"],
            out_of_reach=facts["out_of_reach"],
            filled=tuple(facts["missing"]),
            sentence=facts["sentence"],
            certificate=certificate,
            person=self.people[number],
            options=self.options,
            model=self.model,
            facts=facts,
        )


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _series(values: dict[str, Any] | None, name: Hashable) -> pd.Series[Any] | None:
    return None if values is None else pd.Series(values, name=name, dtype=object)
