r"""Shift sets (Delta): the networks that must all accept a counterfactual.

Every trained parameter has its own interval,

.. math::
    \Delta = \{ (W_i', b_i')_i : \underline W_i \le W_i' \le \overline W_i,\;
        \underline b_i \le b_i' \le \overline b_i \} ,

symmetric or not, around any centre. An interval of length 0 freezes a parameter. The L-infinity
ball of the paper, :math:`|\theta' - \theta| \le \delta` around a network, and (weight, bias) radii
for each layer are special cases: :meth:`Shifts.of`. A layer without bias has no bias to shift. The
fixed input transform before the first layer is part of the set, because parameters are only
comparable after the same transform.

The parameters of a network with batch norm are those after folding, but a delta refers to the
trained ones: the interval of each folded parameter follows from those of the trained ones
(:mod:`proplace.core.transforms`).

Other functions summarise a shift set: how many parameters move, how far, and which parameters of a
network lie outside.

**Shifted network with given activations.** Within Delta each neuron's pre-activation is moved by
one number :math:`t \in [-1, 1]`: with :math:`m, r` the centre and the radius of a parameter's
interval, the weights of its row are :math:`m + t\,r \operatorname{sign}(h)` and its bias is
:math:`m + t\,r`, which covers its whole range. The worst-case activations therefore determine all
parameters of the shift.
"""

from __future__ import annotations

import hashlib
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from proplace.core.errors import DeltaError
from proplace.core.files import atomic_write
from proplace.core.layer_box import LayerBox, hull_of
from proplace.core.network import Layer, Network

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import numpy.typing as npt

    from proplace.core.layer_box import Mask
    from proplace.core.network import Array
    from proplace.core.transforms import Fold, InputTransform


Radius: TypeAlias = "float | npt.ArrayLike"
Delta: TypeAlias = "float | Sequence[tuple[Radius, Radius]] | Shifts"

NPZ_FORMAT = "proplace-shifts-1"  #: format of :meth:`Shifts.save`


