"""Where an Iceberg table is and how to reach it: its name and its catalog.

Rows of an Iceberg table's data file, piece by piece: pyiceberg's own scan has a whole file in memory.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError, error_text, is_of_driver
from airflow_trident.io import connections
from airflow_trident.io.arrow import Calendar, require_fit
from airflow_trident.io.connections import Connection, require_extra
from airflow_trident.io.database_limits import REST_CATALOGS, Limits
from airflow_trident.io.datasets import Dataset, iceberg_dataset
from airflow_trident.io.hadoop import S3_SCHEMES
from airflow_trident.io.object_place import ObstorePlace
from airflow_trident.io.object_services import GCS, S3
from airflow_trident.io.object_stores import RIGHTS, ObjectAddress
from airflow_trident.io.parquet import calendar_of
from airflow_trident.io.place import PlacedFile
from airflow_trident.names import require_conn_id

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")

EXTRA = "airflow-trident[iceberg]"
_OF_FILES = {
    "access_key_id": "s3.access-key-id",
    "secret_access_key": "s3.secret-access-key",
    "session_token": "s3.session-token",
    "region": "s3.region",
    "endpoint": "s3.endpoint",
    "virtual_hosted_style_request": "s3.force-virtual-addressing",
    "connect_timeout": "s3.connect-timeout",
    "read_timeout": "s3.request-timeout",
}
"""Setting of a connection -> property of a catalog."""
_OF_GOOGLE = {"base_url": "gcs.service.host"}
_OF_OTHER_FILES = ("s3.", "client.", "py-io-impl", "gcs.")
"""How properties begin that say how files are read. Who has any that S3A is not told of reads by Python."""
_REGION = "us-east-1"
"""As in boto3 and obstore. Without a region pyiceberg asks Amazon for that of the bucket, even if another store has
it."""
_OF_S3 = "AWS Error"
"""In what pyarrow's client of S3 says."""
_SHORT = 5
"""Longest property value, in characters, that is no secret."""


