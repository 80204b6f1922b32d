"""States as Delta tables: each commit appends a batch with its marker; later commits fold the files.

Each decision about a batch is read from one snapshot. The commit succeeds only as the version right after that snapshot
(and as the next app transaction), so nothing can come between. A handle that is opened later would accept an older app
transaction, so no commit uses one.

The Delta table of one state: opens or makes it, and checks that it belongs to the state.

Which files of a Delta state a fold takes. Decided from the table's log alone, before any file is read.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_trident.contracts.state import Applied, Capabilities, Marker, StateFactory, StateSpec, Upkeep, Verdict
from airflow_trident.errors import ConfigurationError, CorruptRecordError, DefinitionChangedError
from airflow_trident.io.arrow import arrow_schema
from airflow_trident.io.connections import require_extra
from airflow_trident.io.datasets import Dataset, file_dataset
from airflow_trident.io.delta import EXTRA, DeltaPlace
from airflow_trident.io.paths import AnyPath
from airflow_trident.names import require_counts, without_none
from airflow_trident.protocol.records import NO_ATTEMPT, CommitTicket
from airflow_trident.states.core.checks import application_of, file_names, require_plain_keys
from airflow_trident.states.core.groups import Group, answers
from airflow_trident.states.core.marker import AdmittingState, admit, admit_group
from airflow_trident.states.core.merge import Key, Value, canonical_key, merge
from airflow_trident.states.delta.published import KEPT, publish
from airflow_trident.states.delta.runs import DELETED, PARTITIONS, Footer, Run, Runs, last_footer, now_ms, runs_of
from airflow_trident.states.delta.table import next_version, require_conditions, require_delta_columns
from airflow_trident.states.tables.appending import decided_anew
from airflow_trident.types import names_of

if TYPE_CHECKING:
    import pyarrow as pa


def open_table(place: DeltaPlace, runs: Runs) -> Any:
    """:return: a `deltalake.DeltaTable`.
    :raises ConfigurationError: the table belongs to something else.
    :raises DefinitionChangedError: the table belongs to the state, but has other fields.
    """
    spec = runs.spec
    module: Any = require_extra("deltalake", EXTRA)
    errors: Any = require_extra("deltalake.exceptions", EXTRA)
    wanted = {
        "topology": spec.topology,
        "state": spec.name,
        "fields": ", ".join(map(str, spec.keys)) + " -> " + ", ".join(map(str, spec.values)),
        "kept": "as partial values" if runs.adds else "as values",
    }
    try:
        table = place.table()
    except errors.TableNotFoundError:
        place.make_folder()
        try:
            table = module.DeltaTable.create(
                place.where,
                schema=arrow_schema((*runs.rows, *PARTITIONS)),
                partition_by=list(names_of(PARTITIONS)),
                description=json.dumps(wanted),
                storage_options=dict(place.options) or None,
            )
        except errors.DeltaError:
            table = place.table()  # another process was first
    _require_own(table.metadata().description, place, spec, wanted)
    return table


def _require_own(description: str | None, place: DeltaPlace, spec: StateSpec, wanted: dict[str, str]) -> None:
    try:
        content = json.loads(description or "")
        owner = content["topology"], content["state"]
    except (ValueError, KeyError, TypeError):
        content, owner = {}, None
    if owner != (spec.topology, spec.name):
        whose = f"state {owner[1]!r} of topology {owner[0]!r}" if owner else "something else"
        raise ConfigurationError(
            f"the Delta table {place.where!r} belongs to {whose}, not to state {spec.name!r} "
            f"of topology {spec.topology!r}",
            "Give the state another table, as in DeltaState(path, table=...).",
        )
    if content != wanted:
        raise DefinitionChangedError(
            f"state {spec.name!r} of topology {spec.topology!r} in {place.where!r} has the fields "
            f"{content.get('fields')}, {content.get('kept')}, and now it should have {wanted['fields']}, "
            f"{wanted['kept']}",
            "Give the state a new name, or another path.",
        )


MAX_ROWS = 10_000_000
"""With a user's combiners these are some gigabytes as Python's rows."""
MAX_BYTES = 2**30


@dataclass(frozen=True, slots=True)
class FoldLimit:
    """What one fold may read: so many rows, and so many bytes of files."""

    rows: int
    bytes: int

    def within(self, newest_first: Sequence[Run]) -> list[Run]:
        """The longest beginning that is within the limit."""
        rows = size_bytes = 0
        for number, run in enumerate(newest_first):
            rows, size_bytes = rows + run.rows, size_bytes + run.bytes
            if rows > self.rows or size_bytes > self.bytes:
                return list(newest_first[:number])
        return list(newest_first)

    def exceeded(self, choice: FoldChoice, spec: StateSpec) -> str:
        """The warning that nothing is folded."""
        runs = choice.wanted
        size_bytes = sum(run.bytes for run in runs)
        return (
            f"State {spec.name!r} was not folded by its commit: {len(runs):,} files with "
            f"{sum(run.rows for run in runs):,} rows and {size_bytes:,} bytes are due, and a commit reads at most "
            f"{self.rows:,} rows (fold_max_rows) and {self.bytes:,} bytes (fold_max_bytes) of them. On a machine with "
            f"the memory run `airflow trident state fold {spec.topology} {spec.name}`, or a TridentUpkeepOperator."
        )


@dataclass(frozen=True, slots=True)
class FoldChoice:
    """`chosen`: the files to fold, none if it is not time for that. `wanted`: what would be folded if there were no
    limit."""

    chosen: Sequence[Run] = ()
    wanted: Sequence[Run] = ()

    @property
    def is_cut(self) -> bool:
        """Does the limit leave out some?"""
        return len(self.chosen) < len(self.wanted)

    @property
    def rows(self) -> int:
        return sum(run.rows for run in self.chosen)


def choice(newest_first: Sequence[Run], at: int, limit: FoldLimit | None) -> FoldChoice:
    """At least half of `at` files, the newest ones, and older ones that are not much larger; all of them if `at` is 2.

    :param newest_first: all files with rows that may be folded.
    """
    if len(newest_first) < at:
        return FoldChoice()
    wanted, rows = list[Run](), 0
    for number, run in enumerate(newest_first):
        if at > 2 and number >= at // 2 and run.rows > 2 * rows:
            break
        wanted.append(run)
        rows += run.rows
    chosen = wanted if limit is None else limit.within(wanted)
    # Fewer files would be written again for each of the next commits.
    least = min(len(wanted), max(2, at // 2))
    return FoldChoice(chosen if len(chosen) >= least else (), wanted)


T = TypeVar("T")

_HOURS_KEPT = 168
_LONGEST_TABLE = 240
_FOLDERS = file_names("_")
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeltaState(StateFactory):
    """Delta tables in a folder or object store, one per state: ``<path>/<topology>_<state>``.

    :param path: a folder that all committers share, or a URI such as ``s3://bucket/states``. Airflow's
        ObjectStoragePath brings its connection.
    :param table: the table's name below it.
    :param conn_id: an Airflow connection (``aws``, ``wasb``, ``google_cloud_platform``, or one whose extras are storage
        options of delta-rs).
    :param storage_options: override those of the connection.
    :param fold_at: from this number of files on, a commit also folds some of them; None: only `fold()` does.
    :param fold_max_rows, fold_max_bytes: such a fold reads at most so many rows, and bytes of files, into memory; what
        is larger is left to `fold()`.
    :param keep_removed_h: how many hours folded files stay for their readers, and files that nobody committed; 1 or
        more.
    """

    path: AnyPath
    table: str | None = None
    conn_id: str | None = None
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, hash=False)
    fold_at: int | None = 32
    keep_removed_h: int = _HOURS_KEPT
    fold_max_rows: int = MAX_ROWS
    fold_max_bytes: int = MAX_BYTES

    capabilities = Capabilities(durable=True, atomic=True, opaque=True, groups=True)
    max_value_bytes = 2**31 - 4096
    """Arrow's arrays of bytes have offsets of 32 bits."""

    def __post_init__(self) -> None:
        require_counts("DeltaState", least=2, **without_none(fold_at=self.fold_at))
        require_counts("DeltaState", fold_max_rows=self.fold_max_rows, fold_max_bytes=self.fold_max_bytes)
        if self.keep_removed_h == 0:
            raise ConfigurationError(
                f"DeltaState with keep_removed_h={self.keep_removed_h} would remove files that another process has "
                "written and is about to commit",
                "Keep removed files for an hour or more.",
            )
        require_counts("DeltaState", keep_removed_h=self.keep_removed_h)
        is_name = isinstance(self.table, str) and 1 <= len(self.table.encode()) <= _LONGEST_TABLE
        if self.table is not None and not is_name:
            raise ConfigurationError(
                f"{self.table!r} cannot be the table of a state", f"Give it a name of 1 to {_LONGEST_TABLE} bytes."
            )
        place = self._place()  # refuses an invalid place
        object.__setattr__(self, "path", place.uri)
        object.__setattr__(self, "conn_id", place.conn_id)

    def _place(self) -> DeltaPlace:
        return DeltaPlace.of(self.path, self.conn_id, self.storage_options)

    def validate(self, spec: StateSpec) -> None:
        require_plain_keys(spec)
        require_delta_columns(spec, names_of((*PARTITIONS, DELETED)))

    def make_state(self, spec: StateSpec) -> OpenDeltaState:
        """
        :raises DefinitionChangedError: the table was made for other fields.
        """
        self.validate(spec)
        return OpenDeltaState(self._place().resolved(), spec, self)

    def table_name(self, spec: StateSpec, *more: str) -> str:
        """:param more: a part of the name of a table beside it."""
        return "_".join((self.table, *more)) if self.table else _FOLDERS.of(spec.topology, spec.name, *more)

    def upkeep(self, spec: StateSpec) -> Sequence[Upkeep]:
        return [Upkeep.FOLD, Upkeep.PUBLISH]

    def lineage_dataset(self, spec: StateSpec) -> Dataset:
        return file_dataset(self._place().below(self.table_name(spec)).uri)

    def describe(self) -> str:
        return f"DeltaState({self.path}{f', {self.table}' if self.table else ''})"

    def __getstate__(self) -> dict[str, Any]:
        """The receiving process may not have the Airflow connection, so send resolved settings."""
        place = self._place().resolved(required=False)
        return {**self.__dict__, "conn_id": place.conn_id, "storage_options": dict(place.options)}


