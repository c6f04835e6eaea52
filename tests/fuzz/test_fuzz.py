"""Seeds and saved inputs of every fuzzer, and that each fuzzer can fail."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction as Q
from random import Random

import numpy as np
import pytest

import proplace as pp
from fuzz import planted, run
from fuzz.campaign import Campaign
from fuzz.readers import certificates, npz_files, schemas, tables
from fuzz.zips import Member, archive_of, bomb, members_of
from oracles import milp_margin
from proplace.certification import checker
from proplace.certification.checker import Verdict

NEEDS = {
    "onnx": "onnxruntime",
    "parquet": "pyarrow",
}


@pytest.mark.parametrize("name", run.READERS)
def test_seeds_are_accepted_and_saved_inputs_do_no_harm(name):
    """New inputs are made by ``make fuzz`` alone."""
    pytest.importorskip(NEEDS.get(name, "numpy"))
    summary = Campaign(name, run.READERS[name], inputs=0).run()
    assert {key: [f.words for f in same] for key, same in summary.findings.items()} == {}


# -- the fuzzers can fail ----------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("title", "kind", "limit"),
    [
        ("Sound", None, 10.0),
        ("Crash", "crash", 10.0),
        ("Greedy", "memory", 10.0),
        ("SecretlyGreedy", "memory", 10.0),
        ("Command", "tripwire", 10.0),
        ("Code", "tripwire", 10.0),
        ("Writes", "tripwire", 10.0),
        ("ReadsElsewhere", "tripwire", 10.0),
        ("FalseAccept", "false accept", 10.0),
        ("RefusesAll", "seed refused", 10.0),
        ("Loop", "hang", 0.1),
        ("Death", "death", 0.1),
    ],
)
def test_fault_is_found(title, kind, limit):
    """A worker that hangs or dies is replaced: all inputs are read."""
    summary = Campaign("planted", f"fuzz.planted:{title}", inputs=12, limit=limit).run()
    assert [key.partition(":")[0] for key in summary.findings] == ([kind] if kind else [])
    assert summary.inputs == 12
    for findings in summary.findings.values():
        assert kind == "seed refused" or all(finding.data.strip(b"a") for finding in findings)


@pytest.mark.slow
def test_worker_that_cannot_be_interrupted_is_found(monkeypatch):
    monkeypatch.setattr("fuzz.campaign._PATIENCE", 1.0)
    monkeypatch.setattr("fuzz.campaign._LEAST", 0.5)
    summary = Campaign("planted", "fuzz.planted:Stuck", inputs=3, limit=0.1).run()
    assert list(summary.findings) == ["hang: not interruptible"]


@pytest.mark.slow
def test_findings_are_small_and_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "READERS", {"planted": "fuzz.planted:Crash"})
    words = ["--only", "planted", "--inputs", "12", "--findings", str(tmp_path)]
    assert run.main(words) == 1
    assert {path.read_bytes() for path in (tmp_path / "planted").iterdir()} >= {b"b"}
    assert "KeyError planted.py" in capsys.readouterr().out
    monkeypatch.setattr(run, "READERS", {"planted": "fuzz.planted:Sound"})
    assert run.main(words) == 0


# -- the second opinions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sizes", [(2, 1), (2, 3), (2, 2, 1), (2, 2, 3), (2, 2, 2, 1), (1, 2, 3, 3)]
)
def test_exact_worst_case_margin(sizes):
    """Against mixed-integer programs, on random networks."""
    rng = np.random.default_rng(7)
    for _ in range(8):
        layers = [
            (rng.normal(size=(m, n)), None if rng.random() < 0.2 else rng.normal(size=m))
            for n, m in itertools.pairwise(sizes)
        ]
        net = pp.Network(layers)
        x, delta, target = rng.normal(size=sizes[0]), 0.1, int(rng.integers(net.classes))
        plain = [
            [layer.W.tolist(), None if layer.b is None else layer.b.tolist()]
            for layer in net.layers
        ]
        line = json.dumps({"layers": plain, "scale": None, "shift": None}).encode()
        exact = certificates._worst(line, tuple(x), target, ((delta, delta),) * len(layers))
        assert isinstance(exact, Q)
        assert float(exact) == pytest.approx(milp_margin(net, x, delta, target), abs=1e-6)


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    reader = certificates.Certificates()
    reader.prepare(tmp_path_factory.mktemp("certificates"))
    return reader


def test_checker_that_accepts_everything_is_found(reader, monkeypatch):
    """False claims near the truth, of both verdicts, are among the inputs and are called false."""
    monkeypatch.setattr(checker, "check", lambda text, network: Verdict(True, ""))
    false = {"robust": 0, "not robust": 0, "outside": 0}
    for number in range(1500):
        data = reader.case("0", number)
        try:
            words = reader.judge(data, reader.read(None, data))
        except Exception:
            continue
        kind = "outside" if "outside" in str(words) else str(words).partition(":")[0]
        if kind in false:
            false[kind] += 1
    assert min(false.values()) >= 5


def test_margin_that_is_not_double_is_not_called_proved(reader):
    line = json.dumps({"layers": [[[[1.0]], [2.0**53]]], "scale": None, "shift": None}).encode()
    facts = {"input": [0.0], "target": 1, "delta": [[0, 0]], "margin": 2**53, "verdict": "robust"}
    data = line + b"\n" + json.dumps(facts).encode()
    words = "robust: all networks within delta have a margin of {} or more"
    assert reader.judge(data, Verdict(True, words.format(2**53))) is None
    assert "margin is" in reader.judge(data, Verdict(True, words.format(2**53 + 1)))
    facts["margin"] = math.nextafter(2.0**53, math.inf)
    data = line + b"\n" + json.dumps(facts).encode()
    assert "margin is" in reader.judge(data, Verdict(True, ""))


def test_other_numbers_in_npz_are_found(tmp_path):
    reader = npz_files.NpzFiles()
    reader.prepare(tmp_path)
    data = reader.seeds()[1]
    path = tmp_path / "case.npz"
    path.write_bytes(data)
    network, alone = reader.read(path, data)
    assert reader.judge(data, (network, alone)) is None
    (W, b), last = alone.layers
    other = alone._replace(layers=[([[v + 1e-12 for v in row] for row in W], b), last])
    assert "different numbers" in reader.judge(data, (network, other))
    first, second = network.layers
    wrong = pp.Network([(first.W, first.b), (second.W, second.b + 1e-12)])
    assert "other numbers" in reader.judge(data, (wrong, None))


def test_labels_that_yaml_made_up_are_found(tmp_path):
    (tmp_path / "files").mkdir()
    reader = schemas.Schemas()
    reader.prepare(tmp_path)
    feature = b"- {kind: categorical, name: t, categories: ['b', 017]}\n"
    data = b".yaml\nformat: proplace-schema-1\nfeatures:\n" + feature
    right = pp.Schema([pp.Categorical("t", ["b", "017"])])
    assert reader.judge(data, right) is None
    assert "'017' became 15" in reader.judge(data, pp.Schema([pp.Categorical("t", ["b", 15])]))


def test_other_cells_in_csv_are_found(tmp_path):
    reader = tables.CsvTables()
    reader.prepare(tmp_path)
    data = reader.seeds()[0]
    path = tmp_path / "case.csv"
    path.write_bytes(data)
    table, cells, typed = reader.read(path, data)
    assert reader.judge(data, (table, cells, typed)) is None
    other = [cells[0].replace("41", "14")]
    assert "other cells" in reader.judge(data, (table, other, typed))
    frame = typed[0].assign(age=typed[0]["age"] + 1)
    assert "a number" in reader.judge(data, (table, cells, (frame, {})))


# -- the tools ---------------------------------------------------------------------------------------


def test_archives_without_lies_are_read():
    files = [("a", b"x" * 100), ("b/c", b"")]
    for method in (0, 8):
        data = archive_of([Member.of(name, content, method) for name, content in files])
        assert members_of(data) == files
    zeros = Member.of("z", bytes(2**20), 8)
    assert members_of(archive_of([Member(b"z", bomb(1), 8, 2**20, zeros.crc)])) == [
        ("z", bytes(2**20))
    ]


def test_case_follows_from_its_number():
    reader = planted.Sound()
    assert [reader.case("0", n) for n in range(50)] == [reader.case("0", n) for n in range(50)]
    assert len({reader.case(seed, 3) for seed in map(str, range(50))}) > 1
    assert reader.make(Random(1)) in (b"a", b"aa", b"b", b"ab")
