"""The cold read rate of a place that holds no copy yet, by a file that is written there, read, and taken away again."""

import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from storage.arena import Arena
from storage.batch import DEFAULT_DEPTH
from storage.direct import DirectFile
from storage.errors import WriteError
from storage.ids import SlotIndex

FILE_BYTES = 512 << 20
PIECE_BYTES = 8 << 20
"""What one read takes: about half of an expert of the release, as it is read."""
LIMIT_S = 2.0
_NAME = ".artesian-rate-test"


def measure_place(
    folder: Path,
    *,
    file_bytes: int = FILE_BYTES,
    limit_s: float = LIMIT_S,
    depth: int = DEFAULT_DEPTH,
    should_stop: Callable[[], bool] = lambda: False,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Bytes per second of random reads of `PIECE_BYTES` at `depth` in `folder`, past the page cache where possible.

    Writes a file of `file_bytes` first, which is removed however this ends. On a drive with a cache of its own the rate
    can be flattering: the file is younger than any model. Raises: WriteError, DriveError.
    """
    path = folder / f"{_NAME}-{os.getpid()}"
    try:
        _write(path, file_bytes, should_stop)
        return _read(path, file_bytes, limit_s, depth, should_stop, clock)
    except OSError as error:
        raise WriteError.of(error, path, "write") from error
    finally:
        path.unlink(missing_ok=True)


def _write(path: Path, file_bytes: int, should_stop: Callable[[], bool]) -> None:
    block = random.Random(0).randbytes(PIECE_BYTES)  # drives that compress would be flattered by zeros
    with path.open("xb", buffering=0) as file:
        for _ in range(0, file_bytes, PIECE_BYTES):
            if should_stop():
                return
            file.write(block)
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(
    path: Path, file_bytes: int, limit_s: float, depth: int, should_stop: Callable[[], bool], clock: Callable[[], float]
) -> float:
    offsets = list(range(0, file_bytes - PIECE_BYTES + 1, PIECE_BYTES))
    random.Random(1).shuffle(offsets)
    coming = itertools.cycle(offsets)
    lock = threading.Lock()
    start = clock()

    with DirectFile.open(path) as file, Arena(depth, PIECE_BYTES) as arena:

        def lane(index: int) -> int:
            n_bytes = 0
            while clock() - start < limit_s and not should_stop():
                with lock:
                    offset = next(coming)
                file.forget(offset, PIECE_BYTES)
                file.read(offset, PIECE_BYTES, arena.slot(SlotIndex(index)))
                n_bytes += PIECE_BYTES
            return n_bytes

        with ThreadPoolExecutor(max_workers=depth) as pool:
            n_bytes = sum(pool.map(lane, range(depth)))
    elapsed_s = clock() - start
    return n_bytes / elapsed_s if elapsed_s > 0 else 0.0
