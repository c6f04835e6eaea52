r"""A retrained model, or another one, in the coordinates of the current model.

Both models look at the same table. Let :math:`x` be a row as the current model encodes it and
:math:`x'` the same row as the retrained one does, whose scalers and encoders were fitted again. Column
by column :math:`x' = A x + a`: numbers are scaled in another way, categories stand in another order or
lack another column. With :math:`u = s \odot x + t` for what the current first layer sees and
:math:`u' = M' (s' \odot x' + t') + c'` for the retrained one's,

.. math::
    W' u' + b' = \underbrace{W' M' S' A S^{-1}}_{W''} u + b'' ,

so that the retrained model is a network behind the input transform in use, and its parameters can be
compared with those of the current model one by one. The identity holds for every row of the table, up to
rounding. If nothing was fitted again, nothing is computed at all.

A matrix :math:`M` in front of the layers in use (PCA) has no inverse in general. Then there must be a
:math:`W''` with :math:`W'' M S = W' M' S' A`, or the models cannot be compared.

If the other model is not compared but required to accept, its trained layers must stay as they are, so
that a delta refers to its own weights. Then the recoding joins its input transform,

.. math::
    u' = M' \bigl(s' \odot (A x + a) + t'\bigr) + c' ,

which is again a scale and a shift for a diagonal :math:`A`, else a matrix and an offset.
"""

from __future__ import annotations

import dataclasses
from itertools import combinations, islice
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from proplace import certification
from proplace.core.errors import DeltaError, InputError, OptionError, TargetError
from proplace.core.network import Network
from proplace.core.shifts import Shifts
from proplace.core.text import listing
from proplace.core.transforms import InputTransform
from proplace.loaders.cutoffs import Threshold
from proplace.loaders.model import Model
from proplace.schema import Binary, Categorical, Continuous

if TYPE_CHECKING:
    from collections.abc import Sequence

    from proplace.core.network import Array
    from proplace.core.shifts import Delta
    from proplace.core.transforms import Fold
    from proplace.schema.rules import AnyFeature

_EXACT = 1e-9  # relative loss of solving for a matrix
_ROUNDING = 2.0**-48  # relative: far more than the roundings of a sum of a few products
_SAFE = 2.0**-40  # relative: far more than the roundings of sums of thousands of products
_SUBSETS = 256  # of numbers that may be true or false in a table

_KEEP = "Fit that step once, keep it when the model is retrained, and compare those models"


def models_of(sources: Sequence[object]) -> list[Model]:
    """Read several models. A model without a cut-off gets that of the first."""
    first, *rest = [Model.of(source) for source in sources]
    return [first, *(with_cutoff_of(first, other) for other in rest)]


def shifts_for(model: Model, delta: Delta) -> Shifts:
    """Read ``delta`` for a model. A shift set must be of models that encode their tables as it does.

    The same numbers in the first layer mean something else behind another scaler.
    """
    if isinstance(delta, Shifts) and delta.encoding in model.earlier_coordinates:
        delta = delta.with_input_transform(model.network).assume_encoding_of(
            model
        )  # the same layers
    shifts = Shifts.of(model.network, delta)
    if not isinstance(delta, Shifts) or shifts.trained_radii is not None:
        # Around the network: it takes the same rows, and what trains within needs the cut-off.
        return shifts if model.coordinates == model.encoding else shifts.assume_encoding_of(model)
    if shifts.encoding == model.coordinates:
        return shifts
    if Threshold.of_box(shifts.encoding) != Threshold.of_box(model.coordinates):
        raise DeltaError(
            "this shift set belongs to models with another cut-off than the current model. Read the "
            "current model with its cut-off and make the shift set again: "
            "model = Model.of(..., cutoff=...), then Shifts.bounding(models, source=model)",
            name="delta",
        )
    if shifts.encoding:
        raise DeltaError(
            "this shift set belongs to models that scale or encode their tables in another way than the "
            "current model (scalers or encoders that were fitted again). Make it again with "
            "Shifts.bounding(models, source=model), Shifts.learn(models, source=model), or "
            "proplace calibrate ... --coverage, with the same schema",
            name="delta",
        )
    raise DeltaError(
        "this shift set was made of networks without preprocessing, and the current model encodes "
        "its table. Make it of the whole models: Shifts.bounding(models, source=model). If these "
        "networks take rows in the encoding of the current model (the same scalers and encoders), "
        "state it: shifts.assume_encoding_of(model)",
        name="delta",
    )


