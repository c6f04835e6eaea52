"""Inputs to which a class was promised, as a model encodes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from proplace.core.errors import InputError
from proplace.explain.prove import range_box
from proplace.explain.results import Explanations
from proplace.loaders.coordinates import one_cutoff, recoded, with_classes_of
from proplace.tables.frames import as_frame

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from proplace.certification import InputBox
    from proplace.core.network import Array, Network
    from proplace.explain.results import Explanation
    from proplace.loaders.model import Model


@dataclass(frozen=True, eq=False)
class Promised:
    """Inputs to which a class was promised, as a model encodes them.

    Attributes
    ----------
    names
        Id of each promise, for messages.
    points
        The promised inputs, rows of the model's network.
    targets
        The promised class of each, by its number in the model.
    low, high
        Ends of a box around each point, all of which was promised; both or none.
    people
        The user's own id of each person, where it is known.
    base
        The model that was promised, whose cut-off a model has that states none; None where it is not
        known.

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
                f"the promised points have shape {points.shape} and {len(self.names)} names; give a "
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
                "a tolerance has two ends: give both low and high, or none of them",
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
        """Ends of the boxes that were promised; None where the points alone were."""
        return None if self.low is None or self.high is None else (self.low, self.high)

    def take(self, rows: npt.NDArray[np.intp]) -> Promised:
        """Some of the promises."""
        low, high = (None, None) if self.box is None else (end[rows] for end in self.box)
        names = tuple(self.names[row] for row in rows)
        people = tuple(self.people[row] for row in rows) if self.people else ()
        return Promised(names, self.points[rows], self.targets[rows], low, high, people, self.base)

    def by_target(self) -> Iterator[tuple[int, npt.NDArray[np.intp]]]:
        """Each promised class, and the rows to which it was promised."""
        for target in np.unique(self.targets):
            yield int(target), np.flatnonzero(self.targets == target)

    def check_fits(self, net: Network) -> None:
        """Refuse promises that are no rows of a network, or of a class that it does not have."""
        if self.points.shape[1] != net.inputs:
            raise InputError(
                f"the promises have {self.points.shape[1]} columns and the network takes "
                f"{net.inputs}; make them with Promised.of(model, ...), which encodes them",
                name="points",
            )
        for target, _ in self.by_target():
            net.check_target(target)

    # -- how to get them ---------------------------------------------------------------------

    @classmethod
    def of(cls, model: Model, source: object) -> Promised:
        """Read promises as a model encodes them.

        Parameters
        ----------
        model
            The model whose rows they become.
        source
            Promises that were read before; results of an explainer, of which the certified answers
            count, each with its tolerance; anything with a method ``promised(model)``, such as a
            ledger; or a pair of inputs (a table in original units, or rows as the model takes them)
            and the wanted class, one label for all or one for each.
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
            f"{len(labels)} classes were given for {len(rows)} inputs; give one for all, or one each",
            name="target",
            value=target,
        )
    return Promised(names, rows, np.array([model.target(label) for label in labels], dtype=np.intp))


def _of_explanations(model: Model, results: Explanations) -> Promised:
    """The certified answers."""
    chosen = [
        e
        for e in results
        if e.found and e.certificate is not None and e.encoded_counterfactual is not None
    ]
    if not chosen:
        raise InputError(
            "none of the results is a certified answer, so that nothing was promised; give results "
            "with answers and certificates, or a pair (inputs, target)",
            name="promises",
        )
    points, low, high = np.zeros((3, len(chosen), model.network.inputs))
    targets = np.zeros(len(chosen), dtype=np.intp)
    bases: list[Model] = []
    for rows in _by_setting(chosen):
        some = [chosen[row] for row in rows]
        setting = some[0].setting
        assert setting is not None  # noqa: S101  (certified answers have one)
        base = setting.model
        bases.append(base)
        named = with_classes_of(base, model)
        targets[rows] = [named.target(base.classes[e.target]) for e in some]
        given = np.array([e.encoded_counterfactual for e in some])
        points[rows], _ = recoded(base, model, given, given)
        ends = [promised_box(e) for e in some]
        low[rows], high[rows] = recoded(
            base, model, np.array([end[0] for end in ends]), np.array([end[1] for end in ends])
        )
    low, high = np.minimum(low, points), np.maximum(high, points)
    boxed = bool((low < high).any())
    names = tuple(f"{e.index}/{e.rank}" if e.rank else str(e.index) for e in chosen)
    people = tuple(e.id_text for e in chosen)
    return Promised(
        names,
        points,
        targets,
        low if boxed else None,
        high if boxed else None,
        people if any(people) else (),
        one_cutoff(bases),
    )


def _by_setting(chosen: Sequence[Explanation]) -> list[list[int]]:
    """Answers that were made together."""
    groups: dict[int, list[int]] = {}
    for number, e in enumerate(chosen):
        groups.setdefault(id(e.setting), []).append(number)
    return list(groups.values())


def promised_box(e: Explanation) -> tuple[Array, Array]:
    """Ends of all that is said to hold of an answer: every miss, and what lies beyond it."""
    assert e.encoded_counterfactual is not None and e.setting is not None  # noqa: S101, PT018  (it is an answer)
    ends = [
        (e.encoded_counterfactual, e.encoded_counterfactual),
        range_box(e.setting.schema, e.encoded_counterfactual, e.guaranteed_ranges),
    ]
    members = e.setting.guarantee.members
    ends += [box for each in members if (box := each.around(e.encoded_counterfactual)) is not None]
    lows, highs = zip(*ends, strict=True)
    return np.min(lows, axis=0), np.max(highs, axis=0)
