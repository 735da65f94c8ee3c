"""A drive that was given up and answers again, seen between turns."""

import errno
import shutil
import threading
from pathlib import Path

import pytest

from app.backends.returning import ReturnWatch
from storage.checkpoint import Checkpoint
from storage.errors import DriveError
from storage.replica_files import ReplicaFiles
from tests.storage.hooked import failing
from tests.storage.shards import write_checkpoint
from tests.storage.test_replicas import EACH_ITS_OWN, NAMES, SHARDS, B


def test_it_is_said_once_and_only_when_it_is_back(tmp_path: Path) -> None:
    model, mirror = tmp_path / "model", tmp_path / "mirror"
    write_checkpoint(model, SHARDS)
    shutil.copytree(model, mirror)
    system = failing(errno.EIO, *(str(mirror / name) for name in NAMES))
    system.armed = False
    said: list[str] = []
    heard = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        heard.set()

    with (
        Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint,
        ReplicaFiles.open(checkpoint.replicas, NAMES, "buffered", system=system) as files,
    ):
        watch = ReturnWatch(files, checkpoint.headers, say)
        watch.look()
        copy = checkpoint.replicas.copies(NAMES[0])[1]
        checkpoint.replicas.demote(copy, DriveError.of(OSError(errno.EIO, "gone"), copy.path, 0))
        system.armed = True
        watch.look()
        watch.close(10)
        assert said == [] and checkpoint.replicas.demoted() == (B,)
        system.armed = False
        again = ReturnWatch(files, checkpoint.headers, say)
        again.look()
        assert heard.wait(10)
        again.close(10)
        assert said == [f"Drive {B} answers again, its files are as they were: it is read again."]
        assert checkpoint.replicas.demoted() == ()


def test_a_mount_that_hangs_holds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, mirror = tmp_path / "model", tmp_path / "mirror"
    write_checkpoint(model, SHARDS)
    shutil.copytree(model, mirror)
    release, entered = threading.Event(), threading.Event()

    def hang(self: ReplicaFiles, drive: str, headers: object) -> DriveError | None:
        entered.set()
        release.wait(10)
        return None

    with (
        Checkpoint.open(model, mirrors=[mirror], find_drive=EACH_ITS_OWN) as checkpoint,
        ReplicaFiles.open(checkpoint.replicas, NAMES, "buffered") as files,
    ):
        copy = checkpoint.replicas.copies(NAMES[0])[1]
        checkpoint.replicas.demote(copy, DriveError.of(OSError(errno.EIO, "gone"), copy.path, 0))
        monkeypatch.setattr(ReplicaFiles, "take_back", hang)
        watch = ReturnWatch(files, checkpoint.headers, lambda text: None)
        watch.look()
        assert entered.wait(10)
        watch.look()  # does not wait, and asks no second time
        watch.close(0.01)
        release.set()
