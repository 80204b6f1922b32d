"""What all bolts in other programs have in common. They are descriptions: picklable, and nothing starts with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_trident.errors import ConfigurationError, PlanError

if TYPE_CHECKING:
    from airflow_trident.children.channel import Channel
    from airflow_trident.children.starting import Program
    from airflow_trident.children.talk import BoltListener, BoltPlace, BoltTalk, ChildLimits


class OnFail(StrEnum):
    """What becomes of a row that a component gives up."""

    ATTEMPT = "attempt"
    """The attempt fails."""
    DROP = "drop"
    """The row is left out, with what was emitted for it, and counted in the log."""


class ChildBolt(ABC):
    """A bolt in another program."""

    strict_streams: ClassVar[bool] = True
    """Is it an error to emit on a stream that nobody declared? Else such emits are counted and left out."""
    limits: ChildLimits
    fail: OnFail

    @property
    def matches(self) -> bool:
        """Is it known of which row each emit is?"""
        return True

    @property
    def why_unmatched(self) -> str:
        """Why it is not."""
        return ""

    def declare_output_fields(self, declarer: Any) -> None:
        """Say what it emits, as a component of a TransactionalTopologyBuilder: overridden in a subclass (Storm:
        declareOutputFields). The verbs of a stream are told it instead.

        :param declarer: an OutputFieldsDeclarer.
        :raises PlanError: it is not overridden.
        """
        raise PlanError(
            f"{self} does not say what it emits",
            "Make a subclass of it with declare_output_fields(self, declarer), as in "
            'declarer.declare("id, word string").',
        )

    @abstractmethod
    def program(self, place: BoltPlace) -> Program:
        """What is started."""

    @abstractmethod
    def talk(self, channel: Channel, listener: BoltListener, place: BoltPlace) -> BoltTalk:
        """How it is talked to."""

    @abstractmethod
    def describe(self) -> str:
        """What it is, the same in every process: it is part of the definition of a topology."""

    def __str__(self) -> str:
        return self.describe()


def on_fail(value: str) -> OnFail:
    try:
        return OnFail(value)
    except ValueError:
        raise ConfigurationError(f"fail is {value!r}", 'Use "attempt" or "drop".') from None
