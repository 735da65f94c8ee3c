"""Thousands of mutated headers: a typed error or a valid parse, nothing else.

"Valid" is not our word for it: whatever our parser accepts must satisfy every invariant checked here, and the
safetensors library must accept the same bytes.
"""

import json
from itertools import pairwise
from math import prod
from typing import Any

import pytest
import safetensors
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from storage.errors import CheckpointError
from storage.headers import DTYPE_BITS, parse_header, scan_header
from tests.storage.shards import entry, raw_header, shard_bytes

BASE = shard_bytes(
    {
        "layers.0.w": ("F8_E4M3", [4, 8]),
        "layers.0.scale": ("F8_E8M0", [1, 1]),
        "layers.0.norm": ("BF16", [8]),
        "x": ("F32", [2, 3]),
        "none": ("U8", [0]),
    },
    metadata={"format": "pt"},
)
HEADER_END = 8 + int.from_bytes(BASE[:8], "little")
HEADER: dict[str, Any] = json.loads(BASE[8:HEADER_END])
ROUNDS = {"flips": 1800, "runs": 1500, "structure": 1200, "layouts": 700, "files": 300}


def rounds(name: str) -> settings:
    """The same examples on every run; no deadline, since a busy machine is no fault of the parser."""
    slow = [HealthCheck.too_slow]
    return settings(
        max_examples=ROUNDS[name], deadline=None, database=None, derandomize=True, suppress_health_check=slow
    )


numbers = st.one_of(
    st.integers(-3, 40), st.sampled_from([2**31, 2**32, 2**53 + 1, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63)])
)
scalars = st.one_of(numbers, st.none(), st.booleans(), st.floats(allow_nan=True), st.text(max_size=6))
anything = st.recursive(
    scalars, lambda deeper: st.lists(deeper, max_size=4) | st.dictionaries(st.text(max_size=5), deeper, max_size=3)
)
entries = st.builds(
    entry,
    st.one_of(st.sampled_from(sorted(DTYPE_BITS)), st.text(max_size=4)),
    st.lists(numbers, max_size=4),
    numbers,
    numbers,
)


def check(data: bytes) -> bool:
    """Parse the bytes of a whole file; whether they were accepted, with every invariant then true."""
    scan = parse_header(data, len(data), "s")
    for fault in scan.faults:
        assert isinstance(fault, CheckpointError) and fault.shard == "s" and fault.hint
        assert str(fault).isprintable() and len(str(fault)) < 2000
    if scan.faults:
        return False
    header = scan.header
    assert header is not None
    start = 8 + header.header_bytes
    assert start + header.data_bytes == len(data) == header.file_bytes == header.expected_bytes
    ordered = sorted(header.tensors.values(), key=lambda e: (e.extent.offset, e.extent.end))
    for tensor in ordered:
        assert start <= tensor.extent.offset <= tensor.extent.end <= len(data)
        assert prod(tensor.shape) * DTYPE_BITS[tensor.dtype] == tensor.extent.length * 8
        assert tensor.name.isprintable() and all(size >= 0 for size in tensor.shape)
    assert all(left.extent.end == right.extent.offset for left, right in pairwise(ordered))
    assert all(isinstance(value, str) for value in header.metadata.values())
    theirs = {name for name, _ in safetensors.deserialize(data)}  # raises when the library refuses what we accept
    assert theirs == header.tensors.keys()
    return True


def test_the_unchanged_header_is_accepted() -> None:
    assert check(BASE)


@rounds("flips")
@given(st.lists(st.tuples(st.integers(0, HEADER_END - 1), st.integers(0, 255)), min_size=1, max_size=4))
def test_flipped_bytes(flips: list[tuple[int, int]]) -> None:
    data = bytearray(BASE)
    for place, value in flips:
        data[place] = value
    check(bytes(data))


@rounds("runs")
@given(st.integers(0, HEADER_END), st.integers(0, 12), st.binary(max_size=12), st.booleans())
def test_replaced_runs_of_bytes(place: int, removed: int, put: bytes, mend_length: bool) -> None:
    data = BASE[:place] + put + BASE[place + removed :]
    if mend_length and place >= 8:
        length = HEADER_END - 8 - min(removed, HEADER_END - place) + len(put)
        data = length.to_bytes(8, "little") + data[8:]
    check(data)


@rounds("structure")
@given(st.data())
def test_changed_structure(data: st.DataObject) -> None:
    header = json.loads(json.dumps(HEADER))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([*sorted(header), "new", "__metadata__", "", "\x00"]))
        match data.draw(st.sampled_from(["drop", "entry", "anything", "field", "number"])):
            case "drop":
                header.pop(name, None)
            case "entry":
                header[name] = data.draw(entries)
            case "anything":
                header[name] = data.draw(anything)
            case "field" if isinstance(header.get(name), dict):
                header[name][data.draw(st.sampled_from(["dtype", "shape", "data_offsets", "more"]))] = data.draw(
                    anything
                )
            case "number" if isinstance(header.get(name), dict):
                field = header[name].get(data.draw(st.sampled_from(["shape", "data_offsets"])))
                if isinstance(field, list) and field:
                    field[data.draw(st.integers(0, len(field) - 1))] = data.draw(numbers)
    check(raw_header(header) + BASE[HEADER_END:])


@rounds("layouts")
@given(
    st.lists(st.tuples(st.sampled_from(sorted(DTYPE_BITS)), st.lists(st.integers(0, 5), max_size=3)), max_size=6),
    st.data(),
)
def test_layouts_that_are_right_but_for_one_shift(shapes: list[tuple[str, list[int]]], data: st.DataObject) -> None:
    header: dict[str, Any] = {}
    end = 0
    for i, (dtype, shape) in enumerate(shapes):
        bits = prod(shape) * DTYPE_BITS[dtype]
        assume(bits % 8 == 0)
        header[f"t{i}"] = entry(dtype, shape, end, end + bits // 8)
        end += bits // 8
    assert check(raw_header(header) + bytes(end))
    if header:
        offsets = header[data.draw(st.sampled_from(sorted(header)))]["data_offsets"]
        side, shift = data.draw(st.integers(0, 1)), data.draw(st.sampled_from([-9, -1, 1, 9]))
        offsets[side] += shift
        assert not check(raw_header(header) + bytes(end))


@rounds("files")
@given(
    st.one_of(
        st.binary(max_size=64),
        st.binary(max_size=40).map(raw_header),
        st.integers(0, len(BASE) - 1).map(lambda n: BASE[:n]),
    )
)
def test_files_of_noise_and_cut_files(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    path.write_bytes(data)
    faults = scan_header(path, "s").faults
    assert [str(fault) for fault in faults] == [str(fault) for fault in parse_header(data, len(data), "s").faults]
    assert faults or check(data)