class Shifts:
    """A shift set: an interval for each parameter, and one input transform. Immutable.

    Parameters
    ----------
    low, high
        Two networks of the same shape and input transform: the lower and the upper ends of all
        intervals.
    description
        Origin of the shift set in a few words, for display only.
    encoding
        Digest of the encoding of the models in the set: see :attr:`encoding`.

    Examples
    --------
    >>> from proplace import Network, Shifts
    >>> low = Network([([[1.0, -1.0]], [0.0])])
    >>> high = Network([([[1.5, -1.0]], [0.25])])
    >>> shifts = Shifts(low, high)
    >>> shifts
    Shifts(2-1, 2 of 3 parameters move)
    >>> shifts.contains(low), shifts.contains(Network([([[1.0, -0.9]], [0.0])]))
    (True, False)
    """

    def __init__(
        self, low: Network, high: Network, *, description: str = "", encoding: str = ""
    ) -> None:
        _check_alike(low, high)
        boxes = [LayerBox(a, b) for a, b in zip(low.layers, high.layers, strict=True)]
        for i, box in enumerate(boxes, start=1):
            crossed = (box.low.W > box.high.W).sum() + (box.low.bias > box.high.bias).sum()
            if crossed:
                raise DeltaError(
                    f"low lies above high for {crossed} parameters of layer {i}. The first network "
                    "must have the lower ends, the second the upper ends",
                    name="low",
                )
        self._boxes, self._input_transform = tuple(boxes), low.input_transform
        self._trained: _Trained | None = None
        self._description, self._encoding = description, encoding

    @classmethod
    def _of_boxes(
        cls,
        boxes: Iterable[LayerBox],
        input_transform: InputTransform,
        description: str = "",
        trained: _Trained | None = None,
        encoding: str = "",
    ) -> Shifts:
        made = cls.__new__(cls)
        made._boxes, made._input_transform, made._trained = tuple(boxes), input_transform, trained
        made._description, made._encoding = description, encoding
        return made

    # -- constructors ------------------------------------------------------------------------

    @classmethod
    def of(cls, net: Network, delta: Delta) -> Shifts:
        """Read ``delta`` for this network.

        Parameters
        ----------
        net
            The current network.
        delta
            One number: the largest change of any parameter. One (weight, bias) pair per layer: each
            a number, or an array with a radius for every parameter. A shift set for such networks
            is accepted too. It need not contain this network.

            Numbers and pairs refer to the weights and biases as they were trained. A batch norm
            that is folded into the network scales them.
        """
        if not isinstance(net, Network):
            raise DeltaError(
                f"Shifts.of takes a Network, not {type(net).__name__}. Give Model.of(model).network",
                name="net",
                value=net,
            )
        if isinstance(delta, Shifts):
            return delta._for(net)
        if isinstance(delta, (int, float, np.number)) and not isinstance(delta, bool):
            pairs: list[tuple[Radius, Radius]] = [(float(delta), float(delta))] * len(net.layers)
        else:
            pairs = _pairs(net, delta)
        layers = enumerate(zip(net.layers, net.folds, pairs, strict=True), start=1)
        boxes = [_box(i, layer, fold, *pair) for i, (layer, fold, pair) in layers]
        if all(box.radii is not None for box in boxes):
            return cls._of_boxes(boxes, net.input_transform)
        trained = _Trained.of(net, pairs) if net.folded else None
        boxes = [box.outward() for box in boxes]  # one form for all layers
        return cls._of_boxes(
            boxes, net.input_transform, trained.description if trained else "", trained
        )

    @classmethod
    def bounding(cls, networks: Iterable[object], *, source: object | None = None) -> Shifts:
        """Return the smallest shift set that contains some networks.

        Models, modules and files are accepted as networks. If their scalers or encoders were fitted
        again, all networks are converted to the scaling of ``source``, the current model. Default:
        the scaling of the first one. The set is useful only for a model that encodes its table in
        the same way.

        Examples
        --------
        >>> from proplace import Network, Shifts
        >>> nets = [Network([([[w, 0.5]], [b])]) for w, b in ((1.0, 0.0), (1.25, 0.5), (1.1, -0.5))]
        >>> shifts = Shifts.bounding(nets)
        >>> shifts.low.layers[0].W, shifts.high.layers[0].W
        (array([[1. , 0.5]]), array([[1.25, 0.5 ]]))
        >>> all(shifts.contains(net) for net in nets)
        True
        """
        past = _past(networks, source)
        nets = past.nets
        boxes = [hull_of(layers) for layers in zip(*(net.layers for net in nets), strict=True)]
        description = f"bounding set of {len(nets)} network{'s' * (len(nets) > 1)}"
        return cls._of_boxes(boxes, nets[0].input_transform, description, encoding=past.encoding)

    @classmethod
    def learn(
        cls,
        history: Iterable[object],
        coverage: float = 0.95,
        *,
        source: object | None = None,
        seed: int = 0,
    ) -> Shifts:
        """Return a shift set that contains the next retraining with a given probability.

        Part of the history gives the shape: its bounding shift set, widened by one delta
        (:mod:`proplace.calibrate.learned`). The rest gives the size, by split conformal prediction
        (:mod:`proplace.calibrate.conformal`). The only assumption is that the next retraining is
        exchangeable with those of the history: made by the same procedure, on data of the same
        kind, independently. The probability refers to history and next retraining together. A
        history without a valid set counts as inside, so the coverage given a valid set may be
        lower.

        Parameters
        ----------
        history
            Networks of the same architecture, retrained in the same way as the next one. Models,
            modules and files are accepted too. A coverage of 95% needs 21 of them. More give a
            better shape.
        coverage
            The probability, between 0 and 1.
        source
            The current model. If scalers were fitted again, all networks are converted to its
            scaling. Default: the scaling of the first network of the history, which then also
            contributes to the shape.
        seed
            Seed that selects the networks for the size, about half of them. The order of the
            history has no effect.

        Examples
        --------
        >>> import numpy as np
        >>> from proplace import Network, Shifts
        >>> rng = np.random.default_rng(0)
        >>> history = [Network([(1.0 + 0.1 * rng.normal(size=(1, 3)), [0.0])]) for _ in range(40)]
        >>> shifts = Shifts.learn(history, coverage=0.9)
        >>> sum(shifts.contains(net) for net in history)
        39
        >>> shifts.description
        'learned from 40 retrainings (21 for the shape, 19 for the size): the next lies inside with
        probability >= 90%, on average over all such histories (one for which no set is found counts as
        inside), if it is exchangeable with them and leaves the biases of layer 1 as they are, which
        never moved'
        """
        from proplace.calibrate.conformal import probability
        from proplace.calibrate.learned import History

        wanted = probability("coverage", coverage)
        given = _past(history, source)
        nets = given.nets
        first = given.refitted and source is None
        past = History(tuple(nets), first=int(first))
        with np.errstate(over="ignore", invalid="ignore"):
            boxes, description = past.learn(wanted, seed)
        return cls._of_boxes(boxes, nets[0].input_transform, description, encoding=given.encoding)

    # -- structure ---------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[LayerBox, ...]:
        """The intervals, layer by layer from input to output."""
        return self._boxes

    @property
    def input_transform(self) -> InputTransform:
        """The fixed map before the first layer."""
        return self._input_transform

    @property
    def description(self) -> str:
        """Origin of the shift set in a few words."""
        return self._description

    @property
    def encoding(self) -> str:
        """Digest of the encoding of the models from table to rows, and of their cut-off.

        It is empty for networks without preprocessing.
        """
        return self._encoding

    def assume_encoding_of(self, model: object) -> Shifts:
        """Declare that the networks take rows as a model encodes them.

        Networks without preprocessing do not record their encoding, so the caller must be sure of
        it.
        """
        from proplace.loaders.align import models_of

        (whole,) = models_of([model])
        moved = Shifts._of_boxes(
            self._boxes, self._input_transform, self._description, self._trained
        )
        moved._check_fits(whole.network)
        moved._encoding = whole.coordinates
        return moved

    @property
    def radii(self) -> tuple[tuple[float, float], ...] | None:
        """(weight, bias) radii of the layers, or None if the set is not given by radii."""
        found = [box.radii for box in self._boxes]
        return None if None in found else tuple(pair for pair in found if pair is not None)

    @property
    def radius(self) -> float | None:
        """The common radius of all parameters, or None."""
        biased = [box.low.b is not None for box in self._boxes]
        return None if self.radii is None else _one_radius(self.radii, biased)

    @property
    def trained_radii(self) -> tuple[tuple[float, float], ...] | None:
        """(weight, bias) radii of the trained parameters of the layers, or None.

        They equal ``radii``, or the radii before a folded batch norm scaled them.
        """
        return self.radii if self._trained is None else self._trained.radii

    @property
    def trained_radius(self) -> float | None:
        """The common radius of all trained parameters, or None."""
        return self.radius if self._trained is None else self._trained.radius

    @cached_property
    def low(self) -> Network:
        """Lower ends of all intervals, as a network, rounded outwards if the set has radii."""
        return self._network(box.outward().low for box in self._boxes)

    @cached_property
    def high(self) -> Network:
        """Upper ends of all intervals, as a network, rounded outwards if the set has radii."""
        return self._network(box.outward().high for box in self._boxes)

    @property
    def is_single_network(self) -> bool:
        """True if no parameter moves."""
        return all(np.max(part, initial=0.0) == 0.0 for box in self._boxes for part in box.radius)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of all ends and of the input transform, which identifies the set in certificates.

        Each array adds an ASCII line with its name and shape, then its doubles, as for networks.
        """
        sha = hashlib.sha256()
        for name, array in self._arrays().items():
            sha.update(f"{name} {' '.join(map(str, array.shape))}\n".encode())
            sha.update(np.ascontiguousarray(array + 0.0, dtype="<f8").tobytes())  # -0.0 is 0.0
        return sha.hexdigest()

    def __repr__(self) -> str:
        if self.radius is not None:
            inside = f"within {self.radius:g}"
        elif self.radii is not None:
            inside = "radii per layer"
        else:
            moves, total = counts(self)
            inside = f"{moves} of {total} parameters move"
        sizes = [self._boxes[0].low.W.shape[1], *(len(box.low.W) for box in self._boxes)]
        description = f", {self._description}" if self._description else ""
        return f"Shifts({'-'.join(map(str, sizes))}, {inside}{description})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Shifts):
            return NotImplemented
        return self.radii == other.radii and self.digest == other.digest

    def __hash__(self) -> int:
        return hash((self.radii, self.digest))

    # -- sets --------------------------------------------------------------------------------

    def contains(self, net: Network) -> bool:
        """Test exactly if every parameter of a network lies in its interval.

        A network of another shape, or with another input transform, does not.
        """
        return self._fits(net) and all(
            box.contains(layer) for box, layer in zip(self._boxes, net.layers, strict=True)
        )

    def project(self, net: Network) -> Network:
        """Return the network of the set that is nearest to a given one, parameter by parameter."""
        self._check_fits(net)
        pairs = zip(self._boxes, net.layers, strict=True)
        clipped = [box.clip(layer.W, layer.b) for box, layer in pairs]
        return net.with_layers((layer.W, layer.b) for layer in clipped)

    def scaled(self, t: float) -> Shifts:
        """Return the set with all intervals ``t`` times as long around their centres: nested in t.

        Ends that are not floats are rounded outwards.
        """
        if not (math.isfinite(t) and t >= 0.0):
            raise DeltaError(f"t must be finite and not negative, not {t!r}", name="t", value=t)
        if t == 1.0:
            return self
        if self._trained is not None:
            pairs = [(t * weight, t * bias) for weight, bias in self._trained.radii]
            return Shifts.of(self._trained.net, pairs)
        description = f"{self._description}, {t:g} times as wide".removeprefix(", ")
        boxes = [_scaled(box, float(t)) for box in self._boxes]
        return Shifts._of_boxes(boxes, self._input_transform, description, encoding=self._encoding)

    def with_input_transform(self, net: Network) -> Shifts:
        """Return the same intervals with the input transform of another network."""
        moved = Shifts._of_boxes(
            self._boxes, net.input_transform, self._description, encoding=self._encoding
        )
        moved._check_fits(net)
        return moved

    def recentred(self, old: Network, new: Network) -> Shifts:
        r"""Return the same intervals around another network.

        .. math::
            [\,\theta' + (\underline\theta - \theta),\ \theta' + (\overline\theta - \theta)\,]

        for each parameter, :math:`\theta` of ``old`` and :math:`\theta'` of ``new``, in floats. If
        the set contains the old network, the result contains the new one. Statements about its
        origin, such as a probability, do not carry over.
        """
        self._check_fits(old)
        self._check_fits(new)
        low, high = (
            self._network(
                Layer(n.W + (e.W - o.W), None if n.b is None else n.b + (e.bias - o.bias))
                for e, o, n in zip(end.layers, old.layers, new.layers, strict=True)
            )
            for end in (self.low, self.high)
        )
        return Shifts(low, high, description="recentred on another model", encoding=self._encoding)

    def intersect(self, other: Shifts) -> Shifts:
        """Return the shift set of the networks in both, or raise a DeltaError if there are none."""
        _check_alike(self.low, other.low)
        if self._encoding != other._encoding:
            raise DeltaError(
                "the shift sets were made from models that encode their tables in different ways "
                "(scalers or encoders that were fitted again), so their intervals cannot be compared. "
                "Make both with the same model (source=)",
                name="other",
            )
        layers = [*zip(self._boxes, other._boxes, strict=True)]
        boxes = []
        for i, (mine, theirs) in enumerate(layers, start=1):
            a, b = mine.outward(), theirs.outward()
            low = Layer(np.maximum(a.low.W, b.low.W), _both(np.maximum, a.low.b, b.low.b))
            high = Layer(np.minimum(a.high.W, b.high.W), _both(np.minimum, a.high.b, b.high.b))
            apart = (low.W > high.W).sum() + (low.bias > high.bias).sum()
            if apart:
                raise DeltaError(
                    f"no network lies in both shift sets: the intervals of {apart} parameters of "
                    f"layer {i} do not meet",
                    name="other",
                )
            boxes.append(LayerBox(low, high))
        description = " and ".join(part for part in (self._description, other._description) if part)
        return Shifts._of_boxes(boxes, self._input_transform, description, encoding=self._encoding)

    # -- files -------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write an ``.npz`` file of all ends, without pickle. It appears complete or not at all.

        The file holds floats: if the set has radii, its ends are rounded outwards, so it grows by
        less than the last digit.
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise DeltaError(f"{path.name}: the name must end in .npz", name=path.name)
        with atomic_write(path) as file:
            self.write(file)

    def write(self, file: IO[bytes]) -> None:
        """Write the content of an ``.npz`` file to an open file, as :meth:`save` does."""
        words = {"format": NPZ_FORMAT, "about": self._description, "encoding": self._encoding}
        texts = {name: np.array(word) for name, word in words.items()}
        arrays: dict[str, Any] = {**texts, **self._arrays()}
        np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Shifts:
        """Read a file of :meth:`save`. Files are never unpickled."""
        from proplace.loaders.files import read_shifts

        return read_shifts(Path(path))

    # -- internals ---------------------------------------------------------------------------

    def _arrays(self) -> dict[str, Array]:
        arrays: dict[str, Array] = {}
        for i, box in enumerate(box.outward() for box in self._boxes):
            for end, layer in (("low", box.low), ("high", box.high)):
                arrays[f"{end}_W{i}"] = layer.W
                if layer.b is not None:
                    arrays[f"{end}_b{i}"] = layer.b
        return arrays | self._input_transform.parts

    def _network(self, layers: Iterable[Layer]) -> Network:
        return Network(
            [(layer.W, layer.b) for layer in layers],
            **self._input_transform.parts,
            precision="float64",
            folds=None,
        )

    def _for(self, net: Network) -> Shifts:
        """Return the set for a current network: radii are valid only around it."""
        self._check_fits(net)
        if self._radii_around(net):
            return self
        boxes = (box.outward() for box in self._boxes)
        return Shifts._of_boxes(
            boxes, self._input_transform, self._description, encoding=self._encoding
        )

    def _radii_around(self, net: Network) -> bool:
        """Test if the set has no radii, or radii around the trained parameters of this network."""
        if self._trained is not None:
            return self._trained.net == net
        layers = zip(self._boxes, net.layers, net.folds, strict=True)
        return self.radii is None or all(
            box.centre is not None
            and _same(box.centre, layer)
            and (fold is None or box.radii == (0.0, 0.0))
            for box, layer, fold in layers
        )

    def _fits(self, net: Network) -> bool:
        try:
            self._check_fits(net)
        except DeltaError:
            return False
        return True

    def _check_fits(self, net: Network) -> None:
        _check_alike(self._network(box.low for box in self._boxes), net)


@dataclass(frozen=True, eq=False)
class _Trained:
    """Origin of a shift set: a network with folded batch norm, and its trained parameters' radii."""

    net: Network
    radii: tuple[tuple[float, float], ...]

    @classmethod
    def of(cls, net: Network, pairs: Iterable[tuple[Radius, Radius]]) -> _Trained | None:
        """Return None if radii are arrays."""
        if any(np.ndim(radius) for pair in pairs for radius in pair if radius is not None):
            return None
        given = [(float(w or 0.0), float(b or 0.0)) for w, b in pairs]  # type: ignore[arg-type]
        radii = zip(given, _biased(net), strict=True)
        return cls(net, tuple((weight, bias if some else 0.0) for (weight, bias), some in radii))

    @property
    def radius(self) -> float | None:
        return _one_radius(self.radii, _biased(self.net))

    @property
    def description(self) -> str:
        if self.radius is None:
            return "radii per layer around the trained weights and biases"
        return f"within {self.radius:g} of the trained weights and biases"


