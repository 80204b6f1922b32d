"""Sources that cannot give a batch again, for a :class:`~airflow_trident.spouts.spool.spout.SpooledSpout`.

Promises of an implementation:

Q1  A `poll` gives only items that no other `poll` gives, until they are acknowledged or the source gives them up. A
    source that gives the same ones at once stands still when they are SKIPPED, and is refused then.
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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from airflow_trident.closeable import Closing
from airflow_trident.contracts.spout import one_of
from airflow_trident.errors import (
    ConfigurationError,
    DamagedInputError,
    SourceUnavailableError,
    UserCodeError,
    is_foreign,
)
from airflow_trident.names import require_durations
from airflow_trident.types import FieldSpec, Json, Schema, parse_declared

_END_S = 5.0
"""The time that a command has to end after it was told to."""
_SHOWN_BYTES = 60


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

    def placed(self, topology: str, stream: str) -> SpoolSource:
        """As :meth:`airflow_trident.contracts.spout.Spout.placed`."""
        return self

    def spooled(self) -> None:
        """Called when the rows of this process's last `poll` are durable: no attempt asks for them again."""

    def ack(self, token: Json) -> None:
        """Called when the items of a `poll` are committed: the source may forget them.

        :raises SourceUnavailableError: the source does not answer; `ack` will be called again.
        """

    def rest(self) -> Polled | None:
        """Called before `close`: items that came unasked after the last `poll`, which is over; they become a batch."""
        return None

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
        answer = _asked(self.describe(), self._poll, max_rows)
        if answer is None or isinstance(answer, Polled):
            return answer
        return Polled(rows=[row if isinstance(row, tuple) else (row,) for row in answer])

    def ack(self, token: Json) -> None:
        if self._ack is not None:
            _asked(self.describe(), self._ack, token)

    def describe(self) -> str:
        return f"CallableSource({getattr(self._poll, '__qualname__', type(self._poll).__qualname__)})"


