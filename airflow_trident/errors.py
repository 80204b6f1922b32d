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
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import date, time, timedelta
from decimal import Decimal
from enum import StrEnum
from traceback import extract_tb, format_list
from typing import Any, TypeVar
from uuid import UUID

from airflow_trident.process_settings import Watch

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
_LONG_BITS = 4096
"""Python refuses the decimal text of integers above a limit, which is never below 640 digits."""
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
    return _UNCLEAN.sub(lambda match: match[0].encode("unicode_escape").decode(), valid)


def text_of(value: object, say: Callable[[Any], str] = str, characters: int = TEXT_CHARACTERS) -> str:
    """The text of any object, whatever its class does when it is asked: :func:`cleaned`.

    :param say: ``str`` or ``repr``.
    """
    if type(value) in _PLAIN:
        is_long = type(value) is int and value.bit_length() > _LONG_BITS
        return cleaned(hex(value) if is_long else say(value), characters)  # type: ignore[arg-type]
    name = "__repr__" if say is repr else "__str__"
    try:
        text = say(value) if _says_at_once(value) else within(TEXT_S, lambda: say(value))
        return cleaned(text, characters)
    except TimeoutError:
        why = f"{_class_name(value)}.{name} takes longer than {TEXT_S:g} s"
    except BaseException as error:  # noqa: BLE001 - a foreign class may raise anything
        why = f"{_class_name(error)} in {_class_name(value)}.{name}"
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


def _says_at_once(value: object) -> bool:
    """Does no foreign code run when the object is asked for its text?"""
    if not isinstance(value, BaseException):
        return False
    is_ours = type(value).__module__ == __name__
    is_pythons = type(value).__str__ in (Exception.__str__, OSError.__str__, KeyError.__str__)
    return (is_ours or is_pythons) and all(type(argument) in _PLAIN for argument in value.args)


def _class_name(value: object) -> str:
    return cleaned(type(value).__name__, NAME_CHARACTERS)


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
        return rebuilt, (own_class(self), self.message, self.cure, state)


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


def rebuilt(kind: type[TridentError], message: str, cure: str, state: dict[str, Any]) -> TridentError:
    """The error of a class with any constructor, from what travels."""
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
    location = f" in {error.node}, fields ({error.fields})" if isinstance(error, UserCodeError) and error.node else ""
    return (
        f"{type(error).__name__}{location}: the text may quote rows and is in the task's log alone "
        "([trident] rows_in_errors is False)"
    )


# ---- try again -------------------------------------------------------------------------------------------------


class RetryableError(TridentError):
    """Nothing is wrong with the work itself; the same call may succeed later."""

    outcome = Outcome.RETRY


class LedgerUnavailableError(RetryableError, may_quote_rows=False):
    """ZooKeeper did not answer before the deadline.

    Cure: check it with ``airflow trident doctor``.
    """


class OutcomeUnknownError(RetryableError, may_quote_rows=False):
    """It is unknown whether a write was applied.

    Cure: run the same step again, which finds out. The caller must not assume either.
    """


class SourceUnavailableError(RetryableError):
    """The source did not answer, or lacks the batch of an opaque spout.

    Cure: fix path, rights or network; a new attempt of an opaque spout takes the present records.
    """

    batch_is_gone: bool = False
    """Of an opaque spout: waiting does not bring the batch back, a new attempt takes another one."""

    @classmethod
    def of_gone_batch(cls, message: str, cure: str) -> SourceUnavailableError:
        error = cls(message, cure)
        error.batch_is_gone = True
        return error


class StoreUnavailableError(RetryableError):
    """The store did not answer, is locked or full; nothing was applied.

    Cure: unlock it, or free space.
    """


class IncompletePartitionError(RetryableError, may_quote_rows=False):
    """A partition is not complete yet.

    Cure: none: the task waits.
    """


class EmptyPartitionError(RetryableError, may_quote_rows=False):
    """A source has no data for a partition.

    Cure: deliver them, or ask for the partition with ``empty="take"``.
    """


