"""When a drain ends, and how much it processes at a time; and what the states of a topology allow of that.

How many transactions a drain processes together. Pure, except for what it remembers.

A group shares the fixed cost of a pass. When that is paid, a larger group only makes a failure more expensive and the
first commit later. So a pass may take some seconds; or, if its fixed cost is high (a busy machine, a cluster that is
far away), twice what it would take without rows. The amount to read is limited, too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import linear_regression
from typing import TYPE_CHECKING, Any, Final

from airflow_trident.contracts.state import StateSpec
from airflow_trident.errors import ConfigurationError
from airflow_trident.plan.stages import Plan
from airflow_trident.protocol.records import OnFailure, TxRecord

if TYPE_CHECKING:
    from airflow_trident.staging.manifest import Manifest

AUTO: Final = "auto"
MOST_IN_GROUP = 200
"""The most transactions of one pass, however small they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainLimits:
    """When a drain begins no more transactions: after `max_transactions`, after `max_time_s` seconds, or (always)
    without new data.

    `group`: the most transactions that are begun, processed and committed together; ``auto``: chosen by how much
    there is to read and how long that takes; 1: each alone. `max_pending`: how many are uncommitted at once; None:
    twice the group, and three where each goes alone. `tries`: attempts of one transaction by itself before it is
    FAILED or SKIPPED. `wait_s`: how long the drain waits at its end for transactions that other workers hold.

    :raises ConfigurationError: a number is below 1, `max_time_s` is below 0, or `max_pending` has no room for the
        group.
    """

    max_transactions: int | None = None
    max_time_s: float | None = None
    max_pending: int | None = None
    group: int | str = AUTO
    tries: int = 3
    wait_s: float = 600.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "group", parse_group(self.group))
        for name in ("max_transactions", "max_pending", "tries"):
            number = getattr(self, name)
            if number is not None and number < 1:
                raise ConfigurationError(f"a drain with {name}={number}", "It must be at least 1.")
        if self.max_time_s is not None and not self.max_time_s >= 0:  # nan is not, either
            raise ConfigurationError(
                f"a drain with max_time_s={self.max_time_s}", "Give 0 or more seconds, or leave it out."
            )
        if isinstance(self.group, int) and self.max_pending is not None and self.group > self.max_pending:
            raise ConfigurationError(
                f"a drain with group={self.group} and max_pending={self.max_pending}: {self.group} transactions are "
                "uncommitted at once when they are processed together",
                "Leave out max_pending (it is twice the group then), or make it no smaller than the group.",
            )


def parse_group(value: Any) -> int | str:
    """``auto``, or a number of transactions, which may be given as a text.

    :raises ConfigurationError: the value is neither, or below 1 or too large.
    """
    text = str(value).strip()
    if text == AUTO:
        return AUTO
    if isinstance(value, bool) or not text.isdecimal() or not 1 <= int(text) <= MOST_IN_GROUP:
        raise ConfigurationError(
            f"group={value!r} is no size of a group",
            f'It is "{AUTO}", or a number of transactions from 1 to {MOST_IN_GROUP}.',
        )
    return int(text)


def pending_of(states: Mapping[str, StateSpec], limit: int | None) -> int | None:
    """How many transactions of a topology with these states may be uncommitted at once: what is given, but only one if
    a batch is processed against what the transaction before it committed.

    :param limit: None: nobody says.
    :raises ConfigurationError: more than one is given there.
    """
    rewritten = _rewritten(states)
    if rewritten is None:
        return limit
    if limit is not None and limit > 1:
        raise ConfigurationError(
            f"{limit} transactions at once, and state {rewritten!r} has mode='rewrite': each transaction is processed "
            "against the table that the one before it has committed",
            "Leave out max_pending and max_transactions, which are 1 then.",
        )
    return 1


def on_failure_of(states: Mapping[str, StateSpec], on_failure: OnFailure | str | None) -> OnFailure:
    """What happens to a transaction of a topology with these states when its tries are used up.

    :param on_failure: None: partitions of a bound topology do not need each other, so it lets the others pass;
        otherwise it blocks them.
    :raises ConfigurationError: it is unknown; or it is to be skipped, and never could come in later.
    """
    if on_failure is None:
        return OnFailure.SKIP if any(spec.partition for spec in states.values()) else OnFailure.BLOCK
    if on_failure not in tuple(OnFailure):
        raise ConfigurationError(f"on_failure = {on_failure!r} is unknown", "Use 'block' or 'skip'.")
    wanted, rewritten = OnFailure(on_failure), _rewritten(states)
    if wanted is OnFailure.SKIP and rewritten is not None:
        raise ConfigurationError(
            f"on_failure='skip', and state {rewritten!r} has mode='rewrite': what a skipped transaction has would be "
            "missing in the table for good, as it cannot replace rows when later ones have done so",
            "Leave out on_failure, so that later ones wait until it is replayed. A person may still skip one: "
            "`airflow trident skip`.",
        )
    return wanted


def _rewritten(states: Mapping[str, StateSpec]) -> str | None:
    return next((name for name, spec in states.items() if spec.rewrites), None)


