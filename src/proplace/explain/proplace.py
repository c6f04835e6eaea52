"""PROPLACE: the nearest input of the plausible region that every network of the shift set accepts."""

from __future__ import annotations

import copy
import time
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Self, get_args

import numpy as np

from proplace.certification import UNCOVERED_ADVICE, required_margins
from proplace.core.distances import L1, mad_weights
from proplace.core.errors import DraftWarning, InputError, OptionError
from proplace.core.guarantee import CURRENT_MODEL, Guarantee
from proplace.core.options import integer, not_negative, one_of
from proplace.core.request import DEFAULT_TIME_LIMIT
from proplace.core.text import listing, short
from proplace.explain.answer import OnePerson
from proplace.explain.base import Explainer
from proplace.explain.prove import Deadlines
from proplace.explain.required_models import check_required, members_of, read_required
from proplace.loaders.align import shifts_for
from proplace.loaders.model import Model
from proplace.region.neighbours import RobustRows, unrestricted
from proplace.schema.infer import decision_notes
from proplace.schema.values import to_python
from proplace.search.sparse import Values
from proplace.solvers import Solver, check

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.certification import Margin
    from proplace.core.distances import Weights
    from proplace.core.guarantee import Member
    from proplace.core.network import Array, Network
    from proplace.core.request import Request
    from proplace.core.shifts import Delta
    from proplace.explain.results import Finding
    from proplace.loaders.cutoffs import Cutoff
    from proplace.region.neighbours import RegionKind
    from proplace.schema import Schema
    from proplace.schema.values import Label
    from proplace.search import SearchName

_Misses = tuple[tuple[str, tuple[float, float]], ...]

DEFAULT_MARGIN = 1e-6
SLACK = 1e-4
"""Extra margin required inside the search, so that its result passes the exact test."""


def _without_delta(source: object, cutoff: Cutoff | None) -> OptionError:
    """Return the error about a missing delta, with the code that measures one."""
    more = "" if cutoff is None else f", cutoff={cutoff!r}"
    classes = source.classes if isinstance(source, Model) else getattr(source, "classes_", ())
    labels = [to_python(label) for label in classes]
    target, note = "", ""
    if labels and 1 not in labels:
        label = next(iter(cutoff)) if isinstance(cutoff, dict) else labels[0]
        target, note = f", target={label!r}", f" The classes are {listing(labels)}."
    return OptionError(
        "Proplace needs a delta: the largest change of a parameter that every counterfactual must "
        f"survive. Measure it for the target class.{note}\n"
        f"found = proplace.calibrate_delta(pipeline, X_train, y_train, refits=10{target}{more})\n"
        f"explainer = proplace.Proplace(pipeline, found.delta{more})",
        name="delta",
    )