def same_architecture(networks: Iterable[object]) -> list[Network]:
    """Return the networks of models in the coordinates of the first, or raise a DeltaError."""
    given = list(networks)
    if not given:
        raise DeltaError("no network was given. Give at least one", name="networks")
    nets = [net for net in given if isinstance(net, Network)]
    if len(nets) < len(given):
        from proplace.loaders.align import networks_alike

        nets = networks_alike(given)
    for net in nets[1:]:
        _check_alike(nets[0], net)
    return nets


class _Past(NamedTuple):
    """Networks in common coordinates, a mark of converted ones, and the digest of their encoding."""

    nets: list[Network]
    refitted: bool
    encoding: str


def _past(history: Iterable[object], source: object | None) -> _Past:
    """Convert the networks of a history to the coordinates of ``source``, or of the first."""
    if isinstance(history, (str, os.PathLike, Network)):
        raise DeltaError(
            "the history must be a list of networks, models or files, not a single one",
            name="history",
            value=history,
        )
    given = [*([] if source is None else [source]), *history]
    if all(isinstance(item, Network) for item in given):
        return _Past(same_architecture(given)[source is not None :], False, "")
    from proplace.loaders.align import models_of

    models = models_of(given)
    nets = same_architecture(models)
    refitted = any(net is not model.network for net, model in zip(nets, models, strict=True))
    return _Past(nets[source is not None :], refitted, models[0].coordinates)