def networks_alike(sources: Sequence[object]) -> list[Network]:
    """Networks of some models, modules or files, all behind the input transform of the first."""
    models = models_of(sources)
    return [models[0].network, *(in_coordinates_of(models[0], other) for other in models[1:])]


def in_coordinates_of(base: Model, other: Model) -> Network:
    """Return the network of ``other`` as one that takes the rows of ``base``.

    Raises InputError with the reason if there is none.
    """
    if other.classes != base.classes:
        raise InputError(
            f"the retrained model has the classes {listing(other.classes)}, the current model "
            f"{listing(base.classes)}. Retrain it for the same classes"
        )
    other = described_as(base, other)
    A, a = _recoded(base, other)
    net, own = other.network, base.network.input_transform
    theirs = net.input_transform
    same_map = own.parts.keys() == theirs.parts.keys() and all(
        np.array_equal(part, theirs.parts[name]) for name, part in own.parts.items()
    )
    if same_map and np.array_equal(A, np.eye(base.schema.width)) and not a.any():
        return net
    first = net.layers[0]
    W, b = theirs.fold(first.W, first.bias)
    W, b = (
        W @ A,
        b + W @ a,
    )  # first of the encoded rows, then of the inputs of the current first layer
    W = _behind_scale(base, W) if own.matrix is None else _behind_matrix(base, W)
    b = b - W @ own(np.zeros((1, base.network.inputs)))[0]
    bias: Array | None = b
    if base.network.layers[0].b is None:
        if np.abs(b).max() > _EXACT * (1.0 + np.abs(W).max()):
            raise InputError(
                "the current first layer has no bias, so it cannot express the offsets of a scaler that "
                f"was fitted again. Train it with a bias, or keep the scaler. {_KEEP}"
            )
        bias = None
    layers = [(W, bias), *((layer.W, layer.b) for layer in net.layers[1:])]
    folds = [_on_inputs(net.folds[0], W.shape[1]), *net.folds[1:]]
    return Network(layers, **own.parts, precision=net.precision, folds=folds)


def rounding_in_coordinates_of(base: Model, other: Model) -> tuple[Array, Array]:
    """Return how far the first layer of :func:`in_coordinates_of` can be from the exact one.

    For each weight and each bias. The bias also bears what a label of some column is off by where the
    recoding of labels was solved for.
    """
    other = described_as(base, other)
    A, a = _recoded(base, other)
    first, own = other.network.layers[0], _absolute(base.network.input_transform)
    W, b = _absolute(other.network.input_transform).fold(np.abs(first.W), np.abs(first.bias))
    b = b + W @ (np.abs(a) + _residual(base, other, A, a) / _SAFE)
    W = W @ np.abs(A)
    if own.scale is not None:
        W = np.divide(W, own.scale, out=np.zeros_like(W), where=own.scale != 0.0)
    b = b + W @ own(np.zeros((1, base.network.inputs)))[0]
    return _SAFE * W, _SAFE * b


def _absolute(front: InputTransform) -> InputTransform:
    return InputTransform(**{name: np.abs(part) for name, part in front.parts.items()})


def _residual(base: Model, other: Model, A: Array, a: Array) -> Array:
    """By how much each encoded column of ``other`` is off, at most, for any label."""
    mine, theirs = base.schema, other.schema
    found = np.zeros(theirs.width)
    for name, feature in theirs.by_name.items():
        own = mine.by_name[name]
        if isinstance(own, Continuous):
            continue
        labels = pd.Series(list(own.labels), dtype=object)
        codes, recoded = (f.read(labels)[0].reshape(len(labels), -1) for f in (own, feature))
        part, rows = A[theirs.span(name), mine.span(name)], theirs.span(name)
        off = np.abs(codes @ part.T + a[rows] - recoded)
        size = np.abs(codes) @ np.abs(part).T + np.abs(a[rows]) + np.abs(recoded)
        found[rows] = np.where(off > 0.0, off + _SAFE * size, 0.0).max(axis=0)
    return found


