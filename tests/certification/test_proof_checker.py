"""The checker alone: what it imports, and that no file whatever makes it crash, hang or err."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import zipfile
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
    text = Path(checker.__file__).read_text()
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = [n for n in ast.walk(ast.parse(text)) if isinstance(n, documented)]
    docs = {
        line
        for node in nodes
        if ast.get_docstring(node) is not None
        for line in range(node.body[0].lineno, node.body[0].end_lineno + 1)
    }
    code = [line for i, line in enumerate(text.splitlines(), 1) if line.strip() and i not in docs]
    assert len(code) < 300


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
    monkeypatch.setattr(checker, "MOST_WORK", 500)
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
    max_examples=250, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
@given(
    st.sampled_from([ROBUST, BROKEN]),
    st.dictionaries(
        st.sampled_from(sorted({*ROBUST.facts, *BROKEN.facts})), values, min_size=1, max_size=3
    ),
)
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


def npz(path, **arrays):
    np.savez(path, format=np.array("proplace-network-1"), precision=np.array("float64"), **arrays)
    return path


HIDDEN = {"W0": np.eye(2), "b0": np.zeros(2)}
LAST = {"W": np.array([[1.0, 1.0]]), "b": np.array([-1.0])}


def test_transposed_weights_are_saved_so_that_the_checker_reads_them(tmp_path):
    """As scikit-learn and Keras hold them; without its middle layer the network says class 1."""
    middle = np.array([[0.0, -2.0], [-1.0, 0.0]]).T
    net = pp.Network([(np.eye(2), np.zeros(2)), (middle, np.zeros(2)), (LAST["W"], LAST["b"])])
    net.save(tmp_path / "net.npz")
    assert checker.read_npz(str(tmp_path / "net.npz")) == proof.parameters(net)
    files = (tmp_path / "proof.json", tmp_path / "net.npz")
    honest = pp.certify(net, [[1.0, 1.0]], 0.01, 0, certificates=True).certificates[0]
    honest.save(files[0])
    done = run_alone(checker.__file__, *files)
    assert (done.returncode, done.stderr) == (0, "")
    small = pp.Network([(np.eye(2), np.zeros(2)), (LAST["W"], LAST["b"])])
    forged = pp.certify(small, [[1.0, 1.0]], 0.01, 1, certificates=True).certificates[0]
    assert forged.verdict == "robust"
    forged.save(files[0])
    for W1 in (middle, middle.astype(np.float32), middle.astype(">f8")):
        npz(files[1], **HIDDEN, W1=W1, b1=np.zeros(2), W2=LAST["W"], b2=LAST["b"])
        done = run_alone(checker.__file__, *files)
        assert (done.returncode, done.stderr) == (1, "")
        assert done.stdout.startswith("rejected: ")


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"W0": np.asfortranarray(np.array([[1.0, 2.0], [3.0, 4.0]])), "W1": LAST["W"]},
        {"W0": np.eye(2, dtype=np.float32), "W1": LAST["W"]},
        {"W0": np.eye(2, dtype=">f8"), "W1": LAST["W"]},
        {**HIDDEN, "W2": LAST["W"]},
        {"W1": LAST["W"]},
        {**HIDDEN, "W1": np.ones((1, 3))},
        {**HIDDEN, "W1": LAST["W"], "b1": np.zeros(2)},
        {**HIDDEN, "W1": LAST["W"], "scale": np.ones(3)},
        {**HIDDEN, "W1": LAST["W"], "shift": np.ones((1, 2))},
        {**HIDDEN, "W1": LAST["W"], "W01": LAST["W"]},
        {"W0": np.ones(2)},
        {"W0": np.ones((0, 2))},
    ],
)
def test_a_network_file_is_read_whole_or_refused(tmp_path, arrays):
    with pytest.raises(checker.Rejected):
        checker.read_npz(str(npz(tmp_path / "net.npz", **arrays)))


def test_an_array_without_suffix_is_no_layer(tmp_path):
    path = npz(tmp_path / "net.npz", **HIDDEN, W1=LAST["W"])
    assert len(checker.read_npz(str(path)).layers) == 2
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("W2xyz1", file.read("W1.npy"))
    with pytest.raises(checker.Rejected, match="no layer"):
        checker.read_npz(str(path))


def test_field_names_are_shown_escaped():
    for name in ("\ud800", "\x1b[2K\rnet.json: accepted: robust\n"):
        reason = checker.check(json.dumps({**ROBUST.facts, name: 1}), PARAMETERS).reason
        assert "unknown" in reason
        assert reason.isascii()
        assert reason.isprintable()


def test_trees_that_cannot_be_are_refused_before_their_nodes_are_read(monkeypatch):
    def read(claim, node):
        raise AssertionError

    facts = {**ROBUST.facts, "trees": [[{}] * 1000]}
    monkeypatch.setattr(checker._Claim, "node", read)
    assert "goes on" in checker.check(json.dumps(facts), PARAMETERS).reason
    monkeypatch.setattr(checker, "MOST_WORK", 100)
    assert "too large" in checker.check(ROBUST.text, PARAMETERS).reason
    monkeypatch.setattr(checker, "MOST_LISTS", 1000)
    assert "1000 lists" in checker.check(json.dumps(facts), PARAMETERS).reason


def test_large_numbers_count_as_work(monkeypatch):
    """2^1000 has no digit behind the point, and yet takes sixteen words."""
    least = {}
    for size in (1.0, 2.0**1000):
        facts = {**ROBUST.facts, "upper": [[size] * 4], "margin": -1e308}
        for power in range(40):
            monkeypatch.setattr(checker, "MOST_WORK", 2**power)
            if checker.check(json.dumps({**facts, "margin": -size}), PARAMETERS).accepted:
                break
        least[size] = power
    assert least[2.0**1000] >= least[1.0] + 2
