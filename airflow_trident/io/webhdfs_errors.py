"""What the errors of HDFS's REST interface mean, and the cure of each."""

from __future__ import annotations

import errno
import json
import os

from airflow_trident.errors import ConfigurationError, StoreUnavailableError, TridentError

_LITTLE = 300
IN_CLEAR = "RedirectWithoutTls"
"""Ours, for a server with TLS that sends to one without: content and token would go there for everybody to read."""
_PASSING = frozenset({"StandbyException", "RetriableException", "ObserverRetryOnActiveException"})
_STANDBY = "StandbyException"
_MISSING = "FileNotFoundException"
_NO_FOLDER = frozenset({"ParentNotDirectoryException", "AccessControlException"})
"""What is said of a path below a file."""
_RUN = "run the task again"
_NEVER = {
    "AccessControlException": "Give the user of the connection (its login) the right to read and write there, or make "
    "the folder for it.",
    "AuthorizationException": "Let the cluster allow this user to act for the other one (hadoop.proxyuser.* in "
    "core-site.xml), or leave the extra proxy_user out.",
    "InvalidToken": "Fetch a delegation token that is valid now (hdfs fetchdt) into the extra delegation_token.",
    "ParentNotDirectoryException": "Name a folder: a file has a name on the way to it.",
    "FileAlreadyExistsException": "Name a folder: a file has this name.",
    "PathComponentTooLongException": "Give it a shorter name (dfs.namenode.fs-limits.max-component-length).",
    "MaxDirectoryItemsExceededException": "Name another folder (dfs.namenode.fs-limits.max-directory-items).",
    "InvalidPathException": "Write a path that HDFS allows.",
    "UnsupportedOperationException": "Use HDFS 3, or an HttpFS of it.",
    IN_CLEAR: "Give the data nodes TLS (dfs.http.policy), or name an HttpFS with TLS, which sends nowhere.",
}
"""Exception of the name node -> cure, where no retry helps."""
_LATER = {
    _STANDBY: "See which name node is active (hdfs haadmin -getAllServiceState), name all of them in the connection's "
    f"host, with commas, and {_RUN}.",
    "SafeModeException": "Let the name node leave safe mode (hdfs dfsadmin -safemode get says why it does not), and "
    f"{_RUN}.",
    "NSQuotaExceededException": f"Raise the quota of names (hdfs dfsadmin -setQuota) or delete files, and {_RUN}.",
    "DSQuotaExceededException": f"Raise the quota of space (hdfs dfsadmin -setSpaceQuota) or delete files, and {_RUN}.",
    "QuotaByStorageTypeExceededException": "Raise the quota of the storage type (hdfs dfsadmin -setSpaceQuota) or "
    f"delete files, and {_RUN}.",
}
"""Exception -> cure, where a retry may help."""
_SPEAKS = (
    "See host and port: those of a name node's HTTP (9870, or 9871 with TLS) with dfs.webhdfs.enabled, or of an HttpFS "
    "(14000)."
)


class RemoteException(Exception):
    """The server's answer to a request that failed."""

    def __init__(self, status: int, exception: str, message: str) -> None:
        super().__init__(status, exception, message)
        self.status, self.exception, self.message = status, exception, message

    @property
    def is_passing(self) -> bool:
        """May the same request succeed in a moment, or at another name node?"""
        return self.exception in _PASSING or (not self.exception and self.status in (408, 429, 500, 502, 503, 504))

    def or_missing(self) -> Exception:
        below_a_file = self.exception in _NO_FOLDER and "is not a directory" in self.message
        if self.exception == _MISSING or below_a_file:
            return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.message)
        return self

    @property
    def is_behind_the_end(self) -> bool:
        return "out of the range" in self.message


class Unreachable(Exception):
    """No answer, or half of one. `redirected`: it is a data node that the name node named."""

    is_passing = True

    def __init__(self, server: str, redirected: bool, cause: Exception) -> None:
        super().__init__(server, redirected, cause)
        self.server, self.redirected, self.cause = server, redirected, cause


def exception_and_message(content: bytes) -> tuple[str, str]:
    """Exception and message of an answer; no exception: it is not of HDFS."""
    try:
        reply = json.loads(content)["RemoteException"]
        return str(reply["exception"]).rpartition("$")[2], str(reply["message"]).split("\n", 1)[0][:_LITTLE]
    except (ValueError, KeyError, TypeError):
        return "", " ".join(content[:_LITTLE].decode(errors="replace").split())


def translated(error: RemoteException | Unreachable, doing: str, location: str) -> TridentError:
    """:param doing: "read 'a/b'"."""
    if isinstance(error, Unreachable):
        return _no_answer(error, doing, location)
    why = f"{error.exception or f'HTTP {error.status}'}: {error.message or 'it says no more'}"
    message = f"cannot {doing} in {location!r} ({why})"
    if error.status == 401:
        return ConfigurationError(
            message,
            "Give the connection login and password of a gateway, or a delegation token (extra delegation_token, from "
            "hdfs fetchdt): tickets of Kerberos are not used here.",
        )
    cure = _LATER.get(error.exception)
    if cure is None and error.exception in _NEVER:
        return ConfigurationError(message, _NEVER[error.exception])
    if cure is None and not error.exception and not error.is_passing:
        return ConfigurationError(f"{message}: no WebHDFS answers there", _SPEAKS)
    return StoreUnavailableError(message, cure or f"See that HDFS is healthy (hdfs dfsadmin -report), and {_RUN}.")


def _no_answer(error: Unreachable, doing: str, location: str) -> TridentError:
    why = getattr(error.cause, "strerror", None) or str(error.cause) or type(error.cause).__name__
    if error.redirected:
        return StoreUnavailableError(
            f"cannot {doing} in {location!r}: the data node {error.server!r}, to which the name node sends, does not "
            f"answer ({why})",
            f"Let this machine resolve and reach the data nodes, or name an HttpFS in the connection, and {_RUN}.",
        )
    return StoreUnavailableError(
        f"cannot {doing} in {location!r}: {error.server!r} does not answer ({why})",
        f"See host and port of the connection and that the name node runs, and {_RUN}.",
    )
