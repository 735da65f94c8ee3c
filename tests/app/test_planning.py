"""What a plan is made from: the machine, and the drives of a model."""

from pathlib import Path

import pytest

from app.planning import gather_facts
from app.rates import RateBook
from storage.drives import DriveFacts


def test_the_drives_of_a_folder_of_links_are_those_of_the_shards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drive(path: Path) -> DriveFacts:
        return DriveFacts(
            disks=frozenset({path.name}), kind="nvme", fs_type="ext4", mount_point="/", source="", model="",
            logical_block_bytes=512, physical_block_bytes=4096,
        )  # fmt: skip

    monkeypatch.setattr("app.planning.drive_of", drive)
    monkeypatch.setattr("app.planning.may_have_gpu", lambda: False)
    snapshot, headers = tmp_path / "snapshot", tmp_path / "headers"
    for folder in (snapshot, headers, tmp_path / "blobs", tmp_path / "more"):
        folder.mkdir()
    for number, blob in enumerate(("blobs/4f", "blobs/a0", "more/c3"), start=1):
        (tmp_path / blob).touch()
        (snapshot / f"model-0000{number}-of-00003.safetensors").symlink_to(tmp_path / blob)
    facts = gather_facts([snapshot, headers], RateBook(None))
    assert [one.name for one in facts.drives] == ["blobs", "more", "headers"]