def _check_alike(a: Network, b: Network) -> None:
    """Reject networks whose parameters cannot be compared one by one."""
    shapes = [[(layer.W.shape, layer.b is None) for layer in net.layers] for net in (a, b)]
    if shapes[0] != shapes[1]:
        raise DeltaError(
            f"{a!r} and {b!r} differ in architecture (widths, or a bias that one of them lacks), so "
            "they share no shift set. Give each network its own (required_models=)"
        )
    mine, theirs = a.input_transform.parts, b.input_transform.parts
    for name in sorted(mine.keys() | theirs.keys()):
        if name not in mine or name not in theirs or not np.array_equal(mine[name], theirs[name]):
            raise DeltaError(
                f"the networks have different input transforms ({name}), so their parameters do not "
                "act on the same inputs. Give the models themselves, so that they are converted to one "
                "scaler, or give each network its own shift set (required_models=)",
                name=name,
            )


def _pairs(net: Network, delta: object) -> list[tuple[Radius, Radius]]:
    try:
        pairs = [(weight, bias) for weight, bias in delta]  # type: ignore[attr-defined]
        for pair in pairs:
            for radius in pair:
                np.asarray(0.0 if radius is None else radius, dtype=np.float64)
    except (TypeError, ValueError):
        raise DeltaError(
            f"delta must be a number or one (weight, bias) pair per layer, not {delta!r}",
            name="delta",
            value=delta,
        ) from None
    if len(pairs) != len(net.layers):
        raise DeltaError(
            f"delta has {len(pairs)} (weight, bias) pairs but the network has {len(net.layers)} "
            "layers (the output layer counts)",
            name="delta",
            value=delta,
        )
    return pairs


