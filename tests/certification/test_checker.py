"""The checker alone: what it imports, and that no file whatever makes it crash, hang or err."""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
import tracemalloc
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import exactly
import proplace as pp
from certification.problems import called, full_tree
from fuzz.reader import KEPT
from fuzz.zips import Member, archive_of, bomb
from oracles import accepted_rows
from proplace.certification import certificate as documents
from proplace.certification import checker
from support.tiers import examples

pytestmark = pytest.mark.usefixtures("any_margin")

NET, X = accepted_rows(5, (3, 4, 4, 1), 30)
REPORT = pp.certify(NET, X, 0.05, certificates=True)
ROBUST = REPORT.certificates[int(np.flatnonzero(REPORT.robust)[0])]
BROKEN = REPORT.certificates[int(np.flatnonzero(~REPORT.robust)[0])]
PARAMETERS = documents.parameters(NET)


@pytest.mark.source
def test_checker_imports_standard_library_only():
    code = (
        "import sys, runpy; before = set(sys.modules);"
        f"runpy.run_path({checker.__file__!r}, run_name='checker');"
        "print(sorted({name.split('.')[0] for name in set(sys.modules) - before}"
        " - set(sys.stdlib_module_names)))"
    )
    words = [sys.executable, "-S", "-I", "-c", code]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@pytest.mark.source
def test_checker_can_be_read_in_one_sitting():
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
    assert len(code) < 1000  # a fifth of it redoes the encodings of a statement


def test_digest_is_documented_bytes():
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
    assert len({documents.digest(net) for net in nets}) == len(nets)


def test_large_files_and_deep_ones_are_refused():
    huge = b'{"format": "' + b"x" * checker.MAX_BYTES + b'"}'
    assert f"larger than {checker.MAX_BYTES} bytes" in checker.check(huge, PARAMETERS).reason
    for text in ("[" * 200_000, '{"a":' * 200_000, "[" * 200_000 + "]" * 200_000):
        assert not checker.check(text, PARAMETERS).accepted


@pytest.mark.slow
def test_tree_that_would_take_hours_is_refused(monkeypatch):
    monkeypatch.setattr(checker, "MAX_WORK", 0)
    reason = checker.check(ROBUST.text, PARAMETERS).reason
    assert re.fullmatch(r"checking this would take about \d+ s, the limit is 0 s", reason)
    monkeypatch.undo()
    deep = {**ROBUST.facts, "trees": [full_tree(18, [(1, 4)])], "upper": [[5e-324] * 4]}
    reason = checker.check(json.dumps(deep), PARAMETERS).reason
    assert "the limit is 60 s" in reason


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


@examples(250, suppress_health_check=list(HealthCheck))
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


@examples(300)
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200), values.map(json.dumps)))
def test_text_of_any_kind(text):
    assert not checker.check(text, PARAMETERS).accepted


@examples(300)
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


def test_transposed_weights_are_saved_so_that_checker_reads_them(tmp_path):
    """Arrays of scikit-learn and Keras. Without its middle layer, the network gives class 1."""
    middle = np.array([[0.0, -2.0], [-1.0, 0.0]]).T
    net = pp.Network([(np.eye(2), np.zeros(2)), (middle, np.zeros(2)), (LAST["W"], LAST["b"])])
    net.save(tmp_path / "net.npz")
    assert checker.read_npz(str(tmp_path / "net.npz")) == documents.parameters(net)
    files = (tmp_path / "proof.json", tmp_path / "net.npz")
    honest = pp.certify(net, [[1.0, 1.0]], 0.01, 0, certificates=True).certificates[0]
    honest.save(files[0])
    done = called(*files)
    assert (done.returncode, done.stderr) == (0, "")
    small = pp.Network([(np.eye(2), np.zeros(2)), (LAST["W"], LAST["b"])])
    forged = pp.certify(small, [[1.0, 1.0]], 0.01, 1, certificates=True).certificates[0]
    assert forged.verdict == "robust"
    forged.save(files[0])
    for W1 in (middle, middle.astype(np.float32), middle.astype(">f8")):
        npz(files[1], **HIDDEN, W1=W1, b1=np.zeros(2), W2=LAST["W"], b2=LAST["b"])
        done = called(*files)
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
def test_network_file_is_read_whole_or_refused(tmp_path, arrays):
    with pytest.raises(checker.Rejected):
        checker.read_npz(str(npz(tmp_path / "net.npz", **arrays)))