class SparkJobError(RetryableError):
    """Spark ended without a result for a reason other than the user's code.

    Cure: see the Spark log.
    """


class AttemptCancelledError(RetryableError, may_quote_rows=False):
    """An attempt on the local engine was cancelled by a kill or a newer attempt.

    Cure: run the task again if that was not intended.
    """


class ChildError(RetryableError):
    """A child process died, hung, did not start in time or did not stop.

    Cure: fix the child (the text has its exit code and last output), or raise the named limit.
    """


class ChildProtocolError(ChildError):
    """A child process broke its protocol.

    Cure: fix the component; prints must go to stderr.
    """

    before: tuple[dict[str, Any], ...] = ()
    """The complete messages that came before the invalid one."""


class AttemptTimeoutError(RetryableError, may_quote_rows=False):
    """An attempt took longer than its ``attempt_timeout`` and was cancelled.

    Cure: smaller batches, or a longer limit.
    """


# ---- a newer process has taken over ----------------------------------------------------------------------------


class FencedError(TridentError, may_quote_rows=False):
    """A newer attempt or committer has taken over.

    Cure: none: it finishes the work.

    The code that gets this error stops and changes nothing (P4, P7).
    """


class StaleAttemptError(FencedError):
    """This attempt is not the current one.

    Cure: none.
    """


# ---- a person decides ------------------------------------------------------------------------------------------


class BlockedError(TridentError, may_quote_rows=False):
    """A lower transaction is FAILED.

    Cure: replay it, or skip it.

    Nothing above it may commit until then (P6).
    """


class TransitionError(TridentError, may_quote_rows=False):
    """The ledger refused a step; the text has the expected and the found status.

    Cure: see ``airflow trident ledger show``.
    """


class InvalidatedError(TransitionError):
    """An opaque transaction has no batch: a lower one was attempted again.

    Cure: none: its committer emits it again; or attempt the lower one.

    Promise P2.
    """

    outcome = Outcome.RETRY


class PassedOverError(TransitionError):
    """A SKIPPED transaction is resumed before the commit of a group that skipped it has ended.

    Cure: wait for that commit, which the text names.
    """

    outcome = Outcome.RETRY


class HeldError(TransitionError):
    """A state contains a transaction whose commit should be taken back.

    Cure: fix the cause that blocks the other states.
    """


class LateBatchError(TransitionError):
    """Later transactions were applied and a state depends on order.

    Cure: leave it SKIPPED, or rebuild the state.
    """


class SupersededError(TransitionError):
    """A newer transaction has the partition.

    Cure: ask for the partition.
    """


class GateFailedError(TridentError, may_quote_rows=False):
    """A rule of the topology does not hold for the batch; nothing of it is published.

    Cure: correct the source or the rule, and replay; or skip it.

    :param checks: the verdicts, as the ledger keeps them.
    :param others: of a group: txid -> the error of each member that fails.
    """

    def __init__(
        self,
        message: str,
        cure: str = "",
        *,
        txid: int | None = None,
        checks: Any = None,
        others: dict[int, GateFailedError] | None = None,
    ) -> None:
        super().__init__(message, cure)
        self.txid = txid
        self.checks: dict[str, Any] = dict(checks or {})
        self.others = dict(others or {})


class LostTransactionsError(TransitionError):
    """A state lacks transactions that cannot be replayed.

    Cure: restore a newer copy, or continue without them by ``airflow trident rebuild --accept-loss``.
    """


# ---- the user's code -------------------------------------------------------------------------------------------

MEND_CODE = "Mend the code, and run the task again."
SET_BACK = (
    "Rows of other transactions depend on that, so it was set back, and nothing is committed. Give such a value as an "
    "argument (a zone, a full path, cwd=), or set it for a block of the function alone (decimal.localcontext(), "
    "contextlib.chdir())."
)
"""The cure of a changed setting."""
PASSING = (TridentError, KeyboardInterrupt, GeneratorExit)
"""What a border to foreign code lets through. It takes all else that such code raises: ``sys.exit()`` in it ends the
attempt, not the task."""
_OF_A_LEDGER = (FencedError, BlockedError, TransitionError)
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


