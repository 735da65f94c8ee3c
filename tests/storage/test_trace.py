"""Traces: what is written is read back, and no file that a run did not write is believed."""

import errno
import os
import struct
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import TraceError
from storage.trace import Request, TraceReader, TraceWriter

N_EXPERTS = {0: 16, 1: 384, 43: 8}
HEADER = struct.pack("<8sHH", b"ARTTRACE", 1, 1) + struct.pack("<HH", 0, 16)


def record(step: int, phase: int, layer: int, experts: list[int], count: int | None = None) -> bytes:
    n = len(experts) if count is None else count
    return struct.pack("<IBHH", step, phase, layer, n) + struct.pack(f"<{len(experts)}H", *experts)


def test_requests_are_read_back_as_they_were_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with TraceWriter(path, N_EXPERTS) as trace:
        trace.next_step()
        trace.record(0, range(16), "prefill")
        trace.record(1, [383, 0, 5], "prefill")
        trace.next_step()
        trace.record(43, [7], "decode")
    reader = TraceReader(path)
    assert reader.n_experts == N_EXPERTS
    expected = [
        Request(step=1, phase="prefill", layer=0, experts=tuple(range(16))),
        Request(step=1, phase="prefill", layer=1, experts=(383, 0, 5)),
        Request(step=2, phase="decode", layer=43, experts=(7,)),
    ]
    assert list(reader) == expected
    assert list(reader) == expected  # any number of times


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with TraceWriter(path, {0: 16}) as trace:
        trace.next_step()
        trace.record(0, [3, 1], "decode")
    assert path.read_bytes() == HEADER + record(1, 0, 0, [3, 1])


def test_a_token_of_the_released_model_takes_under_a_kilobyte(tmp_path: Path) -> None:
    path = tmp_path / "t"
    with TraceWriter(path, dict.fromkeys(range(43), 384)) as trace:
        empty = 12 + 43 * 4
        trace.next_step()
        for layer in range(43):
            trace.record(layer, [1, 2, 3, 4, 5, 6], "decode")
    assert path.stat().st_size - empty == 43 * 21 < 1000


def test_a_recording_is_written_in_whole_steps(tmp_path: Path) -> None:
    path = tmp_path / "t"
    trace = TraceWriter(path, N_EXPERTS)
    for _ in range(2000):
        trace.next_step()
        trace.record(1, range(40), "decode")
        trace.record(0, range(10), "decode")
    written = list(TraceReader(path))  # as an ended process would have left it
    assert len(written) > 1000
    assert [request.layer for request in written[-2:]] == [1, 0]
    trace.close()
    assert len(list(TraceReader(path))) == 4000


def test_a_recording_stops_at_its_limit_and_says_so_once(tmp_path: Path) -> None:
    notices: list[str] = []
    path = tmp_path / "t"
    with TraceWriter(path, N_EXPERTS, limit_bytes=200_000, on_notice=notices.append) as trace:
        for _ in range(10_000):
            trace.next_step()
            trace.record(1, range(40), "decode")
    assert len(notices) == 1 and "limit" in notices[0]
    assert 100_000 < path.stat().st_size <= 200_000
    assert len(list(TraceReader(path))) > 1000


def test_a_full_disk_ends_the_recording_and_not_the_run() -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    notices: list[str] = []
    with TraceWriter(full, N_EXPERTS, on_notice=notices.append) as trace:
        for _ in range(10_000):
            trace.next_step()
            trace.record(1, range(40), "decode")
    assert len(notices) == 1 and os.strerror(errno.ENOSPC) in notices[0]


@pytest.mark.parametrize("n_experts", [{}, {0: 0}, {0: 70_000}, {70_000: 1}, {-1: 4}])
def test_what_the_format_cannot_hold_is_refused(tmp_path: Path, n_experts: dict[int, int]) -> None:
    with pytest.raises(TraceError):
        TraceWriter(tmp_path / "t", n_experts)


def test_a_file_that_cannot_be_made_or_read_is_a_typed_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be written"):
        TraceWriter(tmp_path / "none" / "t", N_EXPERTS)
    with pytest.raises(TraceError, match="not a file"):
        TraceReader(tmp_path / "none")
    with pytest.raises(TraceError, match="not a file"):
        TraceReader(tmp_path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "ends inside"),
        (b"ARTTRA", "ends inside"),
        (b"x" * 100, "does not begin like a trace"),
        (struct.pack("<8sHH", b"ARTTRACE", 2, 1), "version 2"),
        (struct.pack("<8sHH", b"ARTTRACE", 1, 0), "no layers"),
        (struct.pack("<8sHH", b"ARTTRACE", 1, 65535), "ends inside"),
        (struct.pack("<8sHHHHHH", b"ARTTRACE", 1, 2, 3, 4, 3, 4), "layer 3 is listed twice"),
        (struct.pack("<8sHHHH", b"ARTTRACE", 1, 1, 3, 0), "has no expert"),
    ],
)
def test_a_bad_header_is_refused_on_opening(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "t"
    path.write_bytes(data)
    with pytest.raises(TraceError, match=why):
        TraceReader(path)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"\0" * 5, "ends inside"),
        (record(0, 0, 0, [1], count=2), "ends inside"),
        (record(0, 0, 0, [1])[:-1], "ends inside"),
        (record(0, 2, 0, [1]), "phase 2"),
        (record(0, 0, 1, [1]), "layer 1 is not in the header"),
        (record(0, 0, 0, [16]), "expert 16 of a layer that has 16"),
        (record(0, 0, 0, []), "0 experts"),
        (record(0, 0, 0, [1], count=65535), "65535 experts of a layer that has 16"),
        (record(0, 0, 0, [4, 4]), "the same expert twice"),
    ],
)
def test_a_bad_record_is_refused_by_its_offset_after_the_good_ones(tmp_path: Path, data: bytes, why: str) -> None:
    path = tmp_path / "t"
    good = record(0, 1, 0, [5, 2])
    path.write_bytes(HEADER + good + data)
    got = []
    with pytest.raises(TraceError, match=why) as caught:
        for request in TraceReader(path):
            got.append(request.experts)
    assert got == [(5, 2)]
    assert f"byte {len(HEADER) + len(good):,}" in str(caught.value)


def test_steps_never_fall(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_bytes(HEADER + record(7, 0, 0, [1]) + record(6, 0, 0, [1]))
    with pytest.raises(TraceError, match="step 6 comes after step 7"):
        list(TraceReader(path))


@given(data=st.binary(max_size=200), whole=st.booleans())
@settings(max_examples=300, deadline=None)
def test_random_bytes_are_a_trace_or_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, whole: bool
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "t"
    path.write_bytes(data if whole else HEADER + data)
    try:
        for request in TraceReader(path):
            assert max(request.experts) < 16
    except TraceError:
        return
