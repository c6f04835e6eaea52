"""What an explainer returns: one explanation per answer, in original units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import pandas as pd

from proplace.errors import SolverError
from proplace.text import visible

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Iterator
    from pathlib import Path

    from matplotlib.figure import Figure

    from proplace.certification import Certificate
    from proplace.distances import Distance
    from proplace.network import Array, Network
    from proplace.report.words import Wording, Words
    from proplace.schema import Schema
    from proplace.schema._model import Label
    from proplace.shifts import Shifts

Status = Literal[
    "optimal",
    "feasible",
    "valid",
    "already_valid",
    "no_robust_neighbour",
    "infeasible_rules",
    "not_found",
    "bad_input",
    "solver_error",
    "worker_died",
    "source_disagrees",
]


def status_of(error: Exception) -> Status:
    """Status of a row that an error has ended: the solver's failure is no fault of the row."""
    return "solver_error" if isinstance(error, SolverError) else "bad_input"


def unexplained(error: Exception) -> str:
    """Say of a row that an error has ended which one it was."""
    return f"this row could not be explained ({type(error).__name__}: {error})"


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
class Setting:
    """What an explanation is about: the network and its classes, its shifts, features and distance."""

    net: Network
    shifts: Shifts
    schema: Schema
    distance: Distance
    classes: tuple[Label, ...] = ()  # labels of the model; empty where it has none but numbers