class Proplace(Explainer):
    """Provably robust and plausible counterfactual explanations.

    Parameters
    ----------
    model
        The trained model: a fitted scikit-learn pipeline, a torch module, a Keras model, the path of
        a model file, a :class:`proplace.Model`, or a :class:`proplace.Network`.
    delta
        Shift set that counterfactuals must survive: the largest change of any parameter, one (weight,
        bias) pair per layer, or a :class:`proplace.Shifts`. A model outside its shift set must accept
        counterfactuals as well. Required: the error without it names the call that measures one.
    required_models
        Other models that must accept every counterfactual, of any kind that ``model`` can be, or pairs
        with a delta: ``[net2, (net3, 0.01)]``. Architectures, scalers and encoders may differ, but
        table columns and classes must be equal. A :class:`proplace.Network` takes rows as ``model``
        encodes them. Certificates are then bundles with one certificate for each model. A person
        accepted by the current model is ``already_valid`` even if another model refuses, and the
        reason reports this. A model without its own cut-off (``Model.of(other, cutoff=...)``) has the
        cut-off of ``model``.
    cutoff
        Probability from which the model accepts, as in ``{"approved": 0.7}``. Short for
        ``Model.of(source, cutoff=...)``.
    schema
        Features, units and rules. Without one, a table has the columns of the model, and all of them
        may change. If the model encodes its own table, numbers then get the range of the training
        table and a readable step. A schema never replaces the encoding of such a model, but adds
        ranges, steps, directions, labels and rules.
    k
        Number of robust neighbours that span the plausible region. "Nearest", "optimal" and ``bound``
        refer to this region.
    region
        ``"hull"``: the convex hulls of the robust neighbours and the person. ``"box"``: all values
        within the ranges and rules, plausible or not.
    weights
        Factors in the distance by feature name, ``{"income": 2}``, default 1 for each feature. The
        distance is the mean absolute difference over columns. The unit of a number is its declared
        range. Without one, it is its range in the training rows if they are a table or the model
        scales the column, and one encoded unit otherwise. With ``"mad"``, the unit of each column is
        its median absolute deviation over the training rows.
    margin
        Smallest margin of the target class under every network of the shift set. ``"float32"`` covers
        the rounding of a model deployed in float32. Default: ``"float32"`` for such a model
        (``net.precision``), and 1e-6 for float64.
    search
        ``"tree"`` or ``"bilevel"``, which is Algorithm 1 of the paper. Both give the same distance
        without a filter for typical points (``explain(typical=False)``).
    solver
        Solver for ``search="bilevel"``: ``"highs"``, or ``"gurobi"`` with the extra of that name. The
        tree always uses HiGHS.
    n_jobs
        Number of joblib processes. None is one, or the value of ``joblib.parallel_config``. Results
        do not depend on it.
    time_limit
        Seconds per person, default 10, or None for no limit. After the limit, the best certified point
        is returned with a lower bound on the distance, and marked as ``timed_out``.

    Examples
    --------
    >>> import numpy as np
    >>> from proplace import Network, Proplace
    >>> net = Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    >>> train = np.array([[0.2, 0.1], [0.9, 0.8], [0.7, 1.0], [1.0, 0.6]])
    >>> explainer = Proplace(net, delta=0.05, k=3).fit(train)
    >>> result = explainer.explain([[0.2, 0.3]])
    >>> result[0].status, round(result[0].distance, 2)
    ('optimal', 0.42)
    >>> bool(net.predict(result.encoded_counterfactuals)[0])
    True
    """

    proves_ranges = True
    """False to leave out the guaranteed ranges, which take most of the time of a small network."""

    def __init__(
        self,
        model: object,
        delta: Delta | None = None,
        *,
        required_models: Sequence[object] | None = None,
        cutoff: Cutoff | None = None,
        schema: Schema | None = None,
        k: int = 20,
        region: RegionKind = "hull",
        weights: Weights | None = None,
        margin: Margin | None = None,
        search: SearchName = "tree",
        solver: Solver = "highs",
        n_jobs: int | None = None,
        time_limit: float | None = DEFAULT_TIME_LIMIT,
    ) -> None:
        if delta is None:
            raise _without_delta(model, cutoff)
        self.model = model
        self.delta = delta
        self.required_models = required_models
        self.cutoff = cutoff
        self.schema = schema
        self.k = k
        self.region = region
        self.weights = weights
        self.margin = margin
        self.search = search
        self.solver = solver
        self.n_jobs = n_jobs
        self.time_limit = time_limit

    # -- methods of the lifecycle ------------------------------------------------------------

    def check_parameters(self) -> None:
        """Raise ``OptionError`` for the first parameter that is not valid."""
        if self.delta is None:  # set_params takes anything
            raise _without_delta(self.model, self.cutoff)
        check_required(self.required_models)
        integer("k", self.k)
        one_of("region", self.region, ("hull", "box"))
        one_of("search", self.search, ("tree", "bilevel"))
        one_of("solver", self.solver, get_args(Solver))
        if self.search == "tree" and self.solver != "highs":
            raise OptionError(
                f"search='tree' runs on HiGHS; solver={self.solver!r} belongs to search='bilevel'",
                name="solver",
                value=self.solver,
            )
        check(self.solver)
        if isinstance(self.margin, str):
            if self.margin != "float32":
                raise OptionError(
                    f"margin must be a number or 'float32', not {self.margin!r}",
                    name="margin",
                    value=self.margin,
                )
        elif self.margin is not None:
            not_negative("margin", self.margin)
        if self.time_limit is not None and not self.time_limit > 0.0:
            raise OptionError(
                f"time_limit must be a positive number of seconds, not {self.time_limit!r}",
                name="time_limit",
                value=self.time_limit,
            )

    def fit_rows(self, rows: Array) -> None:
        """Fit the distance and the margins. Robust rows are computed later for each target."""
        model = self.model_
        self.rows_, self._shifts = self._distinct[0], shifts_for(model, self.delta)
        self._required = read_required(model, self.required_models, self.schema)
        self.required_models_ = {name: required for name, required, _ in self._required}
        self.tolerance_: dict[str, tuple[float, float]] = {}
        self._guarantees: dict[_Misses, Guarantee] = {}
        self.guarantee_ = self._guarantee(self.tolerance_)
        units = self._column_units
        self.distance_ = L1(_column_weights(self.schema_, self.weights, rows, units))
        plain = self.weights if self.weights == "mad" else None
        self.units_ = _column_weights(self.schema_, plain, rows, units)
        self._restricted = not unrestricted(self.schema_)
        self._ends = self.rows_.min(axis=0), self.rows_.max(axis=0)
        self._robust: dict[tuple[int, _Misses], RobustRows] = {}
        self._values: dict[int, Values] = {}

    def for_request(self, request: Request) -> Self:
        """Return a copy with the features and the tolerance of a request. It shares fitted data."""
        view = super().for_request(request)
        if request.misses != self.tolerance_:
            view = copy.copy(view)
            view.tolerance_ = dict(request.misses)
            view.guarantee_ = self._guarantee(request.misses)
        if view.schema_ is not self.schema_:
            low, high = view.schema_.lower, view.schema_.upper
            narrower = (low > self.schema_.lower).any() or (high < self.schema_.upper).any()
            view._restricted = bool(narrower) or not unrestricted(view.schema_)
        return view

    def check_request(self, request: Request) -> None:
        """Raise ``OptionError`` if typical points are required without a hull and the tree.

        The first request after ``fit`` also warns about ages and protected traits that it leaves free,
        unless a schema was given.
        """
        if request.typical and not self.filters_typical:
            name = "region" if self.region != "hull" else "search"
            raise OptionError(
                f"typical=True needs region='hull' and search='tree', not {name}="
                f"{getattr(self, name)!r}. Leave typical out",
                name="typical",
                value=True,
            )
        if self._drafted:
            self._drafted = False  # one warning for each fit
            for note in decision_notes(self.schema_.restrict(**request.restrictions).features):
                warnings.warn(note, DraftWarning, stacklevel=4)

    def _guarantee(self, misses: Mapping[str, tuple[float, float]]) -> Guarantee:
        """Return the guarantee with a tolerance, created at the first request for it."""
        key = tuple(misses.items())
        if key not in self._guarantees:
            tolerance = self.schema_.encode_tolerance(misses)
            models = [(CURRENT_MODEL, self.model_, self._shifts), *self._required]
            members = [
                self._with_margin(replace(member, tolerance=tolerance))
                for name, model, shifts in models
                for member in members_of(model, shifts, name, self._margin(model.network))
            ]
            self._guarantees[key] = Guarantee(tuple(members))
        return self._guarantees[key]

    def _margin(self, net: Network) -> Margin:
        if self.margin is not None:
            return self.margin
        return DEFAULT_MARGIN if net.precision == "float64" else "float32"

    def _with_margin(self, member: Member) -> Member:
        """Return a member with the margin that covers every training row, and their hulls."""
        # The required margin is convex in x, so its maximum over the rows bounds it on their hulls.
        margins = required_margins(member, self.rows_)
        largest = float(np.max(margins))
        if not np.isfinite(largest):
            row = int(np.argmax(~np.isfinite(margins)))
            raise InputError(
                f"distinct training row {row} leaves the range of float32 on its way through "
                f"{member.name}; {UNCOVERED_ADVICE}",
                name="X_train",
                row=row,
            )
        return replace(member, margin=largest)

    def prepare(self, target: int, *, progress: bool = False) -> None:
        """Find the robust rows, and the values that sparse counterfactuals may take."""
        self._robust_rows(target, progress=progress)
        if target not in self._values:
            accepted = self.rows_[self.net_.predict(self.rows_) == target]
            self._values[target] = Values.of(self.schema_, accepted)

    def robust_rows(self, target: Label = 1) -> Array:
        """Return the distinct encoded training rows that are robust for a target."""
        self.check_fitted()
        return self._robust_rows(self.model_.target(target)).robust

    def find(self, X: Array, request: Request) -> list[list[Finding]]:
        """Return the findings for each person, nearest first, with different changed features."""
        found = []
        for x in X:
            start = time.monotonic()
            person = OnePerson(
                self,
                self.schema_.widened(x),
                x,
                request,
                Deadlines.of(self.time_limit),
                self._robust_rows(request.target),
                self._values[request.target],
                self._ends,
                self._restricted,
            )
            answers = person.answers()
            seconds = time.monotonic() - start
            found.append([replace(answer, seconds=seconds) for answer in answers])
        return found

    @property
    def filters_typical(self) -> bool:
        """True if the method supports typical points."""
        return self.region == "hull" and self.search == "tree"

    def _robust_rows(self, target: int, *, progress: bool = False) -> RobustRows:
        key = target, tuple(self.tolerance_.items())
        if key not in self._robust:
            self._robust[key] = RobustRows(
                self.guarantee_,
                target,
                SLACK,
                self.rows_,
                self.distance_,
                self.model_.class_name(target),
                progress,
            )
        return self._robust[key]

    def _for_workers(self, target: int) -> Self:
        lean = super()._for_workers(target)
        key = target, tuple(self.tolerance_.items())
        lean._required, lean._guarantees = [], {}
        lean._robust = {key: self._robust[key]}
        return lean


def _column_weights(schema: Schema, weights: Weights | None, rows: Array, units: Array) -> Array:
    """Return the weight of every encoded column in the distance.

    ``units`` are the units of the columns. ``"mad"`` uses the spreads of ``rows`` instead.
    """
    if isinstance(weights, str) and weights == "mad":
        return mad_weights(rows)
    if weights is None:
        weights = {}
    if not isinstance(weights, Mapping):
        raise OptionError(
            "weights must be numbers by feature name, such as {'income': 2}, or 'mad', not "
            f"{short(weights)}",
            name="weights",
            value=weights,
        )
    schema.check_names("weights", weights)
    found: Array = np.ones(schema.width)
    for feature, span in zip(schema.features, schema.spans, strict=True):
        found[span] = not_negative(f"the weight of {feature.name}", weights.get(feature.name, 1.0))
    if not found.any():
        raise OptionError(
            "weights must not all be 0. Give at least one feature more",
            name="weights",
            value=weights,
        )
    return found / (schema.width * units)
