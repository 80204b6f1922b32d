"""Who may still commit rows into a range of keys that was read: the open transactions of PostgreSQL, by their locks.

A lock tells more than a snapshot does: a transaction has no id before it writes its first row, when its key is drawn
already. Locks are kept until the transaction's rows can be seen, also by PREPARE TRANSACTION, which keeps the virtual
id, too (PostgreSQL 14.1, 13.5, 12.9).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import sqlalchemy

_LOOK_AGAIN_S = 0.05
# The table with its partitions, or tables that inherit from it, and with the tables that it is a partition of: a row
# may be written by the name of each, and a partition is locked only after the key was drawn.
_RELATED = """
WITH RECURSIVE below AS (
  SELECT CAST(to_regclass(:name) AS oid) AS oid
  UNION SELECT i.inhrelid FROM below JOIN pg_inherits i ON i.inhparent = below.oid
), above AS (
  SELECT CAST(to_regclass(:name) AS oid) AS oid
  UNION SELECT i.inhparent FROM above JOIN pg_class c ON c.oid = above.oid AND c.relispartition
  JOIN pg_inherits i ON i.inhrelid = c.oid
), related AS (SELECT oid FROM below UNION SELECT oid FROM above)
"""
# r, p and f are tables, tables with partitions, and tables of other servers.
_WHAT = f"""{_RELATED}
SELECT coalesce(bool_and(c.relkind IN ('r', 'p', 'f')), false) AS tables,
pg_is_in_recovery() OR coalesce(bool_or(c.relkind = 'f'), false)
OR EXISTS (SELECT FROM pg_subscription_rel WHERE srrelid IN (SELECT oid FROM related))
OR (NOT coalesce(bool_and(c.relkind IN ('r', 'p', 'f')), false) AND EXISTS (SELECT FROM pg_subscription_rel))
AS elsewhere
FROM related JOIN pg_class c ON c.oid = related.oid
"""
# A transaction that inserts into a table holds this lock from before its key is drawn until the transaction ends.
_LOCKS = (
    "SELECT virtualtransaction FROM pg_locks WHERE locktype = 'relation' AND mode = 'RowExclusiveLock' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
)
_OF_TABLES = f"{_RELATED} {_LOCKS} AND relation IN (SELECT oid FROM related)"
# Only the database knows what a view reads, in functions, too. The server's own tables have lower numbers, and indexes
# are locked so for as long as VACUUM takes.
_OF_ALL = (
    f"{_LOCKS} AND relation >= 16384 "
    "AND NOT EXISTS (SELECT FROM pg_class c WHERE c.oid = relation AND c.relkind IN ('i', 'I'))"
)


def wait_for_writers(connection: sqlalchemy.Connection, table: Any, settle_s: float) -> bool:
    """Wait until the transactions that were writing to `table` have ended, or to any table if it is a view.

    Writers on other servers cannot be seen: not from a replica, for a foreign table, or for a table that a subscription
    fills. Then `settle_s` is waited.

    :param connection: each of its statements sees what was committed before it.
    :returns: False: they have not ended within `settle_s`.
    """
    import sqlalchemy as sa

    deadline = time.monotonic() + settle_s
    name = {"name": _name_of(connection, table)}
    what = connection.execute(sa.text(_WHAT), name).one()
    statement, parameters = (sa.text(_OF_TABLES), name) if what.tables else (sa.text(_OF_ALL), {})
    waited_for = set(connection.execute(statement, parameters).scalars())
    if what.elsewhere:
        time.sleep(settle_s)
        waited_for &= set(connection.execute(statement, parameters).scalars())
    while waited_for:
        if time.monotonic() >= deadline:
            return False
        time.sleep(_LOOK_AGAIN_S)
        waited_for &= set(connection.execute(statement, parameters).scalars())
    return True


def _name_of(connection: sqlalchemy.Connection, table: Any) -> str:
    """As it stands in statements, quoted where needed. Some drivers need percent signs doubled there, not here."""
    dialect = connection.dialect
    name: str = dialect.identifier_preparer.format_table(table)
    return name.replace("%%", "%") if dialect.paramstyle in ("format", "pyformat") else name