def _on_inputs(fold: Fold | None, count: int) -> Fold | None:
    """Return the fold of a first layer, which scales rows alone, for another number of inputs."""
    return fold and dataclasses.replace(fold, columns=np.ones(count), shift=np.zeros(count))


def described_as(base: Model, other: Model) -> Model:
    """Return another model with the column names of the current model and its binary numbers."""
    other = other.with_names_of_table(base.schema.by_name)
    if not other.has_preprocessing:
        return other
    return other.with_binaries(
        {f.name for f in base.schema.features if f == Binary(f.name, (False, True))}
    )


def network_named(model: Model, digest: str, row: Sequence[float] | None) -> Network | None:
    """Return the network that a certificate names, if it is the model's for some table.

    Numbers that are true or false in the table are encoded as 0 and 1 there, so candidates are the
    numbers that are 0 or 1 in the ``row`` of the certificate.
    """
    if not model.has_preprocessing:
        return None
    names = [
        feature.name
        for feature, span in zip(model.schema.features, model.schema.spans, strict=True)
        if isinstance(feature, Continuous)
        and (feature.offset, feature.scale) != (0.0, 1.0)
        and feature.missing in (None, 0, 1)
        and (row is None or list(row)[span] in ([0], [1]))
    ]
    subsets = (chosen for n in range(len(names), 0, -1) for chosen in combinations(names, n))
    for chosen in islice(subsets, _SUBSETS):
        network = model.with_binaries(chosen).network
        if certification.digest(network) == digest:
            return network
    return None


def with_classes_of(base: Model, other: Model) -> Model:
    """Return another model with the labels of the current model, if it has none.

    Equal labels have one meaning. A :class:`Network` counts its classes as the current model does. The
    numbers of any other model without labels may have any meaning.

    Raises TargetError for such a model.
    """
    if other.labelled or base.classes == other.classes:
        return other
    if other.bare and len(other.classes) == len(base.classes):
        return other.with_classes(base.classes)
    raise TargetError(
        f"the classes of the model have no labels, and those of the promises are "
        f"{listing(base.classes)}. Name them in the order of the outputs: "
        f"Model.of(model).with_classes({list(base.classes)!r}), or classes in the project file"
    )


def with_cutoff_of(base: Model, other: Model) -> Model:
    """Return another model with the cut-off of the current model, if it states none.

    Equal labels have one meaning. Numbers without labels are those of the current model.

    Raises TargetError for a model without the label of the cut-off.
    """
    if base.threshold is None or other.threshold is not None:
        return other
    number, p = base.threshold
    label = base.classes[number]
    if not other.labelled and len(other.classes) == len(base.classes):
        return other.with_threshold(base.threshold)
    try:
        return other.with_threshold(Threshold.of({label: p}, other.classes))
    except OptionError:
        raise TargetError(
            f"the current model has the cut-off {p} for {label!r}, and the model has the classes "
            f"{listing(other.classes)}. State its own: Model.of(model, cutoff=...)",
            name="cutoff",
            value=label,
        ) from None


def one_cutoff(bases: Sequence[Model]) -> Model | None:
    """Return the first of the models of some promises, which must share a cut-off, or None."""
    found = {Threshold.of_box(base.coordinates) for base in bases}
    if len(found) > 1:
        words = listing([base.cutoff or "none" for base in bases])
        raise InputError(
            f"the promises were made with several cut-offs ({words}). State that of the model: "
            "Model.of(model, cutoff=...)",
            name="cutoff",
        )
    return bases[0] if bases else None


