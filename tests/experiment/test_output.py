"""Tables and pictures, from results with known figures."""

from __future__ import annotations

import dataclasses

import pandas as pd
import pytest

from proplace.experiment import output
from proplace.experiment.run import Results


def results(data="heloc", *, seeds=2, delta=None, unseen=50):
    people, cells = [], []
    for seed in range(seeds):
        for method, l1, vdelta in (("PROPLACE", 0.04, 1.0), ("RNCE", 0.08, 0.5)):
            key = {"data": data, "network": "20x20", "seed": seed, "method": method}
            facts = {"delta": 0.025 if delta is None else delta[seed], "accuracy": 0.75}
            facts |= {"people": 50, "unseen": unseen, "error": ""}
            cells.append(key | facts | {"seconds": 0.02 * (1 + seed)})
            for person in range(50):
                measures = {"found": 1.0, "valid": 1.0, "vr": 0.98 + 0.02 * seed, "all": 0.9}
                measures |= {"vdelta": vdelta, "l1": l1 + 0.02 * seed, "lof": 1.0 + l1}
                measures |= {"plausible": 1.0, "changed": 3.0, "vr new data": 1.0}
                people.append(key | measures | {"person": person})
    curves = pd.DataFrame(
        [
            {"data": data, "network": "20x20", "seed": seed, "used": 0.025}
            | {"delta": x, "validity": 20 * x, "robust": 1 - 10 * x}
            for seed in range(seeds)
            for x in (0.01, 0.025, 0.05)
        ]
    )
    return Results(pd.DataFrame(people), pd.DataFrame(cells), curves)


def cells(text, method, number=0):
    lines = [line for line in text.splitlines() if line.startswith(f"| {method} |")]
    return [cell.strip() for cell in lines[number].strip("|").split("|")]


def test_table_has_means_intervals_and_figures_of_paper():
    text = output.markdown(results())
    assert cells(text, "PROPLACE") == [
        *("PROPLACE", "100", "99.0 [98.0, 100]", "90.0", "100", "0.050 [0.040, 0.060]"),
        *("1.04 [1.04, 1.04]", "100", "3.0", "100", "100 / 100 / 0.057 / 1.04"),
    ]
    assert cells(text, "RNCE")[4] == "50.0"
    assert cells(text, "RNCE")[-1] == "-"
    assert cells(text, "PROPLACE", 1) == ["PROPLACE", "100"]
    expected = ["RNCE", "+0.0 [+0.0, +0.0]", "+0.040 [+0.040, +0.040]", "+0.04 [+0.04, +0.04]"]
    assert cells(text, "RNCE", 2) == [*expected, "0 / 0 / 100"]
    assert (
        "heloc (file as published, with its label leak), networks 20x20: delta 0.025, published "
        "0.025; k 23; accuracy 75.0% (paper 76%); 100 people over 2 seeds." in text
    )


def test_leak_is_explained_before_its_table_alone():
    text = output.markdown(results())
    assert text.index("leaks the label") < text.index("| method |")
    assert "leaks the label" not in output.markdown(results("heloc-repaired"))


def test_repaired_data_have_no_figures_of_paper():
    text = output.markdown(results("heloc-repaired"))
    assert cells(text, "PROPLACE")[-1] == "-"
    assert "(repaired for the label leak)" in text


def test_every_delta_and_training_row_is_stated():
    text = output.markdown(results(delta=[0.025, 0.0125], unseen=40))
    assert "delta 0.0125 for 1 seed, 0.025 for 1 seed, published 0.025" in text
    assert "; 20 of them are training rows." in text


def test_failed_cells_are_listed():
    found = results()
    cells = found.cells.copy()
    cells.loc[1, "error"] = "RuntimeError: out of luck"
    text = output.markdown(dataclasses.replace(found, cells=cells))
    assert "FAILED: heloc, 20x20, seed 0, RNCE: RuntimeError: out of luck" in text


def test_shares_below_one_are_never_shown_as_100():
    assert [output.percent(x) for x in (1.0, 0.9996, 0.5, float("nan"))] == [
        *("100", "99.9", "50.0", "-")
    ]


