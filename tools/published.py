"""Public metadata of a build: the addresses of the project, and the README with links to them.

The address of the repository is one setting in pyproject.toml, filled in for a release. Without it links to files
become plain text, and there are no project URLs.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)")


class PublishedMetadata(MetadataHookInterface):
    def update(self, metadata: dict[str, Any]) -> None:
        repository, tag = self.config["repository"].rstrip("/"), f"v{metadata['version']}"
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": led_to(text, repository, tag)}
        metadata["urls"] = urls_of(repository, tag)


def urls_of(repository: str, tag: str) -> dict[str, str]:
    if not repository:
        return {}
    return {
        "Source": repository,
        "Documentation": f"{repository}/blob/{tag}/docs/README.md",
        "Changelog": f"{repository}/blob/{tag}/docs/changelog.md",
        "Issues": f"{repository}/issues",
    }


def led_to(text: str, repository: str, tag: str) -> str:
    """The README with links to the files of this tag: for people the page of a file, for a picture the file itself."""

    def led(found: re.Match[str]) -> str:
        picture, words, path = found.groups()
        if not repository:
            return "" if picture else words
        return f"{picture}[{words}]({repository}/{'raw' if picture else 'blob'}/{tag}/{path})"

    return _LINK.sub(led, text)
