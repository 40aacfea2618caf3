"""Files that are there whole or not at all, whatever happens to the process or the machine meanwhile."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` by way of a draft beside it; afterwards it is on the disk, not only in its cache.

    A reader sees the file as it was before or as it is after. Raises `OSError` where it cannot be written, as on a full
    disk; `path` is then as it was, and the draft is gone.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Put the new name on the disk too. Some file systems refuse, and have their own guarantees."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