@dataclass(frozen=True, kw_only=True)
class IcebergPlace:
    """`name`: with its namespace. `catalog`: its name in pyiceberg's configuration. `properties`: may hold secrets."""

    name: str
    catalog: str = "default"
    conn_id: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.conn_id is not None:
            require_conn_id("an Iceberg table", self.conn_id)
        parts = self.name.split(".") if isinstance(self.name, str) else ()
        if len(parts) < 2 or not all(parts):
            raise ConfigurationError(
                f"an Iceberg table named {self.name!r}", "Give namespace and table, as in 'sales.big_orders'."
            )

    def resolved(self, *, required: bool = True) -> IcebergPlace:
        """With the connection's settings as properties: its host is the `uri`, login and password the `credential`.

        :raises ConfigurationError: `required`, and there is no such connection.
        """
        connection = connections.resolve_if(self.conn_id, required=required)
        catalog_properties = {} if connection is None else connection.options
        if connection is not None and connection.host:
            catalog_properties = {"uri": connection.host, **catalog_properties}
        if connection is not None and connection.login:
            catalog_properties = {"credential": f"{connection.login}:{connection.password}", **catalog_properties}
        properties = {**catalog_properties, **self.properties}
        warehouse = urlsplit(properties.get("warehouse", ""))
        of_storage = _OF_STORAGE.get(warehouse.scheme)
        if of_storage is not None and warehouse.username is not None:
            address = ObjectAddress.parse("the warehouse of an Iceberg catalog", properties["warehouse"])
            storage = connections.resolve_if(address.conn_id, required=required)
            if storage is not None:
                warehouse_path = "/".join(part for part in (address.bucket, address.prefix) if part)
                properties = {
                    **of_storage(storage),
                    **properties,
                    "warehouse": f"{warehouse.scheme}://{warehouse_path}",
                }
        if connection is None and properties == self.properties:
            return self
        return replace(self, conn_id=self.conn_id if connection is None else None, properties=properties)

    def s3_settings(self) -> tuple[dict[str, str], dict[str, str]] | str:
        """The properties as `settings` and `client` of an `ObjectAddress`; or why they are none."""
        names = {name: setting for setting, name in _OF_FILES.items()}
        odd = [name for name in self.properties if name.startswith(_OF_OTHER_FILES) and name not in names]
        if odd:
            return f"S3A is not told of the property {min(odd)!r}"
        settings = {names[name]: str(value) for name, value in self.properties.items() if name in names}
        client = {name: value for name, value in settings.items() if name.endswith("_timeout")}
        return {name: value for name, value in settings.items() if name not in client}, client

    def stored(self, location: str) -> PlacedFile | None:
        """The object at an address; None: it is none of S3, or its store cannot be told."""
        parts = urlsplit(location)
        settings = self.resolved().s3_settings()
        if parts.scheme not in S3_SCHEMES or isinstance(settings, str):
            return None
        address = ObjectAddress(bucket=parts.netloc, settings=tuple(sorted(settings[0].items())))
        return PlacedFile(ObstorePlace(address), parts.path.removeprefix("/"))

    @property
    def dataset(self) -> Dataset:
        """Its name in lineage."""
        return iceberg_dataset(self.catalog, self.resolved().properties.get("uri", ""), self.name)

    def open_catalog(self) -> Any:
        """
        :return: `pyiceberg.catalog.Catalog`.
        :raises ConfigurationError: pyiceberg does not know the catalog.
        """

        def load() -> Any:
            try:
                return self._in_time()
            except ValueError as error:
                if type(error) is not ValueError:  # an answer of the catalog that makes no sense
                    raise
                raise ConfigurationError(
                    f"the Iceberg catalog {self.catalog!r} cannot be used ({self.conceal(str(error))})",
                    "Describe it in .pyiceberg.yaml, in PYICEBERG_CATALOG__..., in a connection, or in "
                    "IcebergTable(properties={'type': 'sql', 'uri': ..., 'warehouse': ...}).",
                ) from None

        return self.twice(load)

    def _in_time(self) -> Any:
        """The catalog, with deadlines: pyiceberg asks web servers and databases without any."""
        module: Any = require_extra("pyiceberg.catalog", EXTRA)
        config: Any = require_extra("pyiceberg.utils.config", EXTRA)
        own = dict(self.resolved().properties)
        properties = config.merge_config(config.Config().get_catalog_config(self.catalog) or {}, own)
        kind, uri = str(properties.get("type") or "").lower(), str(properties.get("uri") or "")
        is_known = uri and "py-catalog-impl" not in properties
        if is_known and (kind == "rest" or (not kind and uri.startswith("http"))):
            return _rest_in_time()(self.catalog, **properties)
        if is_known and (kind == "sql" or (not kind and uri.startswith("postgresql"))):
            own["uri"] = _limited(uri)
        return module.load_catalog(self.catalog, **own)

    @staticmethod
    def close(catalog: Any) -> None:
        """An error of closing changes nothing: what the catalog has is decided."""
        with suppress(Exception):  # nobody needs it any more
            catalog.close()

    def twice(self, make: Callable[[], T]) -> T:
        """Runs `make`, which makes something if it is missing, and repeats it once: two concurrent calls can disturb
        each other."""
        with suppress(StoreUnavailableError), self.errors():
            return make()
        with self.errors():
            return make()

    @contextmanager
    def errors(self, unavailable: type[TridentError] = StoreUnavailableError) -> Iterator[None]:
        """
        :param unavailable: raised if catalog or storage do not answer.
        :raises ConfigurationError: this user has no permission.
        """
        exceptions: Any = require_extra("pyiceberg.exceptions", EXTRA)
        try:
            with read_whole(f"the Iceberg table {self.name!r} of catalog {self.catalog!r}"):
                yield
        except exceptions.CommitFailedException:
            raise
        except BaseException as error:
            if not is_of_driver(error):
                raise
            raise self.refusal(error) or unavailable(
                f"the Iceberg table {self.name!r} of catalog {self.catalog!r} cannot be read or written "
                f"({self._text_of(error)})",
                "See that its catalog and its storage answer, and run the task again.",
            ) from None

    def refusal(self, error: BaseException) -> ConfigurationError | None:
        """The error of a cause that no retry cures; None: a retry may help."""
        exceptions: Any = require_extra("pyiceberg.exceptions", EXTRA)
        text = self._text_of(error)
        cure = S3.cure(str(error), RIGHTS) if _OF_S3 in str(error) else ""
        if cure:
            return ConfigurationError(
                f"the Iceberg table {self.name!r} of catalog {self.catalog!r} cannot be read or written ({text})", cure
            )
        refused = exceptions.ForbiddenError, exceptions.UnauthorizedError, exceptions.OAuthError, PermissionError
        if isinstance(error, refused) or "ermission denied" in text:
            return ConfigurationError(
                f"the Iceberg table {self.name!r} may not be used by this user ({text})", "Give it the right."
            )
        if isinstance(error, exceptions.BadRequestError | exceptions.NotInstalledError):
            return ConfigurationError(
                f"the catalog {self.catalog!r} of the Iceberg table {self.name!r} refuses the request ({text})",
                "Check the properties of the catalog, and its own log.",
            )
        return None

    def _text_of(self, error: BaseException) -> str:
        text = str(error) if isinstance(error, faults()) else error_text(error)
        return self.conceal(text).split("\n")[0]

    def conceal(self, text: str) -> str:
        """A driver's message without the values of properties, except places."""
        for name, value in self.resolved(required=False).properties.items():
            if len(value) > _SHORT and name not in ("uri", "warehouse", "type"):
                text = text.replace(value, "***")
        return text


