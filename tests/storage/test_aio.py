import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.aio import AioRead, KernelAio, new_aio
from storage.arena import Arena
from storage.direct import DirectFile
from storage.ids import SlotIndex
from storage.syscalls import SYSTEM, Syscalls, address_of

BLOCK = 4096
N_BLOCKS = 64


@pytest.fixture
def aio() -> Iterator[KernelAio[str]]:
    context: KernelAio[str] | None = new_aio(8)
    if context is None:
        pytest.skip("this system gives no kernel AIO")
    yield context
    context.close()


@pytest.fixture
def file(tmp_path: Path) -> Iterator[DirectFile]:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(N_BLOCKS * BLOCK - 100))
    with DirectFile.open(path) as opened:
        if opened.direct_fd is None:
            pytest.skip(f"the temporary folder has no direct reads: {opened.io_path.reason}")
        yield opened


@pytest.fixture
def memory() -> Iterator[memoryview]:
    with Arena(1, N_BLOCKS * BLOCK) as arena:
        yield arena.slot(SlotIndex(0))


def _read(file: DirectFile, memory: memoryview, block: int, n_blocks: int = 1) -> AioRead:
    assert file.direct_fd is not None
    return AioRead(file.direct_fd, address_of(memory) + block * BLOCK, n_blocks * BLOCK, block * BLOCK)


def _all(aio: KernelAio[str], n_reads: int) -> dict[str, int]:
    ended: dict[str, int] = {}
    while len(ended) < n_reads:
        ended.update(aio.wait(1))
    return ended


@pytest.mark.directio
def test_reads_bring_the_bytes_of_the_file_under_their_keys_however_often_the_context_is_used(
    aio: KernelAio[str], file: DirectFile, memory: memoryview
) -> None:
    for first in range(0, N_BLOCKS - 8, 8):
        reads = [(f"block {i}", _read(file, memory, i)) for i in range(first, first + 8)]
        assert aio.submit(reads) == 8
        assert _all(aio, 8) == {f"block {i}": BLOCK for i in range(first, first + 8)}
    data = file.path.read_bytes()[: (N_BLOCKS - 8) * BLOCK]
    assert memory[: len(data)] == data


@pytest.mark.directio
def test_no_more_are_begun_than_there_is_room_for(aio: KernelAio[str], file: DirectFile, memory: memoryview) -> None:
    reads = [(str(i), _read(file, memory, i)) for i in range(12)]
    assert aio.submit(reads) == 8
    assert aio.submit(reads[8:]) == 0
    assert set(_all(aio, 8)) == {str(i) for i in range(8)}
    assert aio.submit(reads[8:]) == 4
    assert len(aio.wait(4)) == 4


@pytest.mark.directio
def test_the_end_of_the_file_is_a_short_count_and_past_it_is_nothing(
    aio: KernelAio[str], file: DirectFile, memory: memoryview
) -> None:
    beyond = _read(file, memory, 0)._replace(offset=2 * N_BLOCKS * BLOCK)
    assert aio.submit([("tail", _read(file, memory, N_BLOCKS - 2, 2)), ("past", beyond)]) == 2
    assert _all(aio, 2) == {"tail": 2 * BLOCK - 100, "past": 0}


@pytest.mark.directio
def test_what_the_kernel_refuses_is_not_begun_or_ends_with_its_errno(
    aio: KernelAio[str], file: DirectFile, memory: memoryview
) -> None:
    good, closed = _read(file, memory, 0), _read(file, memory, 1)._replace(fd=9999)
    assert aio.submit([("good", good), ("no such file", closed), ("behind it", good)]) == 1
    assert _all(aio, 1) == {"good": BLOCK}
    if aio.submit([("misaligned", good._replace(offset=1))]):  # some kernels refuse at once, some in the result
        assert _all(aio, 1) == {"misaligned": -errno.EINVAL}
    assert aio.submit([("good", good)]) == 1
    assert _all(aio, 1) == {"good": BLOCK}


def test_only_the_real_calls_have_it() -> None:
    # A fake drive that replaces `pread` must see every read.
    class Fake(Syscalls):
        pass

    assert Fake().new_aio(8) is None
    assert (SYSTEM.new_aio(8) is None) == (new_aio(8) is None)