def _biased(net: Network) -> list[bool]:
    """Find the layers that were trained with a bias."""
    layers = zip(net.layers, net.folds, strict=True)
    return [layer.b is not None if f is None else bool(f.bias.any()) for layer, f in layers]


def _one_radius(radii: Iterable[tuple[float, float]], biased: Iterable[bool]) -> float | None:
    """Return the radius of all weights, and of the biases of layers with bias, or None."""
    pairs = [*zip(radii, biased, strict=True)]
    found = {weight for (weight, _), _ in pairs} | {bias for (_, bias), some in pairs if some}
    return found.pop() if len(found) == 1 else None


def _box(i: int, layer: Layer, fold: Fold | None, weight: Radius, bias: Radius) -> LayerBox:
    """Return the box of a layer, from numbers or arrays of radii of the trained parameters."""
    radii = [np.asarray(0.0 if r is None else r, dtype=np.float64) for r in (weight, bias)]
    if not all(np.isfinite(r).all() and (r >= 0.0).all() for r in radii):
        pair = tuple(float(r) if r.ndim == 0 else "an array" for r in radii)
        raise DeltaError(
            f"delta must be finite and not negative, but layer {i} has {pair}. "
            "Give a number such as 0.02, or one (weight, bias) pair per layer",
            name="delta",
            value=pair,
        )
    still = not (radii[0].any() or radii[1].any())
    if radii[0].ndim == radii[1].ndim == 0 and (fold is None or still):
        return LayerBox.around(layer, float(radii[0]), float(radii[1]))
    for name, r, shape in zip(
        ("weights", "biases"), radii, (layer.W.shape, layer.W.shape[:1]), strict=True
    ):
        if r.ndim and r.shape != shape:
            raise DeltaError(
                f"the radii of the {name} of layer {i} have shape {r.shape}. Give a number, or one "
                f"radius for each of them: shape {shape}",
                name="delta",
            )
    if fold is None:
        return LayerBox.reaching(layer, *radii)
    with np.errstate(over="ignore"):  # overflow is rejected below
        reach = fold.radii(*radii)
    if not all(np.isfinite(r).all() for r in reach):
        raise DeltaError(
            f"delta times the factors of the batch norm in layer {i} is too large for a number. Give "
            "a smaller delta",
            name="delta",
        )
    return LayerBox.reaching(layer, *reach)


