"""Key-value states of tests: providers, crippled ones among them, and short words for what a committer does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_trident.errors import OutcomeUnknownError
from airflow_trident.protocol.checkpoint import Marks, Step
from airflow_trident.states.keyvalue import KeyValueState, StateProvider
from airflow_trident.states.keyvalue_memory import MemoryStateProvider
from airflow_trident.states.keyvalue_redis import RedisStateProvider
from airflow_trident.states.keyvalue_sqlite import SqliteStateProvider
from tests.redis_fixtures import settings_of_a_new_database

State = KeyValueState[Any, Any]

# ---- the implementations ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Forgetful(StateProvider):
    """Crippled: every step happens, and the first answer of it is lost."""

    inner: StateProvider

    @property
    def capabilities(self) -> Any:  # type: ignore[override]
        return self.inner.capabilities

    def new_state(self, namespace: str) -> State:
        return ForgetfulState(self.inner.new_state(namespace))

    def describe(self) -> str:
        return f"{self.inner.describe()} that loses its answers"


class ForgetfulState(State):
    def __init__(self, inner: State) -> None:
        self.inner = inner
        self.namespace = inner.namespace
        self._lost: set[Any] = set()

    def _losing(self, what: Any, answer: Any) -> Any:
        if what not in self._lost:
            self._lost.add(what)
            raise OutcomeUnknownError("the answer was lost", "Run it again.")
        return answer

    def get(self, key: Any, default: Any = None) -> Any:
        return self.inner.get(key, default)

    def put(self, key: Any, value: Any) -> None:
        self.inner.put(key, value)

    def delete(self, key: Any) -> Any:
        return self.inner.delete(key)

    def iterator(self) -> Iterator[tuple[Any, Any]]:
        return self.inner.iterator()

    def committed_items(self) -> Iterator[tuple[Any, Any]]:
        return self.inner.committed_items()

    def prepare_commit(self, txid: int, *, fence: int) -> Step:
        return self._losing(("prepare", txid, fence), self.inner.prepare_commit(txid, fence=fence))

    def commit(self, txid: int | None = None, *, fence: int) -> Step:
        return self._losing(("commit", txid, fence), self.inner.commit(txid, fence=fence))

    def rollback(self, *, fence: int) -> None:
        self._losing(("rollback", fence), self.inner.rollback(fence=fence))

    def discard(self) -> None:
        self.inner.discard()

    def marks(self) -> Marks:
        return self.inner.marks()

    def close(self) -> None:
        self.inner.close()


def redis_provider(folder: Path) -> StateProvider:
    return RedisStateProvider(**settings_of_a_new_database())


PROVIDERS: dict[str, Callable[[Path], StateProvider]] = {
    "memory": lambda folder: MemoryStateProvider(str(folder)),
    "sqlite": lambda folder: SqliteStateProvider(str(folder / "states.db")),
    "redis": redis_provider,
    "memory that loses its answers": lambda folder: Forgetful(MemoryStateProvider(str(folder))),
    "sqlite that loses its answers": lambda folder: Forgetful(SqliteStateProvider(str(folder / "states.db"))),
    "redis that loses its answers": lambda folder: Forgetful(redis_provider(folder)),
}


# ---- short words -----------------------------------------------------------------------------------------------


def again(step: Callable[[], Any]) -> Any:
    """A caller that runs a step again when its answer is lost."""
    try:
        return step()
    except OutcomeUnknownError:
        return step()


def prepare(state: State, txid: int, fence: int = 1) -> Any:
    return again(lambda: state.prepare_commit(txid, fence=fence))


def commit(state: State, txid: int | None = None, fence: int = 1) -> Any:
    return again(lambda: state.commit(txid, fence=fence))


def rollback(state: State, fence: int = 1) -> Any:
    return again(lambda: state.rollback(fence=fence))


def committed(state: State, txid: int, fence: int = 1, **writes: Any) -> None:
    """Commit some writes; None deletes."""
    for key, value in writes.items():
        if value is None:
            state.delete(key)
        else:
            state.put(key, value)
    prepare(state, txid, fence)
    commit(state, txid, fence)


def content(pairs: Iterator[tuple[Any, Any]]) -> dict[Any, Any]:
    found = list(pairs)
    assert len(dict(found)) == len(found), "a key came twice"
    return dict(found)


STEPS: dict[str, Callable[[State, int], Any]] = {
    "prepare": lambda state, fence: state.prepare_commit(2, fence=fence),
    "prepare what is committed": lambda state, fence: state.prepare_commit(1, fence=fence),
    "commit": lambda state, fence: state.commit(2, fence=fence),
    "commit what is committed": lambda state, fence: state.commit(1, fence=fence),
    "commit at once": lambda state, fence: state.commit(fence=fence),
    "roll back": lambda state, fence: state.rollback(fence=fence),
}
