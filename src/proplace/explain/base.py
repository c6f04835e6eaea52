"""The lifecycle of every method: ``fit`` on training rows, then ``explain`` for people.

This module implements the parts that all methods share: parameters, training rows, reading people,
invalid rows, people with the target class, parallel processes, streams, certificates, and decoding to
original units. A method adds :meth:`Explainer.find`, which returns an encoded
:class:`~proplace.explain.results.Finding` for each counterfactual.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
import time
from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Self

import joblib
import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError as SklearnNotFittedError

from proplace.certification import prove
from proplace.core import errors
from proplace.core.distances import name_of
from proplace.core.errors import MissingExtraError, OptionError, SolverError
from proplace.core.options import processes
from proplace.core.progress import progress_bar
from proplace.core.request import DEFAULT_GAP, Request
from proplace.explain.parallel import Workers
from proplace.explain.prove import Deadlines, networks_of
from proplace.explain.record import Provenance, rows_digest
from proplace.explain.results import ANSWERED, FOUND, Explanation, Explanations, Finding, Setting
from proplace.loaders.model import Model
from proplace.region.typical import Typical
from proplace.schema.features import Binary, Categorical, Ordinal
from proplace.tables.rows import (
    are_encoded,
    check_agreement,
    first_appearances,
    model_of,
    read_people,
    training_rows,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set

    from proplace.core.distances import L1
    from proplace.core.guarantee import Guarantee
    from proplace.core.network import Array, Network
    from proplace.core.request import Preference, Range, Tolerance
    from proplace.core.shifts import Shifts
    from proplace.explain.results import Status
    from proplace.schema import Schema
    from proplace.schema.values import BadRow, Label
    from proplace.tables.rows import People, Positions, Table

Person = tuple["Array", "BadRow | None"]
"""An encoded row, and its problem if it is invalid."""


class NotFittedError(errors.NotFittedError, SklearnNotFittedError):  # type: ignore[misc]
    """Raised if ``fit`` was not called. Tools of scikit-learn recognise it."""


class Explainer(BaseEstimator, ABC):  # type: ignore[misc]
    """Base class of all methods. :class:`proplace.Proplace` documents parameters and results.

    Attributes
    ----------
    model_, schema_
        The imported model, and its features with the user's schema.
    rows_
        The encoded training rows, each number with a step at its nearest legal value.
    guarantee_
        The networks that must accept a counterfactual. For a method without a delta, the current model
        alone.
    net_, shifts_
        Network and shift set of the current model.
    required_models_
        Other models that must accept a counterfactual, by name.
    distance_
        The fitted distance.
    units_
        Weight of each column in the distance without the user's factors.
    fit_seconds_, prepare_seconds_
        Seconds of ``fit``, and of the preparation for the latest target class.
    """

    model: object
    schema: Schema | None
    n_jobs: int | None
    time_limit: float | None = None

    model_: Model
    schema_: Schema
    rows_: Array
    guarantee_: Guarantee
    required_models_: Mapping[str, Model]
    distance_: L1
    units_: Array
    fit_seconds_: float
    prepare_seconds_: float

    _column_units: Array
    _distinct: tuple[Array, Positions]
    _typical: dict[int, tuple[Typical, Positions] | None]
    _block = 1  # rows that are searched together
    certifies = True  # False for a method without a delta

    # -- what a method adds ------------------------------------------------------------------

    @abstractmethod
    def find(self, X: Array, request: Request) -> list[list[Finding]]:
        """Return the findings for each row. None of the rows has the target class."""

    @abstractmethod
    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""

    @abstractmethod
    def check_request(self, request: Request) -> None:
        """Raise ``OptionError`` if the method does not support a request."""

    @abstractmethod
    def fit_rows(self, rows: Array) -> None:
        """Set ``guarantee_``, ``distance_`` and ``units_``."""

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Compute everything that people with the same target share. ``progress`` shows a bar."""

    # -- lifecycle ---------------------------------------------------------------------------

    def fit(self, X: Table, y: object = None, *, progress: bool = False) -> Self:
        """Read the model and the training rows.

        Parameters
        ----------
        X
            A table in original units (pandas, polars, a dictionary, ...), or encoded rows. Invalid rows
            of a table (a missing cell that the model does not impute, a value that the schema does not
            allow) are skipped, with a ``RowsSkippedWarning`` that counts them and gives the first
            reason.
        y
            Not used. Present for compatibility with scikit-learn.
        progress
            Show a progress bar on standard error.
        """
        self._fitted, start = False, time.monotonic()
        self.check_parameters()
        processes("n_jobs", self.n_jobs)
        with progress_bar("fit", 4, show=progress) as advance:
            source = Model.of(self.model, cutoff=getattr(self, "cutoff", None))
            model = model_of(source, self.schema)
            advance(1)
            declared = self.schema is not None
            self.model_, rows, positions = training_rows(model, X, declared=declared)
            self.schema_ = self.model_.schema
            self._training = len(rows), rows_digest(rows)
            self.rows_ = self.schema_.on_grids(rows)  # counterfactuals lie between legal rows
            first = first_appearances(self.rows_)
            self._distinct, self._typical = (self.rows_[first], positions[first]), {}
            advance(1)
            table = not are_encoded(self.model_, X)
            self._column_units = _column_units(self.model_, rows, table=table)
            self.required_models_ = {}
            self.fit_rows(rows)
            advance(1)
            for name, required in self.required_models_.items():
                known = X if table else self.schema_.decode(rows)
                check_agreement(required, known, what=f"{name}, training")
            advance(1)
        self._drafted = self.schema is None and not source.declared
        self._ready: tuple[int, Mapping[str, tuple[float, float]]] | None = None
        self._fitted = True
        self.fit_seconds_, self.prepare_seconds_ = time.monotonic() - start, 0.0
        return self

    def explain(
        self,
        X: Table,
        target: Label = 1,
        *,
        count: int = 1,
        prefer: Preference = "nearest",
        max_changes: int | None = None,
        immutable: Sequence[str] = (),
        increasing: Sequence[str] = (),
        decreasing: Sequence[str] = (),
        ranges: Mapping[str, Range] | None = None,
        tolerance: Mapping[str, Tolerance] | None = None,
        typical: bool | None = None,
        gap: float = DEFAULT_GAP,
        progress: bool = False,
    ) -> Explanations:
        """Find an input of class ``target`` for each row. Baselines take ``target`` alone.

        Parameters
        ----------
        X
            A table in original units (pandas, polars, a dictionary, ...), or encoded rows.
        target
            The target class, by its label.
        count
            Largest number of alternatives per row, best first. Each changes different features.
        prefer
            ``"nearest"``: the smallest distance within the plausible region. ``"sparse"``: few changed
            features. A sparse counterfactual is robust, and typical if such a point is found. Its
            status is ``feasible``, because fewer changes may be possible.
        max_changes
            Largest number of changed features. If the nearest counterfactual changes more, the sparse
            search runs.
        immutable
            Names of features that may not change: ``["age"]``. This and the next three options add to
            the schema. Without a schema, names are those of the table or of the model, or ``x0``,
            ``x1``, ...
        increasing, decreasing
            Names of numbers, ordered levels or true/false features that may not fall, or not rise.
        ranges
            Range of each number, in original units: ``{"income": (0, 90_000)}``. None keeps an end. The
            range is declared: it replaces one drafted from the training table, and can only narrow that
            of a schema.
        tolerance
            Largest miss per feature, in original units: ``{"income": 500}``, or a pair (less, more), as
            in ``{"age": (0, 1)}``. Every network of the guarantee then also accepts each point within
            the tolerance, in all of these features at once, whether or not they change. It replaces the
            tolerance of the schema.
        typical
            A point is typical if it is no less usual than 10% of the accepted training rows, by three
            neighbour measures (:mod:`proplace.region.typical`). True returns typical points if there
            are any, False does not filter. None filters sparse requests and restricted people (with
            immutable features, directions or rules), but not with ``region="box"`` or
            ``search="bilevel"``. If no typical point is found, the robust one is returned with its
            ``plausibility``.
        gap
            Relative optimality gap, between 0 and 1. A search ends once its lower bound is at least
            ``1 - gap`` times the distance. 0 stands for 1e-7, the accuracy of the solver.
        progress
            Show a progress bar on standard error.

        Ctrl-C returns the finished explanations, with ``complete`` set to False. ``seconds`` of an
        explanation is the time spent on its person, without ``prepare_seconds_``.
        """
        request = self.request(
            target,
            count=count,
            prefer=prefer,
            max_changes=max_changes,
            immutable=immutable,
            increasing=increasing,
            decreasing=decreasing,
            ranges=ranges,
            tolerance=tolerance,
            typical=typical,
            gap=gap,
        )
        people = read_people(self.model_, X)
        self.prepare_once(request, progress=progress)
        with progress_bar("explain", len(people[0]), show=progress) as advance:
            (result,) = self._parts([people], request, math.inf, advance)
        return result

    def stream(
        self,
        tables: Iterable[Table],
        request: Request | None = None,
        *,
        every: float = 5.0,
        advance: Callable[[int], None] = lambda _: None,
    ) -> Iterator[Explanations]:
        """Explain tables one after another in bounded memory, such as the chunks of a file.

        Finished explanations are yielded in order, about every ``every`` seconds and at the end of each
        table. ``advance`` is called with the number of finished rows. Workers are started once for all
        tables. Ctrl-C yields a last part whose ``complete`` is False. ``request`` is the result of
        :meth:`request`, and None stands for target 1.
        """
        request = self.request() if request is None else request
        people = (read_people(self.model_, table) for table in tables)
        return self._parts(people, request, every, advance)

    def request(
        self,
        target: Label = 1,
        *,
        count: int = 1,
        prefer: Preference = "nearest",
        max_changes: int | None = None,
        immutable: Sequence[str] = (),
        increasing: Sequence[str] = (),
        decreasing: Sequence[str] = (),
        ranges: Mapping[str, Range] | None = None,
        tolerance: Mapping[str, Tolerance] | None = None,
        typical: bool | None = None,
        gap: float = DEFAULT_GAP,
    ) -> Request:
        """Return a valid request from the keywords of :meth:`explain`."""
        self.check_fitted()
        request = Request(
            self.model_.target(target),
            count=count,
            prefer=prefer,
            max_changes=max_changes,
            immutable=immutable,
            increasing=increasing,
            decreasing=decreasing,
            ranges=ranges or {},
            tolerance=self.schema_.check_tolerance(tolerance),
            typical=typical,
            gap=gap,
        )
        self.check_request(request)
        self.schema_.restrict(**request.restrictions)
        return request

    def for_request(self, request: Request) -> Self:
        """Return a copy with the features of a request. It shares all fitted data."""
        schema = self.schema_.restrict(**request.restrictions)
        if schema is self.schema_:
            return self
        view = copy.copy(self)
        view.schema_, view.model_ = schema, replace(self.model_, schema=schema)
        return view

    def prepare_once(self, request: Request, *, progress: bool = False) -> Self:
        """Prepare the target class and the tolerance of a request, and return :meth:`for_request`.

        The preparation is kept until a request with another target or tolerance.
        """
        key = request.target, request.misses
        if self._ready == key:
            return self.for_request(request)
        start = time.monotonic()
        view = self.for_request(request)
        view.prepare(request.target, progress=progress)
        self.accepted_people(request.target)
        self._ready, self.prepare_seconds_ = key, time.monotonic() - start
        return view

    def accepted_people(self, target: int) -> Typical | None:
        """Return the accepted training rows that define plausibility. None if there are too few."""
        if target not in self._typical:
            rows, positions = self._distinct
            accepted = np.flatnonzero(self.net_.predict(rows) == target)
            typical = Typical.of(rows[accepted], self.units_)
            self._typical[target] = None if typical is None else (typical, positions[accepted])
        known = self._typical[target]
        return None if known is None else known[0]

    def with_plausibility(self, findings: list[Finding], target: int) -> list[Finding]:
        """Return findings with the plausibility of their points and the nearest training rows."""
        self.accepted_people(target)
        known, points = (
            self._typical[target],
            [f.encoded_counterfactual for f in findings if f.encoded_counterfactual is not None],
        )
        if known is None or not points:
            return findings
        typical, positions = known
        rows = np.array(points)
        plausibility = iter(typical.plausibility(rows).tolist())
        nearest = iter(positions[typical.nearest(rows)].tolist())
        return [
            f
            if f.encoded_counterfactual is None
            else replace(f, plausibility=next(plausibility), nearest_row=next(nearest))
            for f in findings
        ]

    @property
    def net_(self) -> Network:
        """The network of the current model."""
        return self.model_.network

    @property
    def shifts_(self) -> Shifts:
        """The shift set of the current model."""
        return self.guarantee_.current.shifts

    @property
    def setting(self) -> Setting:
        """The guarantee, the model and the distance."""
        self.check_fitted()
        return Setting(self.guarantee_, self.model_.without_original(), self.distance_)

    def provenance(self, request: Request) -> Provenance:
        """Return the record of a request: model, data, options and the date."""
        self.check_fitted()
        return Provenance.of(
            self.model_,
            self._training,
            self.guarantee_,
            request,
            required=self.required_models_,
            method=type(self).__name__,
            distance=name_of(getattr(self, "weights", None)),
            k=getattr(self, "k", None),
            region=getattr(self, "region", None),
        )

    def __sklearn_clone__(self) -> Self:
        return type(self)(**self.get_params(deep=False))  # the model is data and stays trained

    def check_fitted(self) -> None:
        """Raise ``NotFittedError`` unless ``fit`` was called."""
        if not self.__sklearn_is_fitted__():
            raise NotFittedError("Call fit(X_train) before explain(X).")

    def __sklearn_is_fitted__(self) -> bool:
        return getattr(self, "_fitted", False)

    # -- inside ------------------------------------------------------------------------------

    def _parts(
        self,
        tables: Iterable[People],
        request: Request,
        every: float,
        advance: Callable[[int], None],
    ) -> Iterator[Explanations]:
        target = request.target
        view = self.prepare_once(request)
        setting, made = view.setting, view.provenance(request)
        shared = (view._for_workers(target), request)
        with Workers(_explain_block, shared, lost=lambda _: None, n_jobs=self.n_jobs) as workers:
            for rows, problems, people in tables:
                packaged = functools.partial(
                    package,
                    view.model_,
                    setting,
                    target,
                    people=people,
                    provenance=made,
                    required=self.required_models_,
                )
                findings: list[list[Finding]] = []
                handed_over, complete, start = 0, True, time.monotonic()
                try:
                    for found in self._found(workers, rows, problems):
                        findings.append(found)
                        advance(1)
                        if time.monotonic() - start >= every:
                            yield packaged(findings, first=handed_over)
                            handed_over += len(findings)
                            findings, start = [], time.monotonic()
                except KeyboardInterrupt:
                    complete = False
                if findings or not handed_over or not complete:
                    yield packaged(findings, first=handed_over, complete=complete)
                if not complete:
                    return

    def _found(
        self, workers: _Workers, rows: Array, problems: dict[int, BadRow]
    ) -> Iterator[list[Finding]]:
        """Yield the findings of each row, in order. Rows of a lost block are run again alone."""
        jobs = max(1, int(joblib.effective_n_jobs(self.n_jobs)))
        size = max(1, min(self._block, math.ceil(len(rows) / jobs)))
        people = [(x, problems.get(i)) for i, x in enumerate(rows)]
        blocks = [people[i : i + size] for i in range(0, len(people), size)]
        for block, found in zip(blocks, workers.map(blocks), strict=True):
            if found is not None:
                yield from found
                continue
            alone = [[person] for person in block]
            again = workers.map(alone) if len(block) > 1 else itertools.repeat(None)
            for (person,), one in zip(alone, again, strict=False):
                yield _lost(person) if one is None else one[0]

    def _for_workers(self, target: int) -> Self:
        """Return a small copy for the workers, without data that only ``fit`` needs."""
        lean = copy.copy(self)
        lean.model, lean.required_models_ = None, {}
        lean._typical = {target: self._typical[target]}
        if hasattr(lean, "required_models"):
            lean.required_models = None
        return lean

    def already_valid(self, x: Array, target: int) -> Finding:
        """Return the finding of a person with the target class, and test its robustness.

        The current model decides the status. The reason names required models that refuse. With several
        members, the certificate is kept if it proves all of them.
        """
        start, clock = time.monotonic(), Deadlines.of(self.time_limit)
        reason = f"the current model already gives {self.model_.class_name(target)}"
        margin, certificate = np.nan, None
        if not self.certifies:
            margin = float(self.net_.margin(x, target)[0])
        else:
            members = self.guarantee_.members
            found = prove(self.guarantee_, x[None], target, deadline=clock.proof)
            robust, several = bool(found.robust[0]), len(members) > 1
            margin, certificate = float(found.lower[0]), None
            if robust or not several:
                certificate = found.proof(0)
            failed = members[min(int(found.failed[0]), len(members) - 1)]
            late = " in the time limit" if clock.expired else ""
            if robust:
                how = (
                    f"and so does {networks_of(members[0])}{' and every required model' * several}"
                )
            elif found.undecided[0]:
                how = f"and it is not decided{late} whether {networks_of(failed)} does"
            else:
                how = f"but not {networks_of(failed)}"
            reason = f"{reason}, {how}"
            refusing = [each.name for each in members if each.rejects(x, target)]
            if refusing:
                reason = f"{reason}; it is refused by {' and '.join(refusing)}"
        return Finding(
            "already_valid",
            reason,
            encoded_original=x,
            encoded_counterfactual=x,
            distance=0.0,
            bound=0.0,
            margin=margin,
            certificate=certificate,
            seconds=time.monotonic() - start,
        )


