"""Transforms: the user's function over DataFrames, or a query, inside the attempt's job."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import FunctionType
from typing import TYPE_CHECKING, Any

from airflow_trident.engine.engine import MORE, Job, settings_text, shaken_conf
from airflow_trident.engine.spark.errors import root_cause
from airflow_trident.engine.spark.jvm_nodes import may_run_in_jvm
from airflow_trident.engine.spark.refused_actions import no_actions
from airflow_trident.engine.spark.sessions.session import Attached, Sibling, is_connect, is_of_session
from airflow_trident.engine.spark.shipping import keep_modules_by_value, modules_by_value
from airflow_trident.engine.spark.widening import widens
from airflow_trident.errors import SET_BACK, FieldError, TridentError, UserCodeError, error_text, is_foreign
from airflow_trident.operations.interfaces import TransformContext
from airflow_trident.operations.sql import SqlQuery
from airflow_trident.operations.user_functions import takes_context
from airflow_trident.plan.graph import Grouping, Node
from airflow_trident.plan.nodes import CheckNode, TransformNode
from airflow_trident.plan.stages import Plan, Stage
from airflow_trident.process_settings import Watch
from airflow_trident.types import Field, names_of, parse_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TRANSACTION_TIME = "transaction_time"
_CONNECT_MODE = "SPARK_CONNECT_MODE_ENABLED"
_DATA_ERROR = re.compile(r"SQLSTATE: 2[23][0-9A-Z]{3}")
_CURE = "Mend the function, or the fields that the topology declares."


def transforms_of(plan: Plan) -> tuple[TransformNode, ...]:
    return tuple(stage.transform for stage in plan.stages if stage.transform is not None)


def is_told_partitions(plan: Plan, first: Stage, nodes_of_first: Sequence[Node]) -> bool:
    """Does an operation see the number of its partition, while rows are still in the partitions of this stage?"""
    nodes = [*nodes_of_first, *(node for stage in _staying(plan, first) for node in stage.nodes)]
    return any(
        not may_run_in_jvm(node)
        and not isinstance(node, CheckNode)
        and not isinstance(getattr(node, "function", None), FunctionType)
        for node in nodes
    )


def meets_others(plan: Plan, first: Stage) -> bool:
    """Does partition i of this stage come together with partition i of other stages?"""
    return any(stage.exchange is not None for stage in _staying(plan, first))


def _staying(plan: Plan, first: Stage) -> Iterator[Stage]:
    """The stages behind `first` that find its rows in its partitions."""
    reached = {first.index}
    for stage in plan.stages:
        stays = stage.exchange is None or stage.exchange.grouping is Grouping.COLOCATED
        if stays and reached & set(stage.upstreams):
            reached.add(stage.index)
            yield stage


@contextmanager
def own_session(attached: Attached, job: Job) -> Iterator[Attached]:
    """A separate session for this run, if users' functions get it (their views and UDFs stay in it), or if the run is
    shaken. A Connect session already belongs to the attempt alone."""
    if not transforms_of(job.plan) and not job.shaken:
        yield attached
        return
    if is_connect(attached.session):
        keep_modules_by_value()  # the Connect client pickles functions when it sends a plan, not when a column is made
        with _active(attached.session), _shaken(attached, job) as separate:
            yield separate
        return
    sibling = Sibling.of(attached.session)
    deactivate = sibling.activated()
    try:
        with _shaken(replace(attached, session=sibling.session), job) as separate:
            yield separate
    finally:
        deactivate()


@contextmanager
def _shaken(attached: Attached, job: Job) -> Iterator[Attached]:
    """Sets a shaken job's settings, and restores them: others may use the session afterwards."""
    if not job.shaken:
        yield attached
        return
    settings: Any = attached.session.conf
    conf = shaken_conf(settings.get)
    before = {name: settings.get(name) for name in conf}
    job.progress(settings_text(conf))
    try:
        for name, value in conf.items():
            settings.set(name, value)
        yield replace(attached, partitions=attached.partitions + MORE)
    finally:
        for name, value in before.items():
            settings.set(name, value)


