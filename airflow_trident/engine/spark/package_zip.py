"""This package as one zip file, for executors and drivers that do not have it, or have another version.

Its modules import nothing of Airflow, ZooKeeper or a driver before they need it, so pyarrow is all that an executor's
Python must have.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import zipfile
from functools import lru_cache
from pathlib import Path

from airflow_trident.version import VERSION


@lru_cache(maxsize=1)
def package_zip() -> str:
    """The path of a zip that Python imports the package from; it exists until this process ends.

    It holds code only, and Spark's own copies are for everybody who may run jobs there.
    """
    package = Path(__file__).absolute().parents[2]
    above = package.parent
    if above.is_file():  # in a driver on a cluster, which was sent a zip itself
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
