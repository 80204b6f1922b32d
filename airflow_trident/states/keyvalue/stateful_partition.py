"""One partition of a stateful node: a copy of the user's function, and its state."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from airflow_trident.errors import CorruptRecordError, TransitionError
from airflow_trident.operations.interfaces import OperationContext
from airflow_trident.operations.state_functions import StatefulFunction
from airflow_trident.operations.user_code import Border
from airflow_trident.protocol.checkpoint import Action, Marks, require_fence
from airflow_trident.states.keyvalue.base import AS_THEY_ARE, Forms, KeyValueState

_NOTHING = object()


class Part:
    """Runs checkpoint actions on a partition, with the function's hooks. Lives for one transaction."""

    def __init__(
        self,
        function: StatefulFunction[Any, Any],
        state: KeyValueState[Any, Any],
        context: OperationContext,
        border: Border,
        forms: Forms = AS_THEY_ARE,
    ) -> None:
        self._state = state
        self._border = border
        self._context = context
        self._window = Window(state, forms)
        self._function: StatefulFunction[Any, Any] = self._call("copy", copy.deepcopy, function)

    # ---- the function's life -----------------------------------------------------------------------------------

    def prepare(self) -> None:
        self._call("prepare", self._function.prepare, self._context)

    def execute(self, rows: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
        """The tuples that the function emits.

        :raises UserCodeError: the function raised, or emitted something undeclared.
        """
        emits = self._border.outputs
        if emits:
            call = self._function.execute
            return [emitted for row in rows for emitted in self._border.many(call, row, len(emits))]
        for row in rows:
            returned = self._border.one(self._function.execute, row)
            if returned is not None:
                raise self._border.error(row, f"returned {returned!r:.80}, where nothing is expected: it has no output")
        return []

    def cleanup(self) -> None:
        self._call("cleanup", self._function.cleanup)

    # ---- the checkpoint ----------------------------------------------------------------------------------------

    def act(self, action: Action, txid: int, fence: int) -> None:
        """Run the hook, then the step.

        :raises CorruptRecordError: the partition is not where the checkpoint record of its node says.
        """
        if action is Action.INITSTATE:
            self._initialise(txid, fence)
        elif action is Action.PREPARE:
            self._call("pre_prepare", self._function.pre_prepare, txid)
            self._window.writable = False
            self._state.prepare_commit(txid, fence=fence)
        elif action is Action.COMMIT:
            self._call("pre_commit", self._function.pre_commit, txid)
            self._commit(txid, fence)
        else:
            self._call("pre_rollback", self._function.pre_rollback)
            self._state.rollback(fence=fence)

    def _commit(self, txid: int, fence: int) -> None:
        try:
            self._state.commit(txid, fence=fence)
        except TransitionError as error:  # it was prepared before this was decided
            raise self._lost(self._state.marks(), f"{txid} is prepared or committed") from error

    def _initialise(self, txid: int, fence: int) -> None:
        marks = self._state.marks()
        require_fence(marks, fence, self._state.namespace, f"begin after {txid}")
        if marks.committed != txid or marks.prepared is not None:
            raise self._lost(marks, str(txid))
        self._state.discard()  # of a failed try in this process
        self._window.writable = True
        self._call("init_state", self._function.init_state, self._window)

    def _lost(self, marks: Marks, recorded: str) -> CorruptRecordError:
        return CorruptRecordError(
            f"namespace {self._state.namespace!r} holds transaction {marks.committed} (prepared: {marks.prepared}) "
            f"where the checkpoint record of its node says {recorded}: a part of the store was lost or restored",
            "Restore the whole store from one copy, or give the topology a new state.",
        )

    def _call(self, method: str, call: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except BaseException as error:
            self._border.translate((), error, method)
            raise


class Window:
    """A function's view of its state (`operations.state_functions.KeyValues`).

    It is writable from `init_state` to `pre_prepare`.
    """

    def __init__(self, state: KeyValueState[Any, Any], forms: Forms) -> None:
        self._state = state
        self._key, self._value = forms.key, forms.value
        self.writable = False

    def get(self, key: Any, default: Any = None) -> Any:
        stored = self._state.get(self._key.plain(key), _NOTHING)
        return default if stored is _NOTHING else self._value.given(stored)

    def put(self, key: Any, value: Any) -> None:
        self._require_writable()
        self._state.put(self._key.plain(key), self._value.plain(value))

    def delete(self, key: Any) -> Any:
        self._require_writable()
        stored = self._state.delete(self._key.plain(key))
        return None if stored is None else self._value.given(stored)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        for key, value in self._state.iterator():
            yield self._key.given(key), self._value.given(value)

    def _require_writable(self) -> None:
        if not self.writable:
            raise RuntimeError("a state can be written from init_state to pre_prepare; later belongs to no transaction")
