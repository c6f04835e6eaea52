"""Shift sets on the command line: made, printed, and used in place of delta."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import good, run
from oracles import forward, sampled_margins
from proplace.batch.manifest import _sha256
from proplace.cli.check import _required as required
from proplace.core.errors import (
    DeltaError,
    ModelFileError,
    OptionError,
    OutputError,
    ResultsError,
)
from support.errors import ANY, failed, raises


def moved(net, size, seed):
    """A network whose parameters moved, more upwards than downwards."""
    rng = np.random.default_rng(seed)
    return net.with_layers(
        (
            layer.W + size * rng.uniform(-0.5, 1.0, layer.W.shape),
            layer.b + size * rng.uniform(-0.5, 1.0, layer.b.shape),
        )
        for layer in net.layers
    )


@pytest.fixture(scope="module")
def past(loans, tmp_path_factory):
    """Files of four past models, and of the set that they span."""
    folder = tmp_path_factory.mktemp("past")
    nets = [moved(loans.net, 0.01, seed) for seed in range(4)]
    for n, net in enumerate(nets):
        net.save(folder / f"past-{n}.npz")
    box = pp.Shifts.bounding(nets)
    box.save(folder / "shifts.npz")
    pp.Shifts.of(loans.net, 0.02).save(folder / "around.npz")
    return folder, nets, box


def files(past):
    return sorted(past[0].glob("past-*.npz"))


def facts_of(*words):
    return good(*words, "--json").json


def rejected(*words):
    """Run a check that is rejected. Return the number of rejected certificates."""
    done = run("check", *words, "--json")
    assert (done.returncode, done.json["accepted"]) == (1, False)
    return sum(not entry["accepted"] for entry in done.json["certificates"])


# -- making a set ---------------------------------------------------------------------------------


def test_history_is_learned_from(past, loans, tmp_path):
    paths = []
    for seed in range(30):
        paths.append(tmp_path / f"later-{seed}.npz")
        moved(loans.net, 0.01, seed).save(paths[-1])
    out = tmp_path / "learned.npz"
    project = ("model:", loans.folder / "model.onnx", "schema:", loans.folder / "schema.yaml")
    about = facts_of("calibrate", *paths, *project, "--coverage", 0.9, "--out", out)["about"]
    made = pp.Shifts.load(out)
    assert "30" in made.description
    assert made.description == about
    assert sum(made.contains(pp.Network.load(path)) for path in paths) >= 27
    few = ("calibrate", *paths[:5], *project, "--coverage", 0.9)
    failed(run(*few, "--out", tmp_path / "few.npz"), DeltaError)
    assert not (tmp_path / "few.npz").exists()
    failed(run(*few), OptionError, name="--out")
    failed(run(*few, "--out", out), OutputError, name=out.name)
    failed(run(*few, "--risk", 0.1, "--out", tmp_path / "x.npz"), OptionError, name="--risk")


def test_scalers_that_were_fitted_again_are_expressed_behind_that_in_use(tmp_path):
    first = pp.Network([([[1.0, 2.0]], [0.5])], scale=[2.0, 1.0], shift=[0.0, 0.0])
    again = pp.Network([([[2.0, 2.0]], [0.5])], scale=[1.0, 1.0], shift=[0.0, 0.0])
    first.save(tmp_path / "first.npz")
    again.save(tmp_path / "again.npz")
    out = tmp_path / "one.npz"
    words = [*[tmp_path / "again.npz"] * 4, "model:", tmp_path / "first.npz", "--coverage", 0.5]
    good("calibrate", *words, "--out", out)
    made = pp.Shifts.load(out)  # 2 * 1 = 1 * 2: it is the same model
    assert made.contains(pp.Model.of(tmp_path / "first.npz").network)
    assert not made.contains(again)


# -- wrong options and files -----------------------------------------------------------------------


def test_set_of_other_networks_is_rejected_with_next_step(loans, past, tmp_path):
    other = pp.Network([(np.ones((3, loans.net.inputs)), np.ones(3)), (np.ones((1, 3)), [0.0])])
    scaled = pp.Network(
        [(layer.W, layer.b) for layer in loans.net.layers], scale=np.full(loans.net.inputs, 2.0)
    )
    other.save(tmp_path / "other.npz")
    loans.net.save(tmp_path / "network.npz")
    pp.Shifts.of(other, 0.1).save(tmp_path / "other-shifts.npz")
    pp.Shifts.of(scaled, 0.1).save(tmp_path / "scaled-shifts.npz")
    for name, error in (
        ("other-shifts.npz", DeltaError),
        ("scaled-shifts.npz", DeltaError),
        ("missing.npz", DeltaError),
        ("network.npz", ModelFileError),
    ):
        for command in ("explain", "certify"):
            changes = {"row": 0} if command == "explain" else {"train": None, "k": None}
            done = run(command, *loans.options(command, delta=tmp_path / name, **changes))
            failed(done, error, name="--delta" if name == "missing.npz" else name)
            assert name in done.stderr
    words = [tmp_path / "other.npz", "model:", loans.folder / "model.onnx", "--coverage", 0.5]
    done = run("calibrate", *words, "--out", tmp_path / "x.npz")
    failed(done, DeltaError, name="other.npz")
    assert not (tmp_path / "x.npz").exists()


# -- using it --------------------------------------------------------------------------------------


def test_rows_are_certified_for_every_network_of_set(loans, past, tmp_path):
    folder, _, box = past
    out = tmp_path / "verdicts.csv"
    words = loans.options("certify", input=loans.folder / "train.csv", delta=None)
    words += ["--delta", folder / "shifts.npz"]
    done = good("certify", *words, "--out", out)
    assert done.stderr  # the model does not lie in the set
    assert str(folder / "shifts.npz") in done.stdout
    verdicts = pd.read_csv(out)["verdict"]
    rows = loans.schema.encode(loans.train)
    expected = pp.certify(loans.net, rows, box).robust
    assert ((verdicts == "robust") == expected).all()
    assert 0 < expected.sum() < len(expected)
    facts = facts_of("certify", *words)
    assert facts["delta"] == box.digest
    assert facts["shifts"] == {"digest": box.digest, "about": "bounding set of 4 networks"}
    around = [*words[:-1], folder / "around.npz"]
    plain = [*words[:-2], "--delta", 0.02]
    assert facts_of("certify", *around)["robust"] == facts_of("certify", *plain)["robust"]


def test_one_person(loans, past):
    folder, nets, box = past
    words = loans.options(delta=folder / "shifts.npz", row=0)
    (answer,) = facts_of("explain", *words)
    assert answer["delta"] == box.digest
    assert answer["shifts"] == {
        "digest": box.digest,
        "about": "bounding set of 4 networks",
        "contains_model": False,
    }
    assert "bounding set of 4 networks" in answer["sentence"]
    point = loans.schema.encode(pd.DataFrame([answer["counterfactual"]]))[0]
    for net in (loans.net, *nets):
        assert forward(net, point)[0] >= 0.0
    rng = np.random.default_rng(0)
    assert sampled_margins(loans.net, point, box, 1, rng).min() >= 0.0
    (plain,) = facts_of("explain", *loans.options(row=0))
    assert (plain["delta"], plain["shifts"]) == (0.01, None)


@pytest.fixture(scope="module")
def done(loans, past, tmp_path_factory):
    """A folder of results about a shift set."""
    folder = tmp_path_factory.mktemp("boxed")
    loans.people.head(3).to_csv(folder / "people.csv", index=False)
    words = loans.options(
        delta=past[0] / "shifts.npz",
        input=folder / "people.csv",
        out=folder / "results",
    )
    good("explain", *words)
    return folder / "results", words


@pytest.fixture
def results(done, tmp_path):
    return shutil.copytree(done[0], tmp_path / "results")


def test_folder_of_results_holds_its_set(loans, past, results):
    box = past[2]
    kept = pp.Shifts.load(results / "shifts.npz")
    assert (kept, kept.description) == (box, box.description)
    table = pd.read_csv(results / "results.csv")
    assert set(table["delta"]) == {f"shifts {box.digest}"}
    back = pp.read_results(results)
    assert back.provenance.delta == box.digest
    assert back.provenance.guarantee["members"][0]["about"] == "bounding set of 4 networks"
    assert all(e.setting.current.shifts == box for e in back)
    assert [e.describe().sentence for e in back] == list(table["sentence"])
    assert (
        back[0].setting.current.has_parameter_intervals,
        back[0].setting.current.contains_network,
    ) == (True, False)


def test_batch_goes_on_with_same_set_and_with_no_other(loans, past, done, results, tmp_path):
    words = [word if word != done[0] else results for word in done[1]]
    before = (results / "results.csv").read_bytes()
    (results / "results.csv").unlink()
    good("explain", *words)
    assert (results / "results.csv").read_bytes() == before
    wider = past[2].scaled(1.5)
    wider.save(tmp_path / "wider.npz")
    renamed = pp.Shifts(past[2].low, past[2].high, description="otherwise")
    renamed.save(tmp_path / "renamed.npz")
    for name, field in (("wider.npz", "delta"), ("renamed.npz", "about delta")):
        other = [tmp_path / name if word == past[0] / "shifts.npz" else word for word in words]
        failed(run("explain", *other), OutputError, name=field, notes=1)
    plain = loans.options(input=done[0].parent / "people.csv", out=results)
    failed(run("explain", *plain), OutputError, name="delta")


def test_set_that_was_changed_is_refused(past, results, tmp_path):
    def refused(path):
        with raises(ResultsError, name="shifts.npz"):
            pp.read_results(results)
        done = run("report", results, "--out", tmp_path / f"{path}.html")
        failed(done, ResultsError, name="shifts.npz")

    kept = (results / "shifts.npz").read_bytes()
    (results / "shifts.npz").unlink()
    refused("gone")
    small = past[2].scaled(0.5)
    pp.Shifts(small.low, small.high, description=past[2].description).save(results / "shifts.npz")
    refused("smaller")
    pp.Shifts(past[2].low, past[2].high, description="the best set of all").save(
        results / "shifts.npz"
    )
    refused("renamed")
    (results / "shifts.npz").write_bytes(kept[:-10])
    refused("cut")
    (results / "shifts.npz").write_bytes(kept)
    assert len(pp.read_results(results))


def test_folder_is_not_begun_where_name_is_taken(loans, past, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "shifts.npz").write_text("mine")
    words = loans.options(delta=past[0] / "shifts.npz", out=tmp_path / "out")
    failed(run("explain", *words), OutputError, name="shifts.npz", notes=1)
    assert (tmp_path / "out" / "shifts.npz").read_text() == "mine"
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["shifts.npz"]


def test_folder_of_plain_delta_holds_no_set(loans, tmp_path):
    good("explain", *loans.options(out=tmp_path / "results"))
    back = pp.read_results(tmp_path / "results")
    assert (back.provenance.delta, back[0].setting.current.shifts.description) == (0.01, "")
    assert not (tmp_path / "results" / "shifts.npz").exists()


def test_certificates_of_set_are_checked(loans, past, results, tmp_path):
    model, box = loans.folder / "model.onnx", past[0] / "shifts.npz"
    number = len(list((results / "certificates").iterdir()))
    for words in ([], ["--delta", box]):
        facts = facts_of("check", results, "--model", model, *words)
        assert [entry["proved"]["shifts"] for entry in facts["certificates"]] == (
            [past[2].digest] * number
        )
    proof = sorted((results / "certificates").iterdir())[0]
    good("check", proof, "--model", model, "--delta", box)
    alone = run("check", proof, "--model", model)
    assert alone.returncode == 1
    assert past[2].digest in alone.stdout
    assert "--delta FILE" in alone.stdout
    past[2].scaled(2.0).save(tmp_path / "wider.npz")
    for target, count in ((proof, 1), (results, number)):
        words = ["--model", model, "--delta", tmp_path / "wider.npz"]
        assert rejected(target, *words) == count


# -- the page --------------------------------------------------------------------------------------


def test_page_of_folder(past, results, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    good("report", results, "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert past[2].digest in text
    assert "bounding set of 4 networks" in text
    assert "--delta results/shifts.npz" in text


# -- other models ----------------------------------------------------------------------------------


def test_other_models_are_read_from_right(past, tmp_path):
    folder, _, box = past
    odd = tmp_path / "a:b.npz"
    shutil.copy(folder / "past-0.npz", odd)
    file = folder / "shifts.npz"
    cases = {f"{odd}": None, f"{odd}:0.02": 0.02, f"{odd}:1e-3": 0.001, f"{odd}:{file}": box}
    for word, delta in cases.items():
        assert required(word) == (odd, delta)
    trap = tmp_path / "m.npz:0.5"
    shutil.copy(odd, trap)
    shutil.copy(odd, tmp_path / "m.npz")
    assert required(str(trap)) == (trap, None)


@pytest.mark.parametrize(
    ("word", "error", "name"),
    [
        ("none.npz", OptionError, "--required-model"),
        ("none.npz:0.1", OptionError, "--required-model"),
        ("MODEL:", OptionError, "--required-model"),
        ("MODEL:much", DeltaError, ANY),
        ("MODEL:-1", DeltaError, ANY),
        ("MODEL:nan", DeltaError, ANY),
        ("MODEL:none.npz", DeltaError, ANY),
        ("MODEL:MODEL", ModelFileError, ANY),
    ],
)
def test_wrong_other_models_are_rejected(past, word, error, name):
    with raises(error, name=name):
        required(word.replace("MODEL", str(past[0] / "past-0.npz")))


def test_required_models_accept_answers(loans, past):
    folder, nets, _ = past
    other = folder / "past-2.npz"
    models = [{"model": str(other), "delta": 0.005}, str(folder / "past-1.npz")]
    words = [*loans.options(row=0), "required_models:", models]
    (answer,) = facts_of("explain", *words)
    point = loans.schema.encode(pd.DataFrame([answer["counterfactual"]]))[0]
    for net in (loans.net, nets[1]):
        assert forward(net, point)[0] >= 0.0
    rng = np.random.default_rng(0)
    assert sampled_margins(nets[2], point, 0.005, 1, rng).min() >= 0.0


@pytest.fixture(scope="module")
def voted(loans, past, tmp_path_factory):
    """Results that two other models accept as well: one with its delta, one with its own set."""
    folder, nets, _ = past
    place = tmp_path_factory.mktemp("voted")
    loans.people.head(2).to_csv(place / "people.csv", index=False)
    pp.Shifts.bounding([nets[1], nets[3]]).save(place / "own.npz")
    words = loans.options(input=place / "people.csv", out=place / "results")
    models = [
        {"model": str(folder / "past-2.npz"), "delta": 0.005},
        {"model": str(folder / "past-1.npz"), "delta": str(place / "own.npz")},
    ]
    words += ["required_models:", models]
    good("explain", *words)
    return place / "results", words


@pytest.fixture
def votes(voted, tmp_path):
    return shutil.copytree(voted[0], tmp_path / "votes")


def test_folder_holds_other_models(loans, past, votes):
    _, nets, _ = past
    back = pp.read_results(votes)
    sets = back[0].setting.guarantee.members
    assert [each.name for each in sets] == ["the current model", "past-2.npz", "past-1.npz"]
    assert sets[1].shifts.radius == 0.005
    assert np.array_equal(sets[1].network.layers[0].W, nets[2].layers[0].W)
    assert sets[2].shifts.digest == pp.Shifts.load(votes / "shifts-3.npz").digest
    assert sorted(path.name for path in votes.glob("*.npz")) == [
        "network-2.npz",
        "network-3.npz",
        "network.npz",
        "shifts-3.npz",
    ]
    assert all(name in back[0].describe().sentence for name in ("past-2.npz", "past-1.npz"))
    for e in back:
        assert e.certificate.check(back[0].setting.guarantee).accepted
        rng = np.random.default_rng(0)
        for each in sets:
            worst = sampled_margins(each.network, e.encoded_counterfactual, each.shifts, 1, rng)
            assert worst.min() >= 0.0


def test_bundles_of_folder_are_checked(loans, past, votes, tmp_path):
    model = ["--model", loans.folder / "model.onnx"]
    number = len(list((votes / "certificates").iterdir()))
    for words in ([], ["--delta", 0.01, "--target", 1]):
        assert len(facts_of("check", votes, *model, *words)["certificates"]) == number
    assert rejected(votes, *model, "--delta", 0.02) == number
    proof = sorted((votes / "certificates").iterdir())[0]
    third = f"{votes / 'network-3.npz'}:{votes / 'shifts-3.npz'}"
    others = ["--required-model", votes / "network-2.npz", "--required-model", third]
    good("check", proof, *model, *others)
    assert rejected(proof, *model, *others[:2]) == 1
    assert rejected(proof, *model) == 1
    assert rejected(votes, "--model", past[0] / "past-0.npz") == number


def test_less_than_all_sets_is_rejected(loans, votes):
    """A manifest that promises more of another model than the bundles prove."""
    place = votes / "manifest.json"
    facts = json.loads(place.read_text())
    del facts["seal"]
    facts["about"]["provenance"]["guarantee"]["members"][1]["delta"] = 0.006
    place.write_text(json.dumps({**facts, "seal": _sha256(facts)}))
    number = len(list((votes / "certificates").iterdir()))
    assert rejected(votes, "--model", loans.folder / "model.onnx") == number


@pytest.mark.parametrize("name", ["network-2.npz", "network-3.npz", "shifts-3.npz"])
def test_another_model_that_was_changed_is_refused(past, votes, name):
    kept = past[0] / ("around.npz" if name.startswith("shifts") else "past-0.npz")
    shutil.copy(kept, votes / name)
    with raises(ResultsError, name=name):
        pp.read_results(votes)


def test_page_names_other_models(votes, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    good("report", votes, "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "past-2.npz" in text
    assert "past-1.npz" in text
    assert (
        "--required-model votes/network-2.npz --required-model votes/network-3.npz:votes/shifts-3.npz"
        in text
    )


# -- calibrate -------------------------------------------------------------------------------------


def test_set_that_is_chosen_is_written(loans, past, tmp_path):
    words = loans.options("calibrate", delta=None, deltas=[[0.01]])
    out = tmp_path / "chosen.npz"
    found = facts_of("calibrate", *words, *files(past), "--out", out)
    made = pp.Shifts.load(out)
    assert made == pp.Shifts.of(loans.net, found["delta"]) or made.contains(loans.net)
    low, high = (np.concatenate([x.W.ravel() for x in net.layers]) for net in (made.low, made.high))
    assert np.allclose(high - low, 2 * found["delta"])


@pytest.mark.slow
@pytest.mark.parametrize("delta", [None, "around.npz"])
def test_risk_is_passed_on_and_statement_printed(loans, past, delta):
    """If the project has a shift set, its size is chosen."""
    words = loans.options("calibrate", delta=delta and past[0] / delta)
    facts = facts_of("calibrate", *words, *files(past), "--risk", 0.3)
    assert "30" in facts["statement"]
