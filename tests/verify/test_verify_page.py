"""The page as a file: whole, and closed to the network."""

from __future__ import annotations

import base64
import hashlib
import re

import pytest

from proplace import verify


@pytest.fixture(scope="module")
def page():
    return verify.page()


def test_page_is_one_file_that_can_reach_nothing(page):
    assert "%" + "policy%" not in page
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)[1]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules.pop("default-src") == "'none'"
    for kind, pattern in (
        ("script", r"<script>(.*?)</script>"),
        ("style", r"<style>(.*?)</style>"),
    ):
        (text,) = re.findall(pattern, page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert rules.pop(f"{kind}-src") == f"'sha256-{digest}'"
    assert rules == {"worker-src": "blob:", "base-uri": "'none'", "form-action": "'none'"}
    assert page.index("Content-Security-Policy") < page.index("<style>")
    assert not re.search(r"https?:|\b(src|href|srcset|on[a-z]+)=", page)
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|eval|importScripts|innerHTML)\b", page)


def test_checker_ends_where_its_element_ends(page):
    """Nothing in a script closes it, and the page has no element twice."""
    assert len(re.findall(r"<script\b", page)) == len(re.findall(r"</script", page)) == 2
    assert "<!--" not in page
    names = re.findall(r'\bid="([^"]+)"', page)
    assert len(names) == len(set(names))


def contrast(one, other):
    def luminance(colour):
        rgb = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in rgb]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast(page):
    schemes = re.findall(r":root \{(.*?)\}", page, re.S)
    assert len(schemes) == 2
    for scheme in schemes:
        colour = dict(re.findall(r"--(\w+): (#\w{6});", scheme))
        for paper in ("page", "card", "tint", "warn"):
            assert contrast(colour["ink"], colour[paper]) >= 7.0
        for ink, papers in {
            "soft": ("page", "card"),
            "good": ("page", "card", "tint"),
            "bad": ("card", "warn"),
        }.items():
            for paper in papers:
                assert contrast(colour[ink], colour[paper]) >= 4.5, (ink, paper)