@dataclass(frozen=True, eq=False)
class Explanation:
    """One counterfactual for one person, or the reason why there is none.

    Attributes
    ----------
    index
        Label of the person's row in the table that was explained.
    status
        ``optimal``: the nearest robust point of the region. ``feasible``: certified robust, but not
        proved nearest (the time limit came first, or the method does not ask for the nearest).
        ``valid``: the network gives the point the target class; not certified robust.
        ``already_valid``: the network gives the target class already. ``no_robust_neighbour``,
        ``infeasible_rules``, ``not_found`` (the method, or its time, ended without a point),
        ``bad_input``, ``solver_error`` (the solver failed, which is no fault of the row),
        ``worker_died`` (the process died each time that it was at this row, which may be no fault of
        the row: worth another try), ``source_disagrees`` (the model itself refuses the answer, so it
        is withheld): no answer, see ``reason``.
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
        Of a method that takes no delta: the margin under the network itself.
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
    setting
        The network, Delta, schema and distance that this is about.
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
    setting: Setting | None = field(default=None, repr=False)

    @property
    def found(self) -> bool:
        """Whether there is an answer: certified robust, or merely ``valid``."""
        return self.status in ("optimal", "feasible", "valid")

    @property
    def wanted(self) -> Label:
        """The wanted class by its label: the number, where classes have no names."""
        classes = () if self.setting is None else self.setting.classes
        return classes[self.target] if classes else self.target

    @property
    def changes(self) -> pd.DataFrame:
        """What changes: one row per changed feature, with columns ``from`` and ``to``."""
        if self.original is None or self.counterfactual is None:
            return pd.DataFrame(columns=["from", "to"])
        both = pd.DataFrame({"from": self.original, "to": self.counterfactual}, dtype=object)
        return both[both["from"] != both["to"]]

    def words(self, wording: Wording | None = None) -> Words:
        """Say it in a sentence and a small table, in original units.

        Examples
        --------
        >>> from proplace import Binary, Continuous, Network, Proplace, Schema, Wording
        >>> schema = Schema([Continuous("debt", 0, 100, step=1, unit="% of income"),
        ...                  Binary("home", label="owns a home")])
        >>> people = pd.DataFrame({"debt": [60, 20, 10, 30], "home": [0, 0, 1, 1]})
        >>> net = Network([([[-1.0, 0.2]], [0.4])])
        >>> result = Proplace(net, 0.02, schema=schema, k=3).fit(people).explain(people[:1])
        >>> print(result[0].words(Wording("the loan", ["refused", "approved"])))
        The loan would have been approved if debt were 37% of income instead of 60%; this holds for
        every retrained model whose parameters moved by at most 0.02.
        """
        from proplace.report.words import in_words, wording_of

        return in_words(self, wording_of(self.setting, wording))

    def plot(self, wording: Wording | None = None) -> Figure:
        """Draw the region, the worst margin against delta, and the changes (extra ``plot``).

        Save the figure with ``figure.savefig("answer.png")``.
        """
        from proplace.report.plots import explanation_figure
        from proplace.report.words import wording_of

        return explanation_figure(self, wording_of(self.setting, wording))

    def __repr__(self) -> str:
        if not self.found:
            return f"Explanation({self.index!r}, {self.status})"
        changed = ", ".join(
            visible(f"{name}: {row['from']} -> {row['to']}")
            for name, row in self.changes.iterrows()
        )
        return (
            f"Explanation({self.index!r}, {self.status}, distance {self.distance:.4g}; {changed})"
        )


class Explanations(Sequence[Explanation]):
    """The explanations of a table, in the order of its rows; several answers of a row in a run.

    ``complete`` is False when the run was interrupted: rows after that are missing. ``index_names`` are
    the names of the levels of the table's index.
    """

    def __init__(
        self,
        items: Sequence[Explanation],
        *,
        complete: bool = True,
        index_names: Sequence[Hashable | None] = (None,),
    ) -> None:
        self._items = tuple(items)
        self.complete = complete
        self._index_names = tuple(index_names)

    @overload
    def __getitem__(self, i: int) -> Explanation: ...
    @overload
    def __getitem__(self, i: slice) -> Explanations: ...
    def __getitem__(self, i: int | slice) -> Explanation | Explanations:
        if isinstance(i, slice):
            items, names = self._items[i], self._index_names
            return Explanations(items, complete=self.complete, index_names=names)
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
        labels: list[Any] = [e.index for e in self]
        levels = self._index_names
        index: pd.Index[Any] = (
            pd.MultiIndex.from_tuples(labels, names=levels)
            if len(levels) > 1
            else pd.Index(labels, name=levels[0], tupleize_cols=False)
        )
        return pd.DataFrame(records, index=index).reindex(columns=list(dict.fromkeys(columns)))

    def plot(
        self,
        wording: Wording | None = None,
        *,
        retrained: Sequence[Network] = (),
        against: Explanations | None = None,
    ) -> Figure:
        """Draw how the answers fare as delta grows, and on retrained networks (extra ``plot``).

        Parameters
        ----------
        wording
            What to call things.
        retrained
            Networks on which to count how many answers still hold.
        against
            Answers of another method to compare with; without it, the nearest points of the same
            regions that the network accepts today.
        """
        from proplace.report.geometry import compared
        from proplace.report.plots import result_figure
        from proplace.report.words import wording_of

        answers = [e for e in self if e.found]
        words = wording_of(self[0].setting if len(self) else None, wording)
        return result_figure(answers, compared(self, against), retrained, words)

    def report(
        self,
        path: str | os.PathLike[str],
        wording: Wording | None = None,
        *,
        title: str = "Answers that survive retraining",
        retrained: Sequence[Network] = (),
        against: Explanations | None = None,
        proofs: str | os.PathLike[str] | None = None,
    ) -> Path:
        """Write a page to read: one HTML file that opens offline (extra ``report``).

        Parameters
        ----------
        path
            The file to write.
        wording, retrained, against
            As for :meth:`plot`.
        title
            Heading of the page.
        proofs
            Folder to write the certificates and the network into, so that others can check them.

        Returns
        -------
            The path of the page.
        """
        from proplace.report.page import write_report
        from proplace.report.words import wording_of

        return write_report(
            path,
            self,
            wording_of(self[0].setting if len(self) else None, wording),
            title=title,
            retrained=retrained,
            against=against,
            proofs=proofs,
        )

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for e in self:
            counts[e.status] = counts.get(e.status, 0) + 1
        parts = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"Explanations({parts or 'none'}{'' if self.complete else '; interrupted'})"
