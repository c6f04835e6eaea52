"""Required models: every counterfactual is attacked in every set, and given to every original model."""

from __future__ import annotations

import functools
import itertools
import pickle
import sys
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

import proplace as pp
from oracles import milp_margin
from proplace.batch import explain_file
from proplace.certification import CertificateBundle
from proplace.core.errors import (
    DeltaError,
    InputError,
    MissingExtraError,
    ModelFileError,
    ModelNotSupportedError,
    OptionError,
    OutputError,
)
from proplace.explain import answer as answer_module
from proplace.explain.prove import Prover
from proplace.explain.record import Provenance
from proplace.search import SearchResult
from support.errors import raises
from support.people import check_bound
from support.problems import check_robust

torch = pytest.importorskip("torch")


@functools.cache
def lender():
    """A table, and three pipelines for it with scalers, encoders and architectures of their own."""
    rng = np.random.default_rng(0)
    n = 240
    table = pd.DataFrame(
        {
            "age": rng.uniform(20, 70, n).round(1),
            "income": rng.uniform(10, 90, n).round(1),
            "job": rng.choice(["clerk", "cook", "pilot"], n),
        }
    )
    score = table.income + 0.5 * table.age + 10 * (table.job == "pilot") + rng.normal(size=n) * 5
    y = np.where(score > 75, "yes", "no")

    def pipe(seed, scaler, numbers, hidden, first="job"):
        half = rng.permutation(n)[: n // 2]
        parts = [(scaler, numbers), (OneHotEncoder(), ["job"])]
        steps = make_column_transformer(*(parts if first == "numbers" else parts[::-1]))
        model = MLPClassifier(hidden, max_iter=300, random_state=seed, learning_rate_init=0.01)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            return make_pipeline(steps, model).fit(table.iloc[half], y[half])

    pipes = (
        pipe(0, StandardScaler(), ["age", "income"], (6,), "numbers"),
        pipe(1, MinMaxScaler(), ["income", "age"], (5, 4)),
        pipe(2, StandardScaler(), ["age", "income"], (4,), "numbers"),
    )
    return table, pipes


def refused(table, pipe, count):
    return table[pipe.predict(table) == "no"].head(count)


def said(model, answer):
    """The class that an original model gives a counterfactual, in the units of the table."""
    row = answer.counterfactual.to_frame().T.astype({"age": float, "income": float})
    return model.predict(row)[0]


# -- answers ---------------------------------------------------------------------------------------


FREE = pp.Schema(
    [
        pp.Continuous("age", 20, 70),
        pp.Continuous("income", 10, 90),
        pp.Categorical("job", ["clerk", "cook", "pilot"]),
    ]
)


@pytest.mark.parametrize("schema", [None, FREE], ids=["steps", "no steps"])
def test_pipelines_with_their_own_scalers(schema):
    """Champion, challenger and last year's model: each box holds, and each model itself agrees."""
    table, pipes = lender()
    options = {"k": 5, "schema": schema}
    also = [pipes[1], (pipes[2], 0.01)]
    explainer = pp.Proplace(pipes[0], 0.02, required_models=also, **options).fit(table)
    names = [models.name for models in explainer.guarantee_.members]
    assert names == ["the current model", "network 2", "network 3"]
    people = refused(table, pipes[0], 6)
    result = explainer.explain(people, target="yes", gap=0)
    alone = pp.Proplace(pipes[0], 0.02, **options).fit(table)
    accepted = 0
    for answer, plain in zip(result, alone.explain(people, target="yes", gap=0), strict=True):
        assert answer.status == "optimal" or (answer.status == "feasible" and schema is None)
        check_bound(answer, 0.0)
        for pipe in pipes:
            assert said(pipe, answer) == "yes"
        accepted += all(said(pipe, plain) == "yes" for pipe in pipes)
        for models, delta in zip(explainer.guarantee_.members, (0.02, 0.0, 0.01), strict=True):
            check_robust(models, answer.encoded_counterfactual, 1)
            assert models.shifts.radius == delta
            worst = milp_margin(models.network, answer.encoded_counterfactual, models.shifts, 1)
            assert worst >= models.margin - 1e-9
            assert worst >= answer.margin - 1e-7
        assert isinstance(answer.certificate, CertificateBundle)
        assert len(answer.certificate.certificates) == 3
        assert answer.certificate.check(explainer.guarantee_).accepted
        assert (
            not CertificateBundle.of(answer.certificate.certificates[:2])
            .check(explainer.guarantee_)
            .accepted
        )
    assert accepted < len(result)  # the required models reject some counterfactuals
    assert result[0].setting.guarantee.members == explainer.guarantee_.members


def test_required_network_agrees_with_original_model():
    """On the rows of the current model, with the trained layers as they are."""
    table, pipes = lender()
    explainer = pp.Proplace(pipes[0], 0.02, required_models=list(pipes[1:])).fit(table)
    rows = explainer.model_.encode(table)
    for models, pipe in zip(explainer.guarantee_.members[1:], pipes[1:], strict=True):
        own = pp.Model.of(pipe)
        probability = pipe.predict_proba(table)[:, 1]
        np.testing.assert_allclose(
            models.network.predict_proba(rows)[:, 1], probability, atol=1e-10
        )
        for mine, theirs in zip(models.network.layers, own.network.layers, strict=True):
            assert mine.W.tobytes() == theirs.W.tobytes()
            assert mine.bias.tobytes() == theirs.bias.tobytes()


@functools.cache
def modules():
    """Two torch modules of different depth for the same three columns, and rows."""
    torch.manual_seed(1)
    rng = np.random.default_rng(3)
    X = rng.uniform(-1.0, 1.0, (300, 3)).astype(np.float32).astype(np.float64)
    y = torch.tensor((X @ [1.0, -0.5, 0.8] > 0.2).astype(np.float32))
    found = []
    for widths in ((6,), (5, 4)):
        sizes = [3, *widths, 1]
        parts = [torch.nn.Linear(3, sizes[1])]
        for a, b in itertools.pairwise(sizes[1:]):
            parts += [torch.nn.ReLU(), torch.nn.Linear(a, b)]
        module = torch.nn.Sequential(*parts)
        steps = torch.optim.Adam(module.parameters(), lr=0.02)
        inputs = torch.tensor(X, dtype=torch.float32)
        for _ in range(150):
            steps.zero_grad()
            loss = torch.nn.functional.binary_cross_entropy_with_logits(module(inputs)[:, 0], y)
            loss.backward()
            steps.step()
        found.append(module.eval())
    return X, tuple(found)


def test_torch_module_of_another_architecture():
    X, (one, two) = modules()
    explainer = pp.Proplace(one, 0.02, required_models=[(two, 0.01)], k=8).fit(X)
    assert [models.network.widths for models in explainer.guarantee_.members] == [(6,), (5, 4)]
    margins = [models.margin for models in explainer.guarantee_.members]
    assert margins[0] != margins[1]  # each covers the float32 rounding of its own network
    people = X[explainer.net_.predict(X) == 0][:6]
    for answer in explainer.explain(people, gap=0):
        assert answer.status == "optimal"
        for module in (one, two):
            logit = module(
                torch.tensor(answer.encoded_counterfactual[None], dtype=torch.float32)
            ).detach()
            assert float(logit) >= 0.0
        for models in explainer.guarantee_.members:
            check_robust(models, answer.encoded_counterfactual, 1)


@pytest.mark.parametrize("search", ["tree", "bilevel"])
def test_current_model_that_lies_outside_of_its_box(search):
    """A set learned elsewhere: it and the current model must both accept."""
    net = pp.Network([([[1.0, 0.2]], [-0.5])])
    low, high = (pp.Network([([[w, 1.0]], [-0.6])]) for w in (0.1, 0.2))
    box = pp.Shifts(low, high, description="last year")
    X = np.random.default_rng(0).uniform(0.0, 1.0, (200, 2))
    explainer = pp.Proplace(net, box, k=6, search=search).fit(X)
    first, second = explainer.guarantee_.members
    assert (first.name, second.name) == ("the shift set of the current model", "the current model")
    assert first.shifts == box
    assert second.shifts.is_single_network
    result = explainer.explain([[0.1, 0.1], [0.3, 0.9]], gap=0)
    for answer in result:
        assert answer.found
        assert net.margin(answer.encoded_counterfactual)[0] >= 1e-6 - 1e-12
        assert milp_margin(net, answer.encoded_counterfactual, box, 1) >= 1e-6 - 1e-9
    _, other = result.provenance.guarantee["members"]
    assert (other["name"], other["delta"]) == ("the current model", 0.0)
    assert other["network"] == result.provenance.network_digest
    inside = pp.Proplace(low, box, k=6).fit(X)
    assert len(inside.guarantee_.members) == 1
    assert len(inside.explain([[0.1, 0.1]], gap=0).provenance.guarantee["members"]) == 1


def test_another_network_outside_of_its_box_has_state_too():
    one, two = pp.Network([([[1.0]], [-0.2])]), pp.Network([([[1.0]], [-0.8])])
    box = pp.Shifts(pp.Network([([[1.0]], [-0.4])]), pp.Network([([[1.0]], [-0.3])]))
    explainer = pp.Proplace(one, 0.0, required_models=[(two, box)], region="box").fit(
        [[0.0], [1.0]]
    )
    assert [models.name for models in explainer.guarantee_.members] == [
        "the current model",
        "the shift set of network 2",
        "network 2",
    ]
    answer = explainer.explain([[0.1]], gap=0)[0]
    assert answer.encoded_counterfactual[0] == pytest.approx(0.8, abs=1e-3)


def test_fallback_is_robust_for_all(monkeypatch):
    """If the search finds nothing, the nearest neighbour that is robust for every network."""
    (one, two, _), X = three_lines()
    unknown = SearchResult(None, np.inf, 0.0, "unknown")
    monkeypatch.setattr(answer_module, "search", lambda *_, **__: unknown)
    explainer = pp.Proplace(one, 0.01, required_models=[(two, 0.01)], k=5).fit(X)
    answer = explainer.explain([[0.1, 0.1]], gap=0)[0]
    assert answer.status == "feasible"
    assert len(answer.certificate.certificates) == 2
    assert answer.certificate.check(explainer.guarantee_).accepted
    person = explainer.schema_.person([0.1, 0.1])
    order = X[np.argsort(X.sum(axis=1))]
    robust = [pp.certify(net, order, 0.01, margin=1e-6).robust for net in (one, two)]
    first = int(np.argmax(robust[0] & robust[1]))
    assert int(np.argmax(robust[0])) < first
    other_way = pp.Proplace(two, 0.01, required_models=[(one, 0.01)], k=5).fit(X)
    for each in (explainer, other_way):
        proved = Prover(each.schema_, each.guarantee_).nearest(order, person, 1, np.inf)
        np.testing.assert_array_equal(proved.point, order[first])


def test_required_model_that_differs_from_import_is_rejected(monkeypatch):
    table, pipes = lender()
    plain = pipes[2].predict
    monkeypatch.setattr(pipes[2], "predict", lambda X: np.where(plain(X) == "yes", "no", "yes"))
    with raises(ModelNotSupportedError, match="network 2"):
        pp.Proplace(pipes[0], 0.01, required_models=[pipes[2]]).fit(table)


def test_two_classes_by_one_logit_and_by_two():
    one = pp.Network([([[1.0]], [-0.2])])
    two = pp.Network([([[0.0], [1.0]], [0.6, 0.0])])
    answer = (
        pp.Proplace(one, 0.0, required_models=[two], region="box")
        .fit([[0.0], [1.0]])
        .explain([[0.1]], gap=0)[0]
    )
    assert answer.encoded_counterfactual[0] == pytest.approx(0.6, abs=1e-3)


# -- who refuses -----------------------------------------------------------------------------------


def three_lines():
    """Networks that accept a + b of at least 0.5, 0.9 and 3 (which nobody has), and rows."""
    X = np.random.default_rng(1).uniform(0.0, 1.0, (200, 2))
    return [pp.Network([([[1.0, 1.0]], [-b])]) for b in (0.5, 0.9, 3.0)], X


def test_reason_names_network_without_robust_rows(tmp_path):
    (one, two, never), X = three_lines()
    path = tmp_path / "challenger.npz"
    two.save(path)
    explainer = pp.Proplace(one, 0.01, required_models=[path, (never, 0.01)]).fit(X)
    total = X.sum(axis=1)
    first = int((total - 0.5 - 0.01 * (1.0 + total) >= 1e-6 + 1e-4).sum())
    second = int((total[total - 0.5 - 0.01 * (1.0 + total) >= 1e-6 + 1e-4] >= 0.9 + 1.01e-4).sum())
    wanted = (
        f"none of 200 training rows is robust for class 1 for every network: {first} for the "
        f"current model, {second} also for challenger.npz, 0 also for network 3"
    )
    answer = explainer.explain([[0.1, 0.1]], gap=0)[0]
    assert answer.status == "no_robust_neighbour"
    assert wanted in answer.reason
    assert 0 < second < first
    boxed = (
        pp.Proplace(one, 0.01, required_models=[never], region="box")
        .fit(X)
        .explain([[0.1, 0.1]], gap=0)[0]
    )
    assert "robust for each of the current model, network 2" in boxed.reason


def test_rules_that_leave_nothing_for_one_of_networks():
    (one, two, _), X = three_lines()
    schema = pp.Schema(
        [pp.Continuous("a", 0, 1, immutable=True), pp.Continuous("b", 0, 1, max_increase=0.3)]
    )
    frame = pd.DataFrame(X, columns=["a", "b"])
    explainer = pp.Proplace(one, 0.01, required_models=[two], schema=schema, k=5).fit(frame)
    person = pd.DataFrame({"a": [0.05], "b": [0.05]})
    answer = explainer.explain(person, gap=0)[0]
    assert answer.status == "fixed_prediction"
    assert answer.reason.startswith("every network within delta refuses all values of b (0 to")
    near = explainer._robust_rows(1).admissible(explainer.schema_.person([0.05, 0.05]), 5)
    assert near.status == "infeasible_rules"
    reason = near.reason
    assert "is robust for every network: 0 for the current model, 0 also for network 2" in reason
    person = pd.DataFrame({"a": [0.3], "b": [0.15]})  # may reach 0.75: enough for one of them
    answer = explainer.explain(person, gap=0)[0]
    assert answer.reason.startswith("network 2 refuses all values of b (0 to")
    reason = (
        explainer._robust_rows(1)
        .admissible(explainer.schema_.person(answer.encoded_original), 5)
        .reason
    )
    assert "for the current model, 0 also for network 2" in reason
    assert "every network: 0 for" not in reason


def test_already_valid_is_up_to_current_model():
    (one, two, _), X = three_lines()
    explainer = pp.Proplace(one, 0.01, required_models=[(two, 0.01)], k=3).fit(X)
    sure, halfway, other = explainer.explain([[0.9, 0.9], [0.4, 0.4], [0.1, 0.1]], gap=0)
    assert (sure.status, halfway.status) == ("already_valid", "already_valid")
    assert sure.reason == (
        "the current model already gives class 1, and so does every network within delta and every "
        "required model"
    )
    assert sure.certificate.check(explainer.guarantee_).accepted
    assert halfway.reason == (
        "the current model already gives class 1, but not every network within delta of network 2; "
        "it is refused by network 2"
    )
    assert halfway.certificate is None
    assert halfway.margin < 0.0
    assert other.found


def test_answer_that_another_model_refuses_is_withheld(monkeypatch):
    """The original of a required model decides, as that of the current model does."""
    table, pipes = lender()
    explainer = pp.Proplace(pipes[0], 0.01, required_models=[pipes[2]], k=5).fit(table)
    people = refused(table, pipes[0], 3)
    assert all(answer.found for answer in explainer.explain(people, target="yes", gap=0))
    monkeypatch.setattr(pipes[2], "predict", lambda X: np.array(["no"] * len(X)))
    for answer in explainer.explain(people, target="yes", gap=0):
        assert answer.status == "model_mismatch"
        assert (
            "the original of network 2 gives this counterfactual 'no' and not 'yes'"
            in answer.reason
        )
        assert answer.encoded_counterfactual is None
        assert answer.certificate is None
    accepted = table[pipes[0].predict(table) == "yes"]
    assert explainer.explain(accepted.head(3), target="yes", gap=0)[0].status == "already_valid"


# -- processes, files, parameters ------------------------------------------------------------------


@pytest.mark.slow
def test_processes_and_runs_agree():
    table, pipes = lender()
    people = refused(table, pipes[0], 4)
    also = [pipes[1], (pipes[2], 0.01)]
    one, two = (
        pp.Proplace(pipes[0], 0.02, required_models=also, k=5, n_jobs=jobs)
        .fit(table)
        .explain(people, "yes", gap=0)
        for jobs in (1, 2)
    )
    for a, b in zip(one, two, strict=True):
        assert (a.status, a.distance) == (b.status, b.distance)
        np.testing.assert_array_equal(a.encoded_counterfactual, b.encoded_counterfactual)
        assert a.certificate.digest == b.certificate.digest


def test_workers_get_no_other_models():
    table, pipes = lender()
    explainer = pp.Proplace(pipes[0], 0.02, required_models=[pipes[1]], k=5).fit(table)
    explainer.prepare_once(explainer.request("yes"))
    lean = explainer._for_workers(1)
    assert lean.required_models is None
    assert lean.required_models_ == {}
    again = pickle.loads(pickle.dumps(lean))
    assert [models.name for models in again.guarantee_.members] == [
        "the current model",
        "network 2",
    ]
    assert explainer.required_models == [pipes[1]]


def test_batch_of_other_networks_is_another_question(tmp_path):
    (one, two, _), X = three_lines()
    table = tmp_path / "people.csv"
    frame = pd.DataFrame(X, columns=["a", "b"])
    frame.head(5).to_csv(table, index=False)
    fitted = [
        pp.Proplace(one, 0.01, required_models=also, k=3).fit(frame)
        for also in ([(two, 0.01)], [(two, 0.02)], [two], None, [(one, 0.01)])
    ]
    explain_file(fitted[0], table, tmp_path / "out")
    explain_file(fitted[0], table, tmp_path / "out")
    for other in fitted[1:]:
        with pytest.raises(OutputError):
            explain_file(other, table, tmp_path / "out")


def test_provenance_is_read_back():
    (one, two, _), X = three_lines()
    explainer = pp.Proplace(one, 0.01, required_models=[(two, [(0.01, 0.0)])], k=3).fit(X)
    made = explainer.explain([[0.1, 0.1]], gap=0).provenance
    assert Provenance.from_dict(made.to_dict()) == made
    current, other = made.guarantee["members"]
    assert other["delta"] == [[0.01, 0.0]]
    for wrong in ("text", [{}], [current, {**other, "delta": -1}]):
        with pytest.raises(InputError):
            Provenance.from_dict({**made.to_dict(), "guarantee": {"members": wrong}})


def test_time_limit_holds():
    table, pipes = lender()
    people = refused(table, pipes[0], 2)
    explainer = pp.Proplace(pipes[0], 0.02, required_models=[pipes[1]], k=5, time_limit=1e-6).fit(
        table
    )
    for answer in explainer.explain(people, target="yes", gap=0):
        assert answer.status in ("feasible", "not_found")
        if answer.found:
            for models in explainer.guarantee_.members:
                check_robust(models, answer.encoded_counterfactual, 1)


def test_names(tmp_path):
    (one, two, _), X = three_lines()
    two.save(tmp_path / "a.npz")
    also = [
        str(tmp_path / "a.npz"),
        (tmp_path / "a.npz", 0.01),
        pp.Model.of(tmp_path / "a.npz"),
        two,
    ]
    names = [
        models.name
        for models in pp.Proplace(one, 0.0, required_models=also).fit(X).guarantee_.members
    ]
    assert names == [
        "the current model",
        "a.npz",
        "a.npz (network 3)",
        "a.npz (network 4)",
        "network 5",
    ]


# -- what is refused -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("also", "value"),
    [
        ("net.npz", "net.npz"),
        (0.1, 0.1),
        ([0.1], 0.1),
        ([None], None),
        ([[1, 2]], [1, 2]),
    ],
)
def test_also_is_list_of_models(also, value):
    (one, _, _), X = three_lines()
    with raises(OptionError, name="required_models", value=value):
        pp.Proplace(one, 0.01, required_models=also).fit(X)