@contextmanager
def _active(session: Any) -> Iterator[None]:
    """Makes a Connect session the active one of this thread, because its functions look for that."""
    place = type(session)._active_session
    before = getattr(place, "session", None)
    place.session = session
    try:
        yield
    finally:
        place.session = before


def transformed(attached: Attached, node: TransformNode, frames: Sequence[DataFrame], job: Job) -> DataFrame:
    """The transform's result with exactly the declared fields; nothing runs.

    :raises UserCodeError: the function raised, ran an action, changed settings, or returned something else.
    """
    session: Any = attached.session
    before, watch = _settings_of(session), Watch()
    try:
        with no_actions(node.name), modules_by_value(), _functions_of(session), watch:
            made = _called(session, node, [_guarded(attached, frame) for frame in frames], job)
            fitted = _fitted(attached, node, made)
    except UserCodeError:
        raise
    except TridentError as error:
        raise _wrong(node, f"gave what does not fit: {error.message}", error.cure) from error
    except BaseException as error:
        if not is_foreign(error):
            raise
        kind, _, text = error_text(error).partition(": ")
        message = text.partition("JVM stacktrace:")[0]
        raise _wrong(node, f"raised {kind}: {root_cause(message) or message}", _CURE, job.slot.txid) from None
    if watch.trouble:
        raise _wrong(node, watch.trouble, SET_BACK, job.slot.txid)
    after = _settings_of(session)
    if before != after:
        before, after = dict(before), dict(after)
        changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
        for name in changed:  # others may use the session afterwards
            session.conf.unset(name) if name not in before else session.conf.set(name, before[name])
        raise _wrong(node, f"changed the session's {', '.join(changed)}", "Settings belong into spark_conf.")
    return fitted


def _settings_of(session: Any) -> Any:
    """A classic session's as a map of the JVM: in Python each entry costs several calls."""
    return session.conf.getAll if is_connect(session) else session.conf._jconf.getAllAsJava()


def of_halves(attached: Attached, node: TransformNode, frames: Sequence[DataFrame], job: Job) -> DataFrame:
    """What a transform makes from every other row, and from the rest: the same as from all, if each row really comes
    from one row.

    :param frames: one, kept by Spark; else the halves of rows in another order might share some, and lose others.
    """
    functions: Any = attached.functions
    place = functions.monotonically_increasing_id() % 2
    even, odd = (transformed(attached, node, [frames[0].where(place == number)], job) for number in (0, 1))
    return even.union(odd)


def may_see_all(node: TransformNode) -> bool:
    """Does the transform make the same from the rows of many transactions as from those of each? So its user says, and
    it is told nothing of the transaction."""
    sees_transaction = (
        takes_context(node.function) if not isinstance(node.function, SqlQuery) else _has_time(node.function)
    )
    return node.rowwise and not sees_transaction


@contextmanager
def _functions_of(session: Any) -> Iterator[None]:
    """`pyspark.sql.functions`, which users' functions import, makes columns of the process's kind of session. The
    caller holds the lock of :func:`modules_by_value`."""
    if not is_connect(session) or _CONNECT_MODE in os.environ:
        yield
        return
    os.environ[_CONNECT_MODE] = "1"
    try:
        yield
    finally:
        del os.environ[_CONNECT_MODE]


def _guarded(attached: Attached, frame: DataFrame) -> DataFrame:
    """When `session.sql` with DataFrames ends, it drops a temporary view. Spark then also forgets what it keeps for
    exactly the view's plan, and other states would be made of recomputed rows. This makes another plan with the same
    work."""
    return frame.filter(attached.functions.lit(True))


