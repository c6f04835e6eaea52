"""Sets of networks on the command line: made, looked at, and used wherever a delta is."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pandas as pd
import pytest

import proplace as pp
from commands import call
from oracles import forward, sampled_margins
from proplace.apps.batch.manifest import _sha256
from proplace.apps.cli import delta
from proplace.core.errors import DeltaError, OptionError


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
    box = pp.Shifts.hull(nets)
    box.save(folder / "shifts.npz")
    pp.Shifts.of(loans.net, 0.02).save(folder / "around.npz")
    return folder, nets, box


def files(past):
    return sorted(past[0].glob("past-*.npz"))


def good(*words):
    done = call(*words)
    assert (done.returncode, done.stderr.count("error")) == (0, 0), done.stderr
    return done.stdout


# -- making and looking ----------------------------------------------------------------------------


def test_a_hull_holds_each_parameter_from_its_least_to_its_largest(past, tmp_path):
    out = tmp_path / "hull.npz"
    assert "hull of 4 networks" in good("shifts", "hull", *files(past), "--out", out)
    made = pp.Shifts.load(out)
    for n, layers in enumerate(zip(*(net.layers for net in past[1]), strict=True)):
        W = np.array([layer.W for layer in layers])
        b = np.array([layer.b for layer in layers])
        assert np.array_equal(made.low.layers[n].W, W.min(axis=0))
        assert np.array_equal(made.high.layers[n].W, W.max(axis=0))
        assert np.array_equal(made.low.layers[n].b, b.min(axis=0))
        assert np.array_equal(made.high.layers[n].b, b.max(axis=0))
    assert made.digest == past[2].digest


def test_nothing_is_overwritten_and_the_name_is_looked_at_first(past, tmp_path):
    out = tmp_path / "hull.npz"
    out.write_text("mine")
    done = call("shifts", "hull", *files(past), "--out", out)
    assert (done.returncode, out.read_text()) == (1, "mine")
    assert "is there already" in done.stderr
    done = call("shifts", "hull", "no-such.npz", "--out", tmp_path / "box.json")
    assert "box.json: shifts are written to an .npz file" in done.stderr


def test_what_is_shown_of_a_set(loans, past):
    folder, nets, box = past
    facts = json.loads(good("shifts", "show", folder / "shifts.npz", "--json"))
    assert (facts["digest"], facts["about"]) == (box.digest, "hull of 4 networks")
    assert "contains_model" not in facts
    for n, layer in enumerate(facts["layers"]):
        values = np.array([[*net.layers[n].W.ravel(), *net.layers[n].b] for net in nets])
        length = values.max(axis=0) - values.min(axis=0)
        assert layer["parameters"] == layer["moving"] == values.shape[1]
        assert (layer["largest"], layer["median"]) == (length.max(), np.median(length))
        assert layer["symmetric"] is None
    assert facts["parameters"] == sum(layer["parameters"] for layer in facts["layers"])
    text = good("shifts", "show", folder / "shifts.npz")
    assert box.digest in text
    assert f"{facts['moving']} of {facts['parameters']} parameters" in text


def test_a_parameter_that_does_not_move_is_not_counted(loans, tmp_path):
    radii = [(0.0, 0.01), (0.02, 0.0)]
    pp.Shifts.of(loans.net, radii).save(tmp_path / "some.npz")
    layers = json.loads(good("shifts", "show", tmp_path / "some.npz", "--json"))["layers"]
    first, second = loans.net.layers
    assert [layer["moving"] for layer in layers] == [first.b.size, second.W.size]
    assert [layer["parameters"] for layer in layers] == [
        first.W.size + first.b.size,
        second.W.size + second.b.size,
    ]


def test_whether_a_model_lies_in_the_set_and_where_not(loans, past):
    folder, _, box = past
    inside = good("shifts", "show", folder / "shifts.npz", "--model", folder / "past-1.npz")
    assert "past-1.npz lies in the set" in inside
    model = loans.folder / "model.onnx"
    facts = json.loads(good("shifts", "show", folder / "shifts.npz", "--model", model, "--json"))
    assert not facts["contains_model"]
    beyond = []
    for layer, low, high in zip(loans.net.layers, box.low.layers, box.high.layers, strict=True):
        for value, least, most in (
            (layer.W, low.W, high.W),
            (layer.b, low.b, high.b),
        ):
            beyond += np.maximum(least - value, value - most).ravel().tolist()
    beyond = sorted((b for b in beyond if b > 0.0), reverse=True)
    assert facts["outside"] == len(beyond) > 5
    assert [entry["beyond"] for entry in facts["farthest_outside"]] == beyond[:5]
    far = facts["farthest_outside"][0]
    text = good("shifts", "show", folder / "shifts.npz", "--model", model)
    assert f"does not lie in the set: {len(beyond)} of its" in text
    assert f"{far['name']}: {far['value']:.6g}, outside of" in text


def test_whether_the_set_is_symmetric_around_the_model(loans, past):
    folder, model = past[0], loans.folder / "model.onnx"
    show = ["shifts", "show", folder / "around.npz", "--json", "--model"]
    assert all(layer["symmetric"] for layer in json.loads(good(*show, model))["layers"])
    layers = json.loads(good(*show, folder / "past-0.npz"))["layers"]
    assert not any(layer["symmetric"] for layer in layers)
    assert "no" in good("shifts", "show", folder / "shifts.npz", "--model", model)


def test_a_history_is_learned_from(past, loans, tmp_path):
    paths = []
    for seed in range(30):
        paths.append(tmp_path / f"later-{seed}.npz")
        moved(loans.net, 0.01, seed).save(paths[-1])
    out = tmp_path / "learned.npz"
    words = ["--coverage", 0.9, "--model", loans.folder / "model.onnx", "--out", out]
    text = good("shifts", "learn", *paths, *words)
    made = pp.Shifts.load(out)
    assert "30 retrainings" in made.about
    assert made.about in text
    assert sum(made.contains(pp.Network.load(path)) for path in paths) >= 27
    done = call("shifts", "learn", *paths[:5], "--out", tmp_path / "few.npz")
    assert done.returncode == 1
    assert "error" in done.stderr
    assert not (tmp_path / "few.npz").exists()


def test_scalers_that_were_fitted_again_are_expressed_behind_that_in_use(tmp_path):
    first = pp.Network([([[1.0, 2.0]], [0.5])], scale=[2.0, 1.0], shift=[0.0, 0.0])
    again = pp.Network([([[2.0, 2.0]], [0.5])], scale=[1.0, 1.0], shift=[0.0, 0.0])
    first.save(tmp_path / "first.npz")
    again.save(tmp_path / "again.npz")
    paths = [tmp_path / "first.npz", tmp_path / "again.npz"]
    good("shifts", "hull", *paths, "--out", tmp_path / "both.npz")
    words = [paths[1], "--model", paths[0], "--out", tmp_path / "one.npz"]
    good("shifts", "hull", *words)
    read = [pp.Model.of(path).network for path in paths]
    for name in ("both.npz", "one.npz"):  # 2 * 1 = 1 * 2: it is the same model
        shown = ["shifts", "show", tmp_path / name, "--json", "--model"]
        assert json.loads(good(*shown, paths[0]))["contains_model"]
        made = pp.Shifts.load(tmp_path / name)
        assert made.frozen
        assert made.contains(read[0])
        assert not made.contains(again)


# -- what is said when something is wrong ----------------------------------------------------------


def test_exactly_one_of_delta_and_shifts(loans, past):
    for words in ([], ["--delta", 0.01, "--shifts", past[0] / "shifts.npz"]):
        for command, options in (
            ("explain", loans.options(delta=None, row=0)),
            ("certify", ["--model", loans.folder / "model.onnx", "--input", "people.csv"]),
        ):
            done = call(command, *options, *words)
            assert done.returncode == 1
            assert "give --delta NUMBER or --shifts FILE" in done.stderr
    proof = ["check", "proof.json", "--model", loans.folder / "model.onnx"]
    done = call(*proof, "--delta", 0.01, "--shifts", past[0] / "shifts.npz")
    assert "not both" in done.stderr


def test_a_set_of_other_networks_is_refused_with_what_to_do(loans, past, tmp_path):
    other = pp.Network([(np.ones((3, loans.net.inputs)), np.ones(3)), (np.ones((1, 3)), [0.0])])
    scaled = pp.Network(
        [(layer.W, layer.b) for layer in loans.net.layers], scale=np.full(loans.net.inputs, 2.0)
    )
    other.save(tmp_path / "other.npz")
    loans.net.save(tmp_path / "network.npz")
    pp.Shifts.of(other, 0.1).save(tmp_path / "other-shifts.npz")
    pp.Shifts.of(scaled, 0.1).save(tmp_path / "scaled-shifts.npz")
    for name, why in (
        ("other-shifts.npz", "another architecture (6-3-1) than that of"),
        ("scaled-shifts.npz", "behind another scaler or encoding"),
        ("missing.npz", "no such file; proplace shifts hull"),
        ("network.npz", "not a shifts file"),
    ):
        explain = loans.options(delta=None, shifts=tmp_path / name, row=0)
        model = ["--model", loans.folder / "model.onnx"]
        table = ["--schema", loans.folder / "schema.yaml", "--input", loans.folder / "people.csv"]
        for words in (
            ["explain", *explain],
            ["shifts", "show", tmp_path / name, *model],
            ["certify", *model, *table, "--shifts", tmp_path / name],
        ):
            done = call(*words)
            assert (done.returncode, done.stdout) == (1, "")
            assert why in done.stderr
            assert name in done.stderr
    done = call("shifts", "hull", *files(past), tmp_path / "other.npz", "--out", tmp_path / "x.npz")
    assert "other.npz: has another architecture than" in done.stderr
    assert not (tmp_path / "x.npz").exists()


# -- using it --------------------------------------------------------------------------------------


def test_rows_are_certified_for_every_network_of_the_set(loans, past, tmp_path):
    folder, _, box = past
    out = tmp_path / "verdicts.csv"
    words = ["--model", loans.folder / "model.onnx", "--schema", loans.folder / "schema.yaml"]
    words += ["--input", loans.folder / "train.csv", "--shifts", folder / "shifts.npz"]
    done = call("certify", *words, "--out", out)
    assert done.returncode == 0
    assert "does not lie in the set" in done.stderr
    assert (
        f"from every network of the set {folder / 'shifts.npz'} (hull of 4 networks)" in done.stdout
    )
    verdicts = pd.read_csv(out)["verdict"]
    rows = loans.schema.encode(loans.train)
    expected = pp.certify(loans.net, rows, box).robust
    assert ((verdicts == "robust") == expected).all()
    assert 0 < expected.sum() < len(expected)
    facts = json.loads(good("certify", *words, "--json"))
    assert facts["delta"] == box.digest
    assert facts["shifts"] == {"digest": box.digest, "about": "hull of 4 networks"}
    around = [*words[:-1], folder / "around.npz"]
    plain = [*words[:-2], "--delta", 0.02]
    assert (
        json.loads(good("certify", *around, "--json"))["robust"]
        == json.loads(good("certify", *plain, "--json"))["robust"]
    )


def test_one_person(loans, past):
    folder, nets, box = past
    words = loans.options(delta=None, shifts=folder / "shifts.npz", row=0)
    (answer,) = json.loads(good("explain", *words, "--json"))
    assert answer["delta"] == box.digest
    assert answer["shifts"] == {
        "digest": box.digest,
        "about": "hull of 4 networks",
        "contains_model": False,
    }
    assert "for every network of the set “hull of 4 networks”" in answer["sentence"]
    assert "the model in use lies outside of this set, and accepts it as well" in answer["sentence"]
    point = loans.schema.encode(pd.DataFrame([answer["counterfactual"]]))[0]
    for net in (loans.net, *nets):
        assert forward(net, point)[0] >= 0.0
    rng = np.random.default_rng(0)
    assert sampled_margins(loans.net, point, box, 1, rng).min() >= 0.0
    shown = good("explain", *words)
    assert "every network of the set reaches class" in " ".join(shown.split())
    (plain,) = json.loads(good("explain", *loans.options(row=0), "--json"))
    assert (plain["delta"], plain["shifts"]) == (0.01, None)


@pytest.fixture(scope="module")
def done(loans, past, tmp_path_factory):
    """A folder of results about a set of networks."""
    folder = tmp_path_factory.mktemp("boxed")
    loans.people.head(3).to_csv(folder / "people.csv", index=False)
    words = loans.options(
        delta=None,
        shifts=past[0] / "shifts.npz",
        input=folder / "people.csv",
        out=folder / "results",
    )
    good("explain", *words, "--certificates")
    return folder / "results", words


@pytest.fixture
def results(done, tmp_path):
    return shutil.copytree(done[0], tmp_path / "results")


def test_a_folder_of_results_holds_its_set(loans, past, results):
    box = past[2]
    kept = pp.Shifts.load(results / "shifts.npz")
    assert (kept, kept.about) == (box, box.about)
    table = pd.read_csv(results / "results.csv")
    assert set(table["delta"]) == {f"shifts {box.digest}"}
    back = pp.read_results(results)
    assert back.provenance.delta == box.digest
    assert back.provenance.delta_about == "hull of 4 networks"
    assert all(e.setting.shifts == box for e in back)
    assert [e.words().sentence for e in back] == list(table["sentence"])
    assert (back[0].setting.general, back[0].setting.inside) == (True, False)


def test_a_batch_goes_on_with_the_same_set_and_with_no_other(loans, past, done, results, tmp_path):
    words = [word if word != str(done[0]) else results for word in done[1]]
    before = (results / "results.csv").read_bytes()
    (results / "results.csv").unlink()
    good("explain", *words, "--certificates")
    assert (results / "results.csv").read_bytes() == before
    wider = past[2].scaled(1.5)
    wider.save(tmp_path / "wider.npz")
    renamed = pp.Shifts(past[2].low, past[2].high, about="otherwise")
    renamed.save(tmp_path / "renamed.npz")
    for name, why in (("wider.npz", "with another delta"), ("renamed.npz", "another about delta")):
        other = [tmp_path / name if word == str(past[0] / "shifts.npz") else word for word in words]
        failed = call("explain", *other, "--certificates")
        assert failed.returncode == 1
        assert why in failed.stderr
    plain = loans.options(input=done[0].parent / "people.csv", out=results)
    assert "with another delta" in call("explain", *plain, "--certificates").stderr


def test_a_set_that_was_changed_is_refused(past, results, tmp_path):
    def refused(path):
        with pytest.raises(pp.errors.ResultsError, match=r"shifts\.npz: is missing, or not as it"):
            pp.read_results(results)
        failed = call("report", results, "--out", tmp_path / f"{path}.html")
        assert failed.returncode == 1
        assert "shifts.npz" in failed.stderr

    kept = (results / "shifts.npz").read_bytes()
    (results / "shifts.npz").unlink()
    refused("gone")
    small = past[2].scaled(0.5)
    pp.Shifts(small.low, small.high, about=past[2].about).save(results / "shifts.npz")
    refused("smaller")
    pp.Shifts(past[2].low, past[2].high, about="the best set of all").save(results / "shifts.npz")
    refused("renamed")
    (results / "shifts.npz").write_bytes(kept[:-10])
    refused("cut")
    (results / "shifts.npz").write_bytes(kept)
    assert len(pp.read_results(results))


def test_a_folder_is_not_begun_where_the_name_is_taken(loans, past, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "shifts.npz").write_text("mine")
    words = loans.options(delta=None, shifts=past[0] / "shifts.npz", out=tmp_path / "out")
    failed = call("explain", *words)
    assert "shifts.npz: is there, but no manifest.json" in failed.stderr
    assert (tmp_path / "out" / "shifts.npz").read_text() == "mine"


def test_folder_of_a_plain_delta_holds_no_set(loans, tmp_path):
    good("explain", *loans.options(out=tmp_path / "results"))
    back = pp.read_results(tmp_path / "results")
    assert (back.provenance.delta, back.provenance.delta_about) == (0.01, "")
    assert not (tmp_path / "results" / "shifts.npz").exists()


def test_certificates_of_a_set_are_checked(loans, past, results, tmp_path):
    model, box = loans.folder / "model.onnx", past[0] / "shifts.npz"
    number = len(list((results / "certificates").iterdir()))
    text = good("check", results, "--model", model)
    assert f"{number} of {number} certificates prove their answers" in text
    assert good("check", results, "--model", model, "--shifts", box) == text
    proof = sorted((results / "certificates").iterdir())[0]
    assert "accepted" in good("check", proof, "--model", model, "--shifts", box)
    failed = call("check", proof, "--model", model)
    assert failed.returncode == 1
    assert f"the digest {past[2].digest}" in failed.stdout
    assert "--shifts FILE" in failed.stdout
    past[2].scaled(2.0).save(tmp_path / "wider.npz")
    for target in (proof, results):
        failed = call("check", target, "--model", model, "--shifts", tmp_path / "wider.npz")
        assert failed.returncode == 1
        assert "rejected" in failed.stdout


# -- the page --------------------------------------------------------------------------------------


def test_the_page_of_a_folder(past, results, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    said = "Of 59 retrainings, 59 honour each promise."
    good("report", results, "--out", tmp_path / "page.html", "--statement", said)
    text = (tmp_path / "page.html").read_text()
    assert f"not proved.</strong> {said}</p>" in text
    assert past[2].digest in text
    assert "hull of 4 networks" in text
    assert "--shifts results/shifts.npz" in text


def test_a_statement_needs_a_page(loans):
    done = call("explain", *loans.options(row=0), "--statement", "all will be well")
    assert done.returncode == 1
    assert "give --report page.html" in done.stderr


# -- other models ----------------------------------------------------------------------------------


def test_other_models_are_read_from_the_right(past, tmp_path):
    folder, _, box = past
    odd = tmp_path / "a:b.npz"
    shutil.copy(folder / "past-0.npz", odd)
    (one,) = delta.others([str(odd)])
    assert (one.path, one.delta) == (odd, None)
    (one,) = delta.others([f"{odd}:0.02"])
    assert (one.path, one.delta.delta) == (odd, 0.02)
    (one,) = delta.others([f"{odd}:1e-3"])
    assert one.delta.delta == 0.001
    (one,) = delta.others([f"{odd}:{folder / 'shifts.npz'}"])
    assert one.delta.delta == box
    trap = tmp_path / "m.npz:0.5"
    shutil.copy(odd, trap)
    shutil.copy(odd, tmp_path / "m.npz")
    (one,) = delta.others([str(trap)])
    assert (one.path, one.delta) == (trap, None)


@pytest.mark.parametrize(
    ("word", "error", "why"),
    [
        ("none.npz", OptionError, "there is no such model file"),
        ("none.npz:0.1", OptionError, "and none called none.npz either"),
        ("MODEL:much", OptionError, "a number such as 0.02"),
        ("MODEL:", OptionError, "a number such as 0.02"),
        ("MODEL:-1", DeltaError, "must be a positive number"),
        ("MODEL:nan", DeltaError, "must be a positive number"),
        ("MODEL:none.npz", DeltaError, "no such file"),
        ("MODEL:MODEL", pp.errors.ModelFileError, "not a shifts file"),
    ],
)
def test_what_is_wrong_with_another_model_is_said(past, word, error, why):
    with pytest.raises(error, match=why):
        delta.others([word.replace("MODEL", str(past[0] / "past-0.npz"))])


def test_answers_are_asked_of_other_models_too(loans, past):
    folder, nets, _ = past
    other = folder / "past-2.npz"
    words = [*loans.options(row=0), "--also", f"{other}:0.005", "--also", folder / "past-1.npz"]
    (answer,) = json.loads(good("explain", *words, "--json"))
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
    pp.Shifts.hull([nets[1], nets[3]]).save(place / "own.npz")
    words = loans.options(input=place / "people.csv", out=place / "results")
    words += ["--also", f"{folder / 'past-2.npz'}:0.005"]
    words += ["--also", f"{folder / 'past-1.npz'}:{place / 'own.npz'}"]
    good("explain", *words, "--certificates")
    return place / "results", words


@pytest.fixture
def votes(voted, tmp_path):
    return shutil.copytree(voted[0], tmp_path / "votes")


def test_a_folder_holds_the_other_models(loans, past, votes):
    _, nets, _ = past
    back = pp.read_results(votes)
    sets = back[0].setting.sets
    assert [each.name for each in sets] == ["the model in use", "past-2.npz", "past-1.npz"]
    assert sets[1].shifts.radius == 0.005
    assert np.array_equal(sets[1].net.layers[0].W, nets[2].layers[0].W)
    assert sets[2].shifts.digest == pp.Shifts.load(votes / "shifts-3.npz").digest
    assert sorted(path.name for path in votes.glob("*.npz")) == [
        "network-2.npz",
        "network-3.npz",
        "network.npz",
        "shifts-3.npz",
    ]
    said = back[0].words().sentence
    assert (
        "; the same is proved for every network within the delta of past-2.npz and every network of "
        "the set of past-1.npz." in said
    )
    for e in back:
        assert e.certificate.check(sets).accepted
        rng = np.random.default_rng(0)
        for each in sets:
            worst = sampled_margins(each.net, e.point, each.shifts, 1, rng)
            assert worst.min() >= 0.0


def test_bundles_of_a_folder_are_checked(loans, past, votes, tmp_path):
    model = ["--model", loans.folder / "model.onnx"]
    number = len(list((votes / "certificates").iterdir()))
    assert f"{number} of {number} certificates prove" in good("check", votes, *model)
    assert f"{number} of {number}" in good("check", votes, *model, "--delta", 0.01, "--target", 1)
    assert "delta 0.02 is demanded" in call("check", votes, *model, "--delta", 0.02).stdout
    proof = sorted((votes / "certificates").iterdir())[0]
    third = f"{votes / 'network-3.npz'}:{votes / 'shifts-3.npz'}"
    others = ["--also", votes / "network-2.npz", "--also", third]
    assert "accepted" in good("check", proof, *model, *others)
    assert call("check", proof, *model, *others[:2]).returncode == 1
    assert call("check", proof, *model).returncode == 1
    other = ["--model", past[0] / "past-0.npz"]
    failed = call("check", votes, *other)
    assert failed.returncode == 1
    assert f"0 of {number} certificates prove" in failed.stdout


def test_less_than_all_sets_is_rejected(loans, votes):
    """A manifest that promises more of another model than the bundles prove."""
    place = votes / "manifest.json"
    facts = json.loads(place.read_text())
    del facts["seal"]
    facts["about"]["provenance"]["also"][0]["delta"] = 0.006
    place.write_text(json.dumps({**facts, "seal": _sha256(facts)}))
    failed = call("check", votes, "--model", loans.folder / "model.onnx")
    assert failed.returncode == 1
    assert "the line is about another delta of past-2.npz" in failed.stdout


@pytest.mark.parametrize("name", ["network-2.npz", "network-3.npz", "shifts-3.npz"])
def test_another_model_that_was_changed_is_refused(past, votes, name):
    kept = past[0] / ("around.npz" if name.startswith("shifts") else "past-0.npz")
    shutil.copy(kept, votes / name)
    with pytest.raises(pp.errors.ResultsError, match=f"{name}: is missing, or not as it was"):
        pp.read_results(votes)


def test_the_page_names_the_other_models(votes, tmp_path):
    pytest.importorskip("jinja2")
    pytest.importorskip("matplotlib")
    good("report", votes, "--out", tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text()
    assert "The same is proved for every network within the delta of past-2.npz" in text
    assert "Also accepted by past-1.npz" in text
    assert "--also votes/network-2.npz --also votes/network-3.npz:votes/shifts-3.npz" in text


# -- calibrate -------------------------------------------------------------------------------------


def test_the_set_that_is_chosen_is_written(loans, past, tmp_path):
    words = loans.options(delta=None)
    out = tmp_path / "chosen.npz"
    found = json.loads(
        good("calibrate", *words, *files(past), "--delta", 0.01, "--out-shifts", out, "--json")
    )
    made = pp.Shifts.load(out)
    assert made == pp.Shifts.of(loans.net, found["delta"]) or made.contains(loans.net)
    low, high = (np.concatenate([x.W.ravel() for x in net.layers]) for net in (made.low, made.high))
    assert np.allclose(high - low, 2 * found["delta"])


def test_options_of_calibrate_that_do_not_go_together(loans, past):
    words = [*loans.options(delta=None), *files(past), "--shifts", past[0] / "shifts.npz"]
    assert "give --risk 0.05, too" in call("calibrate", *words).stderr
    done = call("calibrate", *words, "--risk", 0.2, "--delta", 0.01)
    assert "not both" in done.stderr


def test_a_risk_is_passed_on_and_the_statement_printed(loans, past, tmp_path):
    words = [*loans.options(delta=None), *files(past), "--risk", 0.3]
    facts = json.loads(good("calibrate", *words, "--json"))
    assert "30" in facts["statement"] or "0.3" in facts["statement"]
