"""Names and numbers that users give to topologies, streams, states and tasks, and the names that are composed of these.

A name that has several parts is made by :meth:`Composed.of` alone. Two different tuples of parts never give one text,
so two things never get one folder, table, key or file.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from dataclasses import dataclass
from enum import StrEnum
from numbers import Integral, Real
from typing import Any

from airflow_trident.errors import ConfigurationError, PlanError

DEFAULT_MAX_PENDING = 2
DEFAULT_RETENTION = 50
DEFAULT_MAX_MERGE_ROWS = 10_000_000
"""These are some gigabytes as Python's rows."""
DEFAULT_MAX_PARTITION_KEYS = 10_000_000
"""A key and one number take 320 to 400 bytes in a dictionary, so these are some 4 GB."""

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,199}\Z")
_DIGEST_DIGITS = 16


class EngineKind(StrEnum):
    SPARK = "spark"
    LOCAL = "local"
    """Plain Python in the task's process."""


class Redo(StrEnum):
    """When a partition that is COMMITTED is done again."""

    ASKED = "asked"
    """Whenever it is asked for."""
    CHANGED = "changed"
    """If its sources have changed."""


def parse_redo(value: Redo | str) -> Redo:
    """:raises ConfigurationError: it is unknown."""
    if value not in tuple(Redo):
        raise ConfigurationError(f"redo = {value!r} is unknown", "Use 'asked' or 'changed'.")
    return Redo(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composed:
    """The rules for composed names of one kind of place.

    :param joint: the text between the parts: one or more times the same character.
    :param characters: what the place takes beside the joint, as a class of a regular expression.
    :param longest: characters of the whole name; at least 40.
    :param has_case: the place tells upper from lower case.
    :param reserved: beginnings of names that are not for users, in lower case.
    """

    joint: str
    characters: str = "A-Za-z0-9_.-"
    longest: int = 200
    has_case: bool = True
    reserved: tuple[str, ...] = ()

    def of(self, *parts: str | int) -> str:
        """The name of these parts.

        Plain parts are joined: ``a_b``. The joint is doubled where a part has it: ``a_b__c``. All other names end in a
        digest of the parts: other characters, too long, reserved, or like the name of other parts.
        """
        texts = [str(part) for part in parts]
        for joint in (self.joint, 2 * self.joint):
            if all(self._is_plain(text, joint) for text in texts):
                name = joint.join(texts)
                is_clear = len(texts) > 1 or joint == self.joint
                return name if is_clear and self._may_be(name) else self._with_digest(texts)
        return self._with_digest(texts)

    def is_reserved(self, name: str) -> bool:
        return name.lower().startswith(self.reserved)

    def _is_plain(self, part: str, joint: str) -> bool:
        """Does the joint beside this part end the part, and nothing in it look like one?"""
        sign = joint[0]
        fits = re.fullmatch(f"[{re.escape(sign)}{self.characters}]+", part) is not None
        return fits and joint not in part and not part.startswith(sign) and not part.endswith(sign)

    def _may_be(self, name: str) -> bool:
        has_digest = re.search(f"{re.escape(self.joint)}[0-9a-f]{{{_DIGEST_DIGITS}}}\\Z", name) is not None
        is_told_apart = self.has_case or name == name.lower()
        return len(name) <= self.longest and is_told_apart and not has_digest and not self.is_reserved(name)

    def _with_digest(self, texts: list[str]) -> str:
        digest = hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:_DIGEST_DIGITS]
        sign = "_" if "_" in self.characters else "-"
        shown = re.sub(f"[^{self.characters}]", sign, sign.join(texts)).lstrip("._-")
        head = f"of_{shown}" if self.is_reserved(shown) else shown
        return f"{head[: self.longest - _DIGEST_DIGITS - len(self.joint)]}{self.joint}{digest}"


def require_name(what: str, name: str) -> str:
    """:raises PlanError: ledgers, folders and URLs cannot all contain this name."""
    if not isinstance(name, str) or not _NAME.match(name):
        raise PlanError(
            f"{name!r} cannot be the name of a {what}",
            "Use letters, digits, '_', '.' and '-', beginning with a letter, at most 200.",
        )
    return name


def require_flags(subject: str, **flags: object) -> None:
    """Each argument is True or False. A text counts as true in Python, "false" too.

    :param subject: what has these arguments, for the error text.
    :raises ConfigurationError: one is neither.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ConfigurationError(
                f"{subject} with {name}={flag!r}: that is neither True nor False", "Give one of them, without quotes."
            )


def require_conn_id(subject: str, conn_id: object, name: str = "conn_id") -> None:
    """
    :raises ConfigurationError: it is no id of a connection of Airflow. An address is not shown: it may have a password.
    """
    if not isinstance(conn_id, str) or not conn_id or "://" in conn_id:
        shown = "an address" if isinstance(conn_id, str) and conn_id else repr(conn_id)
        raise ConfigurationError(
            f"{subject} with {shown} as {name}: that is no id of a connection",
            f'Add the connection in Airflow, and give its id, as in {name}="warehouse".',
        )


def require_counts(subject: str, *, least: int = 1, **counts: object) -> None:
    """
    :param subject: what has these limits, for the error text.
    :raises ConfigurationError: one is no whole number, or lower than `least`.
    """
    for name, count in counts.items():
        if isinstance(count, bool) or not isinstance(count, Integral) or count < least:
            raise ConfigurationError(f"{subject} with {name}={count!r}", f"It must be at least {least}, and whole.")


def require_durations(subject: str, *, zero: bool = False, **durations: Any) -> None:
    """
    :param subject: what has these limits, for the error text.
    :param zero: may they be 0?
    :raises ConfigurationError: one is no number, not finite, negative, or 0 where that is not allowed.
    """
    kind: Any = Real  # to a type checker an int is none
    for name, duration in durations.items():
        is_number = isinstance(duration, kind) and not isinstance(duration, bool) and 0 <= duration < math.inf
        if not is_number or not (duration or zero):
            cure = "It must be at least 0." if zero else "It must be above 0."
            raise ConfigurationError(f"{subject} with {name}={duration!r}", cure)


def without_none(**limits: object) -> dict[str, Any]:
    """The limits that there are: None is no limit."""
    return {name: limit for name, limit in limits.items() if limit is not None}


def at_least_one(verb: str, number: int) -> int:
    """:raises PlanError: `number` is no whole number of 1 or more."""
    if isinstance(number, bool) or not isinstance(number, int) or number < 1:
        raise PlanError(f"{verb} got {number!r}", "Give a whole number, 1 or more.")
    return number


def positive(verb: str, number: float) -> float:
    """:raises PlanError: `number` is no number above 0."""
    if isinstance(number, bool) or not isinstance(number, int | float) or not number > 0:
        raise PlanError(f"{verb} got {number!r}", "Give a number above 0.")
    return number