def is_raised(error: BaseException) -> bool:
    """As :func:`is_foreign`, for an error out of a call of a function.

    The call holds no ``yield`` of this package, so a GeneratorExit is the function's own. It holds no step of a ledger:
    an attempt that lost its turn is one of another ledger, which the function asked.
    """
    return is_foreign(error) or isinstance(error, (GeneratorExit, *_OF_A_LEDGER))


def is_of_driver(error: BaseException) -> bool:
    """Did a driver raise this in a call, as any class?

    A mistake in this package's own code is not of a driver, and the end of a task is not: Airflow's time-out is no
    Exception. Rust's panic is none either.

    A driver in C has no lines in the trace, and raises Python's own classes, too.
    """
    kind = type(error)
    if not isinstance(error, Exception):
        return kind.__module__ == "pyo3_runtime"
    is_ours = kind.__module__.partition(".")[0] == "airflow_trident"
    if is_ours or isinstance(error, MemoryError) or not is_foreign(error):
        return False
    if kind.__module__ != "builtins" or isinstance(error, OSError | EOFError | ValueError | RuntimeError):
        return True
    frames = extract_tb(error.__traceback__)
    return bool(frames) and "/airflow_trident/" not in frames[-1].filename.replace("\\", "/")


class UserCodeError(TridentError):
    """A user's function, spout or state raised, also ``sys.exit()``; names node, fields, row, txid.

    Cure: fix it and replay; ``airflow trident bisect`` finds the row.

    It is retried, since the cause may be outside the function.
    """

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
    who: str, *, txid: int | None = None, node: str = "", fields: str = "", cure: str = MEND_CODE, loads: bool = False
) -> Iterator[None]:
    """The border around foreign code that is not called row by row: spouts, states, hooks, callbacks, modules.

    Errors of this package pass. All others become a UserCodeError that carries them as data, whatever they are. So does
    a change of the process's settings that rows depend on.

    :param loads: the code loads modules. Their settings hold for the process, as where Airflow loads them.
    """
    after = "" if txid is None else f"; transaction {txid}"
    place: dict[str, Any] = {"node": node, "fields": fields, "txid": txid}
    watch = nullcontext(Watch()) if loads else Watch()
    try:
        with watch as watched:
            yield
    except BaseException as error:
        if not is_foreign(error):
            raise
        raise UserCodeError.carrying(error, who, after=after, cure=cure, **place) from None
    if watched.trouble:
        raise UserCodeError(f"{who} {watched.trouble}{after}", SET_BACK, **place)


def spout_code(stream: str, txid: int | None = None) -> AbstractContextManager[None]:
    """The border around the code of a stream's spout."""
    cure = "Mend the spout, and run the task again. Nothing of the transaction is committed."
    return guarded(f"the spout of stream {stream!r}", node=stream, txid=txid, cure=cure)


def state_code(name: str, txid: int | None = None) -> AbstractContextManager[None]:
    """The border around the code of a state."""
    cure = "Mend the state or its store, and run the task again."
    return guarded(f"state {name!r}", node=name, txid=txid, cure=cure)