def _asked(source: str, call: Callable[[Any], Any], argument: Any) -> Any:
    """The border around the functions of a :class:`CallableSource`.

    :raises SourceUnavailableError: the function raised an error, whatever it is.
    """
    try:
        return call(argument)
    except BaseException as error:
        if not is_foreign(error):
            raise
        carried = UserCodeError.carrying(error, source)
    unavailable = SourceUnavailableError(carried.message, "Correct the source; the task's next try asks it again.")
    for note in getattr(carried, "__notes__", ()):
        unavailable.add_note(note)
    raise unavailable


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
        An `ack` command that runs longer has acknowledged nothing, and is run again.
    :param id_of: gives the id of a line, if the command prints lines again that were not acknowledged. With ``replace``
        it gets bytes that are not UTF-8 as ``errors="surrogateescape"`` decodes them: different lines stay different.
    :param encoding_errors: bytes that are not UTF-8 are an ``error``, or ``replace`` reads U+FFFD.
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
        encoding_errors: str = "error",
    ) -> None:
        self._command, self._ack = _arguments(command), None if ack is None else _arguments(ack)
        self.schema = parse_declared(fields, ["string"])
        if len(self.schema) != 1 or self.schema[0].type != "string":
            raise ConfigurationError(
                f"CommandSource with the fields {fields!r}", "Its lines are one string field: take them apart behind."
            )
        require_durations("CommandSource", timeout_s=timeout_s)
        self._env, self._timeout_s, self._id_of = dict(env or {}), timeout_s, id_of
        allowed = ("error", "replace")
        self._replace_broken = one_of("CommandSource", "encoding_errors", encoding_errors, allowed) == "replace"

    def poll(self, max_rows: int) -> Polled | None:
        token = uuid.uuid4().hex
        ran = self._run(self._command, TRIDENT_MAX_ROWS=str(max_rows), TRIDENT_TOKEN=token)
        lines = ran.printed.split(b"\n")
        rest = lines.pop()
        if rest and ran.is_whole:
            lines.append(rest)
        if not lines:
            return None
        lines = [line.removesuffix(b"\r") for line in lines]
        texts = self._texts(lines)
        return Polled(
            rows=[(text,) for text in texts],
            token=None if self._ack is None else token,
            ids=None if self._id_of is None else self._ids(self._id_of, lines, texts),
        )

    def _texts(self, lines: Sequence[bytes]) -> list[str]:
        """
        :raises DamagedInputError: a line is no UTF-8, and that is an error.
        """
        if self._replace_broken:
            return [line.decode("utf-8", "replace") for line in lines]
        texts = []
        for number, line in enumerate(lines, 1):
            try:
                texts.append(line.decode())
            except UnicodeDecodeError as error:
                raise self._damaged(
                    number, line, 'encoding_errors="replace" reads U+FFFD there; or let the command print UTF-8.'
                ) from error
        return texts

    def _ids(self, id_of: Callable[[str], str], lines: Sequence[bytes], texts: Sequence[str]) -> list[str]:
        if not self._replace_broken:
            return [id_of(text) for text in texts]
        ids = []
        for number, line in enumerate(lines, 1):
            # Not of the row: with U+FFFD in it two items may be one, and the second would be acknowledged and lost.
            try:
                ids.append(_storable(id_of(line.decode("utf-8", "surrogateescape"))))
            except UnicodeEncodeError as error:
                raise self._damaged(
                    number, line, 'Let id_of take the other parts, or encode with errors="surrogateescape".'
                ) from error
        return ids

    def _damaged(self, number: int, line: bytes, cure: str) -> DamagedInputError:
        return DamagedInputError(
            f"line {number} that the command {self._command[0]!r} printed is no UTF-8: {line[:_SHOWN_BYTES]!r}",
            f"Nothing of this poll was taken. {cure}",
        )

    def ack(self, token: Json) -> None:
        if self._ack is None:
            return
        if not self._run(self._ack, TRIDENT_TOKEN=str(token)).in_time:
            raise SourceUnavailableError(
                f"the acknowledging command {self._ack[0]!r} ran longer than {self._timeout_s:g} s and was ended",
                "The batch does not count as acknowledged, and a later coordinator runs it again. Mend the command, or "
                "raise timeout_s.",
            )

    def describe(self) -> str:
        return f"CommandSource({os.path.basename(self._command[0])})"

    def _run(self, command: Sequence[str], **env: str) -> _Ran:
        """
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
        try:
            ran = _read(process, self._timeout_s)
        except BaseException:
            _signal(process, signal.SIGKILL)
            raise
        finally:
            _release(process)
        if ran.in_time and process.returncode != 0:
            last = ran.errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise SourceUnavailableError(
                f"the command {command[0]!r} ended with code {process.returncode}{f': {last[:400]}' if last else ''}",
                "What it printed was not taken. Mend it; the task's next try runs it again.",
            )
        return ran


@dataclass(frozen=True, slots=True)
class _Ran:
    """What a command printed, and on stderr. `is_whole`: nothing can follow. `in_time`: it ended by itself."""

    printed: bytes
    errors: bytes
    is_whole: bool
    in_time: bool


def _read(process: subprocess.Popen[bytes], timeout_s: float) -> _Ran:
    """Read the process to its end, or end it when its time is up."""
    try:
        return _Ran(*process.communicate(timeout=timeout_s), is_whole=True, in_time=True)
    except subprocess.TimeoutExpired:
        # A command that has ended may have left something behind that holds its pipes open.
        in_time = process.poll() is not None
    printed = errors = b""
    for number in (signal.SIGTERM, signal.SIGKILL):
        _signal(process, number)
        try:
            printed, errors = process.communicate(timeout=_END_S)
        except subprocess.TimeoutExpired as late:
            # What made a session of its own gets no signal, and may hold the pipes for ever.
            printed, errors = late.output or b"", late.stderr or b""
        else:
            break
    return _Ran(printed, errors, is_whole=False, in_time=in_time)


def _release(process: subprocess.Popen[bytes]) -> None:
    """Close the pipes, and take the ended process off the system's list if it is there within a limit: one that the
    system holds (a file server is away) does not even end by SIGKILL at once."""
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_END_S)


def _storable(item_id: str) -> str:
    """The id as a text without lone surrogates, and different ones stay different."""
    try:
        item_id.encode()
    except UnicodeEncodeError:
        return f"\n{item_id.encode('unicode_escape').decode('ascii')}"  # no line has a newline, so no other id is equal
    return item_id


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
