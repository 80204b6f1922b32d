"""The builder's handle on a bolt, which takes its inputs and groupings (Storm: BoltDeclarer, InputDeclarer)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self, TypeAlias

from airflow_trident.errors import PlanError
from airflow_trident.operations.interfaces import CustomGrouping
from airflow_trident.storm.bolts import DEFAULT_STREAM, BaseStatefulBolt, Bolt
from airflow_trident.storm.components.bolt import ChildBolt
from airflow_trident.types import parse_names

AnyBolt: TypeAlias = Bolt | ChildBolt | BaseStatefulBolt[Any, Any]


class GroupingKind(StrEnum):
    """Storm's groupings, as far as they have a meaning here."""

    SHUFFLE = "shuffle"
    LOCAL_OR_SHUFFLE = "local_or_shuffle"
    FIELDS = "fields"
    GLOBAL = "global"
    ALL = "all"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True)
class Subscription:
    """One input of a bolt."""

    component: str
    stream: str
    kind: GroupingKind
    fields: tuple[str, ...] = ()
    custom: CustomGrouping | None = None


@dataclass
class BoltDeclarer:
    """A bolt of a builder. Each grouping adds an input; its default stream is ``"default"``.

    ``builder.set_bolt("join", Join(), 4).fields_grouping("users", "tweets", "tweet_id").all_grouping("settings")``
    """

    id: str
    bolt: AnyBolt
    parallelism: int
    committer: bool
    conf: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        self.inputs: list[Subscription] = []

    def shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Tuples are spread evenly over the tasks."""
        return self._add(component, stream, GroupingKind.SHUFFLE)

    def none_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """As shuffle_grouping."""
        return self.shuffle_grouping(component, stream)

    def local_or_shuffle_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Tuples stay where they are."""
        return self._add(component, stream, GroupingKind.LOCAL_OR_SHUFFLE)

    def fields_grouping(self, component: str, *stream_and_fields: Any) -> Self:
        """Tuples with equal fields go to the same task: ``fields_grouping("spout", "word")``; with a named stream:
        ``fields_grouping("splitter", "users", "tweet_id")``."""
        if len(stream_and_fields) not in (1, 2):
            raise PlanError(
                f"fields_grouping of bolt {self.id!r} got {stream_and_fields!r}",
                'Give (component, fields) or (component, stream, fields), as in fields_grouping("spout", "word").',
            )
        fields = parse_names(stream_and_fields[-1])
        if not fields:
            raise PlanError(f"fields_grouping of bolt {self.id!r} got no fields", "Use global_grouping.")
        stream = stream_and_fields[0] if len(stream_and_fields) == 2 else DEFAULT_STREAM
        return self._add(component, stream, GroupingKind.FIELDS, fields=fields)

    def global_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """All tuples go to the first task."""
        return self._add(component, stream, GroupingKind.GLOBAL)

    def all_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """Every task gets every tuple."""
        return self._add(component, stream, GroupingKind.ALL)

    def custom_grouping(self, component: str, *stream_and_grouping: Any) -> Self:
        """A CustomGrouping chooses the tasks of a tuple: ``custom_grouping("spout", ByCountry())``; with a named
        stream: ``custom_grouping("splitter", "users", ByCountry())``. It does not get the TransactionAttempt."""
        *stream, grouping = stream_and_grouping or (None,)
        if len(stream) > 1 or not isinstance(grouping, CustomGrouping):
            raise PlanError(
                f"custom_grouping of bolt {self.id!r} got {stream_and_grouping!r}",
                "Give an object of a subclass of CustomGrouping.",
            )
        return self._add(component, stream[0] if stream else DEFAULT_STREAM, GroupingKind.CUSTOM, custom=grouping)

    def direct_grouping(self, component: str, stream: str = DEFAULT_STREAM) -> Self:
        """:raises PlanError: always, because an emitter cannot know the numbers of tasks."""
        raise PlanError(
            f"bolt {self.id!r} has a direct grouping of component {component!r}, and tasks cannot be addressed here",
            "Use fields_grouping, or custom_grouping with a CustomGrouping that chooses the task.",
        )

    def _add(self, component: str, stream: str, kind: GroupingKind, **more: Any) -> Self:
        self.inputs.append(Subscription(component, stream, kind, **more))
        return self
