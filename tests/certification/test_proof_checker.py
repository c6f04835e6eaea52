"""The checker alone: what it imports, and that no file whatever makes it crash, hang or err."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import exactly
import proplace as pp
from oracles import accepted_rows
from proplace.certification import checker, proof

NET, X = accepted_rows(5, (3, 4, 4, 1), 30)
REPORT = pp.certify(NET, X, 0.05, certificates=True)
ROBUST = REPORT.certificates[int(np.flatnonzero(REPORT.robust)[0])]
BROKEN = REPORT.certificates[int(np.flatnonzero(~REPORT.robust)[0])]
PARAMETERS = proof.parameters(NET)


def run_alone(*arguments):
    return subprocess.run(
        [sys.executable, "-S", "-I", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_checker_runs_alone(tmp_path):
    """Without site-packages, without the package: a copy of one file is enough."""
    alone = tmp_path / "alone.py"
    alone.write_text(Path(checker.__file__).read_text())
    scaled = pp.Network(
        [(layer.W, layer.b if i else None) for i, layer in enumerate(NET.layers)],
        scale=[2.0, 1.0, 0.5],
        shift=[0.1, 0.0, -0.1],
    )
    for net in (NET, scaled):
        net.save(tmp_path / "net.npz")
        report = pp.certify(net, X[:3], 0.05, certificates=True)
        for certificate in report.certificates:
            certificate.save(tmp_path / "proof.json")
            done = run_alone(alone, tmp_path / "proof.json", tmp_path / "net.npz")
            assert (done.returncode, done.stderr) == (0, "")
            assert done.stdout.startswith(f"accepted: {certificate.verdict}")
    ROBUST.save(tmp_path / "proof.json")
    done = run_alone(alone, tmp_path / "proof.json", tmp_path / "net.npz")
    assert done.returncode == 1
    assert done.stdout.startswith("rejected: the certificate speaks of another network")


def test_the_checker_imports_the_standard_library_only():
    code = (
        "import sys, runpy; before = set(sys.modules);"
        f"runpy.run_path({checker.__file__!r}, run_name='checker');"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    done = run_alone("-c", code)
    assert done.stdout.strip() == "[]", done.stderr


def test_the_checker_can_be_read_in_one_sitting():
    assert len(Path(checker.__file__).read_text().splitlines()) < 400


def test_the_digest_is_documented_bytes():
    """The encoding of docs/certificates.md, written once more."""
    import hashlib

    text = b""
    for i, layer in enumerate(NET.layers):
        text += (
            f"W{i} {layer.W.shape[0]} {layer.W.shape[1]}\n".encode()
            + layer.W.astype("<f8").tobytes()
        )
        text += f"b{i} {len(layer.b)}\n".encode() + layer.b.astype("<f8").tobytes()
    assert checker.digest(PARAMETERS) == hashlib.sha256(text).hexdigest()
    changed = [(layer.W, layer.b) for layer in NET.layers]
    without = pp.Network([*changed[:-1], (changed[-1][0], None)])
    zero = pp.Network([*changed[:-1], (changed[-1][0], np.zeros(1))])
    nets = [
        NET,
        without,
        zero,
        pp.Network(changed, scale=np.ones(3)),
        pp.Network(changed, shift=np.ones(3)),
    ]
    assert len({proof.digest(net) for net in nets}) == len(nets)


def test_large_files_and_deep_ones_are_refused():
    huge = b'{"format": "' + b"x" * checker.MOST_BYTES + b'"}'
    assert f"larger than {checker.MOST_BYTES} bytes" in checker.check(huge, PARAMETERS).reason
    for text in ("[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000):
        assert not checker.check(text, PARAMETERS).accepted


def test_a_tree_that_would_take_hours_is_refused(monkeypatch):
    monkeypatch.setattr(checker, "MOST_WORK", 1000)
    assert "too long" in checker.check(ROBUST.text, PARAMETERS).reason


@pytest.mark.parametrize(
    "number", ["NaN", "Infinity", "-Infinity", "1e400", "-1e999", "9" * 400, "9" * 5000, "true", "null",
               '"0x1p3"', '"1"', "[1]", "{}", "1e308", "-1e308", "5e-324", "1e-400", "-0.0"],
)  # fmt: skip
def test_odd_numbers_neither_crash_nor_prove_falsehoods(number):
    rng = np.random.default_rng(0)
    for certificate in (ROBUST, BROKEN):
        for name in certificate.facts:
            for deep in (False, True):
                facts = certificate.facts
                where, key = facts, name
                while deep and isinstance(where[key], list) and where[key]:
                    where, key = where[key], 0
                where[key] = "@"
                text = json.dumps(facts).replace('"@"', number)
                verdict = checker.check(text, PARAMETERS)
                if verdict.accepted:
                    assert exactly.is_true(NET, json.loads(text), rng)


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 5),
    st.integers(),
    st.floats(),
    st.floats(-2.0, 2.0),
    st.text(max_size=5),
    st.sampled_from(["robust", "not robust", checker.FORMAT]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.sampled_from([*ROBUST.facts, "gamma", "W", "b"]), inner, max_size=4),
    ),
    max_leaves=12,
)


@settings(
    max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(st.sampled_from([ROBUST, BROKEN]), st.dictionaries(st.sampled_from(sorted({*ROBUST.facts, *BROKEN.facts})), values, min_size=1, max_size=3))  # fmt: skip
def test_fields_of_any_kind(certificate, new):
    text = json.dumps({**certificate.facts, **new})
    verdict = checker.check(text, PARAMETERS)
    assert isinstance(verdict.accepted, bool)
    if verdict.accepted:
        assert exactly.is_true(NET, json.loads(text), np.random.default_rng(0))


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200), values.map(json.dumps)))
def test_text_of_any_kind(text):
    assert not checker.check(text, PARAMETERS).accepted


@settings(max_examples=300, deadline=None, derandomize=True)
@given(st.data())
def test_damaged_files(data):
    text = bytearray(data.draw(st.sampled_from([ROBUST, BROKEN])).text.encode())
    for _ in range(data.draw(st.integers(1, 3))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(
            st.sampled_from(b'0123456789.-e,[]{}":')
        )
    verdict = checker.check(bytes(text), PARAMETERS)
    if verdict.accepted:
        assert exactly.is_true(NET, json.loads(bytes(text)), np.random.default_rng(0))
