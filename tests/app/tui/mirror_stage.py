"""A machine with a released model and three places for copies, whose numbers never change: for pictures."""

from collections.abc import Sequence
from pathlib import Path

from app.mirroring import MirrorState
from storage.drives import DriveFacts, DriveKind
from storage.mirroring.places import Place
from storage.mirroring.proposal import Proposal, ShardUse, propose

GB = 10**9
_RATES = {"nvme0n1": 6.8 * GB, "nvme1n1": 5.1 * GB, "sda": 0.52 * GB}
# 40 layers of 7.2 GB of experts, one to a shard, as in the release; what else there is, is not read while answering.
_USES = [
    ShardUse(shard=f"model-{n:05d}-of-00048.safetensors", file_bytes=7_220 * 10**6, read_share=1 / 40)
    for n in range(40)
]


class StillDesk:
    """What the wizard asks of a `MirrorDesk`."""

    def places(self) -> Sequence[Place]:
        """A second NVMe drive, an SSD with less room, and the model's own disk."""
        return (
            _place("/mnt/second", "nvme1n1", "nvme", free=612, total=1000),
            _place("/mnt/archive", "sda", "ssd", free=90, total=500),
            _place("/", "nvme0n1", "nvme", free=211, total=1000, shared=True),
        )

    def states(self) -> Sequence[MirrorState]:
        """Nothing was copied yet."""
        return ()

    def target_on(self, place: Place) -> Path:
        """As the real one names it."""
        return place.folder / "artesian-mirror-DeepSeek-V4.1-Flash"

    def rate_of(self, place: Place) -> float | None:
        """Measured once."""
        return _RATES[place.drive.name]

    def propose(self, place: Place, *, target: Path) -> Proposal:
        """By the real arithmetic; nothing lies in `target` yet."""
        rates = {"nvme0n1": _RATES["nvme0n1"]}
        return propose(_USES, place, rates_bytes_s=rates, place_rate_bytes_s=self.rate_of(place))


def _place(folder: str, disk: str, kind: DriveKind, *, free: int, total: int, shared: bool = False) -> Place:
    drive = DriveFacts(
        disks=frozenset({disk}), kind=kind, fs_type="ext4", mount_point=folder, source=f"/dev/{disk}", model="",
        logical_block_bytes=512, physical_block_bytes=4096,
    )  # fmt: skip
    return Place(
        folder=Path(folder), drive=drive, free_bytes=free * GB, total_bytes=total * GB,
        shares_with=(disk,) if shared else (), obstacle="",
    )  # fmt: skip
