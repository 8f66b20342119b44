"""What SQLite passes over in silence in the log (``-wal``) beside a file.

It reads a log up to the first frame whose checksum is wrong, and takes the rest for a write that
was cut off; the next commit overwrites that. It is right after a kill: nothing is behind such a
write. Where a later commit follows, the frame was written whole once, and has been damaged since,
or the machine lost power while commits were on their way to the disk. The format is at
https://www.sqlite.org/fileformat2.html#walformat.
"""

import os
import struct
from collections.abc import Iterator
from typing import BinaryIO, Final

from bunqueue.errors import StorageFailed
from bunqueue.storage import cures

_HEADER: Final = struct.Struct(">8I")  # magic, version, page size, number, salts, checksum
_FRAME: Final = struct.Struct(">6I")  # page, pages of the file after a commit, salts, checksum
_MAGIC: Final = (0x377F0682, 0x377F0683)  # checksums of little-endian words, of big-endian ones
_VERSION: Final = 3007000
_PAGE_BYTES_MIN: Final = 512
_WORD: Final = 0xFFFFFFFF

Sums = tuple[int, int]


def has_log(path: str) -> bool:
    """Say whether a process that did not end well has left a log; an empty one is nobody's."""
    return _size(path + "-wal") > 0


def check_log(path: str) -> None:
    """Refuse a log that SQLite would delete or not read at all, with all that only it holds.

    Raises:
        StorageFailed: It lies beside no file or an empty one, or its head is damaged.
    """
    if not has_log(path):
        return
    if not _size(path):
        what = "empty" if os.path.exists(path) else "missing"
        raise StorageFailed(
            f"{path} is {what}, but its log {path}-wal is not; both were left as they are: bring"
            " back the file or a backup, or move the log away to begin with an empty one"
        )
    with open(f"{path}-wal", "rb") as file:
        head = file.read(_HEADER.size)
    # Synced before the first frame is written.
    has_frames = _size(f"{path}-wal") >= _HEADER.size + _FRAME.size + _PAGE_BYTES_MIN
    if has_frames and not _is_head(head):
        raise StorageFailed(
            f"the log {path}-wal is damaged: its head cannot be read; it and its file were left as"
            " they are: restore both from a backup, or move the log away to go on without what"
            " only it holds, the newest changes"
        )


def unread_bytes(path: str, frames_read: int) -> int:
    """Return how much of a log cannot be read although commits were written behind it.

    Args:
        path: The data file; nobody writes to it.
        frames_read: What SQLite has read of the log.
    """
    if not has_log(path):
        return 0
    with open(f"{path}-wal", "rb") as file:
        head = file.read(_HEADER.size)
        if not _is_head(head):
            return 0
        is_big = bool(head[3] & 1)
        page_bytes = _page_bytes(head)
        place = _HEADER.size + frames_read * (_FRAME.size + page_bytes)
        salts, before = head[16:24], b""
        for frame in _frames(file, place, page_bytes):
            if frame[8:16] != salts:
                before = b""
                continue
            # A commit that another was appended to: one that failed would have been overwritten.
            if before[4:8].strip(b"\0") and _follows(file, before, frame, page_bytes, is_big):
                return _size(f"{path}-wal") - place
            before = frame
    return 0


def keep_copy(path: str) -> str:
    """Copy the log aside, over an older copy; returns where to.

    Raises:
        StorageFailed: There is no room, say.
    """
    copy = f"{path}-wal.unread"
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
    try:
        with open(f"{path}-wal", "rb") as source, open(os.open(copy, flags, 0o600), "wb") as target:
            while piece := source.read(1 << 20):
                target.write(piece)
            target.flush()
            os.fsync(target.fileno())
    except OSError as error:
        text = f"cannot copy the damaged log to {copy}: {cures.of_system(error)}"
        raise StorageFailed(text) from error
    return copy


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except FileNotFoundError:
        return 0


def _is_head(head: bytes) -> bool:
    if len(head) < _HEADER.size:
        return False
    magic, version, *_ = _HEADER.unpack(head)
    if magic not in _MAGIC or version != _VERSION:
        return False
    return _sums((0, 0), head[:24], bool(magic & 1)) == struct.unpack(">2I", head[24:])


def _page_bytes(head: bytes) -> int:
    page_bytes: int = _HEADER.unpack(head)[2]
    return 65_536 if page_bytes == 1 else page_bytes


def _frames(file: BinaryIO, place: int, page_bytes: int) -> Iterator[bytes]:
    """Yield the heads of the frames; the file then stands behind each."""
    while True:
        file.seek(place)
        head = file.read(_FRAME.size)
        if len(head) < _FRAME.size:
            return
        yield head
        place += _FRAME.size + page_bytes


def _follows(file: BinaryIO, before: bytes, frame: bytes, page_bytes: int, is_big: bool) -> bool:
    """Say whether a frame was written behind the other: its checksum goes on from there."""
    page = file.read(page_bytes)
    if len(page) < page_bytes:
        return False
    first, second = struct.unpack(">2I", before[16:])
    return _sums((first, second), frame[:8] + page, is_big) == struct.unpack(">2I", frame[16:])


def _sums(sums: Sums, content: bytes, is_big: bool) -> Sums:
    words = struct.unpack(f"{'>' if is_big else '<'}{len(content) // 4}I", content)
    first, second = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & _WORD
        second = (second + odd + first) & _WORD
    return first, second
