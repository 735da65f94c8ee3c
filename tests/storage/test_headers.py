"""Each way a header can lie, refused by its own class with shard, tensor and the two numbers; and what is read."""

import os
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import safetensors

from storage import errors
from storage.headers import (
    DTYPE_BITS,
    MAX_FAULTS,
    MAX_HEADER_BYTES,
    MAX_TENSORS,
    is_plausible_header,
    parse_header,
    read_header,
    scan_header,
)
from tests.storage.shards import entry, raw_header, shard_bytes

FIXTURE = Path(__file__).parent.parent / "data" / "tiny-a" / "checkpoint"
SHARDS = sorted(FIXTURE.glob("*.safetensors"))
GOOD = {"a": ("F32", [2, 3]), "b": ("BF16", [5]), "c": ("U8", [0, 4]), "d": ("F8_E8M0", [])}
A, B = entry("F32", [2], 0, 8), entry("U8", [4], 8, 12)


def test_the_fixture_reads_as_the_safetensors_library_reads_it() -> None:
    for path in SHARDS:
        data = path.read_bytes()
        theirs = {
            name: (str(info["dtype"]), tuple(info["shape"]), bytes(info["data"])) for name, info in _library(data)
        }
        header = read_header(path, path.name)
        ours = {name: (e.dtype, e.shape, data[e.extent.offset : e.extent.end]) for name, e in header.tensors.items()}
        assert ours == theirs
        assert header.expected_bytes == header.file_bytes == len(data)


def _library(data: bytes) -> list[tuple[str, dict[str, Any]]]:
    return safetensors.deserialize(data)


def test_every_dtype_of_the_library_is_known_with_its_size() -> None:
    # The library writes any dtype it knows; F4 and F6 pack, so eight elements are 4 and 6 bytes.
    for dtype, bits in DTYPE_BITS.items():
        data = raw_header({"t": entry(dtype, [8], 0, bits)}) + bytes(bits)
        assert parse_header(data, len(data), "s").faults == ()
        [(name, info)] = _library(data)
        assert name == "t" and len(info["data"]) == bits, dtype


def test_metadata_empty_tensors_and_scalars_are_read() -> None:
    data = shard_bytes(GOOD, metadata={"format": "pt"})
    scan = parse_header(data, len(data), "s")
    assert scan.faults == () and scan.header is not None
    assert scan.header.metadata == {"format": "pt"}
    assert [e.extent.length for e in scan.header.tensors.values()] == [24, 10, 0, 1]
    assert scan.header.data_bytes == 35


def test_many_metadata_keys_beside_one_tensor_are_no_fault() -> None:
    data = shard_bytes({"a": ("U8", [1])}, metadata={f"key{i}": "value, with, commas" for i in range(900)})
    assert parse_header(data, len(data), "s").faults == ()