class FailedException(TridentError):
    """A user's function, spout or source raised it on purpose.

    Cure: in its text.

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
    """An invalid topology, on the user's line.

    Cure: fix the line.
    """


class UnknownNodeError(PlanError):
    """An engine does not know a node of the plan; nothing was run.

    Cure: another engine, or the same version of this package everywhere.

    :param node: the name of the node.
    :param kind: the name of the node's class.
    :param location: what does not know it.
    """

    def __init__(self, node: str, kind: str, location: str, cure: str = "") -> None:
        super().__init__(
            f"{location} does not know what to do with node {node!r} ({kind})",
            cure or "Use an engine that runs such nodes, and the same version of airflow-trident wherever it runs.",
        )
        self.node = node
        self.kind = kind
        self.where = location


class FieldError(PlanError):
    """A field is unknown, repeated, or of a wrong type.

    Cure: fix the line.
    """


class ConfigurationError(TridentError):
    """A setting, connection or argument is wrong.

    Cure: fix it.
    """


class ExecutorPackageError(ConfigurationError):
    """Spark's Python workers cannot import this package, or have another version.

    Cure: install the same version on the executors.
    """


class LedgerAuthError(ConfigurationError, may_quote_rows=False):
    """ZooKeeper refused the login, or the access list forbids it.

    Cure: use the user that created the nodes.
    """


class NameTakenError(ConfigurationError, may_quote_rows=False):
    """Another process has the name of a worker.

    Cure: choose another name, or end that process; ``--wait-s 60`` waits for the session of a killed one.
    """


class UnknownTopologyError(ConfigurationError, may_quote_rows=False):
    """No topology of this name has a ledger.

    Cure: ``airflow trident ledger list``.
    """


class DefinitionChangedError(ConfigurationError, may_quote_rows=False):
    """The name belongs to another definition.

    Cure: a new name, or ``airflow trident ledger accept``.
    """


class OtherPlanError(ConfigurationError, may_quote_rows=False):
    """The DAG file changed during the commit of a transaction, and the staged batch does not fit.

    Cure: restore the file until the transaction is COMMITTED; or ``airflow trident take-back``, if no state has it.
    """


class UnseenFilesError(ConfigurationError):
    """The driver does not see the staged files of executors.

    Cure: mount one shared folder everywhere and set ``[trident] staging_dir``.
    """


class MissingExtraError(ConfigurationError, may_quote_rows=False):
    """An optional library is missing.

    Cure: install the named extra.
    """


# ---- nothing unreadable is guessed at (P11) --------------------------------------------------------------------


class CorruptError(TridentError, may_quote_rows=False):
    """A durable record is unreadable or contradicts others.

    Cure: restore it.
    """


class CorruptRecordError(CorruptError):
    """A ledger record or manifest cannot be decoded.

    Cure: restore it; nothing was changed.
    """


class NewerRecordError(CorruptError):
    """A newer version of this package wrote it.

    Cure: upgrade.
    """


class LedgerBehindStateError(CorruptError):
    """The ledger was wiped or restored from an old copy.

    Cure: import a newer export, or run ``airflow trident repair``.
    """


class GoneOverError(LedgerBehindStateError):
    """A state contains transactions above one that it cannot take late, as after the restore of an old ledger.

    Cure: ``airflow trident doctor`` names the commands.
    """


class StateBehindLedgerError(CorruptError):
    """A state lacks COMMITTED transactions: it was restored, deleted, or is another copy.

    Cure: restore a newer copy, or run ``airflow trident rebuild``.
    """


class SourceChangedError(CorruptError):
    """The source lacks the recorded data.

    Cure: restore them and replay; or ``airflow trident accept-source``, or skip.
    """


class SourceGoneError(SourceChangedError):
    """Data that the last transaction of a partition read are gone.

    Cure: restore them; or ask for the partition with ``gone="take"``, and it loses their rows.
    """


class DamagedInputError(CorruptError, may_quote_rows=True):
    """An input cannot be read.

    Cure: fix the file, run ``airflow trident accept-source`` and replay; or skip, and deliver the corrected content in
    a new file.
    """


class StagingError(CorruptError):
    """A staged batch is missing or damaged.

    Cure: none: a committer emits it again.
    """


class TableChangedError(StagingError):
    """Others wrote to a table with ``mode="rewrite"`` after a batch was processed against it.

    Cure: none: it is processed again; if it repeats, let others write at other times.
    """

    outcome = Outcome.RETRY


class InseparableError(StagingError):
    """Several transactions were staged as one batch, and a state contains some of them.

    Cure: none: they are emitted again.
    """