def test_array_without_suffix_is_not_layer(tmp_path):
    path = npz(tmp_path / "net.npz", **HIDDEN, W1=LAST["W"])
    assert len(checker.read_npz(str(path)).layers) == 2
    with zipfile.ZipFile(path, "a") as file:
        file.writestr("W2xyz1", file.read("W1.npy"))
    with pytest.raises(checker.Rejected, match="unknown arrays"):
        checker.read_npz(str(path))


def stored(path, *files, compression=zipfile.ZIP_STORED):
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", compression) as file:
        warnings.simplefilter("ignore")  # of names that are there already
        for name, data in files:
            file.writestr(name, data)
    return str(path)


def array(values):
    data = io.BytesIO()
    np.save(data, values)
    return data.getvalue()


def test_network_files_are_limited_before_they_are_unpacked(tmp_path, monkeypatch):
    """Zeros that pack a thousand times smaller. The sizes alone reject the file."""
    monkeypatch.setattr(checker, "MAX_NUMBERS", 100_000)
    zeros = b"\0" * 2_000_000
    path = stored(tmp_path / "bomb.npz", ("W0.npy", zeros), compression=zipfile.ZIP_DEFLATED)
    assert Path(path).stat().st_size < 10_000

    def read(*_):
        raise AssertionError

    large = stored(tmp_path / "large.npz", ("W0.npy", zeros))
    with monkeypatch.context() as patch:
        patch.setattr(checker, "_unpacked", read)
        with pytest.raises(checker.Rejected, match="100000 numbers"):
            checker.read_npz(path)
        patch.setattr(checker, "_listed", read)
        with pytest.raises(checker.Rejected, match="1800000 bytes"):
            checker.read_npz(large)
    small = ("W0.npy", array(np.ones((1, 2))))
    assert checker.read_npz(stored(tmp_path / "net.npz", small)).layers == [([[1.0, 1.0]], None)]
    with pytest.raises(checker.Rejected, match="unusual way"):
        checker.read_npz(stored(tmp_path / "odd.npz", small, compression=zipfile.ZIP_LZMA))
    with pytest.raises(checker.Rejected, match="twice"):
        checker.read_npz(stored(tmp_path / "two.npz", small, small))


@pytest.mark.parametrize(
    "lie",
    [
        {"packed": bomb(40), "method": 8, "size": 10},  # more than its listed size
        {"packed": bomb(0), "method": 8},  # less
        {"claimed": 2**32 - 2},  # gigabytes of packed bytes
        {"claimed": 2**32 - 2, "method": 8},
    ],
)
def test_archives_that_lie(tmp_path, lie):
    """Reject without unpacking or allocating memory."""
    facts = {"packed": b"x", "method": 0, "size": 1, "crc": 0} | lie
    path = tmp_path / "net.npz"
    path.write_bytes(archive_of([Member(b"W0.npy", **facts)]))
    tracemalloc.start()
    try:
        with pytest.raises(checker.Rejected, match="npz"):
            checker.read_npz(str(path))
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()
    ROBUST.save(tmp_path / "proof.json")
    done = called(tmp_path / "proof.json", path)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("rejected: ")


@pytest.mark.parametrize("path", sorted((KEPT / "npz").iterdir()), ids=lambda path: path.name)
def test_network_files_that_broke_reader_once(path):
    with pytest.raises(checker.Rejected):
        checker.read_npz(str(path))


@pytest.mark.parametrize(
    "odd",
    [
        np.array([[1.0, np.nan]]),
        np.array([[np.inf, 1.0]]),
        np.array([[1.0 + 2.0j, 1.0]]),
        np.array([["1", "2"]]),
        np.array([[True, False]]),
    ],
)
def test_weights_that_are_not_finite_doubles_are_refused(tmp_path, odd):
    with pytest.raises(checker.Rejected, match="W0"):
        checker.read_npz(stored(tmp_path / "net.npz", ("W0.npy", array(odd))))