class OpenDeltaState(AdmittingState):
    """See :class:`DeltaState`. Not for several threads at the same time."""

    def __init__(self, folder: DeltaPlace, spec: StateSpec, factory: DeltaState) -> None:
        self._folder = folder
        self.place = place = folder.below(factory.table_name(spec))
        self._spec = spec
        self._factory = factory
        self._runs = Runs(spec)
        self._app = application_of(spec)
        self._warned = False
        with place.errors():
            self._table = open_table(place, self._runs)
            self._files = place.files()
        require_conditions(place)

    def _snapshot(self) -> tuple[list[Run], Footer]:
        """The runs and the footer of the last commit. All later questions use the same snapshot."""
        with self.place.errors():
            self._table.update_incremental()
            runs = runs_of(self._table)
            last = int(self._table.transaction_version(self._app) or 0)
            if last != (runs[-1].commit if runs else 0):
                raise CorruptRecordError(
                    f"the Delta table {self.place.where!r} is at commit {last} and has files up to "
                    f"{runs[-1].commit if runs else 0}",
                    "Somebody changed it: restore an older version of it.",
                )
            nothing = Footer(marker=None, bounds=(0,) * len(self._spec.values))
            return runs, last_footer(self._files, runs) if runs else nothing

    def marker(self) -> Marker | None:
        return self._snapshot()[1].marker

    # ---- applying ----------------------------------------------------------------------------------------------

    def apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        applied = self._again(lambda: self._apply(ticket, batch))
        if applied is Applied.APPLIED:
            self._fold_after(ticket)
        return applied

    def _apply_group(self, group: Group) -> tuple[Applied, ...]:
        applied = self._again(lambda: self._try_group(group))
        if Applied.APPLIED in applied:
            self._fold_after(group.tickets[-1])
        return applied

    def _fold_after(self, ticket: CommitTicket) -> None:
        """Folds what is due, within the state's limit: a committer that its machine kills for its memory would be
        killed after each later commit, too."""
        factory = self._factory
        if factory.fold_at is None:
            return
        limit = FoldLimit(factory.fold_max_rows, factory.fold_max_bytes)
        try:
            self.fold(at=factory.fold_at, limit=limit)
        except Exception as error:  # noqa: BLE001 - whatever it is, the batch is applied
            log.warning("Transaction %d is applied, and its state was not folded: %s", ticket.txid, error)

    def _try_group(self, group: Group) -> tuple[Applied, ...]:
        runs, footer = self._snapshot()
        spec = self._spec
        marker, verdicts = admit_group(footer.marker, group.tickets, state=spec.name, commutes=spec.commutes)
        if Verdict.APPLY in verdicts:
            rows = partial(self._rows_of_group, group, verdicts, footer)
            self._append(runs, footer, marker, rows, txid=group.tickets[-1].txid)
        elif marker != footer.marker:
            self._append(runs, footer, marker)
        return answers(verdicts)

    def _rows_of_group(
        self, group: Group, verdicts: Sequence[Verdict], footer: Footer, kept: Sequence[Run]
    ) -> pa.Table:
        if not self._runs.adds:
            return self._runs.changes(group.changes(verdicts, partial(self._stored, kept)))
        whole = group.as_one(verdicts)
        if whole is None:
            whole = self._runs.of_several(group.missing(verdicts))
        return self._rows_of(group.tickets[-1], whole, footer, kept)

    def _apply(self, ticket: CommitTicket, batch: pa.Table) -> Applied:
        spec, layout = self._spec, self._runs
        runs, footer = self._snapshot()
        # Without partial values, a late batch cannot be separated from the changes of the highest txid.
        commutes = spec.commutes and (layout.adds or not spec.opaque)
        marker, verdict = admit(footer.marker, ticket, state=spec.name, commutes=commutes, opaque=spec.opaque)
        if verdict is not Verdict.SKIP:
            replaced = [run for run in runs if verdict is Verdict.REPLACE and run.rows and run.txid == ticket.txid]
            rows = partial(self._rows_of, ticket, batch, footer)
            self._append(runs, footer, marker, rows, txid=ticket.txid, replaced=replaced)
            return Applied.APPLIED
        if marker != footer.marker:
            self._append(runs, footer, marker)
        return Applied.ALREADY

    def _append(
        self,
        runs: Sequence[Run],
        footer: Footer,
        marker: Marker,
        rows: Callable[[Sequence[Run]], pa.Table] | None = None,
        *,
        txid: int | None = None,
        replaced: Sequence[Run] = (),
    ) -> None:
        """Commit one more run.

        :param rows: makes its rows from the runs that stay.
        """
        # A run without rows only held an old marker, unless it is about to be taken back as a batch.
        removed = [*(run for run in runs if not run.rows), *replaced]
        table = arrow_schema(self._runs.rows).empty_table()
        if rows is not None:
            table = rows([run for run in runs if run not in removed])
        bounds = footer.bounds
        if self._runs.adds:
            bounds = tuple(old + new for old, new in zip(bounds, self._runs.bounds(table), strict=True))
        commit = runs[-1].commit + 1 if runs else 1
        new = replace(footer, marker=marker, bounds=bounds)
        self._commit(table, new, removed, commit=commit, order=commit, txid=txid)

    def _rows_of(self, ticket: CommitTicket, batch: pa.Table, footer: Footer, kept: Sequence[Run]) -> pa.Table:
        """The rows to append. Everything that can raise happens here."""
        lookup = partial(self._stored, kept)
        if not self._runs.adds:
            return self._runs.changes(merge(self._spec, batch, lookup, ticket))
        table = self._runs.partials(batch, ticket)
        if self._runs.is_builtin:
            new = self._runs.bounds(table)
            if not self._runs.may_overflow([old + more for old, more in zip(footer.bounds, new, strict=True)]):
                return table
        # Only to check that it can be combined: the appended values stay partial, so they can be taken back.
        merge(self._spec, batch, lookup, ticket)
        return table

    def _stored(self, kept: Sequence[Run], keys: Sequence[Key]) -> list[Value | None]:
        with self.place.errors():
            values_by_key = self._runs.look_up(self._files, kept, keys)
        return [values_by_key.get(key) for key in keys]

    def _commit(self, table: pa.Table, footer: Footer, removed_runs: Sequence[Run], **place: Any) -> None:
        """One commit that adds a run and removes those in `removed_runs`.

        :raises Overtaken: it is not the next version of the table.
        """
        transaction: Any = require_extra("deltalake.transaction", EXTRA)
        with self.place.errors():
            run = self._runs.write(self._files, table, footer.with_runs(removed=removed_runs), **place)
            times = now_ms()
            # Readers of the table's change feed need not see a fold.
            changes = place["txid"] is not None
            added = transaction.AddAction(run.path, run.bytes, run.partition, times, changes, run.stats)
            removed = [
                transaction.RemoveAction(old.path, changes and old.rows > 0, times, old.bytes, old.partition)
                for old in removed_runs
            ]
            application = transaction.Transaction(self._app, run.commit)
            with next_version(self.place, lambda: self._forget(run)):
                self._table.create_write_transaction(
                    [added, *removed],
                    mode="append",
                    schema=arrow_schema((*self._runs.rows, *PARTITIONS)),
                    partition_by=list(names_of(PARTITIONS)),
                    commit_properties=transaction.CommitProperties(
                        app_transactions=[application], max_commit_retries=0
                    ),
                )

    def _forget(self, run: Run) -> None:
        with contextlib.suppress(OSError):
            self._files.delete_file(run.path)

    def _again(self, act: Callable[[], T]) -> T:
        cure = "One committer at a time is meant to: see who else writes. Nothing was applied."
        return decided_anew(f"the Delta table {self.place.where!r}", act, cure)

    # ---- folding -----------------------------------------------------------------------------------------------

    def fold(
        self, *, at: int = 2, progress: Callable[[str], object] = log.info, limit: FoldLimit | None = None
    ) -> bool:
        """Fold at least `at` runs into one, in a transaction of its own that changes no value.

        With `at` above 2, folds the newest runs and older ones that are not much larger. So each row is rewritten only
        a few times (the logarithm of the state's size). Returns whether anything was folded.
        """
        return bool(self._again(lambda: self._fold(at, progress, limit)))

    def _fold(self, at: int, progress: Callable[[str], object], limit: FoldLimit | None) -> bool:
        runs, footer = self._snapshot()
        # A run that may be taken back stays separate.
        marker = footer.marker
        retractable = [marker.high] if marker is not None and marker.attempt != NO_ATTEMPT else []
        parts = sorted((run for run in runs if run.rows and run.txid not in retractable), key=lambda run: -run.order)
        merge_choice = choice(parts, at, limit)
        chosen = merge_choice.chosen
        if not chosen:
            if limit is not None and merge_choice.is_cut and not self._warned:
                self._warned = True
                log.warning("%s", limit.exceeded(merge_choice, self._spec))
            return False
        progress(f"making one file of {len(chosen):,} with {merge_choice.rows:,} rows")
        with self.place.errors():
            table = self._runs.fold(self._runs.read(self._files, chosen))
        whole = len(chosen) == len(parts)
        if whole and not self._runs.adds:
            import pyarrow.compute as pc

            table = table.filter(pc.invert(table.column(DELETED.name)))
        if whole and self._runs.adds:
            footer = replace(footer, bounds=self._bounds(table, [run for run in runs if run not in chosen]))
        commit, order = runs[-1].commit + 1, max(run.order for run in chosen)
        merged = [*chosen, *(run for run in runs if not run.rows)]
        self._commit(table, footer, merged, commit=commit, order=order, txid=None)
        if whole or merge_choice.is_cut:
            self._remove_old_files()
        return True

    def _bounds(self, folded: pa.Table, others: Sequence[Run]) -> tuple[int, ...]:
        with self.place.errors():
            parts = [folded, self._runs.read(self._files, others)]
        return tuple(map(sum, zip(*map(self._runs.bounds, parts), strict=True)))

    def _remove_old_files(self) -> None:
        errors: Any = require_extra("deltalake.exceptions", EXTRA)
        with self.place.errors(), contextlib.suppress(errors.CommitFailedError):
            self._table.update_incremental()
            hours = self._factory.keep_removed_h
            # All files: those that killed committers wrote but never committed are in no log.
            self._table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=True)

    def publish(self, *, progress: Callable[[str], object] = log.info) -> bool:
        """Write the value of each key to the Delta table ``<table>_latest``, one row per key, for any reader. Writes
        the whole table as one version, and reads the whole state.

        :return: False if nothing was committed since the last time.
        :raises ConfigurationError: that table belongs to something else.
        """
        return bool(self._again(lambda: self._publish(progress)))

    def _publish(self, progress: Callable[[str], object]) -> bool:
        runs, _ = self._snapshot()
        last = runs[-1].commit if runs else 0
        latest = partial(self._latest, runs, progress)
        commit = self._table.metadata().id, last
        place = self._folder.below(self._factory.table_name(self._spec, KEPT))
        return publish(place, self._spec, commit, latest, self._factory.keep_removed_h)

    def _latest(self, runs: Sequence[Run], progress: Callable[[str], object]) -> pa.Table:
        import pyarrow.compute as pc

        progress(f"reading all files ({len(runs):,}) with {sum(run.rows for run in runs):,} rows")
        with self.place.errors():
            table = self._runs.fold(self._runs.read(self._files, runs))
        if not self._runs.adds:
            table = table.filter(pc.invert(table.column(DELETED.name))).drop_columns([DELETED.name])
        return table

    # ---- reading -----------------------------------------------------------------------------------------------

    def get_many(self, keys: Sequence[Key]) -> list[Value | None]:
        """The value of each key, None where there is none."""
        wanted = [canonical_key(key) for key in keys]
        runs, _ = self._snapshot()
        with self.place.errors():
            values_by_key = self._runs.look_up(self._files, runs, wanted)
        return [values_by_key.get(key) for key in wanted]

    def items(self) -> Iterator[tuple[Key, Value]]:
        runs, _ = self._snapshot()
        with self.place.errors():
            mapping = self._runs.mapping(self._runs.read(self._files, runs))
        return iter(mapping.items())
