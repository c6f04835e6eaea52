"""The terms of promises: model, guarantee and request, stored as documents in the ledger.

The SHA-256 of its content is the name of a document. Networks and shift sets are ``.npz`` files of
:meth:`proplace.Network.save` and :meth:`proplace.Shifts.save`. Models and terms are JSON with the names
of these files. The promises of one batch share their terms.
"""

from __future__ import annotations

import io
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from proplace.certification import canonical
from proplace.core.errors import DeltaError, LedgerError, ProplaceError, TamperedError
from proplace.core.guarantee import Guarantee
from proplace.core.network import Network
from proplace.core.request import Request
from proplace.core.shifts import Shifts
from proplace.ledger import tables
from proplace.ledger.chain import sha256
from proplace.ledger.tables import sa
from proplace.loaders.align import one_cutoff
from proplace.loaders.cutoffs import Threshold
from proplace.loaders.files import Origin
from proplace.loaders.model import Model
from proplace.schema import Schema

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from proplace.core.network import Array, Layer
    from proplace.explain.record import Provenance
    from proplace.explain.results import Setting
    from proplace.schema.values import Label


class Document(NamedTuple):
    """A document that entries of the ledger name."""

    kind: str
    content: bytes

    @property
    def digest(self) -> str:
        """SHA-256 of the content, which is its name."""
        return sha256(self.content)

    @classmethod
    def of(cls, kind: str, facts: Mapping[str, Any]) -> Document:
        """Return facts as a JSON document."""
        return cls(kind, canonical(facts).encode())


def file_document(thing: Network | Shifts) -> Document:
    """Return the file of a network or a shift set."""
    buffer = io.BytesIO()
    thing.write(buffer)
    return Document("network" if isinstance(thing, Network) else "shifts", buffer.getvalue())


def model_documents(model: Model) -> list[Document]:
    """Return the documents of a model: its network, then the model."""
    network = file_document(model.network)
    facts: dict[str, Any] = {
        "network": network.digest,
        **model.schema.to_dict(),
        "classes": list(model.classes),
        "encoding": model.encoding,
        "name": model.origin.name,
        "file": model.origin.digest,
    }
    if model.columns != tuple(
        model.schema.by_name
    ):  # the original model takes them in another order
        facts["columns"] = list(model.columns)
    if model.threshold is not None and model.threshold.logit:
        facts["cutoff"] = list(model.threshold)
    return [network, Document.of("model", facts)]


@dataclass(frozen=True, eq=False)
class Terms:
    """The terms of promises.

    Attributes
    ----------
    digest
        Name of the terms in the ledger.
    model
        Current model of that time, without the original model.
    model_digest
        Name of the model in the ledger.
    guarantee
        Networks for which the promises are proved, with the tolerance.
    request
        Request of the counterfactuals.
    """

    digest: str
    model: Model
    model_digest: str
    guarantee: Guarantee
    request: Request

    @property
    def label(self) -> Label:
        """Label of the promised class."""
        return self.model.classes[self.request.target]


def terms_documents(setting: Setting, target: int, provenance: Provenance | None) -> list[Document]:
    """Return the documents of the promises of a run; the terms come last."""
    documents = model_documents(setting.model)
    model = documents[-1].digest

    def kept(thing: Network | Shifts) -> str:
        documents.append(file_document(thing))
        return documents[-1].digest

    facts = {
        "model": model,
        "guarantee": setting.guarantee.to_dict(kept, kept),
        "request": (Request(target) if provenance is None else provenance.request).to_dict(),
        "provenance": None if provenance is None else _undated(provenance),
    }
    return [*documents, Document.of("terms", facts)]


