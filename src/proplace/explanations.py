"""What an explainer returns: one explanation per answer, in original units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from proplace.certification import Certificate
    from proplace.network import Array

Status = Literal[
    "optimal", "feasible", "already_valid", "no_robust_neighbour", "infeasible_rules", "bad_input"
]


@dataclass(frozen=True)
class Optimality:
    """What the claim "nothing nearer has the margin in the region" rests on.

    It is *solver-certified*: it holds if the solver's linear programs are right to ``tolerance``. That
    the answer is robust does not rest on it; that is what the certificate proves.

    Attributes
    ----------
    bound
        No point of the region nearer than this has a worst margin of ``margin`` or more.
    margin
        The margin that the search asked for (the wanted one plus the slack).
    gap
        Relative difference of distance and bound at which an answer counts as optimal.
    tolerance
        Feasibility tolerance of the linear programs.
    solver
        Search and solver, by name.
    """

    bound: float
    margin: float
    gap: float
    tolerance: float
    solver: str
    basis: Literal["solver-certified"] = "solver-certified"


@dataclass(frozen=True, eq=False)
class Explanation:
    """One counterfactual for one person, or the reason why there is none.

    Attributes
    ----------
    index
        Label of the person's row in the table that was explained.
    status
        ``optimal``: the nearest robust point of the region. ``feasible``: robust, but the time limit
        (or trouble of the solver) came before the proof. ``already_valid``: the network
        gives the target class already. ``no_robust_neighbour``, ``infeasible_rules``,
        ``bad_input``: no answer, see ``reason``.
    reason
        In words, for every status but ``optimal``.
    original, counterfactual
        The person and the answer in original units (None without an answer).
    distance
        From the person to the answer, over encoded columns; NaN without an answer.
    bound
        Proved lower bound on the distance of any point of the region with a worst margin of
        ``margin + slack`` (the margin that the search asks for).
    margin
        Lower bound on the margin of the answer under every network in Delta, to the accuracy of
        float64. That it is at least the margin asked for is proved exactly, by ``certificate``.
    certificate
        Proof that the answer is robust, for anyone to check: see :class:`proplace.Certificate`.
    optimality
        What the claim that nothing nearer exists rests on.
    target, rank
        The wanted class, and the number of this answer among several for one person (0 first).
    x, point, neighbours
        The person, the answer and the robust neighbours as the network sees them.
    nodes, programs, rounds, seconds
        What the search took.
    """

    index: Hashable
    status: Status
    reason: str
    target: int
    original: pd.Series[Any] | None = None
    counterfactual: pd.Series[Any] | None = None
    distance: float = np.nan
    bound: float = np.nan
    margin: float = np.nan
    rank: int = 0
    x: Array | None = None
    point: Array | None = None
    neighbours: Array | None = None
    certificate: Certificate | None = None
    optimality: Optimality | None = None
    nodes: int = 0
    programs: int = 0
    rounds: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def found(self) -> bool:
        """Whether there is an answer that is certified robust."""
        return self.status in ("optimal", "feasible")

    @property
    def changes(self) -> pd.DataFrame:
        """What changes: one row per changed feature, with columns ``from`` and ``to``."""
        if self.original is None or self.counterfactual is None:
            return pd.DataFrame(columns=["from", "to"])
        both = pd.DataFrame({"from": self.original, "to": self.counterfactual}, dtype=object)
        return both[both["from"] != both["to"]]

    def __repr__(self) -> str:
        if not self.found:
            return f"Explanation({self.index!r}, {self.status})"
        changed = ", ".join(
            f"{name}: {row['from']} -> {row['to']}" for name, row in self.changes.iterrows()
        )
        return (
            f"Explanation({self.index!r}, {self.status}, distance {self.distance:.4g}; {changed})"
        )


class Explanations(Sequence[Explanation]):
    """The explanations of a table, in the order of its rows; several answers of a row in a run.

    ``complete`` is False when the run was interrupted: rows after that are missing.
    """

    def __init__(
        self,
        items: Sequence[Explanation],
        *,
        complete: bool = True,
        index_name: Hashable | None = None,
    ) -> None:
        self._items = tuple(items)
        self.complete = complete
        self._index_name = index_name

    @overload
    def __getitem__(self, i: int) -> Explanation: ...
    @overload
    def __getitem__(self, i: slice) -> Explanations: ...
    def __getitem__(self, i: int | slice) -> Explanation | Explanations:
        if isinstance(i, slice):
            return Explanations(self._items[i], complete=self.complete, index_name=self._index_name)
        return self._items[i]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._items)

    @property
    def points(self) -> Array:
        """The answers as the network sees them, NaN rows where there is none."""
        width = next((len(e.point) for e in self if e.point is not None), 0)
        empty = np.full(width, np.nan)
        return np.array([empty if e.point is None else e.point for e in self])

    def to_frame(self) -> pd.DataFrame:
        """Counterfactuals in original units, with the index of the explained table.

        The columns ``status``, ``distance``, ``bound``, ``margin``, ``rank`` and ``reason`` follow
        the features; where a feature has such a name, they get the prefix ``ce_``.
        """
        shown = next((e.counterfactual for e in self if e.counterfactual is not None), None)
        names = [] if shown is None else [str(name) for name in shown.index]
        records = []
        for e in self:
            facts: dict[str, Any] = {}
            if e.counterfactual is not None:
                facts.update({str(key): value for key, value in e.counterfactual.items()})
            for name in ("status", "distance", "bound", "margin", "rank", "reason"):
                facts[f"ce_{name}" if name in names else name] = getattr(e, name)
            records.append(facts)
        columns = [
            *names,
            *(c for c in (records[0] if records else {}) if c not in names),
        ]
        index = pd.Index([e.index for e in self], name=self._index_name)
        return pd.DataFrame(records, index=index).reindex(columns=list(dict.fromkeys(columns)))

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for e in self:
            counts[e.status] = counts.get(e.status, 0) + 1
        parts = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"Explanations({parts or 'none'}{'' if self.complete else '; interrupted'})"