def test_checker_prints_usage(tmp_path):
    NET.save(tmp_path / "net.npz")
    ROBUST.save(tmp_path / "proof.json")
    good, net = tmp_path / "proof.json", tmp_path / "net.npz"
    (tmp_path / "text.npz").write_text("not a zip")
    for words in ([], [good], [good, net, "--delta", "much"], [good, net, "--input", "a,b"]):
        done = called(*words)
        assert done.returncode == 2
        assert done.stderr.startswith("usage: checker.py")
        assert "Traceback" not in done.stderr
    for words in ([tmp_path / "none.json", net], [good, tmp_path / "none.npz"]):
        done = called(*words)
        assert done.returncode == 2
        assert "No such file" in done.stderr
        assert "Traceback" not in done.stderr
    done = called(good, tmp_path / "text.npz")
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("rejected: the network file is not an .npz file")


# -- what was proved -----------------------------------------------------------------------------


def test_statement_contains_proved_claim():
    facts = ROBUST.facts
    verdict = ROBUST.check(NET)
    assert verdict.accepted
    statement = verdict.statement
    assert statement == (
        "robust",
        1,
        facts["delta"],
        facts["input"],
        facts["margin"],
        None,
        True,
        facts["network"],
        None,
        None,
        None,
    )
    assert verdict.reason == str(statement)
    x = ", ".join(map(repr, facts["input"]))
    assert verdict.reason == (
        "robust: every network within delta 0.05 gives class 1 with a margin of at least 0.0 "
        f"at input {x}"
    )
    broken = BROKEN.check(NET)
    assert broken.statement.verdict == "not robust"
    assert "has for class 1 a margin below 0.0 at input" in broken.reason
    frozen = pp.certify(NET, X[:1], [(0.0, 0.0), (0.01, 0.0), (0.0, 0.02)], 1, certificates=True)
    reason = frozen.certificates[0].check(NET).reason
    assert "(weights, biases of each layer: 0.0, 0.0; 0.01, 0.0; 0.0, 0.02)" in reason
    assert checker.check("{}", PARAMETERS).statement is None


def test_weaker_claim_than_demanded_is_rejected():
    facts = ROBUST.facts
    x, other = facts["input"], [*facts["input"][:-1], facts["input"][-1] + 2.0**-40]

    def verdict(certificate=ROBUST, **wanted):
        return checker.check(certificate.text, PARAMETERS, checker.Demand(**wanted))

    for wanted in (
        {"target": 1},
        {"delta": 0.05},
        {"delta": 0.0},
        {"input": x},
        {"margin": 0.0},
        {"margin": -1.0},
        {"target": 1, "delta": 0.05, "input": x, "margin": 0.0},
    ):
        assert verdict(**wanted).accepted
        rejected = verdict(BROKEN, **wanted)
        assert not rejected.accepted
        assert "another verdict than the required one" in rejected.reason
    for wanted, why in (
        ({"target": 0}, "class 0 is required"),
        ({"delta": 0.05000000000000001}, "delta 0.05000000000000001 is required"),
        ({"delta": float("nan")}, "delta nan is required"),
        ({"input": other}, "another input is required"),
        ({"input": x[:-1]}, "another input is required"),
        ({"margin": 5e-324}, "a margin of 5e-324 is required"),
    ):
        rejected = verdict(**wanted)
        assert not rejected.accepted
        assert rejected.reason.startswith(
            f"{why}. The certificate proves only: robust: every network"
        )
        assert rejected.statement == ROBUST.check(NET).statement


def test_demanded_delta_must_hold_in_every_layer():
    """Frozen layers and frozen biases prove less. A layer without bias has no bias to shift."""
    bare = pp.Network([(layer.W, None if i else layer.b) for i, layer in enumerate(NET.layers)])
    demand = checker.Demand(delta=0.01)
    for net, delta, accepted in (
        (bare, 0.01, True),
        (bare, [(0.01, 0.01), (0.0, 0.0), (0.01, 0.01)], False),
        (NET, [(0.01, 0.01), (0.01, 0.0), (0.01, 0.01)], False),
        (NET, [(0.01, 0.01), (0.5, 0.01), (0.01, 0.01)], True),
    ):
        low = float(pp.certify(net, X[:1], delta, exact_margin=True).lower[0]) - 1.0
        proof_of = pp.certify(net, X[:1], delta, margin=low, certificates=True).certificates[0]
        verdict = checker.check(proof_of.text, documents.parameters(net), demand)
        assert verdict.accepted == accepted