FAULTS: dict[str, tuple[Any, type[errors.StorageError], str | None, object, object]] = {
    # name: header, class, tensor, found, expected
    "not utf-8": (b'{"a\xff":1}', errors.HeaderNotText, None, 3, None),
    "not json": (b'{"a": oops}', errors.HeaderNotJson, None, 6, None),
    "cut json": (b'{"a": {"dtype"', errors.HeaderNotJson, None, 14, None),
    "a list": (b"[]", errors.HeaderNotJson, None, None, None),
    "nothing": (b"", errors.HeaderNotJson, None, None, None),
    "two objects": (b"{}{}", errors.HeaderNotJson, None, 2, None),
    "deep lists": (b'{"a":' + b"[" * 9000, errors.HeaderNotJson, None, None, None),
    "deep objects": (b'{"a":' * 90_000, errors.HeaderNotJson, None, None, None),
    "NaN": (b'{"a": NaN}', errors.HeaderNotJson, None, "NaN", None),
    "endless number": (b'{"a": ' + b"9" * 5000 + b"}", errors.HeaderNotJson, None, 5000, 20),
    "a key twice": (b'{"x": {}, "x": {}}', errors.DuplicateKey, "x", "x", None),
    "a field twice": (
        b'{"x": {"dtype": "U8", "dtype": "I8", "shape": [1], "data_offsets": [0, 1]}}',
        errors.DuplicateKey,
        "dtype",
        "dtype",
        None,
    ),
    "metadata a list": ({"__metadata__": []}, errors.BadMetadata, None, None, None),
    "metadata of numbers": ({"__metadata__": {"a": 1}}, errors.BadMetadata, None, None, None),
    "empty name": ({"": A}, errors.BadTensorName, "", 0, 512),
    "long name": ({"n" * 513: A}, errors.BadTensorName, "n" * 513, 513, 512),
    "control in name": ({"a\x1b[2J": A}, errors.BadTensorName, "a\x1b[2J", "'a\\x1b[2J'", None),
    "half a character": (b'{"\\ud800": 1}', errors.BadTensorName, "\ud800", "'\\ud800'", None),
    "entry a number": ({"a": 7}, errors.BadTensorEntry, "a", "int", None),
    "entry incomplete": ({"a": {"dtype": "U8"}}, errors.BadTensorEntry, "a", "dtype", None),
    "entry with more": ({"a": {**A, "x": 1}}, errors.BadTensorEntry, "a", "data_offsets, dtype, shape, x", None),
    "dtype a number": ({"a": {**A, "dtype": 5}}, errors.BadTensorEntry, "a", "int", "text"),
    "shape a text": ({"a": {**A, "shape": "2"}}, errors.BadTensorEntry, "a", None, None),
    "shape of floats": ({"a": {**A, "shape": [2.0]}}, errors.BadTensorEntry, "a", None, None),
    "shape of bools": ({"a": {**A, "shape": [True]}}, errors.BadTensorEntry, "a", None, None),
    "three offsets": ({"a": {**A, "data_offsets": [0, 4, 8]}}, errors.BadTensorEntry, "a", None, None),
    "null offsets": ({"a": {**A, "data_offsets": [None, 8]}}, errors.BadTensorEntry, "a", None, None),
    "unknown dtype": ({"a": {**A, "dtype": "F12"}}, errors.UnknownDtype, "a", "F12", None),
    "negative size": ({"a": {**A, "shape": [-2]}}, errors.BadShape, "a", -2, 1 << 63),
    "two negative sizes": ({"a": {**A, "shape": [-1, -2]}}, errors.BadShape, "a", -1, 1 << 63),
    "size over 63 bits": ({"a": {**A, "shape": [1 << 63]}}, errors.BadShape, "a", 1 << 63, 1 << 63),
    "nine dimensions": ({"a": {**A, "shape": [1] * 9}}, errors.BadShape, "a", 9, 8),
    "reversed offsets": ({"a": {**A, "data_offsets": [8, 0]}}, errors.BadOffsets, "a", 8, 0),
    "negative offset": ({"a": {**A, "data_offsets": [-8, 0]}}, errors.BadOffsets, "a", -8, 0),
    "offset of 2^63": ({"a": {**A, "data_offsets": [0, 1 << 63]}}, errors.BadOffsets, "a", 1 << 63, 1 << 63),
    "shape too small": ({"a": entry("F32", [1], 0, 8)}, errors.ExtentMismatch, "a", 8, 4),
    "shape too large": ({"a": entry("F32", [3], 0, 8)}, errors.ExtentMismatch, "a", 8, 12),
    "half a byte": ({"a": entry("F4", [3], 0, 1)}, errors.ExtentMismatch, "a", 1, 1.5),
    # 2^32 * 2^32 wraps to 0 in 64 bits, and 0 bytes would then be right.
    "product wraps": ({"a": entry("U8", [1 << 32, 1 << 32], 0, 0)}, errors.ExtentMismatch, "a", 0, 1 << 64),
    "same bytes twice": ({"a": A, "b": entry("U8", [8], 0, 8)}, errors.OverlappingTensors, "b", 0, 8),
    "overlap by one": ({"a": A, "b": entry("U8", [5], 7, 12)}, errors.OverlappingTensors, "b", 7, 8),
    "gap in front": ({"b": B}, errors.GapInData, "b", 8, 0),
    "gap between": ({"a": A, "b": entry("U8", [3], 9, 12)}, errors.GapInData, "b", 9, 8),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_own_error(name: str, tmp_path: Path) -> None:
    header, kind, tensor, found, expected = FAULTS[name]
    raw = raw_header(header)
    data = raw + bytes(12)
    path = tmp_path / "s.safetensors"
    path.write_bytes(data)
    with pytest.raises(errors.StorageError) as caught:
        read_header(path, "s.safetensors")
    error = caught.value
    assert type(error) is kind
    assert isinstance(error, errors.CheckpointError)
    assert (error.shard, error.tensor) == ("s.safetensors", tensor)
    if kind in (errors.OverlappingTensors, errors.GapInData):  # these are bytes of the file
        found, expected = len(raw) + int(str(found)), len(raw) + int(str(expected))
    assert (error.found, error.expected) == (found, expected)
    assert "s.safetensors" in str(error) and error.hint
    assert str(error).isprintable() and len(str(error)) < 600


@pytest.mark.parametrize("length", [MAX_HEADER_BYTES + 1, 1 << 31, 1 << 60, 1 << 63, (1 << 64) - 1])
def test_an_absurd_header_length_is_refused_without_allocating_it(length: int, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(length.to_bytes(8, "little") + b"{}")
    error, peak_bytes, _ = _measured(path)
    assert isinstance(error, errors.HeaderTooLarge)
    assert (error.found, error.expected) == (length, MAX_HEADER_BYTES)
    assert peak_bytes < 1_000_000


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b" " * 99_000_000 + b"}",
        b'{"' + b"n" * 99_000_000 + b'": 1}',
        b'{"a": [' + b"[]," * 33_000_000 + b"[]]}",
        b'{"a": [' + b"0," * 49_000_000 + b"0]}",
        b"{" * 99_000_000,
        b'{"a": ' + b"9" * 99_000_000 + b"}",
    ],
    ids=["spaces", "a name", "lists", "numbers", "objects", "digits"],
)
def test_a_header_of_99_megabytes_of_nothing_costs_neither_time_nor_memory(header: bytes, tmp_path: Path) -> None:
    path = tmp_path / "s"
    path.write_bytes(raw_header(header))
    error, peak_bytes, cpu_s = _measured(path)
    assert isinstance(error, errors.HeaderTooLarge | errors.TooManyTensors)
    assert peak_bytes < 10_000_000
    assert cpu_s < 0.5


