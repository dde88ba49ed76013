"""Links and anchors between the documents, and what programs print of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)")
FILE = re.compile(r"\b(?:docs|benchmarks|examples|scripts|native)/[\w./-]+\.(?:md|py|png|json|h)\b")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_that_are_there(page):
    text = page.read_text(encoding="utf-8")
    local = [link.partition("#")[0] for link in LINK.findall(text) if "://" not in link]
    gone = [link for link in local if link and not (page.parent / link).exists()]
    assert not gone


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_are_named_are_there(page):
    gone = [name for name in FILE.findall(page.read_text("utf-8")) if not (ROOT / name).exists()]
    assert not gone


def test_pages_that_help_names_are_there():
    sources = (ROOT / "cli").rglob("*.py")
    named = {name for source in sources for name in FILE.findall(source.read_text("utf-8"))}
    assert "docs/bench.md" in named
    assert not [name for name in named if not (ROOT / name).exists()]
