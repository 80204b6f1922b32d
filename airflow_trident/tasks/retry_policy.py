"""The table of errors as an Airflow retry policy."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError, Outcome, TridentError

if TYPE_CHECKING:
    from airflow.sdk import RetryPolicy
    from airflow.sdk.definitions.retry_policy import RetryDecision
else:
    try:
        from airflow.sdk import RetryPolicy
    except ImportError:  # before 3.3
        RetryPolicy = object


class TridentRetryPolicy(RetryPolicy):
    """Retries the errors that the error reference calls retried. Fails the task at once for errors that only a person
    can repair.

    The operators of this package do so by themselves. Use the policy for your own tasks that call this package, or for
    another delay: ``retry_policy=TridentRetryPolicy(retry_delay=timedelta(minutes=5))``. Airflow handles other errors.

    :param retry_delay: the delay before a retry; None: the task's own.
    :raises ConfigurationError: this Airflow has no retry policies (before 3.3).
    """

    def __init__(self, retry_delay: timedelta | None = None) -> None:
        if RetryPolicy is object:
            raise ConfigurationError("this Airflow has no retry policies", "Install Airflow 3.3, or leave it out.")
        self.retry_delay = retry_delay

    def evaluate(self, exception: BaseException, try_number: int, max_tries: int, context: Any = None) -> RetryDecision:
        """Decide by the first error of this package among the exception and its causes."""
        from airflow.sdk.definitions.retry_policy import RetryDecision

        error = next((cause for cause in causes(exception) if isinstance(cause, TridentError)), None)
        if error is None:
            return RetryDecision.default()
        reason = f"{type(error).__name__}: {error.outcome}"
        if error.outcome is Outcome.RETRY:
            return RetryDecision.retry(self.retry_delay, reason)
        return RetryDecision.fail(reason)

    def serialize(self) -> dict[str, Any]:
        return {"retry_delay": None if self.retry_delay is None else self.retry_delay.total_seconds()}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> TridentRetryPolicy:
        seconds = data.get("retry_delay")
        return cls(None if seconds is None else timedelta(seconds=seconds))


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, its cause, the cause of that, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__
