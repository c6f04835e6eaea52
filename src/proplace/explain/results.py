"""Results of an explainer: explanations in original units."""

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


class StatusInfo(NamedTuple):
    """Properties of a status: with a counterfactual, certified, and its description."""

    found: bool
    certified: bool
    text: str


STATUSES: Mapping[Status, StatusInfo] = {
    "optimal": StatusInfo(
        True, True, "proved: within the gap of the nearest robust point of the region"
    ),
    "feasible": StatusInfo(True, True, "certified robust, not proved to be nearest"),
    "valid": StatusInfo(True, False, "accepted by the current model, not certified robust"),
    "already_valid": StatusInfo(False, False, "the model gives the target class already"),
    "no_robust_neighbour": StatusInfo(False, False, "no training row is robust at this delta"),
    "infeasible_rules": StatusInfo(False, False, "the limits of the person leave no robust point"),
    "fixed_prediction": StatusInfo(
        False, False, "proved: no network of the shift set accepts any input within the rules"
    ),
    "not_found": StatusInfo(False, False, "the search or its time ended without a point"),
    "bad_input": StatusInfo(False, False, "the model cannot read the row"),
    "solver_error": StatusInfo(False, False, "the solver failed, for a reason outside the row"),
    "worker_died": StatusInfo(False, False, "the process died at this row each time. Try again"),
    "model_mismatch": StatusInfo(
        False, False, "the original model refuses the counterfactual, so it is withheld"
    ),
}
"""Properties of every status. ``already_valid`` may carry a certificate of the person's own row."""

CERTIFIABLE = frozenset({s for s, m in STATUSES.items() if m.certified} | {"already_valid"})
"""Statuses of a row with a point that can be proved: a counterfactual, or the person unchanged."""
FOUND = frozenset({s for s, m in STATUSES.items() if m.found})
"""Statuses of a row with a counterfactual."""
ANSWERED = FOUND | {"already_valid"}
"""Statuses of a row with a point: a counterfactual, or the person unchanged."""