def _scaled(box: LayerBox, t: float) -> LayerBox:
    if box.centre is not None and box.radii is not None:
        return LayerBox.around(box.centre, *(t * radius for radius in box.radii))
    middle, ends = box.middle, []
    for name in ("W", "bias"):
        low, high, centre = (getattr(part, name) for part in (box.low, box.high, middle))
        least = np.nextafter(centre - t * (centre - low), -np.inf)
        most = np.nextafter(centre + t * (high - centre), np.inf)
        if t < 1.0:  # nested, despite rounding
            least, most = np.maximum(least, low), np.minimum(most, high)
            least, most = np.minimum(least, centre), np.maximum(most, centre)
        else:
            least, most = np.minimum(least, low), np.maximum(most, high)
        fixed = low == high
        ends.append((np.where(fixed, low, least), np.where(fixed, high, most)))
    (W_low, W_high), (b_low, b_high) = ends
    none = box.low.b is None
    return LayerBox(Layer(W_low, None if none else b_low), Layer(W_high, None if none else b_high))


def _both(function: object, a: Array | None, b: Array | None) -> Array | None:
    return None if a is None or b is None else function(a, b)  # type: ignore[operator]


def _same(a: Layer, b: Layer) -> bool:
    return np.array_equal(a.W, b.W) and np.array_equal(a.bias, b.bias)


