"""One tree of errors, sorted by what the caller must do.

Every message names the thing that is wrong and ends with the cure. Every error survives pickling (tasks, Spark
workers and triggers are other processes).
"""

from __future__ import annotations

import pickle
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, contextmanager
from datetime import date, time, timedelta
from decimal import Decimal
from enum import StrEnum
from traceback import extract_tb, format_list
from typing import Any, TypeVar
from uuid import UUID

T = TypeVar("T")

# ---- texts that errors carry -----------------------------------------------------------------------------------

TEXT_CHARACTERS = 1_000
"""The most of a foreign error's own text that is carried. What names its place comes with it and fits into a record."""
MESSAGE_CHARACTERS = 20_000
"""The most of a whole message; longer ones lose their middle."""
NAME_CHARACTERS = 200
TEXT_S = 2.0
"""The longest time that an object may take to say its text."""
_NESTED = 3
"""How many causes, or members of a group, are carried with an error."""
_FRAMES = 20
_UNCLEAN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]")
"""Control characters, and characters that turn the direction of a text: a log, a terminal or a page would obey them."""
_PLAIN = (str, int, float, bool, bytes, Decimal, date, time, timedelta, UUID, type(None))


def cleaned(text: str, characters: int = MESSAGE_CHARACTERS) -> str:
    """A text that every log, terminal, page, record and encoder takes: control characters and lone surrogates are
    escaped, and what is longer than `characters` loses its middle."""
    many = str.__len__(text)
    if many > characters:
        end = characters // 4
        shortened = f"{str.__getitem__(text, slice(characters - end))} ... ({many} characters) ... "
        text = shortened + str.__getitem__(text, slice(many - end, None))
    valid = str.encode(text, "utf-8", "backslashreplace").decode()
    return _UNCLEAN.sub(lambda found: found[0].encode("unicode_escape").decode(), valid)


def text_of(thing: object, say: Callable[[Any], str] = str, characters: int = TEXT_CHARACTERS) -> str:
    """The text of any object, whatever its class does when it is asked: :func:`cleaned`.

    :param say: ``str`` or ``repr``.
    """
    if type(thing) in _PLAIN:
        return cleaned(say(thing), characters)
    name = "__repr__" if say is repr else "__str__"
    try:
        text = say(thing) if _says_at_once(thing) else within(TEXT_S, lambda: say(thing))
        return cleaned(text, characters)
    except TimeoutError:
        why = f"{_class_name(thing)}.{name} takes longer than {TEXT_S:g} s"
    except BaseException as error:  # noqa: BLE001 - a foreign class may raise anything
        why = f"{_class_name(error)} in {_class_name(thing)}.{name}"
    return f"(its text cannot be had: {why})"


def within(seconds: float, call: Callable[[], T]) -> T:
    """What a call of foreign code returns or raises, at most so many seconds later. A call that hangs goes on in a
    thread that keeps nobody waiting.

    :raises TimeoutError: there is no answer yet.
    """
    future = begun(call)
    if not wait([future], timeout=seconds).done:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return future.result()


def begun(call: Callable[[], T]) -> Future[T]:
    """A call of foreign code in a thread of its own, which does not keep the process from ending."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - whoever takes the result raises it
            future.set_exception(error)

    threading.Thread(target=run, name="trident-foreign", daemon=True).start()
    return future


def _says_at_once(thing: object) -> bool:
    """Does no foreign code run when the object is asked for its text?"""
    if not isinstance(thing, BaseException):
        return False
    is_ours = type(thing).__module__ == __name__
    is_pythons = type(thing).__str__ in (Exception.__str__, OSError.__str__, KeyError.__str__)
    return (is_ours or is_pythons) and all(type(argument) in _PLAIN for argument in thing.args)


def _class_name(thing: object) -> str:
    return cleaned(type(thing).__name__, NAME_CHARACTERS)


# ---- the root --------------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """What a task does after an error. The tasks of Airflow read it from `TridentError.outcome`."""

    RETRY = "retry"
    """Try again later: the world may have changed."""
    FAIL = "fail"
    """Do not try again: only a person can change the cause."""


class TridentError(Exception):
    """Root of all errors of this package.

    :param message: what is wrong; it names the thing.
    :param cure: what to do about it, in one sentence; it ends the text.
    """

    outcome: Outcome = Outcome.FAIL
    txid: int | None = None
    """The transaction that the error is about, if several are in one pass; None: unknown, or all of them."""
    may_quote_rows: bool = True
    """May the text contain values of rows, or texts from a driver or from a user's code?"""

    def __init_subclass__(cls, *, may_quote_rows: bool | None = None) -> None:
        if may_quote_rows is not None:
            cls.may_quote_rows = may_quote_rows

    def __init__(self, message: str, cure: str = "") -> None:
        message, cure = (text if isinstance(text, str) else text_of(text) for text in (message, cure))
        self.message = cleaned(message)
        self.cure = cleaned(cure)
        super().__init__(self.message, self.cure)

    def __str__(self) -> str:
        if not self.cure:
            return self.message
        return f"{self.message.rstrip('.')}. {self.cure}"

    def __reduce__(self) -> tuple[Any, ...]:
        """A class of a user's own may not be found where it arrives, and its attributes may not travel."""
        state = {name: value for name, value in self.__dict__.items() if _travels(value)}
        return _rebuild, (own_class(self), self.message, self.cure, state)


