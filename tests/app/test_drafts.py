import signal
import subprocess
import sys
from pathlib import Path

from app.drafts import DraftFile


def test_a_draft_is_found_by_the_next_window(tmp_path: Path) -> None:
    first = DraftFile(tmp_path)
    assert first.open() == ""
    first.save("half a thought\nand more")
    first.close()
    assert DraftFile(tmp_path).open() == "half a thought\nand more"


def test_two_windows_have_a_draft_each(tmp_path: Path) -> None:
    one, two = DraftFile(tmp_path), DraftFile(tmp_path)
    assert (one.open(), two.open()) == ("", "")
    one.save("one")
    two.save("two")
    one.close()
    two.close()
    again, and_again = DraftFile(tmp_path), DraftFile(tmp_path)
    assert {again.open(), and_again.open()} == {"one", "two"}


def test_a_draft_outlives_kill_9(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from app.drafts import DraftFile\n"
        "draft = DraftFile(Path(sys.argv[1])); draft.open(); draft.save('not lost')\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert DraftFile(tmp_path).open() == "not lost"


def test_a_draft_is_private_and_an_empty_one_leaves_no_file(tmp_path: Path) -> None:
    draft = DraftFile(tmp_path / "drafts")
    draft.open()
    draft.save("secret")
    (file,) = (tmp_path / "drafts").glob("*.txt")
    assert file.stat().st_mode & 0o777 == 0o600
    draft.save("")
    draft.close()
    assert not file.exists()


def test_trouble_is_said_and_saving_goes_on_when_it_is_over(tmp_path: Path) -> None:
    draft = DraftFile(tmp_path)
    draft.open()
    target = tmp_path / "draft-1.txt"
    target.mkdir()  # stands for any file that cannot be replaced
    draft.save("text")
    assert draft.problem is not None and str(target) in draft.problem
    target.rmdir()
    draft.save("text")
    assert draft.problem is None and target.read_text() == "text"


def test_a_folder_that_cannot_be_made_is_said_and_writing_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    draft = DraftFile(tmp_path / "file" / "drafts")
    assert draft.open() == "" and draft.problem is not None
    draft.save("text")
    draft.close()


def test_sixteen_windows_and_one_more(tmp_path: Path) -> None:
    windows = [DraftFile(tmp_path) for _ in range(17)]
    for number, window in enumerate(windows):
        window.open()
        window.save(str(number))
    assert len(list(tmp_path.glob("*.txt"))) == 16
    for window in windows:
        window.close()
    assert len(list(tmp_path.iterdir())) == 32
