"""A model from the table to the class: the network and its preprocessing."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from proplace.certification import checked_margin, required_margins
from proplace.core.errors import (
    InputError,
    ModelFileError,
    ModelMismatchError,
    ModelNotSupportedError,
    OptionError,
    ProplaceError,
    SchemaError,
    TargetError,
)
from proplace.core.files import atomic_write
from proplace.core.guarantee import Deployment, Member
from proplace.core.network import Network
from proplace.core.shifts import Shifts
from proplace.core.text import did_you_mean, listing, short
from proplace.core.transforms import InputTransform
from proplace.loaders import read_file, read_object
from proplace.loaders.cutoffs import Cutoff, Threshold
from proplace.loaders.files import Origin, check_file, read_parts
from proplace.schema import Binary, Continuous, Ordinal, Schema
from proplace.schema.values import refuse, to_python

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping, Sequence

    from proplace.certification import Margin
    from proplace.core.network import Array
    from proplace.schema.grid import Integers
    from proplace.schema.rules import AnyFeature
    from proplace.schema.values import Label


_FLAGS = ("has_preprocessing", "has_column_names", "declared", "labelled", "bare")
_FACTS = ("features", "rules", "columns", "classes", "cutoff", "earlier_encodings", *_FLAGS)
_SINGLE = 2.0**-22  # relative: each constant of a scaler in float32 is rounded by at most 2^-24


@dataclass(frozen=True, eq=False)
class Model:
    """A trained model from the table to the class.

    Make one with :meth:`of`. Functions that take a model also take its source (a fitted pipeline, a
    module, a file).

    Attributes
    ----------
    network
        The trained layers, taking rows as ``schema`` encodes them.
    schema
        The columns of the table that matter for the model, in original units, encoded as in the
        model. Rules, ranges, steps and directions can be added with :meth:`with_schema`.
    classes
        Label of each class of the network.
    has_preprocessing
        True if the model prepares the table before its layers. If not, any schema of the right width
        may encode the table.
    has_column_names
        True if the columns have names. If not, their order counts.
    origin
        Name and digest of the file, or type of the object in memory.
    declared
        True if the user described the columns (:meth:`with_schema`). If not, an explainer drafts
        ranges and readable steps for the numbers of a model that encodes its table itself.
    labelled
        True if the original model names its classes. If not, they are called 0, 1, ... until
        :meth:`with_classes` names them.
    bare
        True if it was given as a :class:`Network`, whose classes are counted as those of the current
        model.
    threshold
        The cut-off that was stated for it, None for none. The output bias of ``network`` holds it.
    earlier_encodings
        Encodings of the same layers, before columns got other names or were called true or false.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.compose import make_column_transformer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import OneHotEncoder, StandardScaler
    >>> table = pd.DataFrame({"age": [20, 30, 40, 60], "job": ["cook", "clerk", "cook", "clerk"]})
    >>> steps = make_column_transformer((StandardScaler(), ["age"]), (OneHotEncoder(), ["job"]))
    >>> pipe = make_pipeline(steps, LogisticRegression()).fit(table, ["no", "no", "yes", "yes"])
    >>> model = Model.of(pipe)
    >>> model
    Model(Network(3-1), 2 features, classes 'no', 'yes')
    >>> model.predict(table)
    array(['no', 'no', 'yes', 'yes'], dtype=object)
    """

    network: Network
    schema: Schema
    classes: tuple[Label, ...]
    has_preprocessing: bool = False
    has_column_names: bool = True
    _columns: tuple[str, ...] = ()
    _original: Callable[[pd.DataFrame], Any] | None = None
    _probabilities: Callable[[pd.DataFrame], Any] | None = None
    origin: Origin = dataclasses.field(default_factory=lambda: Origin("Network"))
    declared: bool = False
    labelled: bool = True
    bare: bool = False
    threshold: Threshold | None = None
    earlier_encodings: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: object, *, cutoff: Cutoff | None = None) -> Model:
        """Read a model from whatever holds it.

        Parameters
        ----------
        source
            A fitted scikit-learn classifier or pipeline, a torch module, a Keras model, a
            :class:`Network`, or the path of a model file.
        cutoff
            The probability from which the model gives a label, as in ``{"approved": 0.7}``. A number
            is that of label 1 of the labels 0 and 1, or of True. It needs two classes. The original
            model gives the label iff its probability of the label is at least the cut-off.

        Examples
        --------
        >>> model = Model.of(Network([([[1.0]], [0.0])]), cutoff=0.75)
        >>> model
        Model(Network(1-1), 1 features, classes 0, 1, cutoff {1: 0.75})
        >>> model.predict([[1.0], [1.2]])  # their probabilities are 0.73 and 0.77
        array([0, 1], dtype=object)
        """
        if cutoff is not None:
            model = cls.of(source)
            return model.with_threshold(Threshold.of(cutoff, model.classes))
        if isinstance(source, (str, os.PathLike)):
            path = Path(source)
            if check_file(path) == ".npz":
                return cls._saved(path)
            return dataclasses.replace(read_file(path), origin=Origin.file(path))
        if isinstance(source, Model):
            return source
        if isinstance(source, Network):
            return cls._bare(source)
        return dataclasses.replace(read_object(source), origin=Origin(type(source).__name__))

    @classmethod
    def _bare(cls, net: Network) -> Model:
        schema = Schema.encoded(net.inputs)
        return cls(
            net,
            schema,
            tuple(range(net.classes)),
            has_column_names=False,
            _columns=tuple(schema.by_name),
            labelled=False,
            bare=True,
        )

    @classmethod
    def imported(
        cls,
        network: Network,
        schema: Schema,
        classes: tuple[Label, ...] | None,
        predict: Callable[[pd.DataFrame], Any] | None,
        *,
        columns: tuple[str, ...],
        has_column_names: bool,
        probabilities: Callable[[pd.DataFrame], Any] | None = None,
    ) -> Model:
        """Return the model that a reader found.

        ``predict`` and ``probabilities`` are functions of the original model, None if it cannot run.
        ``columns`` are all columns of the table, with those that have no effect. ``classes`` is None
        for a model without labels.
        """
        plain = all(
            isinstance(f, Continuous) and (f.offset, f.scale, f.missing) == (0.0, 1.0, None)
            for f in schema.features
        )
        return cls(
            network,
            schema,
            tuple(range(network.classes)) if classes is None else classes,
            has_preprocessing=not plain or bool(network.input_transform),
            has_column_names=has_column_names,
            _columns=columns,
            _original=predict,
            _probabilities=probabilities,
            labelled=classes is not None,
        )

    @classmethod
    def _saved(cls, path: Path) -> Model:
        network, text = read_parts(path)
        origin = Origin.file(path)
        if not text:
            return dataclasses.replace(cls._bare(network), origin=origin, bare=False)
        try:
            facts = json.loads(text)
        except (ValueError, RecursionError):
            raise _damaged(origin) from None
        return cls.from_dict(network, facts, origin)

    # -- saved ---------------------------------------------------------------------------------

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to one ``.npz`` file: network, preprocessing, columns, labels, schema.

        Nothing is pickled. The file appears whole or not at all. :meth:`of` and the command line read it
        back. The original model is not in it, so answers of the copy are checked with its network alone.

        Examples
        --------
        >>> import tempfile
        >>> model = Model.of(Network([([[1.0]], [0.0])])).with_classes(["refused", "approved"])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     model.save(Path(folder) / "model.npz")
        ...     Model.load(Path(folder) / "model.npz")
        Model(Network(1-1), 1 features, classes 'refused', 'approved')
        """
        path = Path(path)
        if path.suffix != ".npz":
            raise ModelFileError(f"{path.name}: the name must end in .npz", name=path.name)
        with atomic_write(path) as file:
            self.network.write(file, json.dumps(self.to_dict(), allow_nan=False))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Model:
        """Read a model file, as :meth:`of` does with a path."""
        return cls.of(Path(path))

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the network and the origin as they can be written as JSON."""
        return {
            **self.schema.to_dict(),
            "columns": list(self._columns),
            "classes": list(self.classes),
            "cutoff": None if self.threshold is None else list(self.threshold),
            "earlier_encodings": list(self.earlier_encodings),
            **{name: getattr(self, name) for name in _FLAGS},
        }

    @classmethod
    def from_dict(cls, network: Network, facts: Mapping[str, Any], origin: Origin) -> Model:
        """Put a network and the facts of :meth:`to_dict` together."""
        if not isinstance(facts, dict) or set(facts) != set(_FACTS):
            raise _damaged(origin)
        flags = {name: facts[name] for name in _FLAGS}
        columns, classes, cutoff = facts["columns"], facts["classes"], facts["cutoff"]
        try:
            schema = Schema.from_dict(facts)
            threshold = None
            if cutoff is not None:
                number, p = cutoff
                threshold = Threshold.of({classes[number]: p}, tuple(classes))
            fits = (
                schema.width == network.inputs
                and all(isinstance(name, str) for name in columns)
                and set(schema.by_name) <= set(columns)
                and all(isinstance(label, (str, int, float)) for label in classes)
                and len(set(classes)) == len(classes) == network.classes
                and all(isinstance(flag, bool) for flag in flags.values())
                and all(isinstance(text, str) for text in facts["earlier_encodings"])
            )
        except (ProplaceError, TypeError, ValueError, LookupError) as error:
            raise _damaged(origin) from error
        if not fits:
            raise _damaged(origin)
        return cls(
            network,
            schema,
            tuple(classes),
            _columns=tuple(columns),
            origin=origin,
            threshold=threshold,
            earlier_encodings=tuple(facts["earlier_encodings"]),
            **flags,
        )

    def __repr__(self) -> str:
        classes = ", ".join(map(repr, self.classes))
        if self.cutoff is not None:
            classes += f", cutoff {self.cutoff!r}"
        return f"Model({self.network!r}, {len(self.schema.features)} features, classes {classes})"

    @property
    def cutoff(self) -> dict[Label, float] | None:
        """Label and the probability from which the model gives it, or None."""
        if self.threshold is None:
            return None
        return {self.classes[self.threshold.number]: self.threshold.p}

    # -- classes -------------------------------------------------------------------------------

    def table(self, X: pd.DataFrame | npt.ArrayLike) -> pd.DataFrame:
        """Return rows as a table with the columns of the schema.

        An array holds the columns that the source itself takes, in its order.
        """
        if isinstance(X, pd.DataFrame):
            if not (self.has_column_names or set(self.schema.by_name) <= set(X.columns)):
                raise InputError(
                    f"the {len(self._columns)} columns of the model have no names, and the "
                    f"table has {listing(X.columns)}. Give its columns in the order of the model, as "
                    "table.to_numpy(), or name them once: model.with_column_names(list(table))"
                )
            names = self._exported_names(X.columns)
            return X.rename(columns={given: own for own, given in names.items()}) if names else X
        rows = np.asarray(X, dtype=object)
        if rows.ndim == 1 and len(rows) == len(self._columns):
            rows = rows[None]
        if rows.ndim != 2 or rows.shape[1] != len(self._columns):
            raise InputError(
                f"rows must have shape (n, {len(self._columns)}) for this model "
                f"({listing(self._columns)}), not {rows.shape}"
            )
        return pd.DataFrame(rows, columns=list(self._columns)).infer_objects()

    def encode(self, X: pd.DataFrame | npt.ArrayLike) -> Array:
        """Encode a table as the original model does: rows of the network.

        Numbers may lie outside of the ranges of the schema: the model takes any. True and
        false count as 1 and 0 unless a schema describes the column.
        """
        table = self.table(X)
        return _encoded(self.schema, table if self.declared else _counted(self.schema, table))

    def predict(self, X: pd.DataFrame | npt.ArrayLike) -> npt.NDArray[Any]:
        """Class label of each row of a table in original units, by the network read here."""
        return np.array(self.classes, dtype=object)[self.network.predict(self.encode(X))]

    @property
    def has_original(self) -> bool:
        """True if the original model can be run: see :meth:`predict_original`."""
        return self._original is not None

    def predict_original(self, X: pd.DataFrame | npt.ArrayLike) -> npt.NDArray[Any] | None:
        """Class label of each row by the original model, None without it."""
        if self._original is None:
            return None
        if self.threshold is not None and self.threshold.logit:
            return self._by_cutoff(self.threshold, self.table(X))
        said = self._original(self.table(X))
        # Plain values: those of NumPy would be shown as np.str_('approved').
        return None if said is None else np.array(np.asarray(said).tolist(), dtype=object)

    def _by_cutoff(self, threshold: Threshold, table: pd.DataFrame) -> npt.NDArray[Any] | None:
        """Class label of each row by the probabilities of the source itself."""
        assert self._probabilities is not None  # noqa: S101  (with_threshold has looked)
        found = self._probabilities(table)
        if found is None:
            return None
        given = np.asarray(found)[:, threshold.number] >= threshold.p
        numbers = np.where(given, threshold.number, 1 - threshold.number)
        return np.array(self.classes, dtype=object)[numbers]

    def target(self, label: Label) -> int:
        """Return the number of a class from its label. Classes 0, 1, ... are their own labels.

        Numbers are compared by value: 1.0 and ``np.int64(1)`` are the label 1, and 1 is the label True.
        """
        given = to_python(label)
        plain = isinstance(given, (int, float, str))
        equal = [plain and known == given for known in self.classes]
        for number, known in enumerate(self.classes):
            if equal[number] and isinstance(given, bool) <= isinstance(known, bool):
                return number
        default = ", the default," if plain and given == 1 and given is not True else ""
        hint = did_you_mean(given, self.classes)
        if any(equal):  # True for a label 1
            hint = f" (did you mean {self.classes[equal.index(True)]!r}?)"
        raise TargetError(
            f"target {given!r}{default} is not a class of the model{hint}. Its classes are "
            f"{listing(self.classes)}: give the wanted one as target=...",
            name="target",
            value=label,
        )

    def class_name(self, number: int) -> str:
        """Return a class as a phrase, by its label."""
        return f"class {short(self.classes[number])}"

    # -- what the searches need ----------------------------------------------------------------

    def margins(
        self,
        shifts: Shifts,
        rows: Array,
        margin: Margin | None,
        box: tuple[Array, Array] | None = None,
    ) -> float | Array:
        """Return the required margin at encoded rows, computed for the numbers of the table.

        With ``box``, the ends of a box around each row: what covers every point of it.

        A model that is deployed in float32 also scales its inputs in float32, so its rounding is that
        of the network with the scaling in front, at the cells of the table.
        """
        return required_margins(self.member(shifts, margin=margin), rows, box)

    def member(self, shifts: Shifts, name: str = "", margin: Margin | None = None) -> Member:
        """Return the model, with its shift set, as a member of a guarantee.

        ``margin`` is a number, or ``"float32"`` for what covers the rounding of each row. None is
        ``"float32"`` for a model that is deployed in float32, else 0.
        """
        margin = checked_margin(self.network, margin)
        if margin != "float32":
            return Member(self.network, shifts, name, margin)
        return Member(self.network, shifts, name, deployment=self._deployment())

    def _deployment(self) -> Deployment:
        cutoff = 0.0
        if self.threshold is not None:
            terms = (
                self.network.layers[-1].W.shape[1] + 2
            )  # its own bias may be larger than this one
            cutoff = self.threshold.rounding + terms * 2.0**-24 * abs(self.threshold.logit)
        if not self.has_preprocessing:
            return Deployment(self.network, cutoff=cutoff)
        offset, scale = self.scaling
        own = self.network.input_transform
        s = 1.0 if own.scale is None else own.scale
        t = 0.0 if own.shift is None else own.shift
        parts = dict(own.parts) | {"scale": s / scale, "shift": t - s * offset / scale}
        return Deployment(
            self.network.with_input_transform(InputTransform(**parts)), offset, scale, cutoff
        )

    def without_original(self) -> Model:
        """Return the imported model without its original, as results save it."""
        return Model(
            self.network,
            self.schema,
            self.classes,
            has_preprocessing=self.has_preprocessing,
            _columns=self.columns or tuple(self.schema.by_name),
            origin=self.origin,
            declared=True,
            threshold=self.threshold,
        )

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the table, in the order in which the source takes them."""
        return self._columns

    @property
    def encoding(self) -> str:
        """SHA-256 of the encoding of a table, empty for a model without preprocessing."""
        if not self.has_preprocessing:
            return ""
        parts = json.dumps([_encoding(feature) for feature in self.schema.features])
        return hashlib.sha256(parts.encode()).hexdigest()

    def _encodings(self) -> tuple[str, ...]:
        """Return the encodings so far, none for a model without preprocessing."""
        found = dict.fromkeys((*self.earlier_encodings, self.encoding))
        return tuple(found) if self.encoding else ()

    @property
    def coordinates(self) -> str:
        """Encoding and cut-off of the models that a shift set belongs to."""
        return self.encoding + ("" if self.threshold is None else self.threshold.tag)

    @property
    def earlier_coordinates(self) -> tuple[str, ...]:
        """Coordinates before columns got other names or became true or false."""
        tag = "" if self.threshold is None else self.threshold.tag
        return tuple(encoding + tag for encoding in self.earlier_encodings)

    @property
    def scaling(self) -> tuple[Array, Array]:
        """Offset and scale of each encoded column."""
        pairs = [
            (f.offset, f.scale) if isinstance(f, (Continuous, Ordinal)) else (0.0, 1.0)
            for f, span in zip(self.schema.features, self.schema.spans, strict=True)
            for _ in range(span.start, span.stop)
        ]
        offset, scale = np.array(pairs).T
        return offset, scale

    def __getstate__(self) -> dict[str, Any]:
        # workers search with the imported network alone
        return {**self.__dict__, "_original": None, "_probabilities": None}

    # -- comparison with the original model ---------------------------------------------------------

    def check_agreement(self, X: pd.DataFrame, *, what: str = "training") -> None:
        """Raise unless the original model gives each row the class that is read here.

        Rows on a boundary between classes, where rounding alone decides, are left out.
        """
        said = self.predict_original(X)
        if said is None or not len(X):
            return
        rows = self.encode(X)
        apart = self.disagreements(rows, said)
        if len(apart):
            row = int(apart[0])
            ours = self.classes[int(self.network.predict(rows[row])[0])]
            raise ModelMismatchError(
                f"{what} row {row}: the original model predicts {said[row]!r}, the imported network "
                f"{ours!r} ({len(apart)} of {len(X)} rows differ). The model was changed after the "
                "import, or computes something that its layers do not show. Read it again with "
                "Model.of, or save it in another format and compare"
            )

    def check_rows(self, rows: Array, *, what: str = "training") -> None:
        """Raise unless the original model gives encoded rows the classes that are read here."""
        if self.has_original:
            self.check_agreement(self.schema.decode(rows), what=what)

    def disagreements(self, rows: Array, labels: npt.NDArray[Any]) -> Integers:
        """Return the encoded rows that clearly get another class than their label.

        A row on a boundary between classes, where rounding decides, is not among them.
        """
        found = np.array(self.classes, dtype=object)[self.network.predict(rows)]
        apart = np.flatnonzero(found != labels)
        if not len(apart):
            return apart
        logits = self.network.logits(rows[apart])
        top = np.sort(logits, axis=1)
        near = np.abs(logits[:, 0]) if self.network.outputs == 1 else top[:, -1] - top[:, -2]
        return apart[near > self.rounding(rows[apart])]

    def rounding(self, rows: Array) -> Array:
        """Bound on what rounding can do to the logits of the source."""
        shifts = Shifts.of(self.network, 0.0)
        result: Array = np.maximum(np.asarray(self.margins(shifts, rows, "float32")), 1e-9)
        return result

    # -- what the user adds --------------------------------------------------------------------

    def with_threshold(self, threshold: Threshold) -> Model:
        """Return the same model with a cut-off (see :meth:`of`)."""
        if self.threshold is not None:
            if self.threshold == threshold:
                return self
            raise OptionError(
                f"the model has the cut-off {self.cutoff} already. Read it again from its source: "
                "Model.of(source, cutoff=...)",
                name="cutoff",
                value={self.classes[threshold.number]: threshold.p},
            )
        if self._original is not None and self._probabilities is None and threshold.logit:
            raise ModelNotSupportedError(
                f"{self.origin.name} gives labels and no probabilities, which a cut-off needs. Export "
                "it with its probabilities, or give the pipeline or module itself",
                name="cutoff",
            )
        return dataclasses.replace(
            self, network=threshold.network(self.network), threshold=threshold
        )

    def with_schema(self, schema: Schema, *, scaled_twice: bool = False) -> Model:
        """Return the same model with the user's ranges, steps, directions, labels and rules.

        A model with preprocessing keeps its encoding of each column, and columns are matched by name.
        Any other model takes the schema as it is. But a network that scales its own inputs takes no
        schema that scales them too, unless it was trained on such inputs (``scaled_twice``).
        """
        if not self.has_preprocessing:
            return self._encoded_by(schema, scaled_twice=scaled_twice)
        if names := self._exported_names(schema.by_name):
            return self._with_names(names).with_schema(schema)
        if not self.has_column_names:
            return self.with_column_names(
                [feature.name for feature in schema.features]
            ).with_schema(schema)
        mine, theirs = self.schema.by_name, schema.by_name
        problems = [
            f"the model takes a column {name!r}, which the schema does not describe"
            f"{did_you_mean(name, theirs)}"
            for name in mine
            if name not in theirs
        ] + [
            f"the schema describes {name!r}, which the model does not take"
            f"{did_you_mean(name, mine)}"
            for name in theirs
            if name not in mine
        ]
        if problems:
            raise SchemaError("; ".join(problems))
        features = [_merged(feature, theirs[name]) for name, feature in mine.items()]
        merged = Schema(features, rules=schema.rules)
        net = self._seen_through(merged)
        return dataclasses.replace(
            self,
            schema=merged,
            network=net,
            declared=True,
            earlier_encodings=self._encodings(),
        )

    def with_binaries(self, names: Container[str]) -> Model:
        """Return the same model, whose numbers with these names are true or false in the table."""
        features = [
            Binary(
                each.name,
                (False, True),
                immutable=each.immutable,
                direction=each.direction,
                label=each.label,
            )
            if each.name in names and isinstance(each, Continuous)
            else each
            for each in self.schema.features
        ]
        if features == list(self.schema.features):
            return self
        found = self.with_schema(Schema(features, rules=self.schema.rules))
        return dataclasses.replace(found, declared=self.declared)

    def _seen_through(self, schema: Schema) -> Network:
        """Return the network on the rows of a schema that makes some of its numbers yes or no.

        Such a column is 0 or 1 in place of the scaled number. If that number was 0 or 1 itself, the
        network stays as it is.
        """
        net = self.network
        scale = np.ones(net.inputs) if net.scale is None else net.scale.copy()
        shift = np.zeros(net.inputs) if net.shift is None else net.shift.copy()
        before = np.array([scale, shift])
        for own, given in zip(self.schema.features, schema.features, strict=True):
            if isinstance(own, Continuous) and isinstance(given, Binary):
                j = self.schema.span(own.name).start
                low, high = (float(v) for v in given.labels)
                shift[j] += scale[j] * (low - own.offset) / own.scale
                scale[j] *= (high - low) / own.scale
        if np.array_equal(before, [scale, shift]):
            return net
        parts = dict(net.input_transform.parts) | {"scale": scale, "shift": shift}
        return net.with_input_transform(InputTransform(**parts))

    def _encoded_by(self, schema: Schema, *, scaled_twice: bool) -> Model:
        """Return a model whose rows are those that a schema encodes."""
        schema.check_settled()
        if schema.width != self.network.inputs:
            raise SchemaError(
                f"the schema encodes to {schema.width} columns but the network takes "
                f"{self.network.inputs}",
                name="schema",
            )
        own = self.network.input_transform
        scaled = [
            f.name
            for f in schema.features
            if isinstance(f, (Continuous, Ordinal)) and (f.offset, f.scale) != (0.0, 1.0)
        ]
        if own and scaled and not scaled_twice:
            raise SchemaError(
                f"the network scales its own inputs, and the schema scales {scaled[0]!r} too. Give "
                "the whole model in place of the network, or scaling='none' for columns that the "
                "network takes unscaled. If it was trained on inputs that were scaled before: "
                "Model.of(net).with_schema(schema, scaled_twice=True)",
                name=scaled[0],
            )
        columns = list(self._columns)

        def change(table: pd.DataFrame) -> pd.DataFrame:
            return pd.DataFrame(_encoded(schema, table), columns=columns)

        return dataclasses.replace(
            self,
            schema=schema,
            has_column_names=True,
            declared=True,
            _columns=tuple(schema.by_name),
            _original=_behind(change, self._original),
            _probabilities=_behind(change, self._probabilities),
        )

    def with_classes(self, labels: Sequence[Label]) -> Model:
        """Return the same model with the labels of its classes, in the order of the network.

        For models that do not name their classes (torch, Keras, a :class:`Network`).

        Examples
        --------
        >>> net = Network([([[1.0]], [0.0])])
        >>> Model.of(net).with_classes(["refused", "approved"]).predict([[2.0]])
        array(['approved'], dtype=object)
        """
        given = tuple(map(to_python, labels))
        if self.labelled and given != self.classes:
            raise TargetError(
                f"the model names its classes itself: {listing(self.classes)}. They are not "
                f"{listing(given)}",
                name="classes",
            )
        if len(given) != len(self.classes) or len(set(given)) != len(given):
            raise TargetError(
                f"the model has {len(self.classes)} classes. Give as many labels, each once, not "
                f"{listing(given)}",
                name="classes",
            )
        ask = self._original

        def original(table: pd.DataFrame) -> Any:
            said = None if ask is None else ask(table)
            return None if said is None else [given[int(number)] for number in np.asarray(said)]

        known = None if ask is None else original if given != self.classes else ask
        return dataclasses.replace(self, classes=given, labelled=True, _original=known)

    def with_column_names(self, names: Sequence[str]) -> Model:
        """Return a model without names of its own under the names of its columns, in order."""
        if len(names) != len(self._columns):
            raise SchemaError(
                f"{len(names)} columns are named, the model takes {len(self._columns)}, which have no "
                "names of their own. Name each, in the model's order, and nothing else"
            )
        return self._with_names(dict(zip(self._columns, names, strict=True)))

    def with_names_of_table(self, names: Iterable[str]) -> Model:
        """Return the model with the column names of a table, if an exporter has changed them.

        skl2onnx writes ``monthly_income`` for ``monthly income`` and ``monthly-income``.
        """
        found = self._exported_names(names)
        return self._with_names(found) if found else self

    def _exported_names(self, names: Iterable[str]) -> dict[str, str]:
        """Name in a table of each column whose own name an exporter has changed."""
        known = {name for name in names if isinstance(name, str)}
        gone = set(self.schema.by_name) - known
        if not gone or not self.has_column_names:
            return {}
        theirs: dict[str, list[str]] = {}
        for name in known - set(self._columns):
            theirs.setdefault(_exported(name), []).append(name)
        mine: dict[str, list[str]] = {}
        for name in gone:
            mine.setdefault(_exported(name), []).append(name)
        pairs = [(mine[written], theirs[written]) for written in mine.keys() & theirs.keys()]
        for own, given in pairs:
            alike = sorted(own if len(own) > 1 else given)
            if len(alike) > 1:
                raise SchemaError(
                    f"Exporters write the columns {listing(alike)} alike. State which is which with "
                    "Model.of(...).with_column_names([...]), the names of the table in the order of the "
                    f"model, which has {list(self._columns)}.",
                    name=alike[0],
                )
        return {own[0]: given[0] for own, given in pairs}

    def _with_names(self, names: Mapping[str, str]) -> Model:
        new = {name: names.get(name, name) for name in self._columns}
        features = [dataclasses.replace(f, name=new[f.name]) for f in self.schema.features]
        back = {name: old for old, name in new.items()}

        def change(table: pd.DataFrame) -> pd.DataFrame:
            return table.rename(columns=back)

        return dataclasses.replace(
            self,
            schema=Schema(features),
            earlier_encodings=self._encodings(),
            _columns=tuple(new.values()),
            _original=_behind(change, self._original),
            _probabilities=_behind(change, self._probabilities),
            has_column_names=True,
        )


