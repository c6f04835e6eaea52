"""What an explainer returns: one explanation per answer, in original units."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, overload

import numpy as np
import pandas as pd

from proplace.core.text import short, visible
from proplace.region.typical import is_typical

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Iterator, Mapping
    from pathlib import Path

    from matplotlib.figure import Figure

    from proplace.certification import Proof
    from proplace.core.distances import L1
    from proplace.core.guarantee import Guarantee, Member
    from proplace.core.network import Array, Network
    from proplace.explain.claims import Claim
    from proplace.explain.record import Provenance
    from proplace.explain.summary import By, Summary
    from proplace.explain.words import Description, Wording
    from proplace.loaders.model import Model
    from proplace.schema import Schema
    from proplace.schema.values import Label


Status = Literal[
    "optimal",
    "feasible",
    "valid",
    "already_valid",
    "no_robust_neighbour",
    "infeasible_rules",
    "fixed_prediction",
    "not_found",
    "bad_input",
    "solver_error",
    "worker_died",
    "model_mismatch",
]


class Meaning(NamedTuple):
    """What a status says: whether there is an answer, whether it is certified, and in words."""

    found: bool
    certified: bool
    text: str


STATUSES: Mapping[Status, Meaning] = {
    "optimal": Meaning(
        True, True, "within the gap of the nearest robust point of the region, proved"
    ),
    "feasible": Meaning(True, True, "certified robust, not proved nearest"),
    "valid": Meaning(True, False, "accepted by the network itself, not certified robust"),
    "already_valid": Meaning(False, False, "the network gives the target class already"),
    "no_robust_neighbour": Meaning(False, False, "nothing in the data is robust at this delta"),
    "infeasible_rules": Meaning(False, False, "the rules leave no robust point"),
    "fixed_prediction": Meaning(
        False, False, "proved: no network of Delta accepts anything within the rules"
    ),
    "not_found": Meaning(False, False, "the method, or its time, ended without a point"),
    "bad_input": Meaning(False, False, "the row is not one that the model can take"),
    "solver_error": Meaning(False, False, "the solver failed, which is no fault of the row"),
    "worker_died": Meaning(False, False, "the process died at this row each time; try again"),
    "model_mismatch": Meaning(False, False, "the model itself refuses the answer: withheld"),
}
"""Every status with its meaning; ``already_valid`` may carry a certificate of the person's own row."""


CERTIFIABLE = frozenset({s for s, m in STATUSES.items() if m.certified} | {"already_valid"})
"""Statuses of a row with a point that may be proved: an answer, or the person as is."""
FOUND = frozenset({s for s, m in STATUSES.items() if m.found})
"""Statuses of a row with an answer."""
ANSWERED = FOUND | {"already_valid"}
"""Statuses of a row with a point: an answer, or the person as is."""


@dataclass(frozen=True, eq=False)
class Finding:
    """One answer for one person as the network sees it, or the reason why there is none.

    The fields are those of :class:`proplace.Explanation`, which is made of it.
    """

    status: Status
    reason: str
    encoded_original: Array | None = None
    encoded_counterfactual: Array | None = None
    distance: float = np.nan
    bound: float = np.nan
    in_region: bool = True
    timed_out: bool = False
    margin: float = np.nan
    plausibility: float = np.nan
    nearest_row: int | None = None
    rank: int = 0
    neighbours: Array | None = None
    certificate: Proof | None = None
    guaranteed_ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    nodes: int = 0
    lp_solves: int = 0
    scenarios: int = 0
    seconds: float = field(default=0.0, compare=False)

    @property
    def found(self) -> bool:
        """Whether there is an answer."""
        return STATUSES[self.status].found


@dataclass(frozen=True, eq=False)
class Setting:
    """What an explanation is about: the guarantee, the model and the distance.

    Attributes
    ----------
    guarantee
        The networks that must accept the counterfactual.
    model
        The current model, with the features of the request. Its original is not kept.
    distance
        The distance; None if it is not known, as of results that were read from a folder.
    """

    guarantee: Guarantee
    model: Model
    distance: L1 | None = None

    @property
    def current(self) -> Member:
        """The member of the current model."""
        return self.guarantee.current

    @property
    def schema(self) -> Schema:
        """The features."""
        return self.model.schema