def _called(session: Any, node: TransformNode, frames: Sequence[DataFrame], job: Job) -> Any:
    context = TransformContext(
        topology=job.slot.topology,
        txid=job.slot.txid,
        attempt=job.slot.attempt,
        time_ms=job.time_ms,
        metadata=job.metadata,
    )
    if isinstance(node.function, SqlQuery):
        args: dict[str, Any] = {}
        if _has_time(node.function):
            args = {"args": {TRANSACTION_TIME: context.time}}
        return session.sql(node.function.text, **args, **dict(zip(node.function.names, frames, strict=True)))
    keywords: dict[str, Any] = dict(zip(node.names, frames[1:], strict=True))
    if takes_context(node.function) and "context" not in keywords:
        keywords["context"] = context
    return node.function(frames[0], **keywords)


def _has_time(query: SqlQuery) -> bool:
    return f":{TRANSACTION_TIME}" in query.text


# ---- what came out ---------------------------------------------------------------------------------------------


def _fitted(attached: Attached, node: TransformNode, made: Any) -> DataFrame:
    """Columns matched by name, in any order; widened if nothing can be lost."""
    from pyspark.sql import DataFrame

    if not isinstance(made, DataFrame):
        raise _wrong(node, f"gave {type(made).__name__} and not a DataFrame", "Let it return a DataFrame.")
    if made.isStreaming:
        raise _wrong(node, "gave a streaming DataFrame", "Read with session.read, not with readStream.")
    if not is_of_session(made, attached.session):
        raise _wrong(
            node,
            "gave a DataFrame of another session",
            "Take the session of what it is given: frame.sparkSession; begin a join with that frame.",
        )
    made_fields = [(field.name, field.dataType.simpleString()) for field in made.schema.fields]
    _require_names(node, [name for name, _ in made_fields])
    types = dict(made_fields)
    columns = [_column(attached, node, field, types[field.name]) for field in node.schema]
    return made.select(*columns)


def _require_names(node: TransformNode, names: list[str]) -> None:
    declared = names_of(node.schema)
    doubled = sorted({name for name in names if names.count(name) > 1})
    missing = [name for name in declared if name not in names]
    more = [name for name in names if name not in declared]
    differences = [
        *([f"gave the column {', '.join(doubled)} twice"] if doubled else []),
        *([f"did not give {', '.join(missing)}"] if missing else []),
        *([f"gave {', '.join(more)}, which nobody declared"] if more else []),
    ]
    if differences:
        raise _wrong(
            node,
            f"{' and '.join(differences)}: it has ({', '.join(names)}), declared is ({', '.join(declared)})",
            "Select the declared columns, or declare what it gives.",
        )


def _column(attached: Attached, node: TransformNode, field: Field, type_text: str) -> Any:
    column = attached.functions.col(f"`{field.name}`")
    try:
        made_type = "void" if type_text == "void" else parse_type(type_text)
    except FieldError:
        made_type = type_text
    if made_type == field.type:
        return column
    if not widens(made_type, field.type):
        raise _wrong(
            node,
            f"gave the column {field.name} as {made_type}, declared is {field.type}",
            f'Cast it in the function, as in col("{field.name}").cast("{field.type}"), or declare {made_type}: only '
            "what loses nothing is widened by itself.",
        )
    return column.cast(field.type).alias(field.name)


# ---- errors ----------------------------------------------------------------------------------------------------


def failed_in_transform(error: BaseException, plan: Plan, subject: str) -> UserCodeError | None:
    """The error, if data or a UDF of a transform caused Spark's exception. Spark does not name the row."""
    nodes = transforms_of(plan)
    text = str(error)
    if not nodes or isinstance(error, TridentError) or "trident-error:" in text:
        return None
    if not _DATA_ERROR.search(text) and "PythonException" not in text:
        return None
    names = ", ".join(f"{node.name} ({node.function_text})" for node in nodes)
    return UserCodeError(
        f"{subject}: the work that {names} planned failed: {root_cause(text)}",
        "Mend the function or the data; the log of Spark has the whole error.",
        node=nodes[0].name,
    )


def _wrong(node: TransformNode, problem: str, cure: str, txid: int | None = None) -> UserCodeError:
    after = "" if txid is None else f"; transaction {txid}"
    return UserCodeError(f"{node.name} ({node.function_text}) {problem}{after}", cure, node=node.name, txid=txid)
