"""Boxes of models whose scalers were fitted again: behind the current model, or not at all."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import proplace as pp
from proplace.core.errors import DeltaError
from support.errors import raises


def table(seed, rows=300, factor=1.0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {"income": rng.normal(40, 12, rows) * factor, "debt": rng.normal(10, 4, rows)}
    )
    wanted = frame.income / factor - 2.0 * frame.debt + rng.normal(0, 6, rows) > 22
    return frame, wanted.astype(int)


def pipeline(seed, factor=1.0):
    frame, y = table(seed, factor=factor)
    made = make_pipeline(StandardScaler(), MLPClassifier((5,), max_iter=300, random_state=0))
    return made.fit(frame, y)


@pytest.fixture(scope="module")
def main():
    return pipeline(0)


@pytest.fixture(scope="module")
def past():
    """Of a year in which incomes counted for more: the scalers are far from those in use."""
    return [pipeline(seed, factor=1.3) for seed in (1, 2, 3)]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_box_behind_other_scalers_is_refused(main, past, tmp_path):
    frame, _ = table(0)
    box = pp.Shifts.bounding(past)
    box.save(tmp_path / "box.npz")
    for wrong in (box, box.scaled(0.5), pp.Shifts.load(tmp_path / "box.npz")):
        for call in (
            lambda wrong=wrong: pp.Proplace(main, wrong).fit(frame),
            lambda wrong=wrong: pp.certify(main, frame, wrong),
            lambda wrong=wrong: pp.worst_case(main, frame[:1], wrong),
            lambda wrong=wrong: pp.output_range(main, frame, wrong),
            lambda wrong=wrong: pp.baselines.Rnce(main, wrong).fit(frame),
            lambda wrong=wrong: pp.calibrate_delta(
                main, frame, retrained=past, people=frame[:9], shifts=wrong
            ),
            lambda wrong=wrong: pp.Proplace(past[0], 0.01, required_models=[(main, wrong)]).fit(
                frame
            ),
        ):
            with pytest.raises(DeltaError, match="source=model"):
                call()
    assert pp.certify(past[0], frame, box).robust.shape == (len(frame),)  # it is theirs


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_box_of_networks_states_nothing_of_table(main, past):
    frame, _ = table(0)
    bare = pp.Shifts.bounding([pp.Model.of(one).network for one in past])
    with raises(DeltaError, name="delta", match="assume_encoding_of"):
        pp.Proplace(main, bare).fit(frame)
    pp.certify(main, frame, bare.assume_encoding_of(main))  # by a caller who is sure
    own = pp.Shifts.of(pp.Model.of(main).network, 0.01)  # around the current network
    assert pp.certify(main, frame, own).robust.any()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_behind_current_model_each_model_of_box_accepts_answers(main, past):
    frame, _ = table(0)
    box = pp.Shifts.bounding(past, source=main)
    assert box.encoding == pp.Model.of(main).encoding
    explainer = pp.Proplace(main, box, k=5).fit(frame)
    found = [e for e in explainer.explain(frame[:40]) if e.found]
    assert found
    answers = pd.DataFrame([e.counterfactual for e in found])[["income", "debt"]].astype(float)
    for one in (main, *past):
        assert (one.predict(answers) == 1).all()


def test_boxes_behind_different_scalers_do_not_meet(main, past):
    with raises(DeltaError, name="other"):
        pp.Shifts.bounding(past).intersect(pp.Shifts.bounding(past, source=main))