def own_class(error: TridentError) -> type[TridentError]:
    """The error's class, or the nearest one of this package above it."""
    return next(kind for kind in type(error).__mro__ if kind.__module__ == __name__)


def _travels(value: object) -> bool:
    if type(value) in _PLAIN:
        return True
    try:
        pickle.dumps(value)
    except Exception:  # noqa: BLE001 - pickling an object may raise anything
        return False
    return True


def _rebuild(kind: type[TridentError], message: str, cure: str, state: dict[str, Any]) -> TridentError:
    error = kind.__new__(kind)
    Exception.__init__(error, message, cure)
    error.__dict__.update(state)
    return error


def error_text(error: BaseException) -> str:
    """``ValueError: no such word``. For any exception, even if its own text cannot be read; of a group, with its first
    members."""
    return _nested_text(error, _NESTED)


def _nested_text(error: BaseException, depth: int) -> str:
    limit = MESSAGE_CHARACTERS if isinstance(error, TridentError) else TEXT_CHARACTERS
    text = f"{_class_name(error)}: {text_of(error, characters=limit)}"
    if not isinstance(error, BaseExceptionGroup) or not depth:
        return text
    members = "; ".join(_nested_text(member, depth - 1) for member in error.exceptions[:_NESTED])
    return cleaned(f"{text}: {members}", TEXT_CHARACTERS)


def logged_text(error: BaseException) -> str:
    """The text for a log or a terminal: this package's errors speak for themselves, others by their class, too."""
    return text_of(error, characters=MESSAGE_CHARACTERS) if isinstance(error, TridentError) else error_text(error)


def recorded_text(error: BaseException, *, rows: bool) -> str:
    """The text of an error that the ledger keeps, and so the page and the commands show.

    :param rows: False leaves out every text that may quote rows, but keeps the error's class and its place.
    """
    if rows or (isinstance(error, TridentError) and not error.may_quote_rows):
        return error_text(error)
    where = f" in {error.node}, fields ({error.fields})" if isinstance(error, UserCodeError) and error.node else ""
    return (
        f"{type(error).__name__}{where}: the text may quote rows and is in the task's log alone "
        "([trident] rows_in_errors is False)"
    )


# ---- try again -------------------------------------------------------------------------------------------------


class RetryableError(TridentError):
    """Nothing is wrong with the work itself; the same call may succeed later."""

    outcome = Outcome.RETRY


class LedgerUnavailableError(RetryableError, may_quote_rows=False):
    """ZooKeeper did not answer before the deadline."""


class OutcomeUnknownError(RetryableError, may_quote_rows=False):
    """A write may have been applied or not, and the deadline passed before this could be found out.

    The caller must not assume either: it runs the same step again, which finds out.
    """


class SourceUnavailableError(RetryableError):
    """The source of a spout did not answer; or it did, and no longer holds the batch of an opaque one."""

    batch_is_gone: bool = False
    """Of an opaque spout: waiting does not bring the batch back, a new attempt takes another one."""

    @classmethod
    def of_gone_batch(cls, message: str, cure: str) -> SourceUnavailableError:
        error = cls(message, cure)
        error.batch_is_gone = True
        return error


class StoreUnavailableError(RetryableError):
    """The store of a state did not answer, is locked, or has no space. Nothing was applied."""


class SparkJobError(RetryableError):
    """A Spark job ended without a result for a reason other than the user's code."""


class AttemptCancelledError(RetryableError, may_quote_rows=False):
    """An attempt was cancelled on the local engine: its task was killed, or a newer attempt took over."""


class ChildError(RetryableError):
    """A child process died, hung, did not start or did not stop. The text ends with how, and with its last stderr."""


class ChildProtocolError(ChildError):
    """A child process sent something that its protocol does not allow at that point."""

    before: tuple[dict[str, Any], ...] = ()
    """The complete messages that came before the invalid one."""


class AttemptTimeoutError(RetryableError, may_quote_rows=False):
    """An attempt took longer than `attempt_timeout` and was cancelled."""


