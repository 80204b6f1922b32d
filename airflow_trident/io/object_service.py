"""What differs between object services: addresses, connections, clients and error codes."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_trident.errors import ConfigurationError
from airflow_trident.io import connections
from airflow_trident.io.connections import Connection

if TYPE_CHECKING:
    import pyarrow.fs as pafs

_CODE = re.compile(r"<Code>([^<]*)</Code>(?:.*?<Message>([^<]*)</Message>)?", re.DOTALL)
_DETAILS = re.compile(r"<Details>([^<]*)</Details>")
_OF_ARROW = re.compile(r"AWS Error ([A-Z0-9_]+)")
"""How pyarrow names the code of S3: ``NO_SUCH_BUCKET``."""
_STATUS = re.compile(r"(?:status code|HTTP status)[:\s]*(\d{3})\b")
_REFUSED = (401, 403)
_PASSING = (404, 408, 409, 412, 425, 429)
"""Statuses below 500 that say nothing about the next try. A missing bucket has a code of its own."""
_NEVER = (501, 505)
_PASSING_CODES = frozenset(
    {"RequestTimeout", "BadDigest", "IncompleteBody", "XAmzContentSHA256Mismatch", "Md5Mismatch"}
)
"""Codes with status 400 that a retry may cure."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_BEHIND_THE_END = ("InvalidRange", "StartTooLarge")
"""What the services and obstore say."""
_LITTLE = 500


@dataclass(frozen=True, kw_only=True)
class Address:
    """The part of a URI before its path. `settings`: of obstore, no secrets."""

    bucket: str
    conn_id: str = ""
    account_host: str = ""
    settings: tuple[tuple[str, str], ...] = ()


class ObjectService(ABC):
    """One kind of service; without state."""

    schemes: tuple[str, ...]
    written: str
    """Form of an address, for errors."""
    conn_type: str
    verify: str
    """Extra of a connection that names certificates."""
    login: str
    """What login and password of a connection are, for errors."""
    extra: str
    environment: str
    """Variables that are read where no connection is named, for errors."""
    write_endpoint: str
    """Cure of an endpoint that is no URL."""
    missing_bucket: frozenset[str]
    """Error codes of a missing bucket; a missing object has another."""
    conditions: str
    """Cure of a store that takes a name twice."""
    deletes_at_once: int
    """Most names in one request, or in one call if each name is a request."""
    deletes_one_by_one: bool = False
    """Is each name a request, of which the first that fails, perhaps because there is no such object, ends the call?"""
    always_versions: bool = False
    """Has each object a version, even in a bucket that keeps only the newest?"""
    copies_later: bool
    """May it answer a copy before the object is there?"""
    lists_by_folder: bool = False
    """Does it list ``a/b`` before ``a-b``, because it has folders?"""
    not_in_names: str = ""
    """Characters that it takes for others."""
    no_credentials: tuple[tuple[str, ...], str, str]
    """Parts of the error text where there are none; what is missing then; the cure."""

    @abstractmethod
    def address(self, user: str, host: str) -> Address | None:
        """Of ``scheme://user@host``; None: it is no address of this service."""

    @abstractmethod
    def settings_of(self, connection: Connection) -> dict[str, str]:
        """The connection's credentials and endpoint, as settings of obstore.

        :raises ConfigurationError: it is of another type, or has settings that are not supported here.
        """

    @abstractmethod
    def client_of(self, connection: Connection) -> dict[str, str]:
        """The connection's time-outs (seconds), retries and certificates."""

    @abstractmethod
    def endpoint_of(self, settings: Mapping[str, str]) -> str:
        """Empty: the service's own."""

    def require_alone(self, settings: Mapping[str, str]) -> None:
        """
        :raises ConfigurationError: the environment has what the client would take instead of the connection's.
        """

    @abstractmethod
    def cure_of(self, code: str, rights: str, text: str = "") -> str:
        """The cure for an error; empty if a retry may help.

        :param rights: the permissions that the work needs.
        :param text: the whole error text.
        """

    def cure(self, text: str, rights: str) -> str:
        """The cure for an error, whichever client of the service raised it; empty if a retry may help. A code that is
        not known counts as its status.

        :param rights: the permissions that the work needs.
        :param text: the whole error text.
        """
        code, _ = code_and_message(text)
        known_cure = self.cure_of(code, rights, text)
        status_match = _STATUS.search(text)
        if known_cure or status_match is None or code in _PASSING_CODES:
            return known_cure
        status = int(status_match[1])
        if status in _REFUSED:
            return self.refused(rights)
        if status in _NEVER or (400 <= status < 500 and status not in _PASSING):
            return f"Check the endpoint and the bucket, and what this store does not support. {self.write_endpoint}"
        return ""

    @abstractmethod
    def refused(self, rights: str) -> str:
        """The cure of a missing permission."""

    @abstractmethod
    def store_class(self, module: Any) -> Any:
        """The class of `obstore.store`."""

    def arrow_files(self, settings: Mapping[str, str]) -> pafs.FileSystem | None:
        """The whole store by pyarrow's own client; None: obstore serves pyarrow, too."""
        return None

    def takes(self, uri: str, names: Sequence[str]) -> bool:
        """Can these be parts of its objects' names?"""
        odd = {"", ".", ".."}.intersection(names)
        return not (odd or _CONTROL.search(uri) or set(self.not_in_names).intersection(uri))

    def require_type(self, connection: Connection) -> None:
        if connection.conn_type not in (self.conn_type, ""):
            raise ConfigurationError(
                f"the connection {connection.conn_id!r} is of type {connection.conn_type!r}, and "
                f"{self.schemes[0]}:// needs one of type {self.conn_type!r}",
                f"Make a connection of type {self.conn_type}: {self.login}.",
            )


def is_behind_the_end(error: Exception) -> bool:
    """Was a range refused because it begins after the end of the content?"""
    return any(word in str(error) for word in _BEHIND_THE_END)


def code_and_message(text: str) -> tuple[str, str]:
    """Code and message of the service's answer, or the first line of the client's message."""
    code_match = _CODE.search(text)
    if code_match is None:
        of_arrow = _OF_ARROW.search(text)
        code = of_arrow[1].title().replace("_", "") if of_arrow else ""
        return code, text.split("\n", 1)[0][:_LITTLE]
    details = _DETAILS.search(text)
    lines = [part.strip().split("\n", 1)[0][:_LITTLE] for part in (code_match[2] or "", details[1] if details else "")]
    return code_match[1], " ".join(line for line in lines if line) or "it says no more"


def mapping(content: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A JSON object in the extras, also one written as text; empty if there is none."""
    extra = content.get(name)
    if isinstance(extra, str):
        extra = connections.parse_extra(extra)
    return extra if isinstance(extra, Mapping) else {}


def certificates(verify: Any) -> dict[str, str]:
    """Of an extra that is a truth value or a path."""
    if verify in (False, "false", "False"):
        return {"allow_invalid_certificates": "true"}
    return {"root_certificate": verify} if isinstance(verify, str) and verify not in ("", "true", "True") else {}
