"""Which disks are under a folder, in made-up /proc and /sys trees of machines as people have them."""

import os
from pathlib import Path

import pytest

from storage.drives import DriveFacts, describe, drive_of, measure_rate, same_drive
from storage.errors import DriveError
from tests.fakes import Clock

PCI = "devices/pci0000:00/0000:00:1d.0"


class Machine:
    """Builds the two trees."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._mounts: list[str] = []
        (root / "sys/dev/block").mkdir(parents=True)
        (root / "sys/class/block").mkdir(parents=True)
        (root / "proc/self").mkdir(parents=True)
        self.mount("/", "overlay", "overlay", "0:30")

    def mount(self, point: str, fs_type: str, source: str, device: str) -> None:
        """A line of mountinfo, with optional fields as the kernel has them."""
        number = len(self._mounts) + 20
        escaped = point.replace(" ", "\\040")
        self._mounts.append(f"{number} 1 {device} / {escaped} rw,noatime shared:{number} - {fs_type} {source} rw")
        (self.root / "proc/self/mountinfo").write_text("\n".join(self._mounts) + "\n")

    def disk(self, name: str, device: str, *, under: str = PCI, blocks: int = 4096, rotates: int = 0) -> Path:
        """A whole disk, or a device made of others with `made_of`."""
        folder = self.root / "sys" / under / "block" / name
        (folder / "queue").mkdir(parents=True)
        (folder / "slaves").mkdir()
        (folder / "queue/logical_block_size").write_text("512\n")
        (folder / "queue/physical_block_size").write_text(f"{blocks}\n")
        (folder / "queue/rotational").write_text(f"{rotates}\n")
        return self._number(folder, device)

    def partition(self, disk: Path, name: str, device: str) -> Path:
        """A partition of it."""
        (disk / name).mkdir()
        (disk / name / "partition").write_text("1\n")
        return self._number(disk / name, device)

    def made_of(self, device: Path, *members: Path) -> Path:
        """Note the members of an md or device-mapper device."""
        for member in members:
            (device / "slaves" / member.name).symlink_to(os.path.relpath(member, device / "slaves"))
        return device

    def _number(self, folder: Path, device: str) -> Path:
        for place, name in (("sys/dev/block", device), ("sys/class/block", folder.name)):
            (self.root / place / name).symlink_to(os.path.relpath(folder, self.root / place))
        return folder

    def at(self, path: str, device: str) -> DriveFacts:
        """The drive of a path whose files are on the device."""
        return describe(Path(path), device, root=self.root)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_two_partitions_of_one_disk_are_one_drive(machine: Machine) -> None:
    disk = machine.disk("nvme0n1", "259:0")
    (disk / "device").mkdir()
    (disk / "device/model").write_text("FAST 2TB      \n")
    machine.partition(disk, "nvme0n1p1", "259:1")
    machine.partition(disk, "nvme0n1p2", "259:2")
    machine.mount("/home", "ext4", "/dev/nvme0n1p1", "259:1")
    machine.mount("/mnt/other disk", "xfs", "/dev/nvme0n1p2", "259:2")
    home, other = machine.at("/home/me/model", "259:1"), machine.at("/mnt/other disk/model", "259:2")
    assert same_drive(home, other)
    assert (home.name, home.kind, home.fs_type, home.model) == ("nvme0n1", "nvme", "ext4", "FAST 2TB")
    assert (other.mount_point, other.fs_type) == ("/mnt/other disk", "xfs")
    assert (home.logical_block_bytes, home.physical_block_bytes) == (512, 4096)


def test_two_disks_are_two_drives_and_each_has_its_kind(machine: Machine) -> None:
    machine.disk("nvme1n1", "259:5")
    machine.disk("sda", "8:0")
    machine.disk("sdb", "8:16", rotates=1)
    machine.disk("sdc", "8:32", under="devices/pci0000:00/0000:00:14.0/usb2/2-1/2-1:1.0/host6")
    machine.disk("vda", "254:0", rotates=1)
    machine.disk("zram0", "253:0", under="devices/virtual")
    machine.disk("nbd0", "43:0", under="devices/virtual")
    devices = {"nvme1n1": "259:5", "sda": "8:0", "sdb": "8:16", "sdc": "8:32", "vda": "254:0", "zram0": "253:0"}
    facts = {name: machine.at("/x", device) for name, device in {**devices, "nbd0": "43:0"}.items()}
    assert {name: drive.kind for name, drive in facts.items()} == {
        "nvme1n1": "nvme",
        "sda": "ssd",
        "sdb": "hdd",
        "sdc": "usb",
        "vda": "virtual",
        "zram0": "memory",
        "nbd0": "network",
    }
    assert all(drive.name == name for name, drive in facts.items())
    assert not same_drive(facts["sda"], facts["sdb"])


def test_a_raid_and_a_volume_on_it_are_their_members(machine: Machine) -> None:
    one, two, three = (machine.disk(f"sd{c}", f"8:{n}") for c, n in (("a", 0), ("b", 16), ("c", 32)))
    first = machine.partition(one, "sda1", "8:1")
    raid = machine.made_of(machine.disk("md0", "9:0", under="devices/virtual"), first, two)
    machine.made_of(machine.disk("dm-0", "252:0", under="devices/virtual", blocks=16384), raid)
    machine.made_of(machine.disk("dm-1", "252:1", under="devices/virtual"), three)
    machine.mount("/data", "ext4", "/dev/mapper/vg-data", "252:0")
    volume = machine.at("/data/model", "252:0")
    assert volume.disks == {"sda", "sdb"} and volume.name == "sda+sdb"
    assert volume.physical_block_bytes == 16384
    assert same_drive(volume, machine.at("/x", "8:1"))
    assert not same_drive(volume, machine.at("/y", "252:1"))


def test_a_loop_device_is_the_disk_of_its_file(machine: Machine) -> None:
    machine.disk("sda", "8:0")
    machine.mount("/images", "ext4", "/dev/sda", "8:0")
    loop = machine.disk("loop0", "7:0", under="devices/virtual")
    (loop / "loop").mkdir()
    (loop / "loop/backing_file").write_text("/images/disk.img\n")
    machine.partition(loop, "loop0p1", "259:1")
    machine.partition(loop, "loop0p2", "259:2")
    first, second = machine.at("/mnt/1", "259:1"), machine.at("/mnt/2", "259:2")
    assert first.disks == second.disks == {"sda"}


def test_devices_made_of_each_other_do_not_hang(machine: Machine) -> None:
    one, two = (machine.disk(f"dm-{n}", f"252:{n}", under="devices/virtual") for n in (0, 1))
    machine.made_of(one, two)
    machine.made_of(two, one)
    assert machine.at("/x", "252:0").disks <= {"dm-0", "dm-1"}


def test_a_btrfs_over_two_disks_is_both_though_its_device_number_is_made_up(machine: Machine) -> None:
    one, two = machine.disk("nvme0n1", "259:0"), machine.disk("nvme1n1", "259:1")
    members = machine.root / "sys/fs/btrfs/0f3c/devices"
    members.mkdir(parents=True)
    for disk in (one, two):
        (members / disk.name).symlink_to(os.path.relpath(disk, members))
    machine.mount("/pool", "btrfs", "/dev/nvme1n1", "0:41")
    pool = machine.at("/pool/sub/model", "0:47")  # a subvolume has a number of its own
    assert pool.disks == {"nvme0n1", "nvme1n1"} and pool.kind == "nvme"
    assert pool.logical_block_bytes == 512


def test_a_btrfs_on_a_mapped_device_is_found_through_its_link(machine: Machine) -> None:
    disk = machine.disk("sda", "8:0")
    machine.made_of(machine.disk("dm-3", "252:3", under="devices/virtual"), disk)
    (machine.root / "dev/mapper").mkdir(parents=True)
    (machine.root / "dev/dm-3").write_text("")
    (machine.root / "dev/mapper/crypt").symlink_to("../dm-3")
    machine.mount("/", "btrfs", "/dev/mapper/crypt", "0:22")
    assert machine.at("/home/model", "0:25").disks == {"sda"}


def test_what_is_no_disk_has_a_kind_and_a_name_of_its_own(machine: Machine) -> None:
    machine.mount("/dev/shm", "tmpfs", "tmpfs", "0:50")
    machine.mount("/run", "tmpfs", "tmpfs", "0:51")
    machine.mount("/nas", "nfs4", "server:/export", "0:52")
    machine.mount("/nas2", "nfs4", "server:/export", "0:53")
    machine.mount("/remote", "fuse.sshfs", "me@host:/data", "0:54")
    machine.mount("/host", "virtiofs", "share", "0:55")
    machine.mount("/tank/a", "zfs", "tank/a", "0:56")
    machine.mount("/tank/b", "zfs", "tank/b/c", "0:57")
    memory = machine.at("/dev/shm/model", "0:50")
    assert (memory.kind, memory.name) == ("memory", "memory")
    assert same_drive(memory, machine.at("/run/model", "0:51"))
    nas = machine.at("/nas/model", "0:52")
    assert (nas.kind, nas.source) == ("network", "server:/export")
    assert same_drive(nas, machine.at("/nas2", "0:53"))
    assert machine.at("/remote/x", "0:54").kind == "network"
    assert machine.at("/host/x", "0:55").kind == "virtual"
    assert same_drive(machine.at("/tank/a", "0:56"), machine.at("/tank/b", "0:57"))
    container = machine.at("/srv/model", "0:30")
    assert (container.kind, container.mount_point) == ("overlay", "/")
    assert not same_drive(container, nas)


def test_the_deepest_and_last_mount_above_a_path_counts(machine: Machine) -> None:
    machine.mount("/data", "ext4", "/dev/sda1", "8:1")
    machine.mount("/data", "tmpfs", "over", "0:60")
    machine.mount("/data/model2", "nfs", "server:/x", "0:61")
    assert machine.at("/data/model", "0:60").source == "over"
    assert machine.at("/data/model2/a", "0:61").kind == "network"


def test_a_machine_that_tells_nothing_still_tells_devices_apart(tmp_path: Path) -> None:
    one, two = (describe(Path("/x"), device, root=tmp_path) for device in ("8:1", "8:2"))
    assert (one.kind, one.fs_type, one.model, one.logical_block_bytes) == ("unknown", "", "", None)
    assert not same_drive(one, two)


def test_this_machines_own_folder_has_a_drive(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    assert drive_of(tmp_path / "link") == drive_of(tmp_path / "folder")
    assert same_drive(drive_of(tmp_path), drive_of(tmp_path / "folder"))
    with pytest.raises(DriveError):
        drive_of(tmp_path / "absent")


def test_a_rate_is_bytes_over_time_and_ends_at_the_limit() -> None:
    clock = Clock()
    calls: list[int] = []

    def read(i: int) -> int:
        calls.append(i)
        clock.now_s += 0.25
        return 1_000_000

    assert measure_rate(read, limit_s=1.0, clock=clock) == 4_000_000
    assert calls == [0, 1, 2, 3]


def test_a_rate_ends_early_when_nothing_is_left_to_read() -> None:
    clock = Clock()

    def read(i: int) -> int:
        clock.now_s += 0.1
        return 0 if i == 2 else 300

    assert measure_rate(read, limit_s=9.0, clock=clock) == pytest.approx(600 / 0.3)
    assert measure_rate(lambda i: 0, clock=Clock()) == 0.0
