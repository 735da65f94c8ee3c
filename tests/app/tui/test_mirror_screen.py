"""The drive wizard from its first screen to a working mirror, on folders with a made-up device table."""

import shutil
import threading
from pathlib import Path
from typing import cast

import pytest
from textual.pilot import Pilot
from textual.widgets import OptionList, Static

from app import paths
from app.mirroring import MirrorDesk
from app.model_choice import choose_model
from app.rates import RateBook
from app.settings import load_settings
from app.tui.screens.confirm import ConfirmScreen
from app.tui.screens.mirror import MirrorScreen
from storage.mirroring.files import WriteCalls
from tests.app.test_mirror import drive_finder, make_root
from tests.app.tui.mirror_stage import StillDesk
from tests.app.tui.snapshot import NARROW, NORMAL, check, wait_until
from tests.app.tui.stage import Stage

pytestmark = pytest.mark.tui

_TINY = Path(__file__).parents[2] / "data" / "tiny-a" / "checkpoint"


class Machine:
    """tiny-a on disk a with three other file systems, and the settings that name it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._root = make_root(folder)
        self.model = folder / "first" / "tiny"
        self.mirror = folder / "second" / "artesian-mirror-tiny"
        shutil.copytree(_TINY, self.model)
        paths.settings_file().parent.mkdir(parents=True)
        paths.settings_file().write_text(f'model = "{self.model}"\n')
        book = RateBook(paths.rates_file())
        book.note_drive("a", 2e9)
        book.note_drive("b", 1e9)
        book.save()

    def desk(self) -> MirrorDesk:
        """As the screen makes it, with the made-up device table."""
        settings = load_settings(paths.settings_file())
        return MirrorDesk(
            choose_model(None, settings), settings, RateBook(paths.rates_file()), settings_path=paths.settings_file(),
            find_drive=drive_finder(self._folder), root=self._root, least_bytes=0, block_bytes=100_000,
        )  # fmt: skip

    def stage(self) -> Stage:
        """The screen above an empty chat."""
        return Stage(screen=MirrorScreen(self.desk), settings=load_settings(paths.settings_file()))


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def _texts(app: Stage) -> list[str]:
    return [str(option.prompt) for option in app.screen.query_one(OptionList).options]


def _said(app: Stage, name: str) -> str:
    return str(app.screen.query_one(f"#{name}", Static).render())


async def _ready(pilot: Pilot[int], app: Stage) -> OptionList:
    await wait_until(pilot, lambda: app.screen.query_one(OptionList).option_count == 4)
    return app.screen.query_one(OptionList)


async def _say_yes(pilot: Pilot[int], app: Stage) -> None:
    await pilot.press("enter")
    await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
    await pilot.press("y")


async def _mark(pilot: Pilot[int], app: Stage, name: str) -> None:
    options = await _ready(pilot, app)
    options.highlighted = next(i for i, text in enumerate(_texts(app)) if f"/{name} " in text)
    await pilot.pause()


async def test_places_are_shown_with_what_copies_there_would_buy(machine: Machine) -> None:
    app = machine.stage()
    async with app.run_test(size=NORMAL) as pilot:
        await _mark(pilot, app, "second")
        assert "gain      reads 1.50 times as fast as now" in _said(app, "mirror-offer")  # 2 and 1 GB/s side by side
        assert "11 shards" in _said(app, "mirror-offer")
        await _mark(pilot, app, "bound")
        assert "same disk as the model's (a)" in _said(app, "mirror-offer")
        assert any("the model's own disk: no more speed" in text for text in _texts(app))


async def test_from_the_first_look_to_a_mirror_that_is_read_from_and_back(machine: Machine) -> None:
    app = machine.stage()
    async with app.run_test(size=NORMAL) as pilot:
        await _mark(pilot, app, "second")
        await _say_yes(pilot, app)
        await wait_until(pilot, lambda: app.drive_job is not None and not app.drive_job.is_running)
        await wait_until(pilot, lambda: any("holds 11 copies" in text and "read from" in text for text in _texts(app)))
        assert "each copy read back equal" in _said(app, "mirror-work")
        assert load_settings(paths.settings_file()).mirror == (str(machine.mirror),)
        assert len(list(machine.mirror.glob("*.safetensors"))) == 11

        await _mark(pilot, app, "second")
        await pilot.press("v")
        await wait_until(pilot, lambda: "All 11 copies are as they were copied" in _said(app, "mirror-work"))
        with (machine.mirror / "model-00004-of-00016.safetensors").open("r+b") as file:
            file.seek(150_000)
            file.write(b"\x00\x01\x02\x03")
        await pilot.press("v")
        await wait_until(pilot, lambda: "1 of 11 copies are damaged" in _said(app, "mirror-work"))

        await _mark(pilot, app, "second")
        await pilot.press("d")
        await wait_until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await wait_until(pilot, lambda: not machine.mirror.exists())
        await wait_until(pilot, lambda: not any("holds" in text for text in _texts(app)))
        assert load_settings(paths.settings_file()).mirror is None


async def test_a_copy_is_paused_goes_on_is_stopped_and_is_resumed(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = machine.stage()
    blocks: list[int] = []

    def sync_data(self: WriteCalls, fd: int) -> None:
        blocks.append(fd)
        job = app.drive_job
        if len(blocks) == 3 and job is not None:
            job.pause()
        if len(blocks) == 6 and job is not None:
            job.stop()

    async with app.run_test(size=NORMAL) as pilot:
        await _mark(pilot, app, "second")
        monkeypatch.setattr(WriteCalls, "sync_data", sync_data)
        await _say_yes(pilot, app)
        await wait_until(pilot, lambda: "(paused)" in _said(app, "mirror-work") and len(blocks) == 3)
        await pilot.press("p")
        await wait_until(pilot, lambda: "Copying was stopped" in _said(app, "mirror-work"))
        assert len(blocks) == 6 and list(machine.mirror.glob("*.safetensors")) == []
        await _mark(pilot, app, "second")
        await _say_yes(pilot, app)
        await wait_until(pilot, lambda: "each copy read back equal" in _said(app, "mirror-work"))
        assert len(list(machine.mirror.glob("*.safetensors"))) == 11


async def test_what_work_changed_in_the_settings_while_the_screen_was_closed_is_taken(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = machine.stage()
    let = threading.Event()

    def sync_data(self: WriteCalls, fd: int) -> None:
        let.wait(60)

    async with app.run_test(size=NORMAL) as pilot:
        await _mark(pilot, app, "second")
        monkeypatch.setattr(WriteCalls, "sync_data", sync_data)
        await _say_yes(pilot, app)
        await wait_until(pilot, lambda: app.drive_job is not None and isinstance(app.screen, MirrorScreen))
        await pilot.press("escape")
        await wait_until(pilot, lambda: not isinstance(app.screen, MirrorScreen))
        let.set()
        await wait_until(pilot, lambda: app.drive_job is not None and not app.drive_job.is_running)
        assert app.settings.mirror is None
        await app.push_screen(MirrorScreen(machine.desk))
        await wait_until(pilot, lambda: "each copy read back equal" in _said(app, "mirror-work"))
        assert app.settings.mirror == (str(machine.mirror),)


async def test_where_nothing_is_gained_nothing_is_copied(machine: Machine) -> None:
    app = machine.stage()
    async with app.run_test(size=NORMAL) as pilot:
        await _mark(pilot, app, "bound")
        await pilot.press("enter")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen) and app.drive_job is None
        for key in ("v", "d", "p", "s"):
            await pilot.press(key)
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen) and app.drive_job is None


async def test_a_model_that_is_not_whole_is_said_in_the_place_of_the_list(machine: Machine) -> None:
    (machine.model / "model-00005-of-00016.safetensors").unlink()
    app = machine.stage()
    async with app.run_test(size=NORMAL) as pilot:
        await wait_until(pilot, lambda: "model-00005" in _said(app, "mirror-about"))


@pytest.mark.parametrize(("name", "size"), [("mirror", NORMAL), ("mirror-narrow", NARROW)])
async def test_it_looks_as_it_did(name: str, size: tuple[int, int]) -> None:
    app = Stage(screen=MirrorScreen(lambda: cast(MirrorDesk, StillDesk())))
    async with app.run_test(size=size) as pilot:
        await wait_until(pilot, lambda: app.screen.query_one(OptionList).option_count == 3)
        await pilot.pause()
        check(app, name)
