"""A disk that loses power. It records what writers do to files; a copy of what survives lacks all that was never
synced.

It promises what POSIX promises, and no more: the content of a file survives once the file was synced; the entries of a
folder (names that were added, renamed, linked or removed) survive once that folder was synced. An entry survives
without the content that it points to, and a content without any name is lost. What was there before the recording is on
the disk.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class Disk:
    """Records what happens below `root`. `survivors` makes a copy of what a power cut at this moment leaves."""

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._synced_content: dict[int, bytes] = {}
        """inode -> content"""
        self._entries: dict[int, dict[str, tuple[int, bool]]] = {}
        """inode of a folder -> name -> (inode, is it a folder?), as synced"""
        self._remember_all()

    @contextmanager
    def recording(self) -> Iterator[None]:
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if path.startswith(self.root):
                self._sync(path)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", synced)
            yield

    def _sync(self, path: str) -> None:
        inode = os.stat(path).st_ino
        if os.path.isdir(path):
            self._entries[inode] = {
                entry.name: (entry.inode(), entry.is_dir(follow_symlinks=False)) for entry in os.scandir(path)
            }
        else:
            self._synced_content[inode] = Path(path).read_bytes()

    def _remember_all(self) -> None:
        for folder, _, names in os.walk(self.root):
            self._sync(folder)
            for name in names:
                self._sync(os.path.join(folder, name))

    def survivors(self, target: Path) -> Path:
        shutil.rmtree(target, ignore_errors=True)
        self._restore(os.stat(self.root).st_ino, target)
        return target

    def _restore(self, inode: int, target: Path) -> None:
        target.mkdir()
        for name, (child, is_folder) in self._entries.get(inode, {}).items():
            if is_folder:
                self._restore(child, target / name)
            else:
                (target / name).write_bytes(self._synced_content.get(child, b""))