def _column_units(model: Model, rows: Array, *, table: bool) -> Array:
    """Return the unit of each encoded column in a distance.

    The unit of a number is its declared range. Without one, it is its range in the training rows if
    they are a table or the model scales the column, and one encoded unit otherwise. A distance therefore
    does not depend on the format of the model.
    """
    schema, scale = model.schema, model.network.input_transform.scale
    scaled = np.zeros(schema.width, dtype=np.bool_) if scale is None else scale != 1.0
    spread = np.where(table | scaled, np.ptp(rows, axis=0), 1.0)
    units = np.where(spread > 0.0, spread, 1.0)
    for feature, span in zip(schema.features, schema.spans, strict=True):
        if isinstance(feature, (Categorical, Binary)):
            units[span] = 1.0
        elif isinstance(feature, Ordinal):
            units[span] = (feature.numbers[-1] - feature.numbers[0]) / feature.scale
        elif feature.lower is not None and feature.upper is not None and not feature.is_drafted:
            units[span] = (feature.upper - feature.lower) / feature.scale
    return units


_Workers = Workers[tuple[Explainer, Request], list[Person], list[list[Finding]] | None]


def _explain_block(
    shared: tuple[Explainer, Request], block: list[Person]
) -> list[list[Finding]] | None:
    """Return the findings for a block of rows. An error in one row does not affect the others."""
    explainer, request = shared
    target = request.target
    found: dict[int, list[Finding]] = {}
    refused: list[int] = []
    for i, (x, problem) in enumerate(block):
        if problem is not None:
            found[i] = [Finding("bad_input", problem.reason)]
        elif explainer.net_.predict(x)[0] != target:
            refused.append(i)
        else:
            found[i] = _guarded(lambda x: [[explainer.already_valid(x[0], target)]], x[None])[0]
    X = np.array([block[i][0] for i in refused])
    search = functools.partial(explainer.find, request=request)
    found |= dict(zip(refused, _guarded(search, X), strict=True))
    return [explainer.with_plausibility(found[i], target) for i in range(len(block))]


