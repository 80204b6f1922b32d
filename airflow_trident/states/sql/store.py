"""Common part of all states in SQL databases: the table's owner, the marker's row, one transaction for batch and
marker."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import Applied, Marker, StagedBatch, Verdict
from airflow_trident.errors import ConfigurationError, CorruptRecordError, DefinitionChangedError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.protocol.records import NO_ATTEMPT, CommitTicket
from airflow_trident.states.core.groups import Group, answers, applied_by
from airflow_trident.states.core.marker import AdmittingState, admit, admit_group, group_from_json, group_to_json
from airflow_trident.states.core.merge import Key, Value, canonical_key, merge, merge_before
from airflow_trident.states.sql.alterations import require_unaltered
from airflow_trident.states.sql.dialect import Dialect, changed_otherwise
from airflow_trident.types import Json

if TYPE_CHECKING:
    import pyarrow as pa

_MARKER = ("incarnation", "high", "fence", "holes", "position", "attempt")


class SqlStore(AdmittingState):
    """An open `SqliteState`, `PostgresState` or `SqlState`; not for several threads at the same time.

    :raises DefinitionChangedError: the state was made with other fields.
    :raises ConfigurationError: its table belongs to something else.
    """

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._spec = dialect.spec
        self._who = f"state {self._spec.name!r} of topology {self._spec.topology!r}"
        try:
            with dialect.errors():
                self._register()
        except BaseException:
            dialect.close()
            raise

    # ---- opening -----------------------------------------------------------------------------------------------

    def _register(self) -> None:
        """Make the tables and the marker's row if they are missing; a reader writes nothing.

        The row comes first: not every database can roll back the making of a table.
        """
        db = self.dialect
        if not db.lacking() and self._is_registered():
            self._require_unaltered()
            return
        with db.making():
            lacking = db.lacking()
            own_tables = [table for table in lacking if table in (db.data, db.before)]
            for needed in lacking:
                if needed not in own_tables:
                    db.make(needed)
            is_registered = self._is_registered()
            if is_registered:
                self._require_whole(own_tables)
            else:
                self._enter(is_free=db.data in lacking)
            for table in own_tables:
                db.make(table)
            self._require_unaltered()

    def _require_unaltered(self) -> None:
        """
        :raises ConfigurationError: something in the database makes rows other than those that are sent.
        """
        db = self.dialect
        require_unaltered(self._who, db.place, db.alterations(), db.allow_triggers)

    def _require_whole(self, lacking: Sequence[str]) -> None:
        """What was applied is in tables that were made before it: one that is lacking now was removed since.

        :raises CorruptRecordError: the state's rows are gone, or what its highest batch changed: nobody could take that
            back.
        """
        db, marker = self.dialect, self._marker() if lacking else None
        if marker is None:
            return
        now = db.lacking()  # asked again: a batch that was applied meanwhile has made its tables first
        needed = [db.data, db.before] if marker.attempt != NO_ATTEMPT else [db.data]
        if missing := [table for table in needed if table in now]:
            named = db.shown if db.data in missing else f"of values before transaction {marker.high}, {missing[0]},"
            raise self._row_is_bad(f"is there, and its table {named} is gone")

    def _enter(self, *, is_free: bool) -> None:
        db = self.dialect
        owners = db.execute(f"SELECT topology, state FROM {db.markers} WHERE {db.of_table}", db.row)
        if not (is_free and not owners and db.enter()) and not self._is_registered():
            raise ConfigurationError(
                f"the table {db.shown} in {db.place} belongs to {_whose(owners)}, not to {self._who}",
                f"Give the state another table, as in {db.factory}.",
            )

    def _is_registered(self) -> bool:
        db = self.dialect
        rows = db.execute(f"SELECT table_name, definition FROM {db.markers} WHERE {db.mine}", db.row)
        if not rows:
            return False
        name, definition = rows[0]
        if (db.fold(name), definition) != (db.fold(db.table), db.definition):
            raise DefinitionChangedError(
                f"{self._who} in {db.place} is the table {name!r} with the fields {definition}, and now it should be "
                f"{db.table!r} with {db.definition}",
                f"Give the state a new name, or another {db.where_else}.",
            )
        return True

    # ---- the marker --------------------------------------------------------------------------------------------

    def marker(self) -> Marker | None:
        with self.dialect.errors():
            return self._marker()

    def _marker(self, how: str = "") -> Marker | None:
        incarnation, high, fence, holes, position, attempt = self._marker_row(how)
        if high is None:
            return None
        try:
            position_text, group = _position_from(position)
            return Marker(
                incarnation=str(incarnation),
                high=int(high),
                fence=int(fence),
                holes=tuple((int(first), int(last)) for first, last in json.loads(holes)),
                position=position_text,
                attempt=int(attempt),
                group=group,
            )
        except (ValueError, TypeError) as error:
            raise self._row_is_bad(f"cannot be read ({error})") from error

    def _marker_row(self, how: str) -> Sequence[Any]:
        db = self.dialect
        rows = db.execute(f"SELECT {', '.join(_MARKER)} FROM {db.markers} WHERE {db.mine}{how}", db.row)
        if not rows:
            raise self._row_is_bad("is gone")
        return rows[0]

    def _row_is_bad(self, why: str) -> CorruptRecordError:
        db = self.dialect
        return CorruptRecordError(
            f"the row of state {self._spec.name!r} in {db.markers} of {db.place} {why}", db.restore
        )

    def _write_marker(self, marker: Marker) -> None:
        db = self.dialect
        row = {name: getattr(marker, name) for name in _MARKER}
        row |= {"holes": json.dumps(marker.holes), "position": _position_text(marker)}
        changed = ", ".join(f"{name} = :{name}" for name in _MARKER)
        db.execute(f"UPDATE {db.markers} SET {changed} WHERE {db.mine}", db.row | row)
        now = dict(zip(_MARKER, self._marker_row(""), strict=True))
        if now != row:
            raise changed_otherwise(self._spec, db.markers, row, now)

    # ---- applying ----------------------------------------------------------------------------------------------

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        return self.apply_staged(ticket, self._in_memory(batch))

    def apply_staged(self, ticket: CommitTicket, batch: StagedBatch) -> Applied:
        """Piece by piece if the database merges the batch; a merge in this process needs the whole batch."""
        spec, db = self._spec, self.dialect
        with db.errors(), db.transaction():
            db.stage(batch)
            # From here until the commit no other committer of this state can change anything (T7).
            db.lock()
            self._require_unaltered()
            marker_before = self._marker(db.for_update)
            marker, verdict = admit(marker_before, ticket, state=spec.name, commutes=spec.commutes, opaque=spec.opaque)
            if verdict is not Verdict.SKIP:
                replaces, late = verdict is Verdict.REPLACE, ticket.txid < marker.high
                self._write(ticket, batch, replaces=replaces, late=late)
            if marker != marker_before:
                self._write_marker(marker)
        return Applied.ALREADY if verdict is Verdict.SKIP else Applied.APPLIED

    def _write(self, ticket: CommitTicket, batch: StagedBatch, *, replaces: bool, late: bool) -> None:
        """Apply the batch, while the marker is locked."""
        spec, db = self._spec, self.dialect
        self._remove_replaced([ticket])
        if replaces:
            db.restore_before()
        takes_late = late and spec.opaque
        if not takes_late and db.merge_natively(batch):
            return
        table = batch.table()
        changes = merge(spec, table, self._lookup, ticket)
        if takes_late:
            db.put_before(merge_before(spec, table, db.kept(list(changes)), ticket))
        db.put(changes, keeps=spec.opaque and not late)

    def _apply_group(self, group: Group) -> tuple[Applied, ...]:
        spec, db = self._spec, self.dialect
        whole = group.merged
        with db.errors(), db.transaction():
            db.stage(self._in_memory(arrow_schema(spec.staged).empty_table() if whole is None else whole))
            db.lock()
            self._require_unaltered()
            marker_before = self._marker(db.for_update)
            marker, verdicts = admit_group(marker_before, group.tickets, state=spec.name, commutes=spec.commutes)
            if Verdict.APPLY in verdicts:
                self._write_group(group, verdicts)
            if marker != marker_before:
                self._write_marker(marker)
        return answers(verdicts)

    def _write_group(self, group: Group, verdicts: Sequence[Verdict]) -> None:
        """Apply the missing batches, while the marker is locked."""
        self._remove_replaced(applied_by(group.tickets, verdicts))
        whole = group.as_one(verdicts)
        if whole is None or not self.dialect.merge_natively(self._in_memory(whole)):
            self.dialect.put(group.changes(verdicts, self._lookup), keeps=False)

    def _remove_replaced(self, tickets: Sequence[CommitTicket]) -> None:
        """Remove the rows of the partitions that the batches replace (T13): then there is nothing to merge with."""
        if values := {value for ticket in tickets for value in self._spec.replaced_by(ticket)}:
            self.dialect.remove_partitions(sorted(values, key=str))

    def _in_memory(self, table: pa.Table) -> StagedBatch:
        return StagedBatch.of(self._spec.staged, table)

    def _lookup(self, keys: Sequence[Key]) -> list[Value | None]:
        # Translate here: the caller is the user's code, but the fault is the database's.
        with self.dialect.errors():
            return self.dialect.lookup(keys)

    # ---- reading -----------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none."""
        with self.dialect.errors(), self.dialect.reading():
            return self.dialect.lookup([tuple(key) for key in keys])

    def items(self) -> Iterator[tuple[Key, Value]]:
        """In pieces: a state may be larger than memory."""
        with self.dialect.errors():
            for key, value in self.dialect.pairs():
                yield canonical_key(key), value

    def count(self) -> int:
        """Number of keys in the state."""
        with self.dialect.errors():
            return int(self.dialect.execute(f"SELECT count(*) FROM {self.dialect.data}")[0][0])

    def close(self) -> None:
        self.dialect.close()


def _whose(owners: Sequence[Sequence[str]]) -> str:
    """:param owners: (topology, state)."""
    return f"state {owners[0][1]!r} of topology {owners[0][0]!r}" if owners else "something else"


_GROUP = "group"


def _position_text(marker: Marker) -> str:
    """The column `position`: an object, or after a group a list that ends with that object. Versions that know no
    groups find no ticket with such a position: they refuse the group's txids and go on above them."""
    if not marker.group:
        return json.dumps(marker.position)
    return json.dumps([_GROUP, group_to_json(marker.group), marker.position])


def _position_from(text: str) -> tuple[dict[str, Json], dict[int, str]]:
    content = json.loads(text)
    if isinstance(content, dict):
        return content, {}
    name, group, position = content
    if name != _GROUP or not isinstance(position, dict):
        raise ValueError(f"a position that is {name!r:.40}")
    return position, group_from_json(group)