@dataclass(frozen=True, eq=False)
class Explanation(Finding):
    """One counterfactual for one person, or the reason why there is none.

    Attributes
    ----------
    index
        Label of the person's row in the table that was explained.
    status
        ``optimal``: within the requested gap of the nearest robust point of the region, proved.
        ``feasible``: certified robust, but not proved to be that near (few changes, a typical point,
        steps, the time limit, or a method that does not look for the nearest).
        ``valid``: the network gives the point the target class; not certified robust.
        ``already_valid``: the network gives the target class already. ``no_robust_neighbour``,
        ``infeasible_rules``, ``fixed_prediction`` (proved: no network of the shift set gives the
        target class to any input that the schema allows this person), ``not_found`` (the method, or its
        time, ended without a point), ``bad_input``, ``solver_error`` (the solver failed, which is no
        fault of the row), ``worker_died`` (the process died each time that it was at this row,
        which may be no fault of the row: worth another try), ``model_mismatch`` (the model itself
        refuses the counterfactual, so it
        is withheld): no answer, see ``reason``.
    reason
        In words, for every status but ``optimal``.
    original, counterfactual
        The person and the answer in original units (None without an answer).
    distance
        From the person to the answer, over encoded columns; NaN without an answer.
    bound
        Proved lower bound on the distance of any point of the region with a worst margin of
        ``margin + slack`` (the margin that the search asks for). NaN for few changes, since that search
        proves no bound.
    in_region
        False if the counterfactual, written in the steps of its features, lies outside the hull. Its
        ``bound`` is then about the hull, and may exceed ``distance``.
    timed_out
        True if the time limit ended the search. Then another run may give another counterfactual.
    margin
        Lower bound on the margin of the answer under every network in Delta, to the accuracy of
        float64. That it is at least the margin asked for is proved exactly, by ``certificate``.
        Of a method that takes no delta: the margin under the network itself.
    plausibility
        Share of accepted training rows that are at least as unusual, by the strictest of three
        neighbour measures (:mod:`proplace.region.typical`). Measured, not proved. NaN without a point,
        or with fewer than 31 accepted training rows.
    nearest_row
        Position of the nearest accepted training row in the table that was given to ``fit``; None
        without a plausibility.
    certificate
        Proof that the answer is robust, for anyone to check: see :class:`proplace.Certificate`; if
        the guarantee has several members, a bundle with one for each.
    guaranteed_ranges
        Intervals of numeric features, by name and in original units, within which the guarantee is
        proved for all of them together: the tolerance, and of changed numbers all values beyond the
        counterfactual, to the end of the range, where that is proved. With more than five changes the
        tolerance alone.
    target, rank
        The wanted class, and the number of this answer among several for one person (0 first).
    encoded_original, encoded_counterfactual, neighbours
        The person, the counterfactual and the robust neighbours as encoded rows.
    nodes, lp_solves, scenarios, seconds
        Effort of the search: branch-and-bound nodes, linear programs, scenarios added, seconds.
    setting
        The guarantee, the model and the distance that this is about.
    ids
        Cells of the person's row that are no features, by the name of their column: who it is.
    imputed
        Features whose cell was missing: ``original`` holds what the model counts in its place.
    checked_with_original
        True if the original model was run on the counterfactual (or, for ``already_valid``, on the
        person). False without a counterfactual, or if the original model could not be run, as of a
        :class:`proplace.Network`.
    """

    _: KW_ONLY
    index: Hashable
    target: int
    original: pd.Series[Any] | None = None
    counterfactual: pd.Series[Any] | None = None
    setting: Setting | None = field(default=None, repr=False)
    ids: Mapping[str, Any] = field(default_factory=dict)
    imputed: tuple[str, ...] = ()
    checked_with_original: bool = False

    @property
    def label(self) -> Label:
        """Label of the wanted class; its number where the labels are not known."""
        from proplace.tables.writing import own

        classes = () if self.setting is None else self.setting.model.classes
        return own(classes[self.target]) if classes else self.target

    @property
    def id_text(self) -> str:
        """Names and values of the id columns as text; empty without id columns."""
        return ", ".join(f"{name} {value}" for name, value in self.ids.items())

    @property
    def typical(self) -> bool:
        """True if the point is no less usual than 10% of the accepted training rows."""
        return bool(is_typical(self.plausibility))

    @property
    def gap(self) -> float:
        """Proved optimality gap; NaN without a counterfactual, or if it lies outside the hull."""
        if not (self.found and self.in_region):
            return np.nan
        return 1.0 - self.bound / self.distance if self.distance else 0.0

    @property
    def changes(self) -> pd.DataFrame:
        """What changes: one row per changed feature, with columns ``from`` and ``to``."""
        changed = self.changed
        rows = [[before, after] for before, after in changed.values()]
        return pd.DataFrame(rows, index=list(changed), columns=["from", "to"], dtype=object)

    @property
    def changed(self) -> dict[Hashable, tuple[Any, Any]]:
        """What changes, without a table around it: both values of each changed feature."""
        if self.original is None or self.counterfactual is None:
            return {}
        both = zip(self.original.items(), self.counterfactual, strict=True)
        return {name: (before, after) for (name, before), after in both if before != after}

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """One claim for each changed feature: its values, and what is proved of it."""
        from proplace.explain.claims import claims_of

        return claims_of(self)

    def describe(self, wording: Wording | None = None) -> Description:
        """Say it in a sentence and a small table, in original units.

        Examples
        --------
        >>> from proplace import Binary, Continuous, Network, Proplace, Schema, Wording
        >>> schema = Schema([Continuous("debt", 0, 100, step=1, unit="% of income"),
        ...                  Binary("home", label="owns a home")])
        >>> people = pd.DataFrame({"debt": [60, 20, 10, 30], "home": [0, 0, 1, 1]})
        >>> net = Network([([[-1.0, 0.2]], [0.4])])
        >>> result = Proplace(net, 0.02, schema=schema, k=3).fit(people).explain(people[:1])
        >>> print(result[0].describe(Wording("the loan", ["refused", "approved"])))
        The loan would have been approved with debt of at most 37% of income (today: 60%). This is
        proved for all such values within the declared range (0% to 100% of income) and for every model
        whose weights and biases each differ from the current model by at most 0.02. A nearer
        counterfactual may exist, but in the searched region none is more than 3% nearer.
        """
        from proplace.explain.words import Wording, describe

        return describe(self, wording or Wording())

    def to_dict(self, wording: Wording | None = None) -> dict[str, Any]:
        """Return what was found as JSON can hold it, for pages and other programs."""
        from proplace.explain.claims import is_certified
        from proplace.explain.words import Wording as Words
        from proplace.explain.words import outcome_of, proved, within

        words, setting = wording or Words(), self.setting
        names = ("distance", "bound", "gap", "margin", "plausibility")
        numbers = {name: getattr(self, name) for name in names}
        return {
            "status": self.status,
            "reason": self.reason,
            "found": self.found,
            "target": self.label,
            "outcome": outcome_of(self, words),
            "rank": self.rank,
            "sentence": self.describe(words).sentence,
            "claims": [
                {"name": c.name, "title": c.title, "was": c.was, "goal": c.goal} | c.to_dict()
                for c in self.claims
            ],
            "certified": is_certified(self),
            "guaranteed": proved(self),
            "networks": "" if setting is None else within(setting),
            "typical": self.typical,
            **{name: None if np.isnan(value) else float(value) for name, value in numbers.items()},
            "in_region": self.in_region,
            "timed_out": self.timed_out,
            "certificate": None if self.certificate is None else self.certificate.digest,
        }

    def plot(self, wording: Wording | None = None) -> Figure:
        """Draw the region, the worst margin against delta, and the changes (extra ``plot``).

        Save the figure with ``figure.savefig("answer.png")``.
        """
        from proplace.explain.words import Wording
        from proplace.report.plots import explanation_figure

        return explanation_figure(self, wording or Wording())

    def __repr__(self) -> str:
        if not self.found:
            return f"Explanation({short(self.index)}, {self.status})"
        changed = ", ".join(
            visible(f"{name}: {row['from']} -> {row['to']}")
            for name, row in self.changes.iterrows()
        )
        who = short(self.index)
        return f"Explanation({who}, {self.status}, distance {self.distance:.4g}; {changed})"


