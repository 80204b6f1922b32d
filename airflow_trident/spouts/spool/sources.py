"""Sources that cannot give a batch again, for a :class:`~airflow_trident.spouts.spool.spout.SpooledSpout`.

Promises of an implementation:

Q1  A `poll` gives only items that no other `poll` gives, until they are acknowledged or the source gives them up.
Q2  Until `ack` of its token an item may come again, in any process; then with the same id, if the source gives ids.
Q3  `ack` may be called again with the same token, in another process than the `poll`, and after a kill in between.
Q4  Items that `poll` gave but nobody acknowledged before the process died come again. A source without `ack` cannot
    promise that: items that were not spooled yet are lost with the process.
"""

from __future__ import annotations

import os
import signal
import subprocess
import uuid
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_trident.closeable import Closing
from airflow_trident.errors import ConfigurationError, SourceUnavailableError, TridentError
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

_END_S = 5.0
"""The time that a command has to end after it was told to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Polled:
    """The result of one `poll`.

    :param rows: tuples of the source's fields.
    :param token: the argument for `ack` when all rows are committed; None: nothing is to be acknowledged.
    :param ids: one for each row; a row with an id that was spooled before is left out.
    """

    rows: Sequence[tuple[Any, ...]]
    token: Json = None
    ids: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.ids is not None and len(self.ids) != len(self.rows):
            raise ConfigurationError(
                f"a poll gave {len(self.rows)} rows and {len(self.ids)} ids", "Give one id per row, or none at all."
            )


class SpoolSource(Closing):
    """A queue, a feed, a process. Can be pickled; opens nothing before it is called."""

    @property
    @abstractmethod
    def schema(self) -> Schema:
        """The fields of its rows."""

    @abstractmethod
    def poll(self, max_rows: int) -> Polled | None:
        """Take about `max_rows` items; None, or no rows, if there are none now. A poll may give more.

        :raises SourceUnavailableError: the source does not answer; nothing was taken.
        """

    def spooled(self) -> None:
        """Called when the rows of this process's last `poll` are durable: no attempt asks for them again."""

    def ack(self, token: Json) -> None:
        """Called when the items of a `poll` are committed: the source may forget them.

        :raises SourceUnavailableError: the source does not answer; `ack` will be called again.
        """

    @abstractmethod
    def describe(self) -> str:
        """Class and place, without secrets."""


class CallableSource(SpoolSource):
    """Functions as a source.

    :param poll: called with `max_rows`; gives rows (tuples, or bare values if there is only one field), a
        :class:`Polled`, or None.
    :param fields: as in ``"id long, name string"``.
    :param ack: called with the token of a :class:`Polled`.
    """

    schema: Schema = ()

    def __init__(
        self,
        poll: Callable[[int], Polled | Sequence[Any] | None],
        fields: FieldSpec,
        *,
        ack: Callable[[Any], object] | None = None,
    ) -> None:
        self._poll, self._ack = poll, ack
        self.schema = parse_declared(fields)

    def poll(self, max_rows: int) -> Polled | None:
        given = _asked(self.describe(), self._poll, max_rows)
        if given is None or isinstance(given, Polled):
            return given
        return Polled(rows=[row if isinstance(row, tuple) else (row,) for row in given])

    def ack(self, token: Json) -> None:
        if self._ack is not None:
            _asked(self.describe(), self._ack, token)

    def describe(self) -> str:
        return f"CallableSource({getattr(self._poll, '__qualname__', type(self._poll).__qualname__)})"


