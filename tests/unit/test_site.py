"""The site of the documentation: every page is in its contents once, every public name has a place."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from tools import site_pages

DOCS = Path(site_pages.DOCS)


def pages_of(part: Any) -> list[str]:
    if isinstance(part, str):
        return [part]
    below = part.values() if isinstance(part, dict) else part
    return [page for one in below for page in pages_of(one)]


def test_the_contents_of_the_site_have_every_page_once() -> None:
    written = sorted(str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md"))
    named = [page for page in pages_of(site_pages.contents()) if not page.startswith(site_pages.API)]
    assert sorted(named) == written


def test_every_public_name_has_one_place_on_a_page_of_its_packages() -> None:
    pages = site_pages.public_names()
    places = [place for listed in pages.values() for _, place in listed]
    assert len(places) == len(set(places)), "the site refuses two headings of one name"
    for package, listed in pages.items():
        page = site_pages.page_of(package, listed)
        assert all(f"::: {place}\n" in page for _, place in listed)
    names = {name for listed in pages.values() for name, _ in listed}
    for package in set(pages) - {"airflow_trident.testing"}:
        assert set(import_module(package).__all__) - {"__version__"} <= names
