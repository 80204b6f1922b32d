"""Where an Iceberg table is and how to get there: its name, and the catalog that knows it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, TypeVar

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError
from airflow_trident.io import connections
from airflow_trident.io.datasets import Dataset, iceberg_dataset
from airflow_trident.io.extras import require_extra

T = TypeVar("T")

EXTRA = "airflow-trident[iceberg]"
_SHORT = 5
"""Values up to so many characters are no secrets."""


@dataclass(frozen=True, kw_only=True)
class IcebergPlace:
    """`name`: with its namespace. `catalog`: its name in the configuration of pyiceberg. `properties`: the catalog's;
    may hold secrets."""

    name: str
    catalog: str = "default"
    conn_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        parts = self.name.split(".")
        if len(parts) < 2 or not all(parts):
            raise ConfigurationError(
                f"an Iceberg table named {self.name!r}", "Give namespace and table, as in 'sales.big_orders'."
            )

    def resolved(self, *, required: bool = True) -> IcebergPlace:
        """With what the connection says as properties: its host is the `uri`, login and password the `credential`.

        :raises ConfigurationError: `required`, and there is no such connection.
        """
        found = connections.resolve_if(self.conn_id, required=required)
        if found is None:
            return self
        said = found.options
        if found.host:
            said = {"uri": found.host, **said}
        if found.login:
            said = {"credential": f"{found.login}:{found.password}", **said}
        return replace(self, conn_id=None, properties={**said, **self.properties})

    @property
    def dataset(self) -> Dataset:
        """What lineage calls it."""
        return iceberg_dataset(self.catalog, self.resolved().properties.get("uri", ""), self.name)

    def open_catalog(self) -> Any:
        """
        :return: `pyiceberg.catalog.Catalog`.
        :raises ConfigurationError: pyiceberg does not know it.
        """
        module: Any = require_extra("pyiceberg.catalog", EXTRA)
        try:
            return self.twice(lambda: module.load_catalog(self.catalog, **self.resolved().properties))
        except ValueError as error:
            raise ConfigurationError(
                f"the Iceberg catalog {self.catalog!r} cannot be used ({self.conceal(str(error))})",
                "Describe it in .pyiceberg.yaml, in PYICEBERG_CATALOG__..., in a connection, or in "
                "IcebergTable(properties={'type': 'sql', 'uri': ..., 'warehouse': ...}).",
            ) from None

    def twice(self, make: Callable[[], T]) -> T:
        """What makes something if it is missing: two who do so at the same time are in each other's way once."""
        with suppress(StoreUnavailableError), self.errors():
            return make()
        with self.errors():
            return make()

    @contextmanager
    def errors(self, unavailable: type[TridentError] = StoreUnavailableError) -> Iterator[None]:
        """
        :param unavailable: raised if catalog or storage do not answer.
        :raises ConfigurationError: this user may not.
        """
        known: Any = require_extra("pyiceberg.exceptions", EXTRA)
        try:
            yield
        except (TridentError, known.CommitFailedException, FileNotFoundError):
            raise
        except faults() as error:
            text = self.conceal(str(error)).split("\n")[0]
            refused = known.ForbiddenError, known.UnauthorizedError, known.OAuthError, PermissionError
            if isinstance(error, refused) or "ermission denied" in text:
                raise ConfigurationError(
                    f"the Iceberg table {self.name!r} may not be used by this user ({text})", "Give it the right."
                ) from None
            raise unavailable(
                f"the Iceberg table {self.name!r} of catalog {self.catalog!r} cannot be read or written ({text})",
                "See that its catalog and its storage answer, and run the task again.",
            ) from None

    def conceal(self, text: str) -> str:
        """A driver's message without the values of the properties that are no places."""
        for name, value in self.resolved(required=False).properties.items():
            if len(value) > _SHORT and name not in ("uri", "warehouse", "type"):
                text = text.replace(value, "***")
        return text


@cache
def faults() -> tuple[type[Exception], ...]:
    """What pyiceberg raises where a catalog or a storage fails: its exceptions have no common class."""
    own: Any = require_extra("pyiceberg.exceptions", EXTRA)
    kinds = {kind for _, kind in inspect.getmembers(own, inspect.isclass) if issubclass(kind, Exception)}
    arrow: Any = require_extra("pyarrow", EXTRA)
    with suppress(TridentError):  # its catalog is another
        kinds.add(require_extra("sqlalchemy.exc", EXTRA).SQLAlchemyError)
    return (*kinds, OSError, arrow.ArrowException)