_ROUNDING = 4.0  # rounding error of an end and its difference, in units in the last place


@dataclass(frozen=True)
class LayerFigures:
    """The intervals of one layer.

    Attributes
    ----------
    parameters, moving
        Number of weights and biases, and of those whose interval has a positive length.
    largest, median
        Lengths of the intervals, including those of length 0.
    symmetric
        True if each parameter of a given network lies at the centre of its interval, up to
        rounding. None without a network.
    """

    parameters: int
    moving: int
    largest: float
    median: float
    symmetric: bool | None = None


@dataclass(frozen=True)
class Outlier:
    """A parameter of a network outside its interval, with the excess."""

    name: str
    value: float
    low: float
    high: float
    beyond: float


def by_layer(shifts: Shifts, net: Network | None = None) -> list[LayerFigures]:
    """Return figures of each layer. With a network, test if it lies at the centre."""
    found = []
    for i, box in enumerate(shifts.layers):
        low, high = _ends(box)
        length = high - low
        symmetric = None if net is None else _centred(_flat(net.layers[i]), low, high)
        found.append(
            LayerFigures(
                length.size,
                int(np.count_nonzero(length)),
                float(length.max()),
                float(np.median(length)),
                symmetric,
            )
        )
    return found


def counts(shifts: Shifts) -> tuple[int, int]:
    """Count the parameters that move, and all parameters."""
    layers = by_layer(shifts)
    return sum(layer.moving for layer in layers), sum(layer.parameters for layer in layers)


