"""This package as one zip file, for executors and drivers without it, or with another version.

Its modules import Airflow, ZooKeeper and drivers only on demand, so an executor's Python needs only pyarrow.
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