def _guarded(search: Callable[[Array], list[list[Finding]]], X: Array) -> list[list[Finding]]:
    """Search rows together. After an error, search them one by one, so that one row is lost."""
    if not len(X):
        return []
    try:
        return search(X)
    except (OptionError, MissingExtraError):  # an error of the call, not of the row
        raise
    except Exception as error:  # one row must not affect the others
        if len(X) > 1:
            return [found for x in X for found in _guarded(search, x[None])]
        status: Status = "solver_error" if isinstance(error, SolverError) else "bad_input"
        reason = f"this row could not be explained ({type(error).__name__}: {error})"
        return [[Finding(status, reason, encoded_original=X[0])]]


def _lost(person: Person) -> list[Finding]:
    """Return the finding of a row during which the workers died. Invalid rows need no worker."""
    x, problem = person
    if problem is not None:
        return [Finding("bad_input", problem.reason)]
    reason = "the process died each time, as if killed or out of memory. Try again"
    return [Finding("worker_died", reason, encoded_original=x)]


# -- from findings to explanations -----------------------------------------------------------------

_FIELDS = [item.name for item in fields(Finding)]
Located = list[tuple[int, Finding]]
"""Findings, each with the position of its person in the table."""
Decoded = dict[tuple[str, int], "pd.Series[Any]"]
"""Values of the n-th finding in original units, by the name of its encoded row."""


