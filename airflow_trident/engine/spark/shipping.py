"""Sends users' code to workers that cannot import its modules.

Airflow loads DAG files under made-up module names, and adds the DAGs folder only to the path of its own processes. So
code from files outside the installed packages travels by value.

This package as one zip file, for executors and drivers without it, or with another version.

Its modules import Airflow, ZooKeeper and drivers only on demand, so an executor's Python needs only pyarrow.
"""

from __future__ import annotations

import atexit
import os
import shutil
import site
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from threading import RLock
from types import ModuleType

from airflow_trident.errors import ConfigurationError
from airflow_trident.version import VERSION

_WITH_WORKERS = frozenset({"airflow_trident", "pyspark", "py4j"})
"""Packages that all Python workers have. Spark without pip, and a driver in YARN, import them from zips outside
installations."""
_LOCK = RLock()


def ship(content: object, subject: str) -> bytes:
    """Pickle for a worker.

    :raises ConfigurationError: a part of it cannot be pickled; the error names `subject`.
    """
    from pyspark import cloudpickle

    with modules_by_value():
        try:
            return cloudpickle.dumps(content)  # type: ignore[no-any-return, no-untyped-call]
        except Exception as error:  # pickling an object may raise anything
            raise ConfigurationError(
                f"{subject} cannot be sent to Spark: {type(error).__name__}: {error}",
                "Open connections, locks and files in prepare(), not in __init__ or at module level.",
            ) from error


@contextmanager
def modules_by_value() -> Iterator[None]:
    """Inside, cloudpickle pickles modules by value that workers cannot import. The registry belongs to the process, so
    one thread pickles at a time."""
    from pyspark import cloudpickle

    with _LOCK:
        by_value = [module for module in unimportable_modules() if module.__name__ not in _registered()]
        for module in by_value:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            for module in by_value:
                cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]


def keep_modules_by_value() -> None:
    """Like :func:`modules_by_value`, but from now on: for a client that pickles at any time."""
    from pyspark import cloudpickle

    with _LOCK:
        for module in unimportable_modules():
            if module.__name__ not in _registered():
                cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def _registered() -> set[str]:
    from pyspark.cloudpickle import cloudpickle

    return set(cloudpickle.list_registry_pickle_by_value())  # type: ignore[no-untyped-call]


def unimportable_modules() -> list[ModuleType]:
    """The loaded modules from files outside every installation, except those that every worker has.

    Code of `__main__` always travels by value; modules without a file are built in, or made at run time.
    """
    installed = _installed_folders()
    modules = []
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if not isinstance(module, ModuleType) or not isinstance(path, str) or name == "__main__":
            continue
        if name != module.__name__ or name.partition(".")[0] in _WITH_WORKERS:
            continue
        if not path.startswith(installed):
            modules.append(module)
    return modules


def _installed_folders() -> tuple[str, ...]:
    """Standard library, site-packages of this environment and of the user; each ends in a separator."""
    paths = sysconfig.get_paths()
    folders = {paths["stdlib"], paths["platstdlib"], paths["purelib"], paths["platlib"], *site.getsitepackages()}
    folders.add(site.getusersitepackages())
    return tuple(os.path.join(folder, "") for folder in folders)


@lru_cache(maxsize=1)
def package_zip() -> str:
    """The path of a zip that Python can import the package from; it exists until this process ends.

    It holds code only: everybody who may run jobs there can read Spark's copies.
    """
    package = Path(__file__).absolute().parents[2]
    above = package.parent
    if above.is_file():  # in a driver on a cluster, which itself runs from a zip
        return str(above)
    folder = tempfile.mkdtemp(prefix="airflow-trident-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = os.path.join(folder, f"{package.name}-{VERSION}.zip")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for place, folders, names in os.walk(package):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(names):
                file = os.path.join(place, name)
                archive.write(file, os.path.relpath(file, above))
    return path
