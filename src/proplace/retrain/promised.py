"""Promised inputs as a model encodes them, and the check that a network keeps them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from proplace.certification import DOUBLE, UNCOVERED_ADVICE, certify, rounding_error, worst_case
from proplace.core.errors import InputError, OptionError
from proplace.core.shifts import Shifts
from proplace.core.text import listing
from proplace.explain.prove import range_box
from proplace.explain.results import Explanations
from proplace.loaders.align import one_cutoff, recoded, with_classes_of
from proplace.loaders.model import Model
from proplace.tables.rows import as_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from proplace.certification import InputBox, Margin, WorstCase
    from proplace.core.network import Array, Network, Precision
    from proplace.core.shifts import Delta
    from proplace.explain.results import Explanation
    from proplace.schema.values import Label


@dataclass(frozen=True, eq=False)
class Promised:
    """Promised inputs as a model encodes them.

    Attributes
    ----------
    names
        Id of each promise, for messages.
    points
        Promised inputs, as rows of the network.
    targets
        Number of each promised class in the model.
    low, high
        Ends of the promised box around each point. None if the points alone were promised.
    people
        Id of each person, if it is known.
    base
        Promised model. Its cut-off applies to a model without one. None if it is unknown.

    Examples
    --------
    >>> import proplace as pp
    >>> model = pp.Model.of(pp.Network([([[1.0, -1.0]], [0.0])]))
    >>> pp.retrain.Promised.of(model, ([[2.0, 1.0], [0.0, 1.0]], [1, 0]))
    Promised(2 promises)
    """

    names: tuple[str, ...]
    points: Array
    targets: npt.NDArray[np.intp]
    low: Array | None = None
    high: Array | None = None
    people: tuple[str, ...] = ()
    base: Model | None = None

    def __post_init__(self) -> None:
        points = np.asarray(self.points, dtype=np.float64)
        targets = np.asarray(self.targets)
        if points.ndim != 2 or len(self.names) != len(points):
            raise InputError(
                f"the promised points have shape {points.shape} and {len(self.names)} names. Give a "
                "row and a name for each promise",
                name="points",
            )
        if targets.shape != (len(points),) or (targets.size and targets.dtype.kind not in "iu"):
            raise InputError("targets must hold a class number for each promise", name="targets")
        if self.people and len(self.people) != len(points):
            raise InputError(
                f"{len(self.people)} people were given for {len(points)} promises", name="people"
            )
        if not np.isfinite(points).all():
            first = int(np.flatnonzero(~np.isfinite(points).all(axis=1))[0])
            raise InputError(
                f"promise {self.names[first]!r} has a number that is not finite",
                name="points",
                row=first,
            )
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "targets", targets.astype(np.intp))
        self._check_box()

    def _check_box(self) -> None:
        if self.low is None and self.high is None:
            return
        if self.low is None or self.high is None:
            raise InputError(
                "a box has two ends: give both low and high, or none of them",
                name="low" if self.low is None else "high",
            )
        low, high = (np.asarray(end, dtype=np.float64) for end in (self.low, self.high))
        if low.shape != self.points.shape or high.shape != self.points.shape:
            raise InputError(
                f"the ends of the tolerance must have the shape of the points {self.points.shape}",
                name="low, high",
            )
        inside = (low <= self.points) & (self.points <= high) & np.isfinite(high - low)
        if not inside.all():
            first = int(np.flatnonzero(~inside.all(axis=1))[0])
            raise InputError(
                f"promise {self.names[first]!r} does not lie in its own tolerance",
                name="points",
                row=first,
            )
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def __len__(self) -> int:
        return len(self.points)

    def __repr__(self) -> str:
        inside = "" if self.low is None else ", with a tolerance"
        return f"Promised({len(self)} promise{'s' * (len(self) != 1)}{inside})"

    @property
    def box(self) -> InputBox | None:
        """Ends of the promised boxes. None if the points alone were promised."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def take(self, rows: npt.NDArray[np.intp]) -> Promised:
        """Return some of the promises."""
        low, high = (None, None) if self.box is None else (end[rows] for end in self.box)
        names = tuple(self.names[row] for row in rows)
        people = tuple(self.people[row] for row in rows) if self.people else ()
        return Promised(names, self.points[rows], self.targets[rows], low, high, people, self.base)

    def by_target(self) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Iterate over the promised classes and their rows."""
        for target in np.unique(self.targets):
            yield int(target), np.flatnonzero(self.targets == target)

    def check_fits(self, net: Network) -> None:
        """Raise unless the promises are rows of a network, and of its classes."""
        if self.points.shape[1] != net.inputs:
            raise InputError(
                f"the promises have {self.points.shape[1]} columns and the network takes "
                f"{net.inputs}. Make them with Promised.of(model, ...), which encodes them",
                name="points",
            )
        for target, _ in self.by_target():
            net.check_target(target)

    # -- sources ---------------------------------------------------------------------------------

    @classmethod
    def of(cls, model: Model, source: object) -> Promised:
        """Encode promises for a model.

        Parameters
        ----------
        model
            Model whose rows they become.
        source
            Promised inputs, certified results of an explainer, an object with a method
            ``promised(model)`` such as a ledger, or a pair of inputs and target class. Inputs are a
            table in original units or encoded rows. The class is one label, or one per row.
        """
        if isinstance(source, Promised):
            found = source
        elif isinstance(source, Explanations):
            found = _of_explanations(model, source)
        elif callable(getattr(source, "promised", None)):
            found = source.promised(model)  # type: ignore[attr-defined]
        elif isinstance(source, tuple) and len(source) == 2:
            found = _of_pair(model, *source)
        else:
            raise InputError(
                "promises must be a ledger, the results of an explainer, or a pair (inputs, target), "
                f"not {type(source).__name__}",
                name="promises",
                value=source,
            )
        found.check_fits(model.network)
        return found


def _of_pair(model: Model, inputs: Any, target: Any) -> Promised:
    frame = as_frame(inputs)
    if frame is not None:
        rows, names = model.encode(frame), tuple(str(label) for label in frame.index)
    else:
        rows = model.encode(inputs) if model.has_preprocessing else model.network.rows(inputs)
        names = tuple(str(number) for number in range(len(rows)))
    many = not isinstance(target, str) and np.ndim(target) > 0
    labels = np.asarray(target).tolist() if many else [target] * len(rows)
    if len(labels) != len(rows):
        raise InputError(
            f"{len(labels)} classes were given for {len(rows)} inputs. Give one for all, or one each",
            name="target",
            value=target,
        )
    return Promised(names, rows, np.array([model.target(label) for label in labels], dtype=np.intp))


def _of_explanations(model: Model, results: Explanations) -> Promised:
    """Return the certified counterfactuals."""
    chosen = [
        e
        for e in results
        if e.found and e.certificate is not None and e.encoded_counterfactual is not None
    ]
    if not chosen:
        raise InputError(
            "none of the results is a certified counterfactual, so nothing was promised. Give results "
            "with certificates, or a pair (inputs, target)",
            name="promises",
        )
    runs: dict[int, list[Explanation]] = {}
    for e in chosen:
        runs.setdefault(id(e.setting), []).append(e)
    return joined(model, [_run(some) for some in runs.values()])


def _run(some: Sequence[Explanation]) -> Part:
    """Return the certified counterfactuals of one run."""
    setting = some[0].setting
    assert setting is not None  # noqa: S101  (certified ones have it)
    base = setting.model
    low, high = zip(*(promised_box(e) for e in some), strict=True)
    return Part(
        base,
        [f"{e.index}/{e.rank}" if e.rank else str(e.index) for e in some],
        [e.id_text for e in some],
        [base.classes[e.target] for e in some],
        np.array([e.encoded_counterfactual for e in some]),
        np.array(low),
        np.array(high),
    )


class Part(NamedTuple):
    """Promises of one model: names, people, labels, and boxes in its encoding."""

    base: Model
    names: Sequence[str]
    people: Sequence[str]
    labels: Sequence[Label]
    points: Array
    low: Array
    high: Array


def joined(model: Model, parts: Iterable[Part]) -> Promised:
    """Return the promises of several models as one model encodes them."""
    names, people, targets, bases = list[str](), list[str](), list[int](), list[Model]()
    boxes = [(np.empty((0, model.network.inputs)),) * 3]
    for part in parts:
        points, _ = recoded(part.base, model, part.points, part.points)
        low, high = recoded(part.base, model, part.low, part.high)
        boxes.append((points, np.minimum(low, points), np.maximum(high, points)))
        named = with_classes_of(part.base, model)
        targets += [named.target(label) for label in part.labels]
        names += part.names
        people += part.people
        bases.append(part.base)
    points, low, high = (np.vstack(each) for each in zip(*boxes, strict=True))
    boxed = bool((low < high).any())
    return Promised(
        tuple(names),
        points,
        np.array(targets, dtype=np.intp),
        low if boxed else None,
        high if boxed else None,
        tuple(people) if any(people) else (),
        one_cutoff(bases) if bases and model.threshold is None else None,
    )


def promised_box(e: Explanation) -> tuple[Array, Array]:
    """Return the ends of the tolerance and of the guaranteed ranges of a counterfactual."""
    assert e.encoded_counterfactual is not None and e.setting is not None  # noqa: S101, PT018  (it is found)
    ends = [
        (e.encoded_counterfactual, e.encoded_counterfactual),
        range_box(e.setting.schema, e.encoded_counterfactual, e.guaranteed_ranges),
    ]
    members = e.setting.guarantee.members
    ends += [box for each in members if (box := each.around(e.encoded_counterfactual)) is not None]
    lows, highs = zip(*ends, strict=True)
    return np.min(lows, axis=0), np.max(highs, axis=0)


# -- check that a network keeps them ----------------------------------------------------------------


Rows = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

UNITS: dict[Precision, float] = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
}
"""Unit roundoff of each arithmetic."""

NO_TIE = 2.0**-200
"""The smallest margin that is not a tie."""

_CHUNK = 1_000_000  # numbers of the widest array of a chunk


@dataclass(frozen=True, eq=False)
class PromiseCheck:
    """Promises, and the condition under which a network keeps them.

    Attributes
    ----------
    model
        Model whose rows the promises are.
    promised
        The promises.
    delta
        Radius around a network within which they must hold. 0 for the network alone.
    margin
        Required margin.
    """

    model: Model
    promised: Promised
    delta: Delta
    margin: Margin | None

    @classmethod
    def of(
        cls, model: Model, promised: Promised, delta: Delta | None, margin: Margin | None
    ) -> PromiseCheck:
        """Validate the options."""
        if isinstance(delta, Shifts):
            raise OptionError(
                "delta must be a number or one (weight, bias) pair per layer, since it moves with the "
                "network and a shift set does not. To train inside a shift set, use stay_within",
                name="delta",
                value=delta,
            )
        if isinstance(margin, (int, float)) and not (math.isfinite(margin) and margin >= 0.0):
            raise OptionError(
                f"margin must be a number >= 0 or 'float32', not {margin!r}",
                name="margin",
                value=margin,
            )
        return cls(model, promised, 0.0 if delta is None else delta, margin)

    def shifts(self, net: Network) -> Shifts:
        """Return the networks that must all keep the promises."""
        return Shifts.of(net, self.delta)

    def required_margin(self, net: Network, shifts: Shifts, rows: Rows | None = None) -> Array:
        """Return the margin of each promise that all networks of a shift set must reach."""
        promised = self.promised if rows is None else self.promised.take(rows)
        model, found = replace(self.model, network=net), np.empty(len(promised))
        for part in chunks(net, len(promised)):
            points, box = promised.points[part], _part(promised.box, part)
            found[part] = model.margins(shifts, points, self.margin, box)
            if box is not None:  # frameworks treat ties inside a box differently
                wide = (box[0] < box[1]).any(axis=1)
                found[part] = np.where(wide, np.maximum(found[part], NO_TIE), found[part])
        lost = np.flatnonzero(~np.isfinite(found))
        if len(lost):
            raise InputError(
                f"no margin covers the rounding of {_named(promised, lost)}; {UNCOVERED_ADVICE}"
            )
        return found

    def float64_error(self, net: Network, shifts: Shifts) -> Array:
        """Bound the error of the margins in float64, beyond which ``predict`` returns the class."""
        found, box = np.empty(len(self.promised)), self.promised.box
        for part in chunks(net, len(found)):
            low, high = _part(box, part) or (self.promised.points[part], None)
            found[part] = rounding_error(net, shifts, low, DOUBLE, high)
        return found

    def check(self, net: Network, required: Array, rows: Rows | None = None) -> tuple[Mask, Array]:
        """Test which promises a network provably keeps with the required margins.

        The second result is the smallest margin found for each promise, less the required one. If it is
        negative, a point of the box and a network within delta are known that fall short.
        """
        promised = self.promised if rows is None else self.promised.take(rows)
        robust, slack = np.zeros(len(promised), dtype=bool), np.zeros(len(promised))
        for target, numbers in promised.by_target():
            report = certify(
                net,
                promised.points[numbers],
                self.delta,
                target,
                margin=required[numbers],
                box=_part(promised.box, numbers),
            )
            classes = np.concatenate(
                [net.predict(promised.points[numbers[part]]) for part in chunks(net, len(numbers))]
            )
            robust[numbers] = report.robust & (classes == target)
            slack[numbers] = report.upper - required[numbers]
        return robust, slack

    def worst(self, net: Network, row: int) -> WorstCase:
        """Return the network within delta and the point of the box with the smallest margin."""
        promised, one = self.promised, slice(row, row + 1)
        return worst_case(
            net,
            promised.points[one],
            self.delta,
            int(promised.targets[row]),
            box=_part(promised.box, one),
        )

    def names(self, rows: Iterable[int]) -> tuple[str, ...]:
        """Return the names of some promises."""
        return tuple(self.promised.names[row] for row in rows)

    def describe(self, rows: Iterable[int]) -> str:
        """Name some promises in a message."""
        return _named(self.promised, rows)


def margins(net: Network, promised: Promised) -> Array:
    """Return the margin of each promised point for its own class, in float64."""
    found = np.empty(len(promised))
    for part in chunks(net, len(promised)):
        logits = net.logits(promised.points[part])
        targets, count = promised.targets[part], np.arange(len(logits))
        if net.outputs == 1:
            found[part] = np.where(targets == 1, logits[:, 0], -logits[:, 0])
            continue
        own = logits[count, targets]
        logits[count, targets] = -np.inf
        found[part] = own - logits.max(axis=1)
    return found


def chunks(net: Network, rows: int) -> Iterator[slice]:
    """Iterate over slices of rows that bound the memory."""
    size = max(1, _CHUNK // max(net.inputs, net.outputs, *net.widths, 1))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def rounded(values: Array, precision: Precision) -> Array:
    """Return the nearest numbers of a precision, as float64."""
    if precision == "float64":
        return values
    result: Array = np.asarray(values, dtype=precision).astype(np.float64)
    return result


def sentence_delta(delta: Any) -> str:
    """Describe a delta for a sentence. The text is empty without one."""
    number = isinstance(delta, (int, float, np.number))
    if number and not delta:
        return ""
    return f", also under every network within {f'{delta:g}' if number else 'the radii'} of it"


def _part(box: InputBox | None, rows: Any) -> InputBox | None:
    return None if box is None else (box[0][rows], box[1][rows])


def _named(promised: Promised, rows: Iterable[int]) -> str:
    names = [promised.names[row] for row in rows]
    return f"promise{'s' * (len(names) != 1)} {listing(names, 6)}"