def package(
    model: Model,
    setting: Setting,
    target: int,
    findings: list[list[Finding]],
    people: pd.DataFrame | None,
    *,
    provenance: Provenance,
    required: Mapping[str, Model],
    first: int = 0,
    complete: bool = True,
) -> Explanations:
    """Turn the findings for rows ``first``, ``first + 1``, ... of a table into explanations.

    All points are decoded at once. If the original model can be run, it evaluates every counterfactual.
    A counterfactual that the original model or a required model does not accept is withheld.
    """
    located = [(row, finding) for row, found in enumerate(findings, first) for finding in found]
    decoded = _decoded(setting, located, people)
    goal = model.classes[target]
    own_labels = _labels_by_original(model, located, decoded, people, ANSWERED)
    checked = set(own_labels)
    for name, labels in [("the model", own_labels)] + [
        (name, _labels_by_original(other, located, decoded, people, FOUND))
        for name, other in required.items()
    ]:
        for n, label in labels.items():
            row, finding = located[n]
            if label != goal and finding.status != "model_mismatch":
                located[n] = row, _withheld(finding, name, label, goal)
                del decoded["encoded_counterfactual", n]
    imputed = (
        [] if people is None else _imputed(setting, people.iloc[first : first + len(findings)])
    )
    items = [
        Explanation(
            index=row if people is None else people.index[row],
            target=target,
            original=decoded.get(("encoded_original", n)),
            counterfactual=decoded.get(("encoded_counterfactual", n)),
            setting=setting,
            imputed=() if finding.encoded_original is None or not imputed else imputed[row - first],
            checked_with_original=n in checked,
            **{name: getattr(finding, name) for name in _FIELDS},
        )
        for n, (row, finding) in enumerate(located)
    ]
    names = (None,) if people is None else people.index.names
    return Explanations(items, complete=complete, index_names=names, provenance=provenance)