def _damaged(origin: Origin) -> ModelFileError:
    return ModelFileError(
        f"{origin.name}: the description of the model is damaged. Save the model again with Model.save",
        name=origin.name,
    )


def _behind(
    change: Callable[[pd.DataFrame], pd.DataFrame], ask: Callable[[pd.DataFrame], Any] | None
) -> Callable[[pd.DataFrame], Any] | None:
    """Return a function of the original model that takes a changed table, or None without it."""
    return None if ask is None else lambda table: ask(change(table))


def _exported(name: str) -> str:
    """Return how skl2onnx writes the name of a column.

    >>> _exported("monthly income"), _exported("2nd-home")
    ('monthly_income', '_2nd_home')
    """
    word = re.sub(r"[^\w+]", "_", name)
    return f"_{word}" if re.match("[0-9]", word) else word


def _counted(schema: Schema, table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose columns of true and false hold 1 and 0, where the model takes numbers."""
    names = [
        feature.name
        for feature in schema.features
        if isinstance(feature, Continuous)
        and feature.name in table.columns
        and pd.api.types.is_bool_dtype(table[feature.name].dropna().infer_objects().dtype)
    ]
    cells = {name: table[name].astype("boolean").astype("Float64") for name in names}
    return table.assign(**cells) if names else table


def _encoded(schema: Schema, table: pd.DataFrame) -> Array:
    """Encode people, or raise at the first that cannot be."""
    rows, problems = schema.encode_people(table)
    refuse(problems)
    return rows


def _encoding(feature: AnyFeature) -> list[Any]:
    """Return the facts that decide how the cells of a feature are encoded."""
    if isinstance(feature, Binary) and not any(isinstance(v, str) for v in feature.labels):
        low, high = (float(value) for value in feature.labels)
        return [feature.name, low, high - low]
    if isinstance(feature, Continuous):
        return [feature.name, feature.offset, feature.scale]
    labels = [str(label) for label in feature.labels]
    if isinstance(feature, Ordinal):
        return [feature.name, labels, list(feature.numbers), feature.offset, feature.scale]
    return [feature.name, labels, getattr(feature, "first", None)]


def _merged(own: AnyFeature, given: AnyFeature) -> AnyFeature:
    """Return the model's encoding with everything else as the user gave it."""
    if isinstance(own, Continuous) and isinstance(given, (Binary, Ordinal)):
        return _stepped(own, given)
    if isinstance(own, Continuous) != isinstance(given, Continuous):
        raise SchemaError(
            f"feature {own.name!r}: the model takes {_kind(own)}, the schema describes {_kind(given)}"
        )
    if isinstance(own, Continuous) and isinstance(given, Continuous):
        _check_scaling(own, given)
        if not _in_range(given, own.missing):
            raise SchemaError(
                f"feature {own.name!r}: the model imputes {own.missing!r}, which lies "
                f"outside of its range ({given.lower!r} to {given.upper!r}). Widen the range",
                name=own.name,
            )
        return dataclasses.replace(
            given, scaling=own.scaling, default_scaling=None, missing=own.missing
        )
    assert not isinstance(own, Continuous)  # noqa: S101  (both are labels)
    assert not isinstance(given, Continuous)  # noqa: S101
    if set(own.labels) != set(given.labels):
        raise SchemaError(
            f"feature {own.name!r}: the labels of the model are {listing(own.labels)}, and those of "
            f"the schema {listing(given.labels)}. They must be the same"
        )
    if isinstance(given, Ordinal) and not isinstance(own, Ordinal):
        raise SchemaError(
            f"feature {own.name!r}: the model takes categories without an order. Describe it as "
            "Categorical"
        )
    named: dict[str, Any] = {"immutable": given.immutable, "label": given.label}
    if isinstance(own, Binary):  # false and true equal 0 and 1, but files spell them differently
        spelt = {label: label for label in given.labels}
        named["values"] = tuple(spelt[label] for label in own.labels)
    if isinstance(own, Ordinal) and isinstance(given, Ordinal):
        if tuple(own.labels) != tuple(given.labels):
            raise SchemaError(
                f"feature {own.name!r}: the model has the levels in the order {listing(own.labels)}"
            )
        for name in ("direction", "max_increase", "max_decrease", "unit"):
            named[name] = getattr(given, name)
    if isinstance(given, Binary) and given.direction is not None:
        if not isinstance(own, Binary):
            raise SchemaError(
                f"feature {own.name!r}: the model has a column for each of its two values, so "
                f"direction={given.direction!r} cannot be kept. Write an IfThen rule instead"
            )
        same = tuple(own.values) == tuple(given.values)
        other = "decreasing" if given.direction == "increasing" else "increasing"
        named["direction"] = given.direction if same else other
    return dataclasses.replace(own, **named)


def _in_range(feature: Continuous, missing: Label | None) -> bool:
    """Return True if the value of a missing cell lies in the range of a number."""
    return missing is None or bool(feature.read(pd.Series([missing]))[1][0])


def _stepped(own: Continuous, given: Binary | Ordinal) -> AnyFeature:
    """Return a number of the model with the few values of the user."""
    numbers = given.labels if isinstance(given, Binary) else given.numbers
    if any(isinstance(v, str) for v in numbers):
        raise SchemaError(
            f"feature {own.name!r}: the model takes {_kind(own)}, the schema describes {_kind(given)}"
        )
    if own.missing is not None and own.missing not in given.labels:
        raise SchemaError(
            f"feature {own.name!r}: the model imputes {own.missing!r}, which is not one "
            f"of {listing(given.labels)}. Describe it as Continuous",
            name=own.name,
        )
    if isinstance(given, Ordinal):
        scaling = (own.offset, own.scale)
        return dataclasses.replace(given, scaling=scaling, missing=own.missing)
    return dataclasses.replace(given, missing=own.missing)


def _kind(feature: AnyFeature) -> str:
    return "a number" if isinstance(feature, Continuous) else f"labels ({listing(feature.labels)})"


def _check_scaling(own: Continuous, given: Continuous) -> None:
    """Raise if a schema scales a number otherwise than the model, whose own scaling is kept.

    The same scaler in float32 (an exported file) and in float64 (the pipeline itself) differs by
    rounding. A schema that was drafted from one of them fits the other.
    """
    a, b = (given.offset, given.scale), (own.offset, own.scale)
    near = all(abs(v - w) <= _SINGLE * abs(w) for v, w in zip(a, b, strict=True))
    if given.scaling is None or near:
        return
    raise SchemaError(
        f"feature {own.name!r}: the model scales its own inputs, and the schema scales them too "
        f"(scaling={given.scaling!r}). Leave scaling out",
        name=own.name,
    )