@cache
def _rest_in_time() -> Any:
    rest: Any = require_extra("pyiceberg.catalog.rest", EXTRA)

    class RestInTime(rest.RestCatalog):  # type: ignore[misc]
        """It asks requests without a time limit, already while it is made: for a token, and for its configuration."""

        def _config_headers(self, session: Any) -> None:
            super()._config_headers(session)
            _limit(session)

        def _create_session(self) -> Any:
            session = super()._create_session()
            _limit(session)  # of adapters that sign requests, too
            return session

    return RestInTime


def _limited(uri: str) -> str:
    """The address of a database with limits of its driver, where it names none."""
    sa: Any = require_extra("sqlalchemy", EXTRA)
    url = sa.make_url(uri)
    if url.get_backend_name() == "sqlite":
        return uri
    limits = Limits().arguments(url.get_backend_name(), url.get_driver_name())
    missing = {name: str(value) for name, value in limits.items() if name not in url.query}
    return str(url.update_query_dict(missing).render_as_string(hide_password=False))


def _limit(session: Any) -> None:
    """Give each request of a session of `requests` its deadlines, if it has none."""
    for adapter in session.adapters.values():
        if not isinstance(adapter.send, partial):
            adapter.send = partial(_send, adapter.send)


def _send(send: Callable[..., Any], request: Any, *, timeout: Any = None, **options: Any) -> Any:
    return send(request, timeout=timeout or (REST_CATALOGS.connect_s, REST_CATALOGS.answer_s), **options)


@contextmanager
def read_whole(subject: str) -> Iterator[None]:
    """Wraps what asks pyiceberg for the files of a table.

    :raises ConfigurationError: there are equality delete files, whose rows pyiceberg cannot leave out.
    """
    try:
        yield
    except (ValueError, NotImplementedError) as error:
        if "equality deletes" not in str(error):
            raise
        raise ConfigurationError(
            f"{subject} has equality delete files, which pyiceberg does not read",
            "Rewrite its data files (rewrite_data_files of Spark), and run the task again.",
        ) from None


def _of_google(connection: Connection) -> dict[str, str]:
    """A connection of type ``google_cloud_platform`` as properties of the catalog's files.

    :raises ConfigurationError: it has a key, or is anonymous: pyiceberg takes tokens and what machines have only.
    """
    settings = GCS.settings_of(connection)
    if settings.keys() - {"base_url"}:
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} has a key, or is anonymous, which Iceberg tables do not follow",
            "Set GOOGLE_APPLICATION_CREDENTIALS on each machine and write the warehouse without the connection.",
        )
    return {_OF_GOOGLE[name]: value for name, value in settings.items()}


