"""The parts of the documentation's site that are not files of docs/: its contents, and the pages of the public names.

Both are read from other files, so nobody has to write a page's name twice: the contents from the tables of the index
pages, the public names from the source of the package's `__init__`. Nothing of the package is imported.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
TABS = {
    "How-to guides": "how-to",
    "Reference": "reference",
    "Storm and qtopology": "storm",
    "Concepts": "concepts",
    "Decisions": "decisions",
}
"""Folders with an index page."""
API = "reference/api"
PACKAGES = [
    "airflow_trident",
    *(f"airflow_trident.{name}" for name in ("functions", "spouts", "states", "storm", "testing")),
]
"""Packages with public names."""
EXAMPLES = "examples"


# ---- contents --------------------------------------------------------------------------------------------------


def listed(index: Path) -> list[str]:
    """Pages to which the tables of an index page link, in their order; paths below its folder."""
    rows = [line for line in index.read_text(encoding="utf-8").splitlines() if line.startswith("| [")]
    found = [link for row in rows for link in re.findall(r"\]\(([\w./-]+\.md)\)", row.split("|")[1])]
    return list(dict.fromkeys(found))


def contents() -> list[dict[str, Any]]:
    """The site's tabs, in the form that mkdocs needs."""
    first = [page for page in listed(DOCS / "README.md") if not page.endswith("README.md")]
    learn = [page for page in first if page.startswith("tutorial/") or page == "gallery.md"]
    more = [page for page in first if page not in learn]
    tabs: list[dict[str, Any]] = [{"Home": "README.md"}, {"Tutorial": learn}]
    for title, folder in TABS.items():
        pages = [f"{folder}/{page}" for page in listed(DOCS / folder / "README.md") if "/" not in page]
        if folder == "reference":
            pages.append({"Public names": [f"{API}/{module}.md" for module in public_names()]})  # type: ignore[arg-type]
        tabs.append({title: [f"{folder}/README.md", *pages]})
    return [*tabs, {"The rest": more}]


# ---- public names ----------------------------------------------------------------------------------------------


def public_names() -> dict[str, list[tuple[str, str]]]:
    """Public package -> (public name, where it is defined), in the order of the package's file. A name that several
    packages list is described by the first of them."""
    seen: set[str] = set()
    pages: dict[str, list[tuple[str, str]]] = {}
    for package in PACKAGES:
        pages[package] = [(name, place) for name, place in _listed_in(package) if place not in seen]
        seen |= {place for _, place in pages[package]}
    return pages


def _listed_in(package: str) -> list[tuple[str, str]]:
    path = ROOT.joinpath(*package.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    imports = [
        node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.ImportFrom)
    ]
    return [(name.name, f"{node.module}.{name.name}") for node in imports for name in node.names if name.asname]


def page_of(package: str, names: list[tuple[str, str]]) -> str:
    head = f"# `{package}`\n\nFrom their docstrings; all are imported from `{package}`.\n"
    return "\n".join([head, *(f"::: {place}\n    options: {{ heading_level: 2 }}\n" for _, place in names)])


# ---- examples --------------------------------------------------------------------------------------------------


def example_page(path: Path) -> str:
    """A page with an example, which is outside of docs/."""
    return f"# `dags/{path.name}`\n\n```python\n{path.read_text(encoding='utf-8')}```\n"


# ---- what mkdocs calls -----------------------------------------------------------------------------------------


def on_config(config: Any) -> Any:
    config.nav = contents()
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for room, names in public_names().items():
        files.append(File.generated(config, f"{API}/{room}.md", content=page_of(room, names)))
    for path in (ROOT / "dags").glob("*.py"):
        files.append(File.generated(config, f"{EXAMPLES}/{path.stem}.md", content=example_page(path)))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Change links to examples: in docs/ they go up one folder more than in the site."""
    return re.sub(r"\]\(\.\./((?:\.\./)*)dags/(\w+)\.py\)", rf"](\1{EXAMPLES}/\2.md)", markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Show only the name: docstrings refer to classes as in Sphinx, ``:class:`~package.Name` ``."""
    return re.sub(r":\w+: ?<code>~?(?:[\w.]+\.)?(\w+(?:\(\))?)</code>", r"<code>\1</code>", html)
