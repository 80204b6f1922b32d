"""Verbs for windows (Trident: tumblingWindow, slidingWindow, window)."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_trident.contracts.state import StateFactory, StateSpec
from airflow_trident.errors import FieldError, PlanError
from airflow_trident.operations.windows import DEFAULT_MAX_AHEAD, WindowConfig, milliseconds, sliding, tumbling
from airflow_trident.plan.commit.windows import COMMIT_TIME, KEYS, VALUES, WindowUpdater, bounds_of
from airflow_trident.topology.persisting import Persisting, require_factory
from airflow_trident.topology.signatures import aggregations
from airflow_trident.types import Field, Schema, is_nested, names_of, require_distinct, select

if TYPE_CHECKING:
    from airflow_trident.topology.stream import Stream

_TICK = Field(COMMIT_TIME, "long")


class Windowing(Persisting):
    """Windows over a stream, kept in a state of their own and moved on by commits."""

    def tumbling_window(self, length: int | timedelta, state: StateFactory, *what: Any, **options: Any) -> Stream:
        """Aggregate every `length` tuples, or each `length` of time: see :meth:`window`."""
        return self.window(tumbling(length), state, *what, **options)

    def sliding_window(
        self, length: int | timedelta, slide: int | timedelta, state: StateFactory, *what: Any, **options: Any
    ) -> Stream:
        """Aggregate the last `length` tuples at every `slide` tuples, or of time: see :meth:`window`.

        :raises PlanError: one of them is a number and the other a duration, or the slide is longer.
        """
        return self.window(sliding(length, slide), state, *what, **options)

    def window(
        self,
        config: WindowConfig,
        state: StateFactory,
        *what: Any,
        time: str | None = None,
        lag: timedelta = timedelta(0),
        max_ahead: timedelta | None = DEFAULT_MAX_AHEAD,
        bounds: bool = False,
        name: str | None = None,
    ) -> Stream:
        """Aggregate windows of the stream, which go over batches: ``window(TumblingCountWindow(100), state, "price",
        Sum(), "total")``.

        The tuples are kept in the state, in the commit phase, so each is in its windows exactly once; what comes out is
        the windows that the batch completed, and belongs to the commit phase. An empty window does not fire.

        :param what: as for :meth:`aggregate`.
        :param time: for durations, the field with the time of a tuple: a timestamp, or a long in milliseconds. A window
            fires when a tuple has come that is later than its end by `lag`; a tuple too late for all its windows is
            left out, and counted in the log and in the ledger. Without `time` the time of the transaction counts: when
            its run was due, or it was begun.
        :param max_ahead: with `time`: a tuple whose time is later than the beginning of its transaction by more than
            this fires no window: its clock may be wrong. It is kept, and is in the window of its time. None: every
            time is believed.
        :param bounds: put the fields ``window_start`` and ``window_end`` before the outputs: times (the end is
            exclusive), or numbers of tuples.
        :param name: of the state; default: that of the first output and ``_window``.
        :raises PlanError: the state cannot keep a window.
        """
        return self._window((), config, state, what, time=time, lag=lag, max_ahead=max_ahead, bounds=bounds, name=name)

    def _window(
        self,
        groups: tuple[str, ...],
        config: WindowConfig,
        state: StateFactory,
        what: tuple[Any, ...],
        *,
        time: str | None = None,
        lag: timedelta = timedelta(0),
        max_ahead: timedelta | None = DEFAULT_MAX_AHEAD,
        bounds: bool = False,
        name: str | None = None,
    ) -> Stream:
        several = aggregations("window", self.schema, what)
        reads = tuple(dict.fromkeys((*groups, *(field for one in several for field in one.reads))))
        field = self._time_field(config, time, lag, max_ahead)
        kept = select(self.schema, reads or (_smallest(self.schema).name,), "window")
        ends = bounds_of(config)
        require_distinct((*names_of(ends), *names_of(kept)))
        tick = (_TICK,) if config.timed else ()
        staged = tuple(dict.fromkeys((*kept, *(() if field is None else (field,)), *tick)))
        updater = WindowUpdater(
            config=config,
            kept=kept,
            staged=names_of(staged),
            bounds=ends,
            time="" if field is None else field.name,
            lag_ms=milliseconds(lag),
            max_ahead_ms=None if max_ahead is None else milliseconds(max_ahead),
        )
        outputs = [output.name for one in several for output in one.output]
        spec = StateSpec(
            topology=self._topology.name,
            name=name or f"{outputs[0]}_window",
            keys=KEYS,
            values=VALUES,
            staged=staged,
            factory=_require_atomic(state),
            updater=updater,
            inputs=(", ".join(names_of(kept)),),
        )
        tuples = self._keeping(tuple(one for one in names_of(staged) if one != COMMIT_TIME))
        fired = tuples._persist(spec).new_values_stream()
        result = fired._aggregate((*names_of(ends), *groups), what)
        return result if bounds else result.project([*groups, *outputs])

    def _time_field(
        self, config: WindowConfig, time: str | None, lag: timedelta, max_ahead: timedelta | None
    ) -> Field | None:
        """The staged field that says where in time a tuple is; None for count windows."""
        if not config.timed or time is None:
            if time is not None or lag or max_ahead != DEFAULT_MAX_AHEAD:
                raise PlanError(
                    f"a {config} has no time, no lag and no max_ahead",
                    "Give time=... with a duration, or none of them.",
                )
            return _TICK if config.timed else None
        if max_ahead is not None and milliseconds(max_ahead) < 0:
            raise PlanError(f"a {config} got max_ahead={max_ahead}", "Give a duration from 0 up, or None.")
        (field,) = select(self.schema, self._select("window", time), "window")
        if field.type not in ("timestamp", "long"):
            raise FieldError(f"window: the time field {field} is no time", "Give a timestamp, or a long in ms.")
        return field


def _require_atomic(state: object) -> StateFactory:
    factory = require_factory(state)
    if not factory.capabilities.atomic or factory.capabilities.keyvalue:
        raise PlanError(
            f"a window cannot be kept in {factory.describe()}: its keys must change together",
            "Give it an atomic state, such as SqliteState.",
        )
    return factory


def _smallest(schema: Schema) -> Field:
    """A field to keep where nothing is read: tuples are counted by it."""
    fixed = (field for field in schema if not is_nested(field.type) and field.type not in ("string", "binary"))
    return next(fixed, schema[0])
