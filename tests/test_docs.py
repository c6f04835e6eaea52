"""Run the code blocks marked as tests in README and docs."""

import re
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
