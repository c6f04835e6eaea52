"""The experiment on a table and a model of the user.

The given model is the current network. Retrained networks have its architecture and its input transform
and are trained as those of the paper, on halves of the table. If the model encodes its table itself,
distances are over the encoded columns and its schema binds people. Otherwise columns are scaled to
[0, 1] by their range, and a column of 0 and 1 is a category.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from proplace.core.errors import InputError, NetworkError
from proplace.core.transforms import InputTransform
from proplace.experiment.archive import Trained, train_all
from proplace.experiment.data import Dataset, halves
from proplace.experiment.settings import Settings
from proplace.loaders.model import Model
from proplace.schema import Binary, Continuous, Schema
from proplace.tables.files import open_table
from proplace.tables.rows import training_rows

if TYPE_CHECKING:
    from pathlib import Path

    from proplace.core.network import Array, Network

_EPOCHS = 50


@dataclass(frozen=True)
class Own:
    """A table, a model and the column of the labels.

    Attributes
    ----------
    table, model
        CSV or Parquet file with features and labels, and the file of the model.
    label
        Column of the labels, which are those of the model. The last class is the desired one.
    delta
        Radius of the shift set. Default: calibrated on retrained networks.
    k
        Number of robust neighbours.
    """

    table: Path
    model: Path
    label: str
    delta: float | None = None
    k: int = 20

    @property
    def name(self) -> str:
        """Name of the table, and of its rows in the results."""
        return self.table.name.partition(".")[0]

    @property
    def digest(self) -> str:
        """SHA-256 of both files and the label."""
        parts = (self.table.read_bytes(), self.model.read_bytes(), self.label.encode())
        return hashlib.sha256(b"".join(hashlib.sha256(p).digest() for p in parts)).hexdigest()

    @property
    def settings(self) -> Settings:
        """Settings of the experiment."""
        return Settings(_read(self)[1].widths, _EPOCHS, self.delta, self.k)

    @property
    def data(self) -> Dataset:
        """The rows of the table in two halves."""
        return _read(self)[0]

    def train(self, seed: int) -> Trained:
        """Retrain the network on rows as its first layer receives them."""
        data, net = _read(self)
        rows = net.input_transform(data.X)
        inner = _Table(
            data.name, data.frame, data.y, data.schema, data.first, data.second, rows=rows
        )
        plain = net.with_input_transform(InputTransform())
        return train_all(inner, self.settings, seed, net=plain)

    def complete(self, nets: Trained) -> Trained:
        """Give the input transform of the model to networks from a file."""
        return nets.with_input_transform(_read(self)[1].input_transform)


@dataclass(frozen=True, eq=False)
class _Table(Dataset):
    """A data set whose rows are encoded already."""

    rows: Array

    @property
    def X(self) -> Array:  # noqa: N802
        """All rows, as the network receives them."""
        return self.rows

    @property
    def free(self) -> Schema:
        """The schema of the model."""
        return self.schema


@lru_cache(maxsize=2)
def _read(own: Own) -> tuple[Dataset, Network]:
    model = Model.of(own.model)
    net = model.network
    if net.outputs != 1:
        raise NetworkError(
            f"{own.model.name} has {net.outputs} outputs, but the experiment retrains networks with "
            "one output. Train a model of two classes with one logit, or measure your "
            "counterfactuals with proplace.experiment.metrics.evaluate",
            name="--model",
        )
    source = open_table(own.table)
    if own.label not in source.columns:
        raise InputError(
            f"{own.table.name} has no column {own.label!r}. Name the column of the labels with --label",
            name="--label",
            value=own.label,
        )
    names = [name for name in source.columns if name != own.label]
    schema = model.schema if model.has_column_names else Schema.encoded(len(names), names=names)
    frame, _ = source.read(schema)
    labels = np.concatenate([part[own.label].to_numpy() for part, _ in source.cells()])
    texts = [str(label) for label in model.classes]
    unknown = sorted({str(label) for label in labels} - set(texts))
    if unknown:
        raise InputError(
            f"column {own.label!r} has the value {unknown[0]!r}, but the classes of the model are "
            f"{', '.join(texts)}. Use the labels of the model",
            name="--label",
            value=own.label,
        )
    frame = frame.drop(columns=own.label, errors="ignore")
    known, rows, positions = training_rows(model, frame, declared=model.declared)
    y = np.array([texts.index(str(labels[i])) for i in positions], dtype=np.int64)
    first, second = halves(y)
    schema = known.schema
    if not (model.has_preprocessing or model.declared):
        rows, schema, net = _scaled(rows, schema, net)
    return _Table(own.name, frame, y, schema, first, second, rows=rows), net


def _scaled(rows: Array, schema: Schema, net: Network) -> tuple[Array, Schema, Network]:
    """Scale columns to [0, 1] by their range, as those of the paper, and the network with them."""
    low, high = rows.min(axis=0), rows.max(axis=0)
    width = np.where(high > low, high - low, 1.0)
    scaled = (rows - low) / width
    features = [
        Binary(name)
        if np.isin(column, [0.0, 1.0]).all()
        else Continuous(name, 0, 1, scaling="none")
        for name, column in zip(schema.by_name, scaled.T, strict=True)
    ]
    before = net.input_transform
    scale = np.ones_like(low) if before.scale is None else before.scale
    shift = np.zeros_like(low) if before.shift is None else before.shift
    transform = replace(before, scale=scale * width, shift=scale * low + shift)
    return scaled, Schema(features), net.with_input_transform(transform)