def require_groups(plan: Plan, group: int | str) -> None:
    """If a person sets the size of groups, the topology must be able to run groups. With ``auto``, a topology that
    cannot takes one transaction at a time.

    :raises ConfigurationError: the topology takes transactions one by one.
    """
    if group in (AUTO, 1):
        return
    lacking = next((sink.state for sink in plan.sinks if not sink.state.takes_groups), None)
    if lacking is not None:
        why = f"state {lacking.name!r} ({type(lacking.factory).__name__}) takes one transaction at a time"
    elif not plan.coalesces.passes:
        why = plan.coalesces.why
    else:
        return
    raise ConfigurationError(
        f"topology {plan.topology!r} with group={group}: {why}",
        f'Leave group at "{AUTO}", which takes one at a time there; `airflow trident plan {plan.topology}` says why.',
    )


FIRST = 8
"""The first group; also the largest one while nobody knows how much there is to read."""
GROUP_BYTES = 128 << 20
"""So much is read by one pass, if it is of more than one transaction: as much as Spark gives to one task by default.
With less, a pass costs more beside its rows: 10 batches of 34 MB took a sixth longer one by one."""
LONG_S = 5.0
"""After a pass that takes longer, the next one is half as large, unless most of the time is what every pass costs."""
REMEMBERED = 6
"""How many sizes of passes are remembered, to tell what a pass costs."""
ROW_BYTES = 100
"""The assumed bytes of a row, if a source does not say how much there is to read."""
GROWS = 4
"""The next group is at most this many times as large."""


class GroupSize:
    """How many transactions the next group may have; each pass corrects it.

    :param together: may one pass process several transactions at all?
    """

    def __init__(self, limits: DrainLimits, *, together: bool) -> None:
        self._fixed = limits.group if isinstance(limits.group, int) else None
        self._most = MOST_IN_GROUP
        if limits.max_pending is not None and self._fixed is None:
            self._most = max(1, min(MOST_IN_GROUP, limits.max_pending // 2))  # one is processed while one commits
        if not together:
            self._fixed = 1
        self.together = self._fixed != 1
        self._now = self._fixed or min(FIRST, self._most)
        self._sizes: list[int | None] = []
        self._took: list[tuple[int, float]] = []
        self._read: deque[int] = deque(maxlen=REMEMBERED)

    @property
    def now(self) -> int:
        return self._now if self._fixed is not None else max(1, min(self._now, self._room()))

    def passed(self, members: int, took_s: float, *, cold: bool = False) -> None:
        """A pass of `members` transactions succeeded.

        :param cold: it began before any had ended. The first passes of a process take longer than all others.
        """
        if self._fixed is None and (not cold or took_s < LONG_S):
            others = [pass_time for pass_time in self._took if pass_time[0] != members]  # of each size the last one
            self._took = [*others[1 - REMEMBERED :], (members, took_s)]
            self._now = min(self._most, next_size(self._now, self._took))

    def staged(self, manifest: Manifest) -> None:
        """What a pass read and staged. If a spout gives no size, its next batches count as large as the largest of the
        last passes."""
        members = manifest.members
        rows = max(member.rows_read for member in members)
        if rows >= 0:
            self._read.append(max(rows * ROW_BYTES, sum(file.bytes for file in manifest.files) // len(members)))

    def failed(self) -> None:
        if self._fixed is None:
            self._now = max(1, self._now // 2)

    def cut(self, records: Sequence[TxRecord], size_of: Callable[[TxRecord], int | None]) -> list[list[TxRecord]]:
        """Divides transactions into passes of at most `now`, and of at most GROUP_BYTES if a pass has more than one.

        :param size_of: how many bytes a transaction has to read; None: its spout does not say.
        """
        if self._fixed is not None:
            return [list(records[at : at + self._fixed]) for at in range(0, len(records), self._fixed)]
        self._sizes = [size_of(record) for record in records]
        passes: list[list[TxRecord]] = []
        total = 0
        for record, share in zip(records, self._shares(), strict=True):
            if not passes or len(passes[-1]) >= self._now or total + share > GROUP_BYTES:
                passes.append([])
                total = 0
            passes[-1].append(record)
            total += share
        return passes

    def _shares(self) -> list[int]:
        """About how many bytes each of the last cut transactions has to read."""
        usual = max(self._read, default=GROUP_BYTES // FIRST)
        return [usual if size is None else size for size in self._sizes]

    def _room(self) -> int:
        """How many transactions of these sizes fit into one pass."""
        total = sum(self._shares())
        return MOST_IN_GROUP if total == 0 else max(1, GROUP_BYTES * len(self._sizes) // total)


def next_size(now: int, took: Sequence[tuple[int, float]]) -> int:
    """The next size, between half and four times the present one. A pass that was not full says nothing about larger
    ones.

    :param took: members and seconds of the last passes, at least one.
    """
    members, last_s = took[-1]
    by_itself_s, each_s = _line(took)
    if each_s is None:
        wanted = now // 2 if last_s > LONG_S else int(now * LONG_S / max(last_s, 0.001))
    elif each_s <= 0:
        wanted = now * GROWS
    else:
        wanted = int(max(LONG_S - by_itself_s, by_itself_s) / each_s)
    # Remembered larger passes may be old, from a slow start: this pass shows how long its members take at most.
    wanted = max(wanted, int(members * LONG_S / max(last_s, 0.001)))
    return max(1, now // 2, min(wanted, now * GROWS if members >= now else now))


def _line(took: Sequence[tuple[int, float]]) -> tuple[float, float | None]:
    """The fixed seconds of a pass, and the seconds of each member: the line through these passes. Passes of one size
    only cannot tell the second."""
    sizes, seconds = zip(*took, strict=True)
    if len(set(sizes)) < 2:
        return 0.0, None
    each_s, by_itself_s = linear_regression(sizes, seconds)
    return max(by_itself_s, 0.0), each_s