def test_integer_must_be_double_that_is_proved():
    """2^53 + 1 is none: what is printed would be more than what was proved."""
    net = pp.Network([([[1.0]], [0.0])])
    found = pp.certify(net, [[2.0**53]], 0.0, margin=2.0**53, certificates=True).certificates[0]
    facts = found.facts
    for margin, accepted in ((2**53, True), (2**53 + 1, False), (2**53 - 1, True), (2**70, False)):
        verdict = checker.check(json.dumps({**facts, "margin": margin}), documents.parameters(net))
        assert verdict.accepted == accepted
        if accepted:
            assert f"at least {float(margin)!r} at" in verdict.reason
    for name, value in (("input", [2**53 + 1]), ("delta", [[2**53 + 1, 0]])):
        reason = checker.check(json.dumps({**facts, name: value}), documents.parameters(net)).reason
        assert reason == f"{name} holds an integer that no double represents exactly"
    for name in ("lower", "upper", "gamma"):
        more = {name: [[2**53 + 1] * 4]}
        if name == "gamma":
            more = {"trees": [[{"gamma": [[1, 0, 2**53 + 1]]}]]}
        reason = checker.check(json.dumps({**ROBUST.facts, **more}), PARAMETERS).reason
        assert reason == f"{name} holds an integer that no double represents exactly"


def test_weights_that_are_cut_make_delta_grow():
    """-2^-110 is cut to -2^-100. Without the larger delta, a false margin of 2^-100 would pass."""
    for W, b, x, target in (([1.0, -(2.0**-110)], 0.0, [0.0, -1.0], 1),
                            ([1.0, 0.0], -(2.0**-110), [0.0, 0.0], 0)):  # fmt: skip
        net = pp.Network([([W], [b])])
        facts = documents.claim(
            documents.digest(net), pp.Shifts.of(net, 0.0), np.array(x), target, 2.0**-100, "robust"
        )
        facts |= {"tighten": False, "lower": [], "upper": [], "trees": [[{}]]}
        assert exactly.worst(net, x, [(0.0, 0.0)], target) < exactly.Q(facts["margin"])
        assert not checker.check(json.dumps(facts), documents.parameters(net)).accepted


def test_field_names_are_shown_escaped():
    for name in ("\ud800", "\x1b[2K\rnet.json: accepted: robust\n"):
        reason = checker.check(json.dumps({**ROBUST.facts, name: 1}), PARAMETERS).reason
        assert "unknown" in reason
        assert reason.isascii()
        assert reason.isprintable()


def test_checker_rejects_trees_of_wrong_size_before_reading_nodes(monkeypatch):
    def read(claim, node):
        raise AssertionError

    facts = {**ROBUST.facts, "trees": [[{}] * 1000]}
    monkeypatch.setattr(checker._Claim, "node", read)
    assert "after its last leaf" in checker.check(json.dumps(facts), PARAMETERS).reason
    monkeypatch.setattr(checker, "MAX_WORK", 100)
    assert "the limit is" in checker.check(ROBUST.text, PARAMETERS).reason
    monkeypatch.setattr(checker, "MAX_LISTS", 1000)
    assert "1000 lists" in checker.check(json.dumps(facts), PARAMETERS).reason


def test_large_numbers_count_as_work(monkeypatch):
    """2^1000 has no digit behind the point, and yet takes sixteen words."""
    least = {}
    for size in (1.0, 2.0**1000):
        facts = {**ROBUST.facts, "upper": [[size] * 4], "margin": -1e308}
        for power in range(40):
            monkeypatch.setattr(checker, "MAX_WORK", 2**power)
            if checker.check(json.dumps({**facts, "margin": -size}), PARAMETERS).accepted:
                break
        least[size] = power
    assert least[2.0**1000] >= least[1.0] + 2