def outside(shifts: Shifts, net: Network) -> list[Outlier]:
    """Return the parameters of a network that leave their intervals, largest excess first.

    Examples
    --------
    >>> from proplace import Network, Shifts
    >>> shifts = Shifts.of(Network([([[1.0, -1.0]], [0.0])]), 0.25)
    >>> outside(shifts, Network([([[1.0, -2.0]], [0.5])]))
    [Outlier(name='layer 1, weight [0, 1]', value=-2.0, low=-1.25, high=-0.75, beyond=0.75), \
Outlier(name='layer 1, bias [0]', value=0.5, low=-0.25, high=0.25, beyond=0.25)]
    """
    return sorted(_outliers(shifts, net), key=lambda outlier: -outlier.beyond)


def _outliers(shifts: Shifts, net: Network) -> Iterator[Outlier]:
    for n, (box, layer) in enumerate(zip(shifts.layers, net.layers, strict=True), start=1):
        low, high = _ends(box)
        values = _flat(layer)
        width = layer.W.shape[1]
        out: Mask = (values < low) | (values > high)
        for i in np.flatnonzero(out):
            k = int(i) - layer.W.size
            place = f"weight [{i // width}, {i % width}]" if k < 0 else f"bias [{k}]"
            value, least, most = float(values[i]), float(low[i]), float(high[i])
            beyond = max(least - value, value - most)
            yield Outlier(f"layer {n}, {place}", value, least, most, beyond)


def _ends(box: LayerBox) -> tuple[Array, Array]:
    """Return both ends of all intervals of a layer, weights first, then biases if there are any."""
    wide = box.outward()
    return _flat(wide.low), _flat(wide.high)


def _flat(layer: Layer) -> Array:
    return layer.W.ravel() if layer.b is None else np.concatenate([layer.W.ravel(), layer.b])


def _centred(values: Array, low: Array, high: Array) -> bool:
    size = np.maximum(np.maximum(np.abs(low), np.abs(high)), np.abs(values))
    return bool((np.abs((high - values) - (values - low)) <= _ROUNDING * np.spacing(size)).all())


def shifted_layers(
    shifts: Shifts, u: Array, hidden: Sequence[Array], c: Array
) -> list[tuple[Array, Array]]:
    """Return the layers of the shift with activations ``hidden`` on ``u`` and minimal ``c . logits``.

    Parameters can leave their radius by a rounding error: see :func:`shifted_network`.
    """
    pairs: list[tuple[Array, Array]] = []
    h = u
    for box, wanted in zip(shifts.layers[:-1], hidden, strict=True):
        t = np.where(wanted > 0.0, box.share(wanted, h), -1.0)
        W, b = box.at(t, np.sign(h))
        pairs.append((W, b))
        h = np.maximum(W @ h + b, 0.0)
    pairs.append(shifts.layers[-1].at(-np.sign(c), np.sign(h)))
    return pairs


def shifted_network(
    net: Network, shifts: Shifts, u: Array, hidden: Sequence[Array], c: Array
) -> Network:
    """Return the network in Delta with activations ``hidden`` on ``u`` and minimal ``c . logits``.

    Every parameter lies within its radius exactly, as real numbers, not up to rounding.
    """
    moved = shifted_layers(shifts, u, hidden, c)
    clipped = [
        box.clip(W, None if box.low.b is None else b)
        for box, (W, b) in zip(shifts.layers, moved, strict=True)
    ]
    return net.with_layers((layer.W, layer.b) for layer in clipped)