def recoded(base: Model, other: Model, low: Array, high: Array) -> tuple[Array, Array]:
    """Boxes of rows of ``base`` as boxes of rows of ``other`` that contain them.

    A model that neither names nor encodes its columns takes the rows of ``base`` as they are. If the
    models encode alike, so does any other, exactly. Else the ends are rounded outwards.

    Raises InputError, with the reason, if the models take other columns or labels.
    """
    if not (other.has_column_names or other.has_preprocessing):
        if other.network.inputs != base.network.inputs:
            raise InputError(
                f"the network takes {other.network.inputs} columns, and the current model encodes its "
                f"table as {base.network.inputs}. Give the whole model, with the names of its columns"
            )
        return low, high
    named = (
        other.with_names_of_table(base.schema.by_name)
        if other.has_column_names
        else _under_names_of(base, other)
    )
    A, a = _recoded(base, named)
    if np.array_equal(A, np.eye(base.schema.width)) and not a.any():
        return low, high
    up, down = np.maximum(A, 0.0), np.minimum(A, 0.0)
    size = np.maximum(np.abs(low), np.abs(high)) @ np.abs(A).T + np.abs(a)
    slack = np.where(low @ A.T == high @ A.T, 0.0, _ROUNDING * size)
    ends: tuple[Array, Array] = (
        low @ up.T + high @ down.T + a - slack,
        high @ up.T + low @ down.T + a + slack,
    )
    return ends


def taking_rows_of(base: Model, other: Model) -> Model:
    """Return ``other`` as a model that takes the rows of ``base``, with the same trained layers.

    The composed transform is computed in floats, so each entry is off by a few units in its last place
    (exact if nothing was fitted again). Proofs are about that map. :meth:`Model.predict_original` shows
    that the original model agrees.

    Raises InputError with the reason if there is none.
    """
    other = _under_names_of(base, other)
    if other.classes != base.classes:
        raise InputError(
            f"it has the classes {listing(other.classes)}, the current model {listing(base.classes)}. "
            "Give a model of the same classes, in the same order, or a Network "
            "(Model.of(...).network), which takes the classes of the current model"
        )
    A, a = _recoded(base, other)
    net = other.network
    same = np.array_equal(A, np.eye(base.schema.width)) and not a.any()
    return dataclasses.replace(
        other,
        network=net if same else _behind_recoding(net, A, a),
        schema=base.schema,
        has_preprocessing=base.has_preprocessing or other.has_preprocessing,
        has_column_names=base.has_column_names,
        _columns=base._columns,
    )


def _behind_recoding(net: Network, A: Array, a: Array) -> Network:
    """The network with ``A x + a`` in front of its input transform."""
    own = net.input_transform
    s = np.ones(len(A)) if own.scale is None else own.scale
    t = np.zeros(len(A)) if own.shift is None else own.shift
    shift = s * a + t
    if A.shape[0] == A.shape[1] and np.array_equal(A, np.diag(np.diag(A))):
        parts = dict(own.parts) | {"scale": s * np.diag(A), "shift": shift}
    else:
        matrix, offset = s[:, None] * A, shift
        if own.matrix is not None:
            matrix, offset = own.matrix @ matrix, own.matrix @ offset
        parts = {"matrix": matrix, "offset": offset if own.offset is None else offset + own.offset}
    layers = [(layer.W, layer.b) for layer in net.layers]
    return Network(layers, **parts, precision=net.precision, folds=net.folds)


def _under_names_of(base: Model, other: Model) -> Model:
    """Return a model with the column names of the current model, in its order if it has none."""
    if other.has_column_names:
        return other.with_names_of_table(base.schema.by_name)
    if len(other._columns) != len(base._columns):
        raise InputError(
            f"it takes {len(other._columns)} columns without names, the current model "
            f"{len(base._columns)} ({listing(base._columns)}). Give a model of the same columns, or one "
            "with column names"
        )
    plain = all(
        isinstance(f, Continuous) and (f.offset, f.scale) == (0.0, 1.0)
        for f in base.schema.features
    )
    if not (plain or other.has_preprocessing):
        raise InputError(
            "it has no preprocessing, and the current model scales or encodes its table. Give it with "
            "its preprocessing (a pipeline), or as a Network (Model.of(...).network) that takes rows "
            "in the encoding of the current model"
        )
    return other.with_column_names(base._columns)


def _behind_scale(base: Model, W: Array) -> Array:
    """Weights over ``x`` as weights over ``s * x + t``."""
    scale = base.network.scale
    if scale is None:
        return W
    lost = (scale == 0.0) & (W != 0.0).any(axis=0)
    if lost.any():
        name = base.schema.columns[int(np.argmax(lost))].name
        raise InputError(
            f"the current model multiplies column {name!r} by 0 and the retrained model does not, so "
            f"no weight of the current first layer expresses it. {_KEEP}"
        )
    result: Array = W / np.where(scale == 0.0, 1.0, scale)
    return result


