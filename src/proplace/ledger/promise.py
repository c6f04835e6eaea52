"""One promise, as the ledger holds it."""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from proplace.certification import read_proof
from proplace.certification.checker import MOST_BYTES
from proplace.core.errors import TamperedError
from proplace.explain.results import Explanation, Setting
from proplace.explain.words import Wording

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from proplace.certification import Proof
    from proplace.core.network import Array
    from proplace.core.request import Request
    from proplace.ledger.terms import Terms
    from proplace.schema.values import Label

State = Literal["open", "expired", "redeemed", "renewed", "withdrawn", "erased"]

CLOSING = ("redeemed", "renewed", "withdrawn", "erased")
"""Kinds of entries after which a promise is no longer open."""


@dataclass(frozen=True, eq=False)
class Promise:
    """A promise to one person: reach this, and you are accepted.

    Attributes
    ----------
    id
        Its number in the ledger.
    person
        The user's own id of the person; None once the person is erased, as is all that is theirs.
    state
        ``open``, ``expired`` (its last day is over), ``redeemed``, ``renewed`` (another took its place),
        ``withdrawn`` or ``erased``.
    issued
        When it was made, in UTC.
    expires
        The last day on which it holds, ``2027-03-31``; None where it has none.
    terms
        The model, the guarantee and the request.
    facts
        Person and answer in original units, sentence, and what is proved.
    point, low, high
        The answer as the model encodes it, and the box around it that is proved.
    """

    id: int
    person: str | None
    state: State
    issued: str
    expires: str | None
    terms: Terms
    facts: Mapping[str, Any]
    point: Array | None = None
    low: Array | None = None
    high: Array | None = None
    _certificate: bytes | None = None

    @property
    def target(self) -> Label:
        """Label of the promised class."""
        return self.terms.label

    @property
    def sentence(self) -> str:
        """What the person was told."""
        return str(self.facts.get("sentence", ""))

    @property
    def wording(self) -> Wording:
        """What things were called in the sentence."""
        return wording_of(self.facts)

    @property
    def guaranteed_ranges(self) -> dict[str, tuple[float, float]]:
        """Intervals of numeric features in which the answer was proved, in original units."""
        ranges = self.facts.get("guaranteed_ranges", {})
        return {name: (low, high) for name, (low, high) in ranges.items()}

    @property
    def original(self) -> pd.Series[Any] | None:
        """The person, when the promise was made."""
        return self._row("original")

    @property
    def answer(self) -> pd.Series[Any] | None:
        """What is to be reached."""
        return self._row("answer")

    @cached_property
    def certificate(self) -> Proof | None:
        """The proof."""
        return None if self._certificate is None else read_proof(unpacked(self._certificate))

    @cached_property
    def explanation(self) -> Explanation | None:
        """The answer that it was made of, for words, letters and plots; None once it is erased."""
        if self.point is None:
            return None
        terms, facts, original = self.terms, self.facts, self.original
        setting = Setting(terms.guarantee, terms.model)
        return Explanation(
            facts["status"],
            facts["reason"],
            index=facts["index"],
            target=terms.request.target,
            original=original,
            counterfactual=self.answer,
            rank=facts["rank"],
            encoded_original=None
            if original is None
            else terms.model.encode(original.to_frame().T)[0],
            encoded_counterfactual=self.point,
            guaranteed_ranges=self.guaranteed_ranges,
            certificate=self.certificate,
            setting=setting,
            ids={"person": self.person},
            imputed=tuple(facts["imputed"]),
            distance=_number(facts["distance"]),
            bound=_number(facts["bound"]),
            in_region=facts["in_region"],
            timed_out=facts["timed_out"],
            margin=_number(facts["margin"]),
            plausibility=_number(facts["plausibility"]),
            checked_with_original=facts["checked_with_original"],
        )

    def _row(self, name: str) -> pd.Series[Any] | None:
        values = self.facts.get(name)
        if values is None:
            return None
        ordered = {feature: values[feature] for feature in self.terms.model.schema.by_name}
        return pd.Series(ordered, dtype=object, name=self.id)

    def __repr__(self) -> str:
        who = "erased" if self.person is None else f"to {self.person!r}"
        return f"Promise({self.id} {who}, {self.state})"


def wording_of(facts: Mapping[str, Any]) -> Wording:
    """What things are called in a promise with these facts."""
    said = facts.get("wording")
    if said is None:
        return Wording()
    return Wording(said["subject"], dict(said["outcomes"]), said["person"])


class Recipient(NamedTuple):
    """Somebody to whom a promise was made, for lists of many.

    Attributes
    ----------
    promise
        Its number.
    person
        The user's own id of the person; None once they are erased.
    expires
        The last day.
    target
        Label of the promised class.
    request
        What was asked of the answer.
    facts
        Person and answer in original units, and the sentence; empty once they are erased.
    """

    promise: int
    person: str | None
    expires: str | None
    target: Label
    request: Request
    facts: Mapping[str, Any]

    @property
    def sentence(self) -> str:
        """What the person was told."""
        return str(self.facts.get("sentence", ""))


class OpenPromises(NamedTuple):
    """Some open promises that have their terms in common, for work on many at once.

    Attributes
    ----------
    terms
        What they are about.
    ids
        Their numbers.
    points
        The answers, as the model of the terms encodes them.
    low, high
        The ends of the boxes that are proved; both are the point where that alone is.
    facts, people
        Person and answer in original units, each as JSON, and the ids of the people; empty unless they
        were asked for.
    """

    terms: Terms
    ids: npt.NDArray[np.int64]
    points: Array
    low: Array
    high: Array
    facts: tuple[str, ...] = ()
    people: tuple[str, ...] = ()

    @property
    def boxed(self) -> npt.NDArray[np.bool_]:
        """Which of them are proved for more than the point."""
        return np.asarray((self.low < self.high).any(axis=1))


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def unpacked(content: bytes) -> bytes:
    """A certificate as it was before it was compressed, if it is one of a size that is read."""
    try:
        text = zlib.decompressobj().decompress(content, MOST_BYTES + 1)
    except zlib.error:
        text = b""
    if not text or len(text) > MOST_BYTES:
        raise TamperedError(
            "the certificate of a promise is not what was written; ledger.verify() tells what else"
        )
    return text
