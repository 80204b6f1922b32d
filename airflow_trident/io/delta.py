"""Where a Delta table is and how to get there; for states and spouts, which share nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io import connections
from airflow_trident.io.extras import require_extra
from airflow_trident.io.local_paths import require_local_path

if TYPE_CHECKING:
    import pyarrow.fs as pafs

EXTRA = "airflow-trident[delta]"
_OF_AWS = {"login": "AWS_ACCESS_KEY_ID", "password": "AWS_SECRET_ACCESS_KEY"}
_OF_AWS_EXTRAS = {
    "region_name": "AWS_REGION",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "aws_session_token": "AWS_SESSION_TOKEN",
}


@dataclass(frozen=True, kw_only=True)
class DeltaPlace:
    """A folder or URI. `options` are storage options of delta-rs and may hold secrets."""

    uri: str
    conn_id: str | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if not self.uri:
            raise ConfigurationError("a Delta table without a place", "Give it a folder or a URI.")
        if "://" not in self.uri:  # a folder, and no URI that pathlib has shortened to one slash
            require_local_path("a Delta table", self.uri)

    @property
    def where(self) -> str:
        """Absolute, if it is a folder."""
        return self.uri if "://" in self.uri else os.path.abspath(os.path.expanduser(self.uri))

    def below(self, name: str) -> DeltaPlace:
        return replace(self, uri=f"{self.uri.rstrip('/')}/{name}")

    def resolved(self, *, required: bool = True) -> DeltaPlace:
        """With what the connection says as storage options.

        :raises ConfigurationError: `required`, and there is no such connection.
        """
        found = connections.resolve_if(self.conn_id, required=required)
        if found is None:
            return self
        options = found.options
        if found.conn_type == "aws":
            options = {_OF_AWS_EXTRAS[name]: value for name, value in options.items() if name in _OF_AWS_EXTRAS}
            options |= {name: getattr(found, own) for own, name in _OF_AWS.items() if getattr(found, own)}
        return replace(self, conn_id=None, options={**options, **self.options})

    # The driver is asked through these two only.

    def table(self, version: int | None = None) -> Any:
        """The open table (`deltalake.DeltaTable`), as it is now or was at `version`."""
        module: Any = require_extra("deltalake", EXTRA)
        return module.DeltaTable(self.where, version=version, storage_options=dict(self.resolved().options) or None)

    def make_folder(self, below: str = "") -> None:
        """So that a folder that may not be written to is told from one that is not there. Object stores have none."""
        if "://" not in self.where:
            os.makedirs(os.path.join(self.where, below), exist_ok=True)

    def files(self) -> pafs.FileSystem:
        """What is below the place, names relative to it."""
        import pyarrow.fs as pafs

        module: Any = require_extra("deltalake.fs", EXTRA)
        return pafs.PyFileSystem(module.DeltaStorageHandler(self.where, options=dict(self.resolved().options) or None))

    @contextmanager
    def errors(self, unavailable: type[TridentError] = StoreUnavailableError) -> Iterator[None]:
        """
        :param unavailable: raised if the storage does not answer.
        :raises ConfigurationError: this user may not.
        """
        exceptions: Any = require_extra("deltalake.exceptions", EXTRA)
        try:
            yield
        except (TridentError, exceptions.CommitFailedError, FileNotFoundError):
            raise
        except (OSError, exceptions.DeltaError) as error:
            text = self.conceal(str(error)).split("\n")[0]
            if "ermission denied" in str(error) or "Forbidden" in text:
                raise ConfigurationError(
                    f"the Delta table {self.where!r} may not be used by this user ({text})", "Give it the right."
                ) from None
            raise unavailable(
                f"the Delta table {self.where!r} cannot be read or written ({text})",
                "See that its storage answers, and run the task again.",
            ) from None

    def conceal(self, text: str) -> str:
        """A driver's message without the values of the options."""
        for value in self.resolved(required=False).options.values():
            text = text.replace(value, "***") if len(value) > 5 else text
        return text