def _of_s3(connection: Connection) -> dict[str, str]:
    """A connection of type ``aws`` as properties of the catalog's files.

    :raises ConfigurationError: it has settings that pyiceberg's files do not support.
    """
    settings, client = S3.settings_of(connection), S3.client_of(connection)
    if {"root_certificate", "allow_invalid_certificates"} & client.keys():
        raise ConfigurationError(
            f"the connection {connection.conn_id!r} says which certificates are trusted (verify), which Iceberg tables "
            "do not follow",
            "Let the machine trust the store's certificate, and leave it out.",
        )
    properties = {_OF_FILES[name]: value for name, value in (settings | client).items() if name in _OF_FILES}
    return {"s3.region": _REGION, **properties}


_OF_STORAGE = {scheme: of for service, of in ((S3, _of_s3), (GCS, _of_google)) for scheme in service.schemes}
"""Scheme of a warehouse -> its connection as properties."""


@cache
def faults() -> tuple[type[Exception], ...]:
    """The errors of pyiceberg for a failed catalog or storage; they have no common class."""
    exceptions: Any = require_extra("pyiceberg.exceptions", EXTRA)
    kinds = {kind for _, kind in inspect.getmembers(exceptions, inspect.isclass) if issubclass(kind, Exception)}
    arrow: Any = require_extra("pyarrow", EXTRA)
    with suppress(TridentError):  # for other catalogs
        kinds.add(require_extra("sqlalchemy.exc", EXTRA).SQLAlchemyError)
    return (*kinds, OSError, arrow.ArrowException)


PIECE_ROWS = 1 << 16
_BUFFER_BYTES = 8 << 20
"""The least that is read of a column at a time; a column of a row group is not read whole."""


def pieces_of(metadata: Any, io: Any, task: Any, wanted: Any) -> Iterator[pa.RecordBatch]:
    """The rows of a file that are not deleted, in record batches with the columns `wanted`: a column is found by its
    id, also under another name.

    :param metadata: `pyiceberg.table.metadata.TableMetadata`.
    :param io: `pyiceberg.io.FileIO`.
    :param task: `pyiceberg.table.FileScanTask` of a Parquet file, with its delete files.
    :param wanted: `pyiceberg.schema.Schema`.
    :raises UnfitValueError: a day or a moment was counted in another calendar.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    reading: Any = require_extra("pyiceberg.io.pyarrow", EXTRA)
    expressions: Any = require_extra("pyiceberg.expressions", EXTRA)
    pruned: Any = require_extra("pyiceberg.schema", EXTRA).prune_columns
    deletes = reading._read_all_delete_files(io, [task]).get(task.file.file_path)
    ids = reading.ArrowScan(metadata, io, wanted, expressions.AlwaysTrue())._projected_field_ids
    with (
        io.new_input(task.file.file_path).open() as source,
        pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, page_checksum_verification=True) as file,
    ):
        is_old = metadata.format_version <= 2  # without nanoseconds
        file_schema = reading.pyarrow_to_schema(
            file.schema_arrow,
            metadata.name_mapping(),
            downcast_ns_timestamp_to_us=is_old,
            format_version=metadata.format_version,
        )
        spec = metadata.specs().get(task.file.spec_id)
        same = reading._get_column_projection_values(task.file, wanted, metadata.schema(), spec, file_schema.field_ids)
        projected = pruned(file_schema, ids, select_full_types=False)
        first = 0
        calendar = calendar_of(file.metadata)
        for piece in file.iter_batches(PIECE_ROWS, columns=[column.name for column in projected.columns]):
            if calendar is not Calendar.GREGORIAN:  # of files that Spark wrote, and that were added to the table
                require_fit(pa.Table.from_batches([piece]), calendar)
            rows = piece
            if deletes:
                remaining = reading._combine_positional_deletes(deletes, first, first + piece.num_rows)
                rows = piece.take(remaining)
            first += piece.num_rows
            if rows.num_rows:
                yield reading._to_requested_schema(
                    wanted,
                    projected,
                    rows,
                    downcast_ns_timestamp_to_us=is_old,
                    projected_missing_fields=same,
                    allow_timestamp_tz_mismatch=True,
                )