def _measured(path: Path) -> tuple[errors.StorageError, int, float]:
    """The first fault, the most bytes allocated, and the processor seconds of a scan."""
    tracemalloc.start()
    try:
        scan_header(path, "s")
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    start = time.process_time()
    scan = scan_header(path, "s")
    return scan.faults[0], peak_bytes, time.process_time() - start


def test_more_tensors_than_the_whole_release_has_are_refused() -> None:
    raw = raw_header("{" + ",".join(f'"{i}":{{}}' for i in range(MAX_TENSORS + 2)) + "}")
    [fault] = parse_header(raw, len(raw), "s").faults
    assert type(fault) is errors.TooManyTensors


@pytest.mark.parametrize("kept", range(1, 36))
def test_a_cut_inside_the_data_is_named_with_the_missing_bytes(kept: int) -> None:
    data = shard_bytes(GOOD)
    header_bytes = len(data) - 35
    [fault] = parse_header(data[:header_bytes], len(data) - kept, "s").faults
    assert type(fault) is errors.TruncatedShard
    assert (fault.found, fault.expected) == (len(data) - kept, len(data))
    assert f"{kept:,} bytes short" in str(fault)
    assert fault.tensor == ("d" if kept == 1 else "b" if kept <= 11 else "a")


def test_a_cut_inside_the_header_and_an_empty_file_are_told_apart(tmp_path: Path) -> None:
    data, path = shard_bytes(GOOD), tmp_path / "s"
    for kept, kind in ((0, errors.EmptyShard), (1, errors.HeaderCut), (7, errors.HeaderCut), (8, errors.HeaderCut)):
        path.write_bytes(data[:kept])
        assert type(scan_header(path, "s").faults[0]) is kind
    path.write_bytes(data[: len(data) - 36])
    [fault] = scan_header(path, "s").faults
    assert isinstance(fault, errors.HeaderCut)
    assert (fault.found, fault.expected) == (len(data) - 36, len(data) - 35)


