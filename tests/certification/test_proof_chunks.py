"""Certificates of a table that is decided in several parts."""

from __future__ import annotations

import numpy as np

import proplace as pp
from oracles import random_case
from proplace.certification import api


def test_each_certificate_is_that_of_its_row(monkeypatch):
    case = random_case(np.random.default_rng(5), 2, rows=8)
    whole = pp.certify(case.net, case.X, 0.01, case.target, certificates=True)
    monkeypatch.setattr(api, "_CHUNK_FLOATS", 1)
    assert len(list(api._chunks(case.net, len(case.X)))) == len(case.X)
    report = pp.certify(case.net, case.X, 0.01, case.target, certificates=True)
    assert len(report.certificates) == len(case.X)
    for i, (x, certificate) in enumerate(zip(case.X, report.certificates, strict=True)):
        assert certificate.facts["input"] == x.tolist()
        assert certificate.check(case.net).accepted
        assert (certificate.verdict == "robust") == report.robust[i] == whole.robust[i]
    assert report.certificates[-1].text == report.certificates[len(case.X) - 1].text