# ---- somebody newer is at work ---------------------------------------------------------------------------------


class FencedError(TridentError, may_quote_rows=False):
    """A newer attempt or committer has taken over: the code that gets this error stops and changes nothing (P4, P7)."""


class StaleAttemptError(FencedError):
    """The attempt that calls is not the current attempt of its transaction."""


# ---- a person decides ------------------------------------------------------------------------------------------


class BlockedError(TridentError, may_quote_rows=False):
    """A lower transaction is FAILED: nothing above it may commit until it is replayed or skipped (P6)."""


class TransitionError(TridentError, may_quote_rows=False):
    """The ledger refused a transition; the text says what was expected and what was found."""


class InvalidatedError(TransitionError):
    """A transaction of an opaque spout has no batch at the moment: a lower one was attempted again (P2)."""

    outcome = Outcome.RETRY


class PassedOverError(TransitionError):
    """Somebody wants to replay a SKIPPED transaction while a commit that passed over it is under way (P6)."""

    outcome = Outcome.RETRY


class HeldError(TransitionError):
    """A commit was to be taken back, but a state holds the transaction."""


class LateBatchError(TransitionError):
    """A batch comes after later batches were applied, and a state depends on the order."""


class LostTransactionsError(TransitionError):
    """A state lacks transactions that can no longer be replayed: only a person can decide to go on without them."""


# ---- the user's code -------------------------------------------------------------------------------------------

MEND_CODE = "Mend the code, and run the task again."
PASSING = (TridentError, KeyboardInterrupt, GeneratorExit)
"""What a border to foreign code lets through. It takes all else that such code raises: ``sys.exit()`` in it ends the
attempt, not the task."""
_OURS = re.compile(r"/airflow_trident/(?:operations|engine|states|spouts|contracts|plan|runtime|topology|errors)\b")


def is_foreign(error: BaseException) -> bool:
    """Did foreign code raise this of its own will?

    Not if a person, a border further in, Airflow or this package ends the work: time-outs come up in any code.
    """
    if isinstance(error, PASSING):
        return False
    return isinstance(error, Exception) or type(error).__module__.partition(".")[0] not in (
        "airflow",
        "airflow_trident",
    )


class UserCodeError(TridentError):
    """A user's function raised on a row. Retried like any other failure: the cause may be outside the function."""

    outcome = Outcome.RETRY

    def __init__(
        self,
        message: str,
        cure: str = "",
        *,
        node: str = "",
        fields: str = "",
        row: str = "",
        txid: int | None = None,
    ) -> None:
        super().__init__(message, cure)
        self.node = cleaned(node, NAME_CHARACTERS)
        self.fields = cleaned(fields, NAME_CHARACTERS)
        self.row = cleaned(row, NAME_CHARACTERS)
        self.txid = txid

    @classmethod
    def carrying(cls, error: BaseException, who: str, within: str = "", after: str = "", **place: Any) -> UserCodeError:
        """The error of foreign code as data: its text, and the lines of its own files that led to it. The object itself
        does not travel: nobody knows what it does when it is pickled, printed or kept.

        :param who: ``split in each-1``.
        :param after: what follows the text and says where it was.
        :param place: `node`, `fields`, `row`, `txid`, and `cure`.
        """
        kind, _, text = error_text(error).partition(": ")
        frames = [frame for frame in extract_tb(error.__traceback__) if not _OURS.search(frame.filename)]
        line = f" (line {frames[-1].lineno} of {frames[-1].filename.rsplit('/', 1)[-1]})" if frames else ""
        about = f" in {within}" if within else ""
        made = cls(f"{who} raised {kind}{about}: {text}{line}{after}", **place)
        causes = list(_causes(error))
        if frames:  # those of this package and of Spark would bury them
            made.add_note(cleaned("".join(format_list(frames[-_FRAMES:])).rstrip()))
        if causes:
            made.add_note(f"It came from {'; and that from '.join(causes)}")
        return made


def _causes(error: BaseException) -> Iterator[str]:
    seen = {id(error)}
    for _ in range(_NESTED):
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        if cause is None or id(cause) in seen:
            return
        seen.add(id(cause))
        yield error_text(cause)
        error = cause


@contextmanager
def guarded(
    who: str, *, txid: int | None = None, node: str = "", fields: str = "", cure: str = MEND_CODE
) -> Iterator[None]:
    """The border around foreign code that is not called row by row: spouts, states, hooks, callbacks, modules.

    Errors of this package pass. All others become a UserCodeError that carries them as data, whatever they are.
    """
    try:
        yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        after = "" if txid is None else f"; transaction {txid}"
        raise UserCodeError.carrying(error, who, after=after, node=node, fields=fields, txid=txid, cure=cure) from None