def test_all_files_but_those_of_seconds_depend_on_results_alone(tmp_path):
    pytest.importorskip("matplotlib")
    found = results()
    slower = found.cells.assign(seconds=9.0)
    first = output.write(found, tmp_path / "a")
    second = output.write(dataclasses.replace(found, cells=slower), tmp_path / "b")
    for a, b in zip(first, second, strict=True):
        assert (a.read_bytes() == b.read_bytes()) == (not a.name.startswith("seconds")), a.name
    table = pd.read_csv(tmp_path / "a" / "results.csv")
    assert table["l1"].tolist() == [0.05, 0.09]
    assert table["l1 low"].tolist() == [0.04, 0.08]
    seeds = pd.read_csv(tmp_path / "a" / "seeds.csv")
    assert seeds["l1"].tolist() == [0.04, 0.08, 0.06, 0.1]
    text = (tmp_path / "a" / "seconds.md").read_text()
    assert "| PROPLACE | 0.03 | 0.02 | 0.04 | 0.1-1.2 |" in text


def test_algorithm_1_stands_beside_figures_of_proplace():
    assert output.paper("heloc", "PROPLACE-Algorithm-1") == "100 / 100 / 0.057 / 1.04"
    assert output.paper("heloc", "PROPLACE-sparse") == "-"


def test_pictures_show_figures():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    found = results()
    figure = output.scatter(output.summary(found.people), "lof", "lof")
    (panel,) = figure.axes
    assert panel.get_title() == "HELOC 20x20 (leaks its label)"
    marks = [line for line in panel.lines if len(line.get_xdata()) == 1]
    shown = sorted((float(m.get_xdata()[0]), float(m.get_ydata()[0])) for m in marks)
    assert shown == [pytest.approx((0.05, 1.04)), pytest.approx((0.09, 1.08))]
    hollow = [m for m in marks if m.get_markerfacecolor() == "white"]
    assert [float(m.get_xdata()[0]) for m in hollow] == pytest.approx([0.09])
    figure_of_curves = output.vr_delta(found.curves)
    drawn = [list(line.get_ydata()) for line in figure_of_curves.axes[0].lines]
    assert [0.2, 0.5, 1.0] in drawn
    assert [0.9, 0.75, 0.5] in drawn
    pyplot.close("all")


def test_overview_has_one_table_per_size_and_one_column_per_data_set():
    both = pd.concat([results().people, results("gmc").people])
    both = both[(both["data"] == "gmc") | (both["method"] != "RNCE")]
    wider = results("gmc").people.assign(network="50x50", l1=0.5)
    text = output.overview(output.summary(pd.concat([both, wider])))
    cell = "99.0, 100, .050, 1.04"
    assert "Networks as in the paper: vr %" in text
    assert "| method | HELOC 20x20 | GMC 20x20 |" in text
    assert cells(text, "PROPLACE") == ["PROPLACE", cell, cell]
    assert cells(text, "RNCE") == ["RNCE", "-", "99.0, 50.0, .090, 1.08"]
    assert "| method | GMC 50x50 |" in text
    assert cells(text, "RNCE", 1) == ["RNCE", "99.0, 50.0, .500, 1.08"]


def test_pictures_have_one_row_per_size_and_one_column_per_data_set():
    pyplot = pytest.importorskip("matplotlib.pyplot")
    parts = [results().people, results("gmc").people, results().people.assign(network="50x50")]
    figure = output.scatter(output.summary(pd.concat(parts)), "lof", "lof")
    titles = [panel.get_title() for panel in figure.axes if panel.get_visible()]
    assert titles == ["HELOC 20x20 (leaks its label)", "GMC 20x20", "HELOC 50x50 (leaks its label)"]
    assert figure.axes[0].get_subplotspec().get_geometry()[:2] == (2, 2)
    pyplot.close(figure)


def test_number_of_people_of_each_method_is_stated():
    found = results()
    fewer = (found.people["method"] != "RNCE") | (found.people["person"] < 10)
    cells_ = found.cells.assign(people=[50, 10, 50, 10], unseen=[50, 10, 50, 10])
    text = output.markdown(dataclasses.replace(found, people=found.people[fewer], cells=cells_))
    assert (cells(text, "PROPLACE")[1], cells(text, "RNCE")[1]) == ("100", "20")
    assert "; 100 people over 2 seeds." in text
    assert cells(text, "RNCE", 2)[-1] == "0 / 0 / 20"
