"""Packages whose public names are imported when they are first used.

A package lists each name once, as an import below ``if TYPE_CHECKING:``: type checkers read it there, and
:func:`public_names` does, too.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any


@cache
def public_names(package: str) -> dict[str, str]:
    """Public name of a package -> its module, read from the imports in the package's file, which are there for type
    checkers."""
    import inspect
    import re
    import sys

    # Not by `ast`: on Python 3.11 another thread's parse may break it (CPython's issue 106905).
    imports = re.findall(r"^ +from ([\w.]+) import \(?\s*\w+ as (\w+)", inspect.getsource(sys.modules[package]), re.M)
    return {name: module for module, name in imports}


def public_name(package: str, name: str) -> Any:
    """:raises AttributeError: the package has no such public name."""
    module = None if name.startswith("_") else public_names(package).get(name)
    if module is None:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    return getattr(import_module(module), name)
