"""Ledgers for tests of audits, whose promises are written down as they are wanted."""

from __future__ import annotations

import json
import zlib

import numpy as np

import proplace as pp
from proplace.core.model_set import ModelSet
from proplace.explain.results import Setting
from proplace.promises.chain import canonical
from proplace.promises.issuing import Draft
from proplace.promises.recording import append_promise
from proplace.promises.terms import terms_documents


def setting_of(model, shifts, others=()):
    """What promises about a model and a box of networks are about."""
    first = ModelSet(model.network, shifts, "the model in use")
    return Setting(
        model.network,
        shifts,
        model.schema,
        None,
        model.classes,
        (first, *others),
        encoding=model.encoding,
    )


def write(ledger, setting, answers, points, target=1, *, box=None, expires=None):
    """Write promises as they are: nothing is asked of them. Returns their numbers."""
    documents = terms_documents(setting, target, None)
    numbers = []
    with ledger._database.write(None) as writer:
        writer.keep(documents)
        for n, (answer, point) in enumerate(zip(answers, points, strict=True)):
            low, high = (None, None) if box is None else (end[n].tobytes() for end in box)
            facts = {
                "original": answer,
                "answer": answer,
                "sentence": f"Be number {n}.",
                "index": n,
            }
            draft = Draft(
                f"person {n}",
                canonical(facts),
                np.asarray(point, dtype="<f8").tobytes(),
                low,
                high,
                zlib.compress(b"{}"),
                documents[-1].digest,
            )
            numbers.append(append_promise(writer, draft, expires))
    return numbers


def plain(net):
    """A bare network as a model whose columns are x1, x2, ..."""
    return pp.Model.of(net)


def answers_of(model, rows):
    """Rows of a bare network as tables hold them."""
    return [dict(zip(model.schema.by_name, map(float, row), strict=True)) for row in rows]


def promise_rows(ledger, net, shifts, rows, target=1, *, box=None, others=()):
    """Promise rows of a bare network."""
    model = plain(net)
    setting = setting_of(model, shifts, others)
    return write(ledger, setting, answers_of(model, rows), rows, target, box=box)


def verdicts(audit):
    """Verdicts by the number of the promise."""
    return audit.to_frame()["verdict"].to_dict()


def stored(ledger):
    """The rows of the table of verdicts."""
    with ledger._database.read() as connection:
        return [tuple(row) for row in connection.exec_driver_sql("SELECT * FROM verdicts")]


def last(ledger):
    """Facts of the last entry."""
    return json.loads(ledger.history()[-1].body)