def spout_code(stream: str, txid: int | None = None) -> AbstractContextManager[None]:
    """The border around the code of a stream's spout."""
    cure = "Mend the spout, and run the task again. Nothing of the transaction is committed."
    return guarded(f"the spout of stream {stream!r}", node=stream, txid=txid, cure=cure)


def state_code(name: str, txid: int | None = None) -> AbstractContextManager[None]:
    """The border around the code of a state."""
    cure = "Mend the state or its store, and run the task again."
    return guarded(f"state {name!r}", node=name, txid=txid, cure=cure)


class FailedException(TridentError):
    """Raised by a user's function, spout or source: this attempt fails now, and another one follows.

    It is no fault of the code, so it is not wrapped. A task ends with its text alone, which the ledger keeps and the
    page shows (Storm: FailedException, ReportedFailedException).

    :param retry: False: another attempt would be in vain; the transaction is FAILED, or SKIPPED.
    """

    outcome = Outcome.RETRY

    def __init__(self, message: str = "the attempt was failed", cure: str = "", *, retry: bool = True) -> None:
        super().__init__(message, cure)
        self.outcome = Outcome.RETRY if retry else Outcome.FAIL


# ---- the plan and the settings ---------------------------------------------------------------------------------


class PlanError(TridentError, may_quote_rows=False):
    """The topology is invalid. Raised at the user's line when the DAG is built."""


class UnknownNodeError(PlanError):
    """A plan has a node of a kind that the code which should run it does not know. Nothing of the plan has run.

    :param node: the name of the node.
    :param kind: the name of the node's class.
    :param where: what does not know it.
    """

    def __init__(self, node: str, kind: str, where: str, cure: str = "") -> None:
        super().__init__(
            f"{where} does not know what to do with node {node!r} ({kind})",
            cure or "Use an engine that runs such nodes, and the same version of airflow-trident wherever it runs.",
        )
        self.node = node
        self.kind = kind
        self.where = where


class FieldError(PlanError):
    """A field is unknown, doubled, or of a type that the operation cannot take."""


class ConfigurationError(TridentError):
    """A setting, connection or argument is wrong."""


class ExecutorPackageError(ConfigurationError):
    """Spark's Python workers cannot import this package, or have another version of it."""


class LedgerAuthError(ConfigurationError, may_quote_rows=False):
    """ZooKeeper refused the credentials, or the access list forbids the operation."""


class NameTakenError(ConfigurationError, may_quote_rows=False):
    """Another process has the name of a worker."""


class UnknownTopologyError(ConfigurationError, may_quote_rows=False):
    """No topology of this name has a ledger."""


class DefinitionChangedError(ConfigurationError, may_quote_rows=False):
    """The name belongs to a topology with another definition."""


class OtherPlanError(ConfigurationError, may_quote_rows=False):
    """Another DAG file staged a batch whose commit has begun: as it is, it would be taken for what it is not."""


class UnseenFilesError(ConfigurationError):
    """The driver does not see the executors' staged files in the staging folder: they write to another one."""


class MissingExtraError(ConfigurationError, may_quote_rows=False):
    """An optional library is not installed; the text names the extra to install."""


# ---- nothing unreadable is guessed at (P11) --------------------------------------------------------------------


class CorruptError(TridentError, may_quote_rows=False):
    """Something durable cannot be read, or contradicts other knowledge."""


class CorruptRecordError(CorruptError):
    """A ledger record or manifest cannot be decoded."""


class NewerRecordError(CorruptError):
    """A record was written by a newer version of this package."""


class LedgerBehindStateError(CorruptError):
    """A state holds transactions that the ledger does not know: the ledger was wiped or restored from an old copy."""


class GoneOverError(LedgerBehindStateError):
    """A state holds transactions above one that does not come late: an older version took up what the commit of a group
    had gone over, or the ledger was restored to where that was not SKIPPED yet."""


class StateBehindLedgerError(CorruptError):
    """A state lacks transactions that the ledger calls COMMITTED: it was restored, deleted, or there are two."""


class SourceChangedError(CorruptError):
    """The source no longer holds the data that the recorded metadata names, so the batch cannot be replayed."""


class DamagedInputError(CorruptError, may_quote_rows=True):
    """An input of the source cannot be read."""


class StagingError(CorruptError):
    """A staged batch is missing, damaged, or contradicts its manifest."""


class TableChangedError(StagingError):
    """Others have changed a table since a processing phase read it: the batch is processed again."""

    outcome = Outcome.RETRY


class InseparableError(StagingError):
    """Several transactions were staged together, but not all are to be applied: they are emitted again."""