def _imputed(setting: Setting, people: pd.DataFrame) -> list[tuple[str, ...]]:
    """Return the features of each person whose cell is missing and imputed by the model."""
    names = [n for n, f in setting.schema.by_name.items() if f.missing is not None and n in people]
    gaps = people[names].isna().to_numpy(dtype=bool)
    return [tuple(n for n, gap in zip(names, line, strict=True) if gap) for line in gaps]


def _decoded(setting: Setting, located: Located, people: pd.DataFrame | None) -> Decoded:
    points = [
        (what, n, row, point)
        for what in ("encoded_original", "encoded_counterfactual")
        for n, (row, finding) in enumerate(located)
        if (point := getattr(finding, what)) is not None
    ]
    if not points:
        return {}
    positions = [row for _, _, row, _ in points]
    originals = None if people is None else people.iloc[positions]
    frame = setting.schema.decode(
        np.array([point for *_, point in points]),
        like=originals,
        people=np.array([located[n][1].encoded_original for _, n, _, _ in points]),
    )
    if originals is None:
        frame.index = pd.Index(positions)
    return {(what, n): frame.iloc[i] for i, (what, n, *_) in enumerate(points)}


def _labels_by_original(
    model: Model,
    located: Located,
    decoded: Decoded,
    people: pd.DataFrame | None,
    kinds: Set[str],
) -> dict[int, object]:
    """Return the label of each counterfactual by the original model, by the number of its finding.

    ``kinds`` are the statuses to evaluate. For the current model, they include people with the target
    class. Empty if the original model cannot be run.
    """
    found = [n for n, (_, finding) in enumerate(located) if finding.status in kinds]
    if not (found and model.has_original):
        return {}
    cells = {
        name: [decoded["encoded_counterfactual", n][name] for n in found]
        for name in model.schema.by_name
    }
    if people is None:
        table = pd.DataFrame(cells)
    else:  # columns that the model ignores keep the person's values
        table = people.iloc[[located[n][0] for n in found]].assign(**cells)
    labels = model.predict_original(table)
    return {} if labels is None else dict(zip(found, labels, strict=True))


def _withheld(finding: Finding, name: str, label: object, goal: object) -> Finding:
    reason = (
        f"the original of {name} gives this counterfactual {label!r} and not {goal!r}, so it is "
        "withheld. The original was changed after the import, or differs from the imported network"
    )
    return replace(
        finding,
        status="model_mismatch",
        reason=reason,
        encoded_counterfactual=None,
        certificate=None,
        guaranteed_ranges={},
        distance=np.nan,
        margin=np.nan,
        plausibility=np.nan,
        nearest_row=None,
    )
