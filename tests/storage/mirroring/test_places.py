"""Where copies could go, on machines as people have them: made-up mount tables over real folders."""

from pathlib import Path

import pytest

from storage.drives import DriveFacts
from storage.mirroring.measuring import measure_place
from storage.mirroring.places import Place, find_places, unmounted_above

GB = 10**9


class Mounts:
    """A mount table below `root`, and folders that stand for the mounted file systems."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        (self.root / "proc/self").mkdir(parents=True)
        (self.root / "etc").mkdir()
        self._folder = folder
        self._lines: list[str] = []
        self._sizes: dict[Path, tuple[int, int, int]] = {}
        self._disks: dict[Path, str] = {}

    def mount(self, name: str, disk: str, *, free: float, total: float = 1000, fs_type: str = "ext4") -> Path:
        """A file system of `total` GB on `disk`."""
        point = self._folder / name
        point.mkdir(exist_ok=True)
        device = f"259:{sorted({*self._disks.values(), disk}).index(disk) + 10 * len(disk)}"
        escaped = str(point).replace(" ", "\\040")
        self._lines.append(f"20 1 {device} / {escaped} rw,noatime shared:1 - {fs_type} /dev/{disk} rw")
        (self.root / "proc/self/mountinfo").write_text("\n".join(self._lines) + "\n")
        self._sizes[point] = (int(total * GB), int((total - free) * GB), int(free * GB))
        self._disks[point] = disk
        return point

    def drive(self, path: Path) -> DriveFacts:
        """The drive of a mount point."""
        return DriveFacts(
            disks=frozenset(self._disks[path].split("+")), kind="nvme", fs_type="ext4", mount_point=str(path),
            source="", model="", logical_block_bytes=512, physical_block_bytes=4096,
        )  # fmt: skip

    def find(self, *model: Path) -> tuple[Place, ...]:
        """The places, for a model that lies on these."""
        return find_places(
            [self.drive(path) for path in model], root=self.root, find_drive=self.drive,
            usage=lambda path: self._sizes[path], home=self._folder / "nobody",
        )  # fmt: skip


@pytest.fixture
def mounts(tmp_path: Path) -> Mounts:
    return Mounts(tmp_path)


def test_other_drives_come_first_and_the_models_own_says_so(mounts: Mounts) -> None:
    model = mounts.mount("model", "nvme0", free=100)
    small = mounts.mount("small disk", "sda", free=50)
    large = mounts.mount("large", "nvme1", free=900)
    found = mounts.find(model)
    assert [place.folder for place in found] == [large, small, model]
    assert [place.shares_with for place in found] == [(), (), ("nvme0",)]
    assert found[1].free_bytes == 50 * GB


def test_a_volume_over_the_models_disk_shares_it(mounts: Mounts) -> None:
    model = mounts.mount("model", "nvme0", free=100)
    mounts.mount("volume", "nvme0+nvme1", free=900)
    shared = {place.drive.name: place.shares_with for place in mounts.find(model)}
    assert shared["nvme0+nvme1"] == ("nvme0", "nvme1")


@pytest.mark.parametrize("fs_type", ["proc", "squashfs", "overlay", "tmpfs", "autofs"])
def test_what_holds_no_files_of_ones_own_is_left_out(mounts: Mounts, fs_type: str) -> None:
    model = mounts.mount("model", "nvme0", free=100)
    mounts.mount("other", "x", free=900, fs_type=fs_type)
    assert [place.folder for place in mounts.find(model)] == [model]


def test_small_ones_are_left_out_and_bind_mounts_told_once(mounts: Mounts) -> None:
    model = mounts.mount("model", "nvme0", free=100)
    mounts.mount("boot", "nvme2", free=0.4, total=0.5)
    mounts.mount("x", "nvme1", free=900)
    mounts.mount("x-bound-again", "nvme1", free=900)
    assert [place.drive.name for place in mounts.find(model)] == ["nvme1", "nvme0"]


def test_where_one_may_not_write_is_told_with_why(mounts: Mounts, monkeypatch: pytest.MonkeyPatch) -> None:
    model = mounts.mount("model", "nvme0", free=100)
    closed = mounts.mount("closed", "nvme1", free=900)
    monkeypatch.setattr("storage.mirroring.places.os.access", lambda path, mode: path != closed)
    found = mounts.find(model)
    assert [(place.folder, place.obstacle) for place in found] == [(model, ""), (closed, "you may not write there")]


def test_a_mount_point_that_is_not_mounted_is_recognised(mounts: Mounts, tmp_path: Path) -> None:
    there = mounts.mount("there", "nvme1", free=900)
    gone = tmp_path / "with blank"
    fstab = (
        f"# comment\nUUID=1 / ext4 defaults 0 1\nUUID=2 {there} ext4 noauto 0 2\nUUID=3 {tmp_path}/with\\040blank xfs"
    )
    (mounts.root / "etc/fstab").write_text(fstab + " defaults 0 2\nbroken\n")
    assert unmounted_above(gone / "mirror" / "deep", root=mounts.root) == gone
    assert unmounted_above(there / "mirror", root=mounts.root) is None
    assert unmounted_above(tmp_path / "elsewhere", root=mounts.root) is None
    (mounts.root / "etc/fstab").unlink()
    assert unmounted_above(gone, root=mounts.root) is None


def test_a_measurement_reads_what_it_wrote_and_leaves_nothing(tmp_path: Path) -> None:
    rate = measure_place(tmp_path, file_bytes=32 << 20, limit_s=0.2, depth=2)
    assert rate > 1e6  # a floppy gave 60 kB/s
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(Exception, match="cannot write"):
        measure_place(tmp_path / "gone")
