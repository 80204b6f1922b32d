"""The plan as boxes and arrows, for people who have the ledger but not the topology's code. No decision reads it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class BoxKind(StrEnum):
    SPOUT = "spout"
    OPERATION = "operation"
    GROUPING = "grouping"
    """Tuples change their partition here."""
    STATE = "state"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanBox:
    """`what`: what it is or does; `inputs`: the names of the boxes whose tuples it takes."""

    name: str
    kind: BoxKind
    what: str = ""
    inputs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPicture:
    """`<incarnation>/plan`. `boxes`: each after its inputs; `left_out`: number of last boxes that are not kept;
    `digest`: the plan's."""

    digest: str
    boxes: tuple[PlanBox, ...]
    left_out: int = 0
