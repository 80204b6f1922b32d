"""A login in a file that only its user may read: users of the embedded server need no password of their own."""

from __future__ import annotations

import json
import os
import secrets
import stat
from pathlib import Path

from airflow_trident.errors import ConfigurationError
from airflow_trident.ledger.zookeeper.settings import DigestAuth

_USER = "trident"


def make_login(path: Path) -> None:
    """Writes a new user and password. An existing file stays, because the ledger was made for its user.

    :raises OSError: it cannot be written.
    """
    if path.exists():
        return
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    content = json.dumps({"user": _USER, "password": secrets.token_urlsafe(24)})
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with open(descriptor, "w", encoding="utf-8") as file:
        file.write(content)
    try:
        os.link(draft, path)
    except FileExistsError:
        pass  # somebody else was faster, and may have given it out
    finally:
        draft.unlink()


def read_login(path: str, what: str) -> DigestAuth:
    """
    :param path: may begin with ``~``.
    :param what: what the login is for, in errors: "connection 'zookeeper_default'".
    :raises ConfigurationError: it cannot be read, is no login, or others may read it.
    """
    where = os.path.abspath(os.path.expanduser(path))
    cure = "It is made by `airflow trident zookeeper start` for its user. Or give login and password."
    try:
        with open(where, encoding="utf-8") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            found = json.load(file)
    except OSError as error:
        raise ConfigurationError(f"{what}: the login file {where} cannot be read ({error.strerror})", cure) from error
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"{what}: the login file {where} is no JSON ({error})", cure) from error
    if mode & 0o077:
        raise ConfigurationError(
            f"{what}: others may read the login file {where} (mode {mode:o})", f"`chmod 600 {where}`."
        )
    user, password = (found.get("user"), found.get("password")) if isinstance(found, dict) else (None, None)
    if not (isinstance(user, str) and user and isinstance(password, str) and password):
        raise ConfigurationError(f"{what}: the login file {where} has no user and password", cure)
    return DigestAuth(user=user, password=password)