class Explanations(Sequence[Explanation]):
    """The explanations of a table, in the order of its rows; several answers of a row in a run.

    ``complete`` is False when the run was interrupted: rows after that are missing. ``provenance``
    says what the answers were made from, and when; ``index_names`` are the names of the levels of the
    table's index.
    """

    def __init__(
        self,
        items: Sequence[Explanation],
        *,
        complete: bool = True,
        index_names: Sequence[Hashable | None] = (None,),
        provenance: Provenance | None = None,
    ) -> None:
        self._items = tuple(items)
        self.complete = complete
        self.provenance = provenance
        self._index_names = tuple(index_names)

    @overload
    def __getitem__(self, i: int) -> Explanation: ...
    @overload
    def __getitem__(self, i: slice) -> Explanations: ...
    def __getitem__(self, i: int | slice) -> Explanation | Explanations:
        if isinstance(i, slice):
            return Explanations(
                self._items[i],
                complete=self.complete,
                index_names=self._index_names,
                provenance=self.provenance,
            )
        return self._items[i]

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[Explanation]:
        return iter(self._items)

    @property
    def encoded_counterfactuals(self) -> Array:
        """Encoded counterfactuals, one row per explanation; NaN where there is none."""
        width = next(
            (len(e.encoded_counterfactual) for e in self if e.encoded_counterfactual is not None), 0
        )
        empty = np.full(width, np.nan)
        return np.array(
            [empty if e.encoded_counterfactual is None else e.encoded_counterfactual for e in self]
        )

    def to_frame(self) -> pd.DataFrame:
        """One line per answer, with the index of the explained table; the columns of a results file.

        First the answer: each feature under its own name, in original units. Then ``status``,
        ``distance``, ``bound``, ``gap``, ``in_region``, ``timed_out``, ``margin``,
        ``plausibility``, ``nearest_row`` (position of the nearest accepted row of the training table),
        ``rank``, ``reason``, ``target`` (the class by its label), ``delta``, ``changes`` and
        ``sentence`` (in words), ``certificate`` (its digest), ``imputed`` (features whose cell was
        missing), ``guaranteed_ranges``, ``checked_with_original``, and the person's own values as
        ``original_...``. If a feature has such a name, ours gets the prefix ``ce_``.
        """
        from proplace.explain.record import AnswerColumns

        columns = AnswerColumns.of(self._features(), list(self[0].ids) if len(self) else ())
        records = [columns.record(e) for e in self]
        labels: list[Any] = [e.index for e in self]
        levels = self._index_names
        index: pd.Index[Any] = (
            pd.MultiIndex.from_tuples(labels, names=levels)
            if len(levels) > 1
            else pd.Index(labels, name=levels[0], tupleize_cols=False)
        )
        frame = pd.DataFrame(records, index=index, columns=columns.all)
        return frame.astype({columns.facts["nearest_row"]: "Int64"})

    def _features(self) -> list[str]:
        """Names of the features, as far as anything is known about them."""
        for e in self:
            if e.setting is not None:
                return list(e.setting.schema.by_name)
            if e.original is not None:
                return [str(name) for name in e.original.index]
        return []

    def summary(self, by: By = None) -> Summary:
        """Summarise the explanations of many people, as two frames and a plot.

        Parameters
        ----------
        by
            Column that divides the people into groups: the name of a feature (the person's own value),
            the name of an id column, a Series with the index of the explained table, or one value for
            each person. More than ten different numbers are cut into quarters. Default: one group.

        Raises
        ------
        OptionError
            ``by`` names no column, does not fit the people, or has more than 30 groups.

        Examples
        --------
        >>> from proplace import Binary, Continuous, Network, Proplace, Schema
        >>> schema = Schema([Continuous("debt", 0, 100, step=1), Binary("home", immutable=True)])
        >>> people = pd.DataFrame({"debt": [60, 20, 10, 30], "home": [0, 0, 1, 1]})
        >>> net = Network([([[-1.0, 0.2]], [0.4])])
        >>> result = Proplace(net, 0.02, schema=schema, k=3).fit(people).explain(people)
        >>> result.summary().to_frame()[["people", "refused", "answered", "distance"]]
             people  refused  answered  distance
        all       4        1         1     0.115
        >>> result.summary(by="home").features.loc[0, ["changed", "share", "median_change"]]
                 changed  share  median_change
        feature
        debt           1    1.0          -23.0
        home           0    0.0            NaN
        """
        from proplace.explain.summary import summarised

        return summarised(self, by)

    def plot(
        self,
        wording: Wording | None = None,
        *,
        retrained: Sequence[object] = (),
    ) -> Figure:
        """Draw how the answers fare as delta grows, and on retrained networks (extra ``plot``).

        Beside them are the nearest points of the same regions that the network accepts today.

        Parameters
        ----------
        wording
            What to call things.
        retrained
            Retrained models on which to count how many counterfactuals are still valid: anything that
            ``Proplace`` takes as a model.
        """
        from proplace.explain.words import Wording
        from proplace.report.plots import result_figure

        return result_figure(self, self._networks(retrained), wording or Wording())

    def _networks(self, retrained: Sequence[object]) -> list[Network]:
        """Read retrained models as networks for the encoded rows of these explanations."""
        from proplace.explain.required_models import read_retrained

        setting = next((e.setting for e in self if e.setting is not None), None)
        if setting is None:
            return read_retrained(None, retrained, None)
        return read_retrained(setting.model, retrained, setting.schema)

    def report(
        self,
        path: str | os.PathLike[str],
        wording: Wording | None = None,
        *,
        title: str = "What would change the outcome",
        retrained: Sequence[object] = (),
        proofs: str | os.PathLike[str] | None = None,
        kept: str | os.PathLike[str] | None = None,
        note: str = "",
        statement: str = "",
    ) -> Path:
        """Write a page to read: one HTML file that opens offline (extra ``report``).

        Parameters
        ----------
        path
            The file to write.
        wording, retrained
            As for :meth:`plot`.
        title
            Heading of the page.
        proofs
            Folder to write the certificates and the network into, so that others can check them, with
            ``verify.html``, a page that checks them in a browser.
        kept
            Folder of results that holds the certificates already (``explain --out``).
        note
            What else to say on top of the page, such as what it does not show.
        statement
            What past retrainings say about the next one, such as ``Calibration.statement``: a
            paragraph of its own beside what is proved.

        Returns
        -------
            The path of the page.
        """
        from proplace.explain.words import Wording
        from proplace.report.page import write_report

        return write_report(
            path,
            self,
            wording or Wording(),
            title=title,
            retrained=self._networks(retrained),
            proofs=proofs,
            kept=kept,
            note=note,
            statement=statement,
        )

    def _repr_html_(self) -> str | None:
        """Show the table in a notebook."""
        frame: Any = self.to_frame()
        html: str | None = frame._repr_html_()
        return html

    def __repr__(self) -> str:
        counts: dict[str, int] = {}
        for e in self:
            counts[e.status] = counts.get(e.status, 0) + 1
        parts = ", ".join(f"{count} {status}" for status, count in counts.items())
        return f"Explanations({parts or 'none'}{'' if self.complete else '; interrupted'})"
