"""Which names of files Spark's readers pass over, without an error, also where they are told of them."""

from __future__ import annotations

import re

_HIDDEN = re.compile(r"[_.].*|.*\._COPYING_", re.DOTALL)


def is_hidden(path: str) -> bool:
    """Does the last part of the path begin with ``_`` or a dot, or end as Hadoop names a file that it copies?"""
    return _HIDDEN.fullmatch(path.rpartition("/")[2]) is not None