def _behind_matrix(base: Model, W: Array) -> Array:
    """Weights over ``x`` as weights over ``M (s * x + t) + c``, if there are such."""
    own = base.network.input_transform
    assert own.matrix is not None  # noqa: S101  (as was asked before)
    M = own.matrix if own.scale is None else own.matrix * own.scale
    found = np.asarray(np.linalg.lstsq(M.T, W.T, rcond=None)[0].T, dtype=np.float64)
    if np.abs(found @ M - W).max() > _EXACT * np.abs(W).max():
        raise InputError(
            "the current model has a matrix before its first layer (PCA, an embedding, sums of "
            "columns), and the first layer of the retrained model is not a function of the outputs of "
            f"that matrix. Their weights cannot be compared. {_KEEP}"
        )
    return found


def _recoded(base: Model, other: Model) -> tuple[Array, Array]:
    """Return ``A`` and ``a``: rows as the one model encodes them from rows of the other."""
    mine, theirs = base.schema, other.schema
    unknown = [name for name in theirs.by_name if name not in mine.by_name]
    if unknown:
        raise InputError(
            f"the other model takes {listing(unknown)}, which the current model does not. "
            "Compare models of the same columns, by the names of a table"
        )
    A, a = np.zeros((theirs.width, mine.width)), np.zeros(theirs.width)
    for name, feature in theirs.by_name.items():
        part, constant = _feature(mine.by_name[name], feature)
        A[theirs.span(name), mine.span(name)] = part
        a[theirs.span(name)] = constant
    return A, a


def _feature(own: AnyFeature, new: AnyFeature) -> tuple[Array, Array]:
    """Return how the columns of one feature are made from those of the current model."""
    if isinstance(own, Continuous):
        if isinstance(new, Binary) and not any(isinstance(v, str) for v in new.labels):
            low, high = (float(v) for v in new.labels)  # true or false in the other model's table
            new = Continuous(new.name, scaling=(low, high - low))
        if not isinstance(new, Continuous):
            raise InputError(
                f"column {own.name!r} is a number in the current model and has labels "
                f"({listing(new.labels)}) in the other. {_KEEP}"
            )
        if (own.offset, own.scale) == (new.offset, new.scale):
            return np.ones((1, 1)), np.zeros(1)
        factor, constant = own.scale / new.scale, (own.offset - new.offset) / new.scale
        return np.array([[factor]]), np.array([constant])
    labels = pd.Series(list(own.labels), dtype=object)
    codes, _ = own.read(labels)
    if isinstance(new, Continuous) and isinstance(own, Binary):
        labels = labels.map(lambda label: label if isinstance(label, str) else float(label))
    recoded, known = new.read(labels)
    if not known.all():
        missing = [label for label, ok in zip(own.labels, known, strict=True) if not ok]
        raise InputError(
            f"the encoder of the other model lacks {listing(missing)} of column {own.name!r}, which "
            "the current model has. Give the encoder the categories, such as "
            "OneHotEncoder(categories=...)"
        )
    return _solved(own, codes.reshape(len(labels), -1), recoded.reshape(len(labels), -1))


def _solved(own: AnyFeature, codes: Array, recoded: Array) -> tuple[Array, Array]:
    """Solve ``recoded = codes A^T + a`` over all labels."""
    if codes.shape == recoded.shape and np.array_equal(codes, recoded):
        return np.eye(codes.shape[1]), np.zeros(codes.shape[1])
    if isinstance(own, Categorical) and codes.shape[0] == codes.shape[1]:
        # One column for each label, and one of them is 1: weights go with their labels.
        return (codes.T @ recoded).T, np.zeros(recoded.shape[1])
    full = np.hstack([codes, np.ones((len(codes), 1))])
    found = np.asarray(np.linalg.lstsq(full, recoded, rcond=None)[0], dtype=np.float64)
    if np.abs(full @ found - recoded).max() > _EXACT * (1.0 + np.abs(recoded).max()):
        raise InputError(
            f"the levels of column {own.name!r} have other distances in the other model than in "
            f"the current one, and no weight of a single column expresses that. {_KEEP}"
        )
    return found[:-1].T, found[-1]