def _asked(source: str, call: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return call(argument)
    except TridentError:
        raise
    except Exception as error:
        raise SourceUnavailableError(
            f"{source} raised {type(error).__name__}: {error}", "Mend the source; the task's next try asks it again."
        ) from error


class CommandSource(SpoolSource):
    """The lines that a command prints. The command runs once for each batch and is read to its end.

    Its environment has ``TRIDENT_MAX_ROWS`` and a new ``TRIDENT_TOKEN``. If there is an `ack` command, it runs with the
    same token after the commit. Until then the command should print those lines again.

    :param command: program and arguments; no shell.
    :param fields: one string field.
    :param ack: program and arguments.
    :param env: more variables; their values are shown nowhere.
    :param timeout_s: a command that runs longer is ended. The lines that it printed are taken, but not an unfinished
        last line.
    :param id_of: gives the id of a line, if the command prints lines again that were not acknowledged.
    """

    schema: Schema = ()

    def __init__(
        self,
        command: Sequence[str],
        fields: FieldSpec = "line string",
        *,
        ack: Sequence[str] | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
        id_of: Callable[[str], str] | None = None,
    ) -> None:
        self._command, self._ack = _arguments(command), None if ack is None else _arguments(ack)
        self.schema = parse_declared(fields, ["string"])
        if len(self.schema) != 1 or self.schema[0].type != "string":
            raise ConfigurationError(
                f"CommandSource with the fields {fields!r}", "Its lines are one string field: take them apart behind."
            )
        if timeout_s <= 0:
            raise ConfigurationError(f"CommandSource with timeout_s={timeout_s}", "It must be above 0.")
        self._env, self._timeout_s, self._id_of = dict(env or {}), timeout_s, id_of

    def poll(self, max_rows: int) -> Polled | None:
        token = uuid.uuid4().hex
        printed, ended = self._run(self._command, TRIDENT_MAX_ROWS=str(max_rows), TRIDENT_TOKEN=token)
        lines = printed.decode("utf-8", "replace").split("\n")
        rest = lines.pop()
        if rest and not ended:
            lines.append(rest)
        lines = [line.removesuffix("\r") for line in lines]
        if not lines:
            return None
        ids = None if self._id_of is None else [self._id_of(line) for line in lines]
        return Polled(rows=[(line,) for line in lines], token=None if self._ack is None else token, ids=ids)

    def ack(self, token: Json) -> None:
        if self._ack is not None:
            self._run(self._ack, TRIDENT_TOKEN=str(token))

    def describe(self) -> str:
        return f"CommandSource({os.path.basename(self._command[0])})"

    def _run(self, command: Sequence[str], **env: str) -> tuple[bytes, bool]:
        """What the command printed, and whether it had to be ended.

        :raises SourceUnavailableError: the command cannot be run, or failed.
        """
        try:
            # A session of its own, so that processes that it starts end with it.
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, **self._env, **env},
                start_new_session=True,
            )
        except OSError as error:
            raise SourceUnavailableError(
                f"the command {command[0]!r} cannot be run ({error.strerror})", "Install it where coordinators run."
            ) from error
        with process:
            try:
                printed, said = process.communicate(timeout=self._timeout_s)
            except subprocess.TimeoutExpired:
                return _end(process), True
            except BaseException:
                _signal(process, signal.SIGKILL)
                raise
        if process.returncode != 0:
            last = said.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise SourceUnavailableError(
                f"the command {command[0]!r} ended with code {process.returncode}{f': {last[:400]}' if last else ''}",
                "What it printed was not taken. Mend it; the task's next try runs it again.",
            )
        return printed, False


def _end(process: subprocess.Popen[bytes]) -> bytes:
    """End the process; what it had printed until then."""
    _signal(process, signal.SIGTERM)
    try:
        return process.communicate(timeout=_END_S)[0]
    except subprocess.TimeoutExpired:
        _signal(process, signal.SIGKILL)
        return process.communicate()[0]


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return  # it ended by itself just now


def _arguments(command: Sequence[str]) -> tuple[str, ...]:
    if isinstance(command, str) or not command:
        raise ConfigurationError(
            f"CommandSource with the command {command!r}", 'Give program and arguments: ["my-program", "--all"].'
        )
    return tuple(map(str, command))
