import json
from pathlib import Path

import pytest

from app import logs, on_disk, paths
from app.cli import main
from app.drafts import DraftFile
from app.input_history import InputHistory
from app.settings_edit import edit_settings
from app.transcripts.session import ChatSession
from app.transcripts.store import TranscriptStore
from app.tui.clipboard import copy


def test_nothing_is_kept_before_anything_was_done() -> None:
    assert on_disk.ours() == []


def test_everything_that_is_written_is_known_by_name() -> None:
    edit_settings(paths.settings_file(), {"top_k": 3})
    with TranscriptStore(paths.transcripts_dir()).create() as transcript:
        ChatSession(transcript).add_user("hello")
    draft = DraftFile(paths.data_dir() / "drafts")
    draft.open()
    draft.save("half")
    InputHistory(paths.data_dir() / "input-history.jsonl").add("hello")
    copy("text", "Reply", lambda text: None, paths.data_dir(), {"TERM": "linux"})
    logs.start(paths.log_file())
    logs.log.warning("something")
    kept = {one.path.name: one for one in on_disk.ours()}
    assert {one.what for one in kept.values()} == {
        "settings",
        "conversations",
        "what stood in the box",
        "what was entered before",
        "what was copied last, where the terminal could not take it",
        "log",
    }
    assert (kept["drafts"].n_files, kept["drafts"].n_bytes) == (2, 4)
    assert kept["clipboard.txt"].n_bytes == 4


def test_what_another_version_wrote_is_listed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(bytes(10_000))
    paths.data_dir().mkdir(parents=True)
    (paths.data_dir() / "newer.bin").write_bytes(bytes(7))
    (paths.data_dir() / "link").symlink_to(outside)
    kept = {one.path.name: one for one in on_disk.ours()}
    assert kept["newer.bin"].what == "not known to this version" and kept["newer.bin"].n_bytes == 7
    assert kept["link"].n_files == 1 and kept["link"].n_bytes < 1_000


def test_doctor_lists_it(capsys: pytest.CaptureFixture[str]) -> None:
    InputHistory(paths.data_dir() / "input-history.jsonl").add("hello")
    size = (paths.data_dir() / "input-history.jsonl").stat().st_size
    assert main(["doctor", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)["data"]
    path = str(paths.data_dir() / "input-history.jsonl")
    assert {"path": path, "what": "what was entered before", "n_files": 1, "size_bytes": size} in data["on_disk"]
    assert main(["doctor"]) == 0
    assert "what was entered before" in capsys.readouterr().out
