"""Tables and pictures, from results made up so that every figure is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from proplace.experiment import output
from proplace.experiment import run as experiment

FACTS = {
    "calibrated": False,
    "accuracy": 0.75,
    "inputs": 50,
    "fresh": 50,
    "found": 1.0,
    "valid": 1.0,
    "seconds": 0.02,
    "error": "",
}


def row(method, seed, vr, l1, *, data="heloc", **more):
    measured = {"delta": 0.025, "vr": vr, "vdelta": 1.0, "l1": l1, "lof": 1.0 + l1}
    return FACTS | {"data": data, "method": method, "seed": seed} | measured | more


RESULTS = pd.DataFrame(
    [
        row("PROPLACE", 0, 0.98, 0.04),
        row("PROPLACE", 1, 1.00, 0.06),
        row("RNCE", 0, 1.0, 0.08, vdelta=0.5, found=0.9, seconds=0.5),
        row("RNCE", 1, 1.0, 0.08, vdelta=0.7, found=0.8, seconds=1.5),
    ]
)


def cells(text, method):
    line = next(line for line in text.splitlines() if line.startswith(f"| {method} |"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_mean_and_spread_beside_the_paper():
    text = output.markdown(RESULTS)
    assert cells(text, "PROPLACE") == [
        *("PROPLACE", "99.0 ± 1.4", "100.0 ± 0.0", "0.050 ± 0.014", "1.05 ± 0.01", "100", "0.02"),
        "100 / 100 / 0.057 / 1.04",
    ]
    assert cells(text, "RNCE") == [
        *("RNCE", "100.0 ± 0.0", "60.0 ± 14.1", "0.080 ± 0.000", "1.08 ± 0.00", "85", "1", "-"),
    ]
    assert (
        "heloc (file as published, with its label leak): delta 0.025, published 0.025; k 23; "
        "accuracy 75.0% (paper 76%); 100 inputs over 2 seeds." in text
    )


def test_one_seed_has_no_spread():
    assert cells(output.markdown(RESULTS[:1]), "PROPLACE")[1] == "98.0"
    assert "50 inputs over 1 seed." in output.markdown(RESULTS[:1])


def test_a_calibrated_delta_is_never_silent():
    changed = RESULTS.copy()
    changed.loc[changed["seed"] == 1, ["delta", "calibrated"]] = [0.0375, True]
    text = output.markdown(changed)
    assert "delta 0.025, 0.0375 (calibrated) for the seeds in turn, published 0.025" in text


def test_training_rows_among_the_inputs_are_never_silent():
    assert "; 20 of them are training rows." in output.markdown(RESULTS.assign(fresh=40))


def test_repaired_data_are_not_put_beside_the_papers_figures():
    text = output.markdown(RESULTS.assign(data="heloc-repaired"))
    assert cells(text, "PROPLACE")[-1] == "-"
    assert "(repaired for the label leak)" in text


def test_leak_is_stated_between_heading_and_table_of_heloc():
    both = pd.concat([RESULTS, RESULTS.assign(data="heloc-repaired"), RESULTS.assign(data="gmc")])
    text = output.markdown(both)
    assert text.count("leaks the label") == 1
    start, leak = text.index("### HELOC\n"), text.index(output.LEAKS["heloc"])
    assert start < leak < text.index("| method |", start) < text.index("### HELOC-REPAIRED\n")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = output.l1_lof(both)
    titles = [panel.get_title() for panel in figure.axes]
    assert titles == ["HELOC (leaks its label)", "HELOC-REPAIRED", "GMC"]
    pyplot.close(figure)


def test_algorithm_1_stands_beside_the_figures_of_proplace():
    text = output.markdown(RESULTS.replace("RNCE", "PROPLACE-Algorithm-1"))
    assert cells(text, "PROPLACE-Algorithm-1")[-1] == "100 / 100 / 0.057 / 1.04"
    times = output.times(RESULTS.replace("RNCE", "PROPLACE-Algorithm-1"))
    assert cells(times, "PROPLACE-Algorithm-1")[-1] == "0.1-1.2"


def test_missing_figures_are_a_dash():
    nothing = pd.DataFrame([row("WCE", 0, 0.0, np.nan, found=0.0)])
    assert cells(output.markdown(nothing), "WCE")[3:5] == ["-", "-"]


def test_times_beside_the_published_ones():
    text = output.times(RESULTS)
    assert cells(text, "PROPLACE") == ["PROPLACE", "0.02", "0.02", "0.02", "0.1-1.2"]
    assert cells(text, "RNCE") == ["RNCE", "1", "0.5", "1.5", "-"]


CURVES = pd.DataFrame(
    {
        "delta": [0.01, 0.02, 0.01, 0.02],
        "validity": [0.8, 1.0, 0.7, 0.9],
        "robust": [0.5, 0.3, 0.4, 0.2],
        "data": "heloc",
        "seed": [0, 0, 1, 1],
        "used": 0.02,
    }
)


def test_pictures_show_the_figures():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    figure = output.l1_lof(RESULTS)
    (panel,) = figure.axes
    marks = [line for line in panel.lines if len(line.get_xdata()) == 1]
    shown = sorted((float(m.get_xdata()[0]), float(m.get_ydata()[0])) for m in marks)
    np.testing.assert_allclose(shown, [(0.05, 1.05), (0.08, 1.08)])
    hollow = [m for m in marks if m.get_markerfacecolor() == "white"]
    assert [float(m.get_xdata()[0]) for m in hollow] == pytest.approx([0.08])
    pyplot.close(figure)
    figure = output.vr_delta(CURVES)
    (panel,) = figure.axes
    drawn = [list(line.get_ydata()) for line in panel.lines if len(line.get_ydata()) == 2]
    assert [0.8, 1.0] in drawn
    assert [0.4, 0.2] in drawn
    pyplot.close(figure)


def test_write_leaves_tables_and_pictures(tmp_path):
    pytest.importorskip("matplotlib")
    failed = pd.concat(
        [RESULTS, pd.DataFrame([row("WCE", 0, np.nan, np.nan, error="Oops: <b>")])],
        ignore_index=True,
    )
    paths = experiment.write(failed, CURVES, tmp_path / "new" / "folder")
    assert sorted(path.name for path in paths) == sorted(
        ["results.csv", "curves.csv", "results.md", "l1-lof.png", "vr-delta.png"]
    )
    text = (tmp_path / "new" / "folder" / "results.md").read_text()
    assert "FAILED: heloc, seed 0, WCE: Oops: <b>" in text
    assert "| 0.050 ± 0.014 |" in text
    for path in paths[-2:]:
        assert path.read_bytes().startswith(b"\x89PNG")
    back = pd.read_csv(tmp_path / "new" / "folder" / "results.csv")
    assert back["l1"].tolist()[:4] == RESULTS["l1"].tolist()