class Archive:
    """The documents of a ledger, each read once through one connection."""

    def __init__(self, connection: sa.Connection) -> None:
        self._connection = connection
        self._terms: dict[str, Terms] = {}
        self._networks: dict[str, Network] = {}

    def terms(self, digest: str) -> Terms:
        """Return terms by their name."""
        if digest not in self._terms:
            facts = self._facts("terms", digest)
            model = self.model(facts["model"])
            request = Request.from_dict(facts["request"])
            tolerance = model.schema.encode_tolerance(request.misses)
            guarantee = Guarantee.from_dict(
                facts["guarantee"], self.network, self._shifts, tolerance
            )
            self._terms[digest] = Terms(digest, model, facts["model"], guarantee, request)
        return self._terms[digest]

    def model(self, digest: str) -> Model:
        """Return a model by its name."""
        facts = self._facts("model", digest)
        schema = Schema.from_dict(facts)
        return Model(
            self.network(facts["network"]),
            schema,
            tuple(facts["classes"]),
            has_preprocessing=bool(facts["encoding"]),
            _columns=tuple(facts.get("columns") or schema.by_name),
            origin=Origin(facts["name"], facts["file"]),
            declared=True,
            threshold=Threshold(*facts["cutoff"]) if "cutoff" in facts else None,
        )

    def network(self, digest: str) -> Network:
        """Return a network by its name."""
        if digest not in self._networks:
            self._networks[digest] = _read(Network.load, self._content("network", digest))
        return self._networks[digest]

    def _shifts(self, digest: str) -> Shifts:
        shifts: Shifts = _read(Shifts.load, self._content("shifts", digest))
        return shifts

    def _facts(self, kind: str, digest: str) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self._content(kind, digest))
        return facts

    def _content(self, kind: str, digest: str) -> bytes:
        """Return the content of a document, or raise if it does not match its name."""
        table = tables.documents
        found = self._connection.execute(
            sa.select(table.c.content).where(table.c.digest == digest, table.c.kind == kind)
        ).scalar()
        if found is None or sha256(found) != digest:
            raise TamperedError(
                f"the {kind} {digest[:12]}... is missing from the ledger, or was changed. Restore a "
                "backup, after ledger.verify() has listed what else was changed"
            )
        return bytes(found)


def _read(load: Any, content: bytes) -> Any:
    """Load a file from its content."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "document.npz"
        path.write_bytes(content)
        try:
            return load(path)
        except ProplaceError as error:
            raise LedgerError(f"a document of the ledger cannot be read ({error})") from None


def _undated(provenance: Provenance) -> dict[str, Any]:
    """Return the provenance without its date, so that runs of two days share their terms."""
    facts = provenance.to_dict()
    del facts["date"], facts["request"]  # the terms store the request
    return facts


# -- the networks for which all promises are proved ------------------------------------------------


def common_shifts(model: Model, terms: Sequence[Terms]) -> Shifts:
    """Return the intersection of the promised shift sets, for a model with the same encoding.

    The intersection of several sets is made a little smaller, so that it lies in each of them despite
    rounding.
    """
    if not terms:
        raise LedgerError("no promise is open, so there is no shift set to stay in. Give a delta")
    boxes: dict[str, Shifts] = {}
    for one in terms:
        # Training within the set takes the cut-off from it.
        encoding = (
            model.encoding
            if model.has_column_names or model.has_preprocessing
            else one.model.encoding
        )
        if encoding != one.model.encoding:
            raise DeltaError(
                "the promised model scales or encodes its table differently, so this one cannot stay in "
                "its shift set. Retrain it with the same scalers and encoders, or use repair"
            )
        shifts = one.guarantee.current.shifts
        boxes[f"{shifts.digest} {shifts.trained_radii}"] = shifts.assume_encoding_of(one.model)
    one_cutoff([one.model for one in terms])
    first, *others = boxes.values()
    if not others:
        return first
    found = first
    for other in others:
        found = found.intersect(other)
    low, high = ([*net.layers] for net in (found.low, found.high))
    pairs = [_inward(a, b) for a, b in zip(low, high, strict=True)]
    nets = [
        Network(layers, **found.input_transform.parts, precision="float64", folds=None)
        for layers in zip(*pairs, strict=True)
    ]
    return Shifts(*nets, description=found.description, encoding=found.encoding)


def _inward(
    low: Layer, high: Layer
) -> tuple[tuple[Array, Array | None], tuple[Array, Array | None]]:
    """Move the ends of a layer two floats towards each other, if the interval is wide enough."""
    (W_low, W_high), (b_low, b_high) = _closer(low.W, high.W), _closer(low.bias, high.bias)
    none = low.b is None
    return (W_low, None if none else b_low), (W_high, None if none else b_high)


def _closer(low: Array, high: Array) -> tuple[Array, Array]:
    a, b = low, high
    for _ in range(2):
        a, b = np.nextafter(a, np.inf), np.nextafter(b, -np.inf)
    good = a <= b
    if (~good & (low < high)).any():
        raise DeltaError("the promised shift sets have almost no network in common. Use repair")
    return np.where(good, a, low), np.where(good, b, high)