@pytest.mark.parametrize("tail", [b"x", b"xyz", bytes(4096)], ids=len)
def test_bytes_after_the_data_are_a_foreign_tail(tmp_path: Path, tail: bytes) -> None:
    data, path = shard_bytes(GOOD), tmp_path / "s"
    path.write_bytes(data + tail)
    with pytest.raises(errors.ForeignTail, match=f"{len(tail):,} bytes after") as caught:
        read_header(path, "s")
    assert (caught.value.found, caught.value.expected) == (len(data) + len(tail), len(data))


def test_a_faulty_header_still_gives_the_entries_that_make_sense() -> None:
    raw = raw_header({"a": A, "bad": 7, "dtype": {**B, "dtype": "F99"}, "b": entry("U8", [5], 8, 12)})
    scan = parse_header(raw, len(raw) + 12, "s")
    assert scan.header is not None and set(scan.header.tensors) == {"a", "dtype", "b"}
    assert [type(fault) for fault in scan.faults] == [
        errors.BadTensorEntry,
        errors.UnknownDtype,
        errors.ExtentMismatch,
        errors.OverlappingTensors,
    ]


def test_faults_are_a_sample_and_not_a_flood() -> None:
    raw = raw_header({f"t{i}": {**A, "dtype": "F99"} for i in range(1000)})
    assert len(parse_header(raw, len(raw) + 8, "s").faults) <= MAX_FAULTS + 1


def test_headers_are_told_apart_by_a_digest_of_length_and_text() -> None:
    data = shard_bytes(GOOD)
    same = parse_header(data, len(data), "other name").header
    spaced = raw_header(data[8 : len(data) - 35] + b" ") + data[-35:]
    first, padded = parse_header(data, len(data), "s").header, parse_header(spaced, len(spaced), "s").header
    assert first and same and padded
    assert first.digest == same.digest != padded.digest


def test_what_is_not_a_file_is_refused_without_waiting(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, kind in (("folder", "folder"), ("pipe", "pipe")):
        [fault] = scan_header(tmp_path / name, name).faults
        assert isinstance(fault, errors.NotAFile) and fault.found == kind


def test_a_missing_file_and_a_broken_link_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("../blobs/gone")
    with pytest.raises(errors.MissingShard) as missing:
        read_header(tmp_path / "absent", "absent")
    with pytest.raises(errors.BrokenLink, match=r"link is a link to \.\./blobs/gone"):
        read_header(tmp_path / "link", "link")
    assert type(missing.value) is errors.MissingShard


def test_a_file_the_system_refuses_is_a_drive_error_with_its_errno(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(errors.DriveError) as caught:
        read_header(loop, "loop")
    assert caught.value.file == loop and caught.value.offset is None and caught.value.errno > 0


def test_only_first_bytes_that_could_begin_a_shard_are_plausible() -> None:
    assert is_plausible_header(shard_bytes(GOOD)[:9])
    for first in (b"", b"\x02" + bytes(7), bytes(8) + b"{", b'{\n "metadata"', (1 << 40).to_bytes(8, "little") + b"{"):
        assert not is_plausible_header(first)
