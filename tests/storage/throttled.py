"""Rates of throttled drives, alone and together: `python -m tests.storage.throttled`.

Three folders hold the same experts. Two of them deliver 60 MB/s and the third 6, whatever is asked of them at once.
Layers of six experts are read as decoding reads them, the next layer asked for while one is waited for. Printed: the
rate of each way, in the same run, and the two ratios that must hold. Not in the suite: it measures time.
"""

import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from storage.arena import Arena, stride_for
from storage.batch import BatchReader, ReadRequest
from storage.checkpoint import Checkpoint
from storage.extents import Extent
from storage.ids import SlotIndex
from storage.replica_files import ReplicaFiles
from storage.syscalls import Syscalls
from tests.fakes import SlowDrive
from tests.storage.shards import write_checkpoint
from tests.storage.test_replicas import drives_by_folder

EXPERT_BYTES = 400_000
N_EXPERTS = 96
PER_LAYER = 6
RATES: Mapping[str, float] = {"first": 60e6, "second": 60e6, "third": 6e6}


class Throttled(Syscalls):
    """Each folder a `SlowDrive` of its own."""

    def __init__(self) -> None:
        self._drives = {name: SlowDrive(rate) for name, rate in RATES.items()}
        self._folder: dict[int, str] = {}

    def open(self, path: Path, *, direct: bool) -> int:
        """The real one, remembered."""
        fd = super().open(path, direct=direct)
        self._folder[fd] = path.parent.name
        return fd

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """Late, as the folder's drive is."""
        return self._drives[self._folder[fd]].pread(fd, target, offset)


def measure(root: Path, names: Sequence[str], seconds: float) -> float:
    """Bytes a second of layers of six experts, read from the folders `names`."""
    find = drives_by_folder(first="a", second="b", third="c")
    mirrors = [root / name for name in names[1:]]
    weights = {root / name: RATES[name] for name in names}
    n_bytes, layer = 0, 0
    with (
        Checkpoint.open(root / names[0], mirrors=mirrors, weights=weights, find_drive=find) as checkpoint,
        ReplicaFiles.open(checkpoint.replicas, list(checkpoint.headers), "buffered", system=Throttled()) as files,
        BatchReader(files, block_bytes=files.block_bytes) as reader,
        Arena(2 * PER_LAYER, stride_for([EXPERT_BYTES], files.block_bytes)) as arena,
    ):

        def submit(layer: int) -> object:
            requests = []
            for i in range(PER_LAYER):
                expert = (layer * PER_LAYER + i) * 37 % N_EXPERTS
                extent: Extent = checkpoint.entry(f"e{expert}").extent
                slot = arena.slot(SlotIndex(layer % 2 * PER_LAYER + i))
                requests.append(ReadRequest(extent=extent, target=slot, flat_index=expert))
            return reader.submit(requests)

        began = time.monotonic()
        coming = submit(layer)
        while time.monotonic() - began < seconds:
            current, layer = coming, layer + 1
            coming = submit(layer)
            current.wait()  # type: ignore[attr-defined]
            n_bytes += PER_LAYER * EXPERT_BYTES
        elapsed_s = time.monotonic() - began
        coming.wait()  # type: ignore[attr-defined]
    return n_bytes / elapsed_s


def main() -> int:
    """Print the rates; 1 when a ratio does not hold."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        shards = {"model.safetensors": {f"e{i}": ("U8", [EXPERT_BYTES]) for i in range(N_EXPERTS)}}
        for name in RATES:
            write_checkpoint(root / name, shards)
        ways: dict[str, Sequence[str]] = {
            "first": ["first"], "second": ["second"], "both": ["first", "second"], "all": ["first", "second", "third"],
        }  # fmt: skip
        rates = {way: measure(root, names, 4.0) for way, names in ways.items()}
    for way, rate in rates.items():
        print(f"{way:<7} {rate / 1e6:6.1f} MB/s")
    of_sum = rates["both"] / (rates["first"] + rates["second"])
    with_third = rates["all"] / rates["both"]
    print(f"both over the sum of the two {of_sum:.3f} (at least 0.9); with the third {with_third:.3f} (at least 1)")
    return 0 if of_sum >= 0.9 and with_third >= 0.99 else 1


if __name__ == "__main__":
    sys.exit(main())
