"""Statuses, distances and models are those of the golden data (``make golden`` renews them)."""

from __future__ import annotations

import pytest

from golden.make import (
    ANSWERS,
    CASES,
    MODELS,
    PEOPLE,
    STRUCTURE,
    TOLERANCE,
    answers,
    models,
    stored,
)


def compare(case, people):
    expected = stored(ANSWERS)[case.name][:people]
    found = answers(case, people)
    assert [line[0] for line in found] == [line[0] for line in expected]
    for (_, distance, *_), (_, golden, *_) in zip(found, expected, strict=True):
        assert distance == (None if golden is None else pytest.approx(golden, abs=TOLERANCE, rel=0))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_search_matches_golden_answers_for_first_people(case):
    compare(case, 3)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_search_matches_golden_answers_for_all_people(case):
    compare(case, PEOPLE)


@pytest.mark.slow
def test_loaders_match_golden_models(tmp_path):
    for package in ("torch", "keras", "skl2onnx"):
        pytest.importorskip(package)
    expected = stored(MODELS)
    found = models(tmp_path)
    assert set(found) == set(expected)
    for name, facts in found.items():
        for key in STRUCTURE:
            assert facts[key] == expected[name][key], (name, key)