def test_network_for_other_rows_is_refused():
    (one, _, _), X = three_lines()
    for wrong in (
        pp.Network([([[1.0, 1.0, 1.0]], [0.0])]),
        pp.Network([(np.ones((3, 2)), np.zeros(3))]),
    ):
        with raises(InputError, name="network 2", match="columns"):
            pp.Proplace(one, 0.01, required_models=[wrong]).fit(X)


def test_models_of_other_classes_or_columns_are_refused():
    table, pipes = lender()
    labels = np.where(pipes[0].predict(table) == "yes", "approved", "refused")
    steps = make_column_transformer(
        (StandardScaler(), ["age", "income"]), (OneHotEncoder(), ["job"])
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        other = make_pipeline(steps, MLPClassifier((2,), max_iter=5)).fit(table, labels)
        more = table.assign(height=1.0 * np.arange(len(table)))
        taller = make_column_transformer((StandardScaler(), ["age", "height"]))
        tall = make_pipeline(taller, MLPClassifier((2,), max_iter=5)).fit(
            more, pipes[0].predict(table)
        )
    with raises(InputError, name="network 2", match="approved"):
        pp.Proplace(pipes[0], 0.01, required_models=[other]).fit(table)
    with raises(InputError, name="network 2", match="height"):
        pp.Proplace(pipes[0], 0.01, required_models=[tall]).fit(table)


def test_required_model_without_its_extra_names_command_that_installs_it(tmp_path, monkeypatch):
    (tmp_path / "model.onnx").write_bytes(b"anything")
    monkeypatch.setitem(sys.modules, "onnx", None)
    net = pp.Network([(np.eye(2), np.zeros(2)), ([[1.0, 1.0]], [-1.0])])
    explainer = pp.Proplace(net, 0.05, required_models=[tmp_path / "model.onnx"])
    with pytest.raises(MissingExtraError, match=r"model.*proplace\[onnx\]"):
        explainer.fit([[0.2, 0.1], [0.9, 0.8]])


def test_required_model_without_columns_is_rejected():
    """Beside one that scales its columns: are these its columns before or after that?"""
    rng = np.random.default_rng(0)
    X = rng.uniform(0.0, 50.0, (100, 3))
    y = (X.sum(axis=1) > 75.0).astype(int)
    _, (module, _) = modules()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipe = make_pipeline(StandardScaler(), MLPClassifier((4,), max_iter=50)).fit(X, y)
    with raises(InputError, name="network 2", match="no preprocessing"):
        pp.Proplace(pipe, 0.01, required_models=[module]).fit(X)
    explainer = pp.Proplace(pipe, 0.01, required_models=[pp.Model.of(module).network]).fit(X)
    rows = StandardScaler().fit(X).transform(X)
    logits = module(torch.tensor(rows, dtype=torch.float32)).detach().numpy()
    encoded = explainer.model_.encode(X)
    np.testing.assert_allclose(
        explainer.guarantee_.members[1].network.logits(encoded), logits, atol=1e-4
    )


def test_network_beside_recoded_columns_is_refused():
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.uniform(0, 9, 80), "b": rng.integers(0, 2, 80) * 1.0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        pipe = make_pipeline(StandardScaler(), MLPClassifier((3,), max_iter=50))
        pipe.fit(table, (table.a + table.b > 5).astype(int))
    schema = pp.Schema([pp.Continuous("a", 0, 9), pp.Binary("b", values=(0, 1))])
    bare = pp.Model.of(pipe).network
    with raises(InputError, name="network 2", match="original model"):
        pp.Proplace(pipe, 0.01, required_models=[bare], schema=schema).fit(table)
    explainer = pp.Proplace(pipe, 0.01, required_models=[pipe], schema=schema).fit(table)
    one, two = (models.network.logits(explainer.rows_) for models in explainer.guarantee_.members)
    np.testing.assert_allclose(one, two, atol=1e-9)


def test_delta_of_another_network_is_checked():
    (one, two, _), X = three_lines()
    with raises(DeltaError, name="network 2", match="negative"):
        pp.Proplace(one, 0.01, required_models=[(two, -1.0)]).fit(X)
    with raises(ModelFileError, name="missing.npz"):
        pp.Proplace(one, 0.01, required_models=["missing.npz"]).fit(X)


def test_reason_names_shift_set_instead_of_delta():
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(6, 3)), rng.normal(size=6)), (rng.normal(size=(1, 6)), [0.1])]
    net, rows = pp.Network(layers), rng.normal(size=(60, 3))
    shifts = pp.Shifts.of(net, 0.01)
    box = pp.Shifts(shifts.low, shifts.high)
    near = pp.Proplace(net, box, k=3).fit(rows).explain(rows, gap=0)
    kept = [e.reason for e in near if e.status == "already_valid" and "but not" not in e.reason]
    assert kept
    assert all("so does every network of the shift set" in reason for reason in kept)
    far = pp.Proplace(net, box.scaled(500.0), k=3).fit(rows).explain(rows, gap=0)
    lost = [e.reason for e in far if e.status == "no_robust_neighbour"]
    assert lost
    assert all("for this shift set" in reason for reason in lost)
    assert all("such as shifts.scaled(" in reason for reason in lost)