@dataclass(frozen=True, eq=False)
class Finding:
    """One encoded counterfactual for one person, or the reason why there is none.

    The fields are those of :class:`proplace.Explanation`, which adds original units.
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
        """True if there is a counterfactual."""
        return STATUSES[self.status].found


@dataclass(frozen=True, eq=False)
class Setting:
    """The guarantee, the model and the distance of an explanation.

    Attributes
    ----------
    guarantee
        The networks that must accept the counterfactual.
    model
        The current model, with the features of the request but without the original model.
    distance
        The distance. None if it is unknown, as for results read from a folder.
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
        Label of the person's row in the explained table.
    status
        ``optimal``: proved to be within the requested gap of the nearest robust point of the region.
        ``feasible``: certified robust, but not proved to be nearest (sparse or typical points, steps,
        the time limit, or a method without a bound).
        ``valid``: accepted by the current model, not certified robust.
        ``already_valid``: the person has the target class already.
        The other statuses have no counterfactual: ``no_robust_neighbour``, ``infeasible_rules``,
        ``fixed_prediction`` (proved: no network of the shift set gives the target class to any input
        that the schema allows this person), ``not_found`` (the search or its time ended without a
        point), ``bad_input``, ``solver_error`` (the solver failed, for a reason outside the row),
        ``worker_died`` (the process died each time at this row; another run may succeed) and
        ``model_mismatch`` (the original model refuses the counterfactual, so it is withheld).
    reason
        Explanation of every status except ``optimal``.
    original, counterfactual
        The person and the counterfactual in original units. None without a counterfactual.
    distance
        Distance from the person to the counterfactual, over encoded columns. NaN without one.
    bound
        Proved lower bound on the distance of any point of the region whose worst-case margin reaches
        the required margin plus the slack of the search. NaN for sparse counterfactuals, because that
        search proves no bound.
    in_region
        False if the counterfactual, written in the steps of its features, lies outside the hull. Its
        ``bound`` then refers to the hull, and may exceed ``distance``.
    timed_out
        True if the time limit ended the search. Another run may then give another counterfactual.
    margin
        Lower bound on the margin of the counterfactual under every network of the shift set, to the
        accuracy of float64. ``certificate`` proves exactly that it reaches the required margin. For a
        method without a delta: the margin under the current model.
    plausibility
        Share of accepted training rows that are at least as unusual, by the strictest of three
        neighbour measures (:mod:`proplace.region.typical`). Measured, not proved. NaN without a point,
        or with fewer than 31 accepted training rows.
    nearest_row
        Position of the nearest accepted training row in the table given to ``fit``. None without a
        plausibility.
    certificate
        Proof that the counterfactual is robust, which anyone can check: see
        :class:`proplace.Certificate`. If the guarantee has several members, a bundle with one for each.
    guaranteed_ranges
        Intervals of numeric features, by name and in original units, within which the guarantee is
        proved jointly. They contain the tolerance and, for changed numbers, all values beyond the
        counterfactual up to the end of the range if this can be proved. With more than five changes,
        they contain the tolerance alone.
    target, rank
        The target class, and the position among the alternatives of the person (0 first).
    encoded_original, encoded_counterfactual, neighbours
        The person, the counterfactual and the robust neighbours as encoded rows.
    nodes, lp_solves, scenarios, seconds
        Work of the search: branch-and-bound nodes, linear programs, added scenarios, seconds.
    setting
        The guarantee, the model and the distance.
    ids
        Cells of the person's id columns, by column name.
    imputed
        Features whose cell was missing. ``original`` holds the imputed values.
    checked_with_original
        True if the original model was run on the counterfactual (or, for ``already_valid``, on the
        person). False without a counterfactual, or if the original model could not be run, as for
        a :class:`proplace.Network`.
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
        """Label of the target class, or its number if the labels are unknown."""
        classes = () if self.setting is None else self.setting.model.classes
        return classes[self.target] if classes else self.target

    @property
    def id_text(self) -> str:
        """Names and values of the id columns as text. Empty without id columns."""
        return ", ".join(f"{name} {value}" for name, value in self.ids.items())

    @property
    def typical(self) -> bool:
        """True if the point is no less usual than 10% of the accepted training rows."""
        return bool(is_typical(self.plausibility))

    @property
    def gap(self) -> float:
        """Proved optimality gap. NaN without a counterfactual, or if it lies outside the hull."""
        if not (self.found and self.in_region):
            return np.nan
        return 1.0 - self.bound / self.distance if self.distance else 0.0

    @property
    def changes(self) -> pd.DataFrame:
        """The changes: one row per changed feature, with columns ``from`` and ``to``."""
        changed = self.changes_by_feature
        rows = [[before, after] for before, after in changed.values()]
        return pd.DataFrame(rows, index=list(changed), columns=["from", "to"], dtype=object)

    @property
    def changes_by_feature(self) -> dict[Hashable, tuple[Any, Any]]:
        """The changes as a dictionary: both values of each changed feature."""
        if self.original is None or self.counterfactual is None:
            return {}
        both = zip(self.original.items(), self.counterfactual, strict=True)
        return {name: (before, after) for (name, before), after in both if before != after}

    @cached_property
    def claims(self) -> tuple[Claim, ...]:
        """One claim for each changed feature, with its values and the proved interval."""
        from proplace.explain.claims import claims_of

        return claims_of(self)

    def describe(self, wording: Wording | None = None) -> Description:
        """Describe the explanation in a sentence and a small table, in original units.

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
        """Return the explanation as plain values for JSON, for pages and other programs."""
        from proplace.explain.claims import is_certified
        from proplace.explain.words import Wording as Words
        from proplace.explain.words import describe_networks, is_proved_robust, outcome_word

        words, setting = wording or Words(), self.setting
        names = ("distance", "bound", "gap", "margin", "plausibility")
        numbers = {name: getattr(self, name) for name in names}
        return {
            "status": self.status,
            "reason": self.reason,
            "found": self.found,
            "target": self.label,
            "outcome": outcome_word(self, words),
            "rank": self.rank,
            "sentence": self.describe(words).sentence,
            "claims": [
                {"name": c.name, "title": c.title, "was": c.was, "goal": c.goal} | c.to_dict()
                for c in self.claims
            ],
            "certified": is_certified(self),
            "guaranteed": is_proved_robust(self),
            "networks": "" if setting is None else describe_networks(setting),
            "typical": self.typical,
            **{name: None if np.isnan(value) else float(value) for name, value in numbers.items()},
            "in_region": self.in_region,
            "timed_out": self.timed_out,
            "certificate": None if self.certificate is None else self.certificate.digest,
        }

    def plot(self, wording: Wording | None = None) -> Figure:
        """Draw the region, the worst-case margin against delta, and the changes (extra ``plot``).

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
    """The explanations of a table, in the order of its rows, with the alternatives of a row together.

    ``complete`` is False if the run was interrupted, and later rows are missing. ``provenance`` records
    the model, the data, the options and the date. ``index_names`` are the names of the levels of the
    index of the table.
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
        """Encoded counterfactuals, one row per explanation, with NaN for missing ones."""
        width = next(
            (len(e.encoded_counterfactual) for e in self if e.encoded_counterfactual is not None), 0
        )
        empty = np.full(width, np.nan)
        return np.array(
            [empty if e.encoded_counterfactual is None else e.encoded_counterfactual for e in self]
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one line per explanation, with the columns of a results file.

        First the counterfactual: each feature under its own name, in original units. Then ``status``,
        ``distance``, ``bound``, ``gap``, ``in_region``, ``timed_out``, ``margin``,
        ``plausibility``, ``nearest_row`` (position of the nearest accepted row of the training table),
        ``rank``, ``reason``, ``target`` (the class by its label), ``delta``, ``changes`` and
        ``sentence`` (in words), ``certificate`` (its digest), ``imputed`` (features whose cell was
        missing), ``guaranteed_ranges``, ``checked_with_original``, and the person's own values as
        ``original_...`` (empty if the cell was missing). If a feature has one of these names, the added
        column gets the prefix ``ce_``.
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
        """Return the names of the features, if they are known."""
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
        """Draw the share of valid counterfactuals by delta and on retrained models (extra ``plot``).

        The figure compares them with the plain nearest counterfactuals of the same regions.

        Parameters
        ----------
        wording
            The words of the figure.
        retrained
            Retrained models of any kind that ``Proplace`` accepts, to count the counterfactuals that
            stay valid.
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
        certificates_folder: str | os.PathLike[str] | None = None,
        note: str = "",
        statement: str = "",
    ) -> Path:
        """Write a report: one HTML file that opens offline (extra ``report``).

        Parameters
        ----------
        path
            The file to write.
        wording, retrained
            As for :meth:`plot`.
        title
            Heading of the page.
        proofs
            Folder for the certificates and the network, so that others can check them, with
            ``verify.html``, a page that checks them in a browser.
        certificates_folder
            Folder of results that contains the certificates already (``explain --out``).
        note
            Text at the top of the page, such as a limit on what it shows.
        statement
            Statement about the next retraining, such as ``Calibration.statement``. It gets a separate
            paragraph beside the proved statements.

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
            certificates_folder=certificates_folder,
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
