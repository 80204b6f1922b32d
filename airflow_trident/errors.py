"""One tree of errors, sorted by what the caller must do.

Every message names the thing that is wrong and ends with the cure. Every error survives pickling (tasks, Spark
workers and triggers are other processes).
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any


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
        super().__init__(message, cure)
        self.message = message
        self.cure = cure

    def __str__(self) -> str:
        if not self.cure:
            return self.message
        return f"{self.message.rstrip('.')}. {self.cure}"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.cure, dict(self.__dict__))


def _rebuild(kind: type[TridentError], message: str, cure: str, state: dict[str, Any]) -> TridentError:
    error = kind.__new__(kind)
    Exception.__init__(error, message, cure)
    error.__dict__.update(state)
    return error


def error_text(error: BaseException) -> str:
    """``ValueError: no such word``. For any exception, even if its own text cannot be read."""
    try:
        text = str(error)
    except Exception as second:  # noqa: BLE001 - users' exceptions may do anything, and only the first one matters
        text = f"(its text cannot be had: {type(second).__name__} in {type(error).__name__}.__str__)"
    return f"{type(error).__name__}: {text}"


def logged_text(error: BaseException) -> str:
    """The text for a log or a terminal: this package's errors speak for themselves, others by their class, too."""
    return str(error) if isinstance(error, TridentError) else error_text(error)


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

USER_ERRORS = (Exception, SystemExit)
"""What a user's function may raise. ``sys.exit()`` in it ends the attempt, not the task."""


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
        self.node = node
        self.fields = fields
        self.row = row
        self.txid = txid


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
