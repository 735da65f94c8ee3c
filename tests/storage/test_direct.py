import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage.arena import HUGE_PAGE_BYTES, Arena
from storage.direct import DirectFile, IoMode, IoPath
from storage.errors import DirectReadsRefused, DriveError, ShortRead
from storage.ids import SlotIndex
from storage.syscalls import PAGE_BYTES, SYSTEM, DioAlignment, Syscalls
from tests.fakes import FlakyDrive

SIZES = [0, 1, 511, 512, 513, 4095, 4096, 4097, 104_729]
"""Around the blocks, and a prime."""
ARENA_BYTES = 1 << 18
NUMBERS = {"as many as asked for": lambda n: n, "half": lambda n: n // 2, "one byte": lambda n: 1}


@pytest.fixture(scope="module")
def slot() -> Iterator[memoryview]:
    with Arena(1, ARENA_BYTES, align_bytes=16384) as arena:
        yield arena.slot(SlotIndex(0))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    folder = tmp_path_factory.mktemp("files")
    return {size: _write(folder / f"{size}.bin", size) for size in SIZES}


def _write(path: Path, size: int) -> Path:
    path.write_bytes(bytes((i * i + i // 251) % 256 for i in range(size)))
    return path


def _read(file: DirectFile, offset: int, length: int, slot: memoryview) -> bytes:
    file.read(offset, length, slot)
    head = offset % file.block_bytes
    return bytes(slot[head : head + length])


def _needs_direct(path: Path) -> None:
    with DirectFile.open(path) as file:
        if not file.io_path.direct:
            pytest.skip(f"the temporary folder has no direct reads: {file.io_path.reason}")


@settings(max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), io=st.sampled_from(["auto", "buffered"]), size=st.sampled_from(SIZES))
@pytest.mark.parametrize("longest", NUMBERS)
@pytest.mark.parametrize("block", [1, 4096, 16384])
def test_any_range_of_any_file_has_the_bytes_a_plain_read_gives(
    data: st.DataObject,
    io: IoMode,
    size: int,
    longest: str,
    block: int,
    files: dict[int, Path],
    slot: memoryview,
) -> None:
    offset = data.draw(st.integers(0, size))
    length = data.draw(st.integers(0, size - offset))
    if longest == "one byte":
        length = min(length, 3000)
    expected = files[size].read_bytes()[offset : offset + length]
    with DirectFile.open(files[size], io, system=FlakyDrive(longest=NUMBERS[longest], block_bytes=block)) as file:
        assert _read(file, offset, length, slot) == expected


def test_bytes_delivered_are_the_payload_and_less_than_two_blocks(files: dict[int, Path], slot: memoryview) -> None:
    drive = FlakyDrive()
    with DirectFile.open(files[104_729], system=drive) as file:
        _needs_direct(files[104_729])
        proof_bytes = drive.read_bytes
        for offset, length in ((0, 512), (1, 511), (511, 2), (5000, 60_000), (104_728, 1)):
            delivered: list[int] = []
            file.read(offset, length, slot, count=delivered.append)
            assert length <= sum(delivered) < length + 2 * file.block_bytes
        assert drive.read_bytes - proof_bytes == 512 + 512 + 1024 + 60_416 + (104_729 - 104_448)


@pytest.mark.parametrize(("drive_block", "proven"), [(1, 512), (512, 512), (4096, 4096), (16384, 16384)])
def test_the_smallest_block_that_a_read_accepts_is_used(drive_block: int, proven: int, files: dict[int, Path]) -> None:
    _needs_direct(files[104_729])
    with DirectFile.open(files[104_729], system=FlakyDrive(block_bytes=drive_block)) as file:
        assert file.io_path == IoPath(
            file=files[104_729],
            direct=True,
            block_bytes=proven,
            file_system=file.io_path.file_system,
            reason=f"proven by a read of {proven:,} bytes at {proven:,}",
        )


def test_what_the_kernel_says_of_alignment_is_not_undercut(files: dict[int, Path]) -> None:
    _needs_direct(files[104_729])

    class Picky(Syscalls):
        def dio_alignment(self, fd: int) -> DioAlignment:
            return DioAlignment(memory_bytes=4, offset_bytes=2048)

    with DirectFile.open(files[104_729], system=Picky()) as file:
        assert file.block_bytes == 2048


@pytest.mark.parametrize(
    ("drive", "reason"),
    [
        (FlakyDrive(refuse_direct=True), "opening for direct reads was refused (EINVAL)"),
        (FlakyDrive(block_bytes=32768), "no read of 512 to 16,384 bytes was accepted"),
        (FlakyDrive(kind="tmpfs"), "tmpfs keeps its files in the page cache"),
    ],
)
def test_where_direct_reads_are_refused_the_bytes_are_the_same_and_the_reason_is_said(
    drive: FlakyDrive, reason: str, files: dict[int, Path], slot: memoryview
) -> None:
    _needs_direct(files[104_729])
    path = files[104_729]
    with DirectFile.open(path, system=drive) as file:
        assert (file.io_path.direct, file.io_path.reason) == (False, reason)
        assert _read(file, 777, 50_000, slot) == path.read_bytes()[777:50_777]
    with pytest.raises(DirectReadsRefused, match=reason.replace("(", r"\(").replace(")", r"\)")) as caught:
        DirectFile.open(path, "direct", system=drive)
    assert "--io auto" in caught.value.hint


def test_a_refusal_in_the_middle_of_a_run_moves_the_file_to_buffered_reads_with_one_event(
    files: dict[int, Path], slot: memoryview
) -> None:
    _needs_direct(files[104_729])
    path, events = files[104_729], list[IoPath]()
    drive = FlakyDrive(fail_on=[12, 13, 14], error=errno.EINVAL)  # the first read is the proof
    with DirectFile.open(path, system=drive, on_fallback=events.append) as file:
        block = file.block_bytes
        for n in range(20):
            assert _read(file, 1000 * n + 3, 2500, slot) == path.read_bytes()[1000 * n + 3 :][:2500]
            assert file.io_path.direct == (n < 10)
            drive.fail_on = [12]
        assert events == [file.io_path]
        assert "a direct read at byte 9,728 was refused (EINVAL)" in events[0].reason
        assert file.block_bytes == block, "slots are laid out by it"


def test_a_refusal_inside_a_read_does_not_lose_what_came_before(files: dict[int, Path], slot: memoryview) -> None:
    _needs_direct(files[104_729])
    path = files[104_729]
    drive = FlakyDrive(fail_on=[3], error=errno.EINVAL, longest=lambda n: n // 2)
    with DirectFile.open(path, system=drive) as file:
        assert _read(file, 4000, 90_000, slot) == path.read_bytes()[4000:94_000]
        assert not file.io_path.direct


@pytest.mark.parametrize("io", ["auto", "buffered"])
def test_an_interrupted_read_is_repeated(io: IoMode, files: dict[int, Path], slot: memoryview) -> None:
    drive = FlakyDrive(fail_on=[1, 3], error=errno.EINTR)  # OSError(EINTR) is an InterruptedError
    with DirectFile.open(files[104_729], io, system=drive) as file:
        direct = file.io_path.direct
        assert _read(file, 100, 20_000, slot) == files[104_729].read_bytes()[100:20_100]
        assert file.io_path.direct == direct


@pytest.mark.parametrize("io", ["auto", "buffered"])
def test_a_drive_error_names_file_offset_and_errno(io: IoMode, files: dict[int, Path], slot: memoryview) -> None:
    drive = FlakyDrive()
    with DirectFile.open(files[104_729], io, system=drive) as file:
        drive.fail_on = [drive.n_reads + 1]
        with pytest.raises(DriveError) as caught:
            file.read(70_000, 1000, slot)
        block = file.block_bytes if file.io_path.direct else 1
        assert (caught.value.file, caught.value.offset) == (files[104_729], 70_000 // block * block)
        assert caught.value.errno == errno.EIO
        drive.fail_on = ()
        assert _read(file, 70_000, 1000, slot) == files[104_729].read_bytes()[70_000:71_000], "the next read is as good"


def test_a_drive_that_fails_at_the_first_read_is_not_taken_for_one_without_direct_reads(files: dict[int, Path]) -> None:
    _needs_direct(files[104_729])
    with pytest.raises(DriveError) as caught:
        DirectFile.open(files[104_729], system=FlakyDrive(fail_on=[1]))
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize("io", ["auto", "buffered"])
def test_a_file_cut_short_after_it_was_opened_is_an_error_and_not_zeros(
    io: IoMode, tmp_path: Path, slot: memoryview
) -> None:
    path = _write(tmp_path / "cut.bin", 20_000)
    with DirectFile.open(path, io) as file:
        os.truncate(path, 10_001)
        assert _read(file, 9_000, 1_001, slot) == path.read_bytes()[9_000:]
        for offset, length in ((9_000, 1_002), (10_001, 1), (15_000, 10)):
            with pytest.raises(ShortRead) as caught:
                file.read(offset, length, slot)
            assert caught.value.offset is not None and 10_001 <= caught.value.offset <= max(10_001, offset)


def test_a_missing_file_and_a_folder_are_errors_of_the_file(tmp_path: Path) -> None:
    for path in (tmp_path / "no.bin", tmp_path):
        with pytest.raises(DriveError):
            DirectFile.open(path)


def test_a_larger_block_than_the_files_own_moves_the_payload(files: dict[int, Path], slot: memoryview) -> None:
    with DirectFile.open(files[104_729]) as file:
        file.read(5000, 10_000, slot, 4096)
        assert bytes(slot[5000 - 4096 :][:10_000]) == files[104_729].read_bytes()[5000:15_000]


def test_closing_twice_is_harmless_and_gives_every_descriptor_back(files: dict[int, Path], slot: memoryview) -> None:
    before = _open_descriptors()
    drive = FlakyDrive(fail_on=[2], error=errno.EINVAL)
    file = DirectFile.open(files[4097], system=drive)
    file.read(0, 4097, slot)
    file.close()
    file.close()
    for refused in (FlakyDrive(refuse_direct=True), FlakyDrive(block_bytes=32768), FlakyDrive(fail_on=[1])):
        with pytest.raises((DirectReadsRefused, DriveError)):
            DirectFile.open(files[4097], "direct", system=refused)
    assert _open_descriptors() == before


@pytest.mark.directio
@pytest.mark.skipif(sys.platform != "linux", reason="asks mincore")
@pytest.mark.parametrize("io", ["auto", "buffered"])
def test_reading_leaves_nothing_in_the_page_cache(io: IoMode, tmp_path: Path) -> None:
    path = tmp_path / "big.bin"
    with path.open("wb") as out:
        out.write(os.urandom(8 << 20))
        os.fsync(out.fileno())
        os.posix_fadvise(out.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with DirectFile.open(path, io) as file, Arena(1, 2 * HUGE_PAGE_BYTES) as arena:
        if file.io_path.file_system == "tmpfs":
            pytest.skip("the temporary folder is page cache itself")
        before = _resident_pages(path)
        for offset in range(1000, 7 << 20, 1 << 20):
            file.read(offset, 1_000_001, arena.slot(SlotIndex(0)))
        assert before == 0
        assert _resident_pages(path) <= 1, "the page of the proof at most"


def _open_descriptors() -> int:
    return sum(1 for fd in range(256) if _is_open(fd))


def _is_open(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return False
    return True


def _resident_pages(path: Path) -> int:
    """Pages of a file that lie in the page cache: mincore(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    size = path.stat().st_size
    fd = os.open(path, os.O_RDONLY)
    try:
        address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, fd, ctypes.c_long(0))
        pages = (ctypes.c_ubyte * (-(-size // PAGE_BYTES)))()
        assert libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), pages) == 0
        libc.munmap(ctypes.c_void_p(address), ctypes.c_size_t(size))
        return sum(page & 1 for page in pages)
    finally:
        os.close(fd)


def test_the_real_calls_know_the_file_system_of_the_root() -> None:
    fd = os.open("/", os.O_RDONLY)
    try:
        assert SYSTEM.file_system(fd) != "" or sys.platform != "linux"
    finally:
        os.close(fd)


def test_on_macos_the_descriptor_is_told_not_to_cache_and_reads_are_whole_pages(
    files: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "fcntl", lambda fd, command, value: told.append((command, value)))
    with DirectFile.open(files[104_729]) as file:
        assert told == [(48, 1)]  # F_NOCACHE of <sys/fcntl.h>
        assert (file.io_path.direct, file.block_bytes) == (True, 4096)
