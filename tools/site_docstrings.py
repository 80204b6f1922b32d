"""Lets the site's generator read this project's docstrings: in ``:param a, b: ...`` the text is for both."""

from __future__ import annotations

import re
from typing import Any

import griffe

_SEVERAL = re.compile(r"^:param (\w+(?:, \w+)+):((?:.*\n?)(?:[ \t]+.*\n?)*)", re.MULTILINE)


def one_by_one(text: str) -> str:
    """The same text with a ``:param`` line for each parameter."""

    def several(found: re.Match[str]) -> str:
        return "".join(f":param {name}:{found[2].rstrip()}\n" for name in found[1].split(", "))

    return _SEVERAL.sub(several, text)


class SeveralParameters(griffe.Extension):
    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = one_by_one(obj.docstring.value)
