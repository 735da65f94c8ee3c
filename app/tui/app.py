"""The Textual app: its screens, its themes, and the life and death of the engine thread.

The one thing a reader would get wrong: screens other than the chat lie on top of it. The chat is always mounted, so
that a reply goes on growing while the plan or the list of transcripts is looked at.
"""

import asyncio
import signal
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import ClassVar

from rich.text import Text
from textual import work
from textual.binding import BindingType
from textual.driver import Driver
from textual.events import Event, Paste
from textual.screen import Screen
from textual.widgets import Input
from textual.worker import get_current_worker

from app import logs
from app.backends.base import Backend, RunFacts
from app.drive_job import DriveJob
from app.errors import TranscriptMissing
from app.find_models import find_checkpoints, usual_places
from app.host import Host, Opened
from app.model_choice import ModelChoice
from app.paths import demo_folder, log_file
from app.plan_report import real_model_text
from app.run_options import RunOptions
from app.sanitize import one_line
from app.settings import Settings
from app.transcripts.session import SessionOf
from app.transcripts.store import TranscriptStore
from app.transcripts.transcript import Transcript
from app.tui.action_bindings import bindings_of
from app.tui.palette import Palette
from app.tui.screens.chat import ChatScreen
from app.tui.themes import ThemedApp
from app.tui.widgets.prompt import box_text
from app.values import THEMES
from engine.events import TurnStats

_DRAIN_S = 0.05
"""So often the screen looks at what the engine left in the mailbox."""

_CHECK_SAVED_S = 3.0

_TYPING_S = 0.045
"""A drain this soon after a key is put off, at most so many in a row: then text 200 ms old is shown all the same."""
_MOST_PUT_OFF = 3

SCREEN_SHARE = 0.015
"""Of the time a reply takes, what the screen may: what is painted in Python keeps the engine's Python waiting."""
_LONGEST_FRAME_S = 0.5
"""So often it is painted whatever that costs, as on a machine that is busy with other things."""

_LOOK_EVERY_S = 0.25
"""Between two looks at how far the prompt is read."""

_DRIVE_JOB_S = 2.0
"""What copying is given to end its block; a block that is cut off is only written again."""

SCREENS: Mapping[str, str] = {
    "transcripts": "app.tui.screens.transcripts:TranscriptsScreen",
    "plan": "app.tui.screens.plan:PlanScreen",
    "drives": "app.tui.screens.drives:DrivesScreen",
    "mirror": "app.tui.screens.mirror:MirrorScreen",
    "settings": "app.tui.screens.settings:SettingsScreen",
    "help": "app.tui.screens.help:HelpScreen",
    "logs": "app.tui.screens.logs:LogsScreen",
    "model": "app.tui.screens.model:ModelScreen",
}
"""Screens that open on top of the chat, by action id; imported when they are first wanted."""

_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class ArtesianApp(ThemedApp):
    """The chat application."""

    CSS_PATH = "artesian.tcss"
    TITLE = "Artesian"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = bindings_of("global")

    def __init__(
        self,
        *,
        backend_factory: Callable[[ModelChoice], Backend],
        choice: ModelChoice,
        store: TranscriptStore,
        settings: Settings,
        session_of: SessionOf,
        transcript: Transcript | None = None,
        keeps_drafts: bool = True,
        is_first_run: bool = False,
        options: RunOptions | None = None,
    ) -> None:
        """`backend_factory` is called on the engine thread, as what it imports takes a second; `session_of` gives a
        conversation its defaults; `transcript` is the conversation to resume; `keeps_drafts` is whether the draft and
        the history of the box are on disk; `is_first_run` looks for models, and says so.
        """
        super().__init__(settings.theme, mouse=settings.mouse is not False)
        self.choice = choice
        self.store = store
        self.settings = settings
        self.options = options or RunOptions()
        """What the command line said of how a model is run; the plan is shown with it."""
        self.host = Host(lambda: backend_factory(self.choice))
        self.facts: RunFacts | None = None
        """What the model is, once it is open."""
        self.last_turn: TurnStats | None = None
        """Figures of the last turn of this session."""
        self.drive_job: DriveJob | None = None
        """Copying or the like that was begun last."""
        self._session_of = session_of
        self.chat = ChatScreen(
            lambda one: session_of(one, self.choice), transcript or store.create(), keeps_drafts=keeps_drafts
        )
        self._backend_factory = backend_factory
        self.screen_share = SCREEN_SHARE
        self._n_put_off = 0
        self._drained_s = self._drained_cpu_s = 0.0  # when the mailbox was emptied last, and what was computed by then
        self._looked_s = 0.0
        self._is_first_run = is_first_run

    # life and death

    def get_driver_class(self) -> type[Driver]:
        """Textual's choice for this system, on a terminal with our reading of its input."""
        chosen = super().get_driver_class()
        with suppress(ImportError):  # there is no such driver on this system, or none any more in this Textual
            from app.tui.terminal import TerminalDriver

            return TerminalDriver if issubclass(TerminalDriver, chosen) else chosen
        return chosen

    def on_mount(self) -> None:
        """Show the chat at once; the model loads meanwhile."""
        self.push_screen(self.chat)
        if self._is_first_run:
            self._look_for_models()
        self.host.start()
        self._drain_later(_DRAIN_S)
        self.set_interval(_CHECK_SAVED_S, self.chat.check_saved)
        if self.settings.keymap:
            self.set_keymap(dict(self.settings.keymap))
        loop = asyncio.get_running_loop()
        for number in _ENDING_SIGNALS:
            # Not where this is not the main thread, as in some tests, or the system has none of them.
            with suppress(NotImplementedError, RuntimeError, ValueError):
                loop.add_signal_handler(number, self._end_by, number)

    @work(thread=True, exit_on_error=False)
    def _look_for_models(self) -> None:
        """Say that a checkpoint was found, or what the released model would be here. No screen opens by itself: whoever
        starts is typing already.
        """
        demo = demo_folder().resolve()
        worker = get_current_worker()
        for folder in find_checkpoints(usual_places(self.settings, Path.home()), lambda: worker.is_cancelled):
            if folder.resolve() != demo:
                text = f"There is a checkpoint in {one_line(str(folder))}: /model shows it and what to expect of it."
                self.call_from_thread(self.notify, text, timeout=15, markup=False)
                return
        text = f"{real_model_text(self.settings, self.options, Path.home())} `artesian plan --released` shows how."
        if not worker.is_cancelled:
            self.call_from_thread(self.chat.tell_of_real_model, text)

    def action_help_quit(self) -> None:
        """Ctrl+C, which Textual keeps for itself: stop a reply as in line mode, or say how to leave."""
        if self.chat.conversation.running is not None:
            self.chat.action_stop()
        else:
            self.clear_notifications()
            self.notify("ctrl+q quits; the conversation and what is in the box are kept.")

    def _end_by(self, number: int) -> None:
        """A signal asked us to go: as quitting does, with the exit code shells expect."""
        self.exit(return_code=128 + number)

    def close(self) -> bool:
        """Stop the engine and close the conversation, once the terminal is the user's again; whether it ended in time.

        Stopping takes as long as a layer does, or as reading a library that is being loaded.
        """
        if self.drive_job is not None:
            self.drive_job.stop()
        ended = self.host.close()
        if self.drive_job is not None:
            self.drive_job.join(_DRIVE_JOB_S)
        self.chat.close_transcripts()
        return ended

    def _handle_exception(self, error: Exception) -> None:
        # Textual's own shows a page of frames with local variables, the conversation in them. The log has the frames.
        logs.log.error("screen\n%s", "".join(traceback.format_exception(error)))
        self._return_code = 1
        if self._exception is None:
            self._exception = error
            self._exception_event.set()
        what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        # As Text: a string would be taken for markup.
        self.panic(Text(f"artesian: unexpected failure: {one_line(what)}\n  The traceback is in {log_file()}."))

    # what is pasted: Textual's lines of text, the palette's among them, would send controls inside to the terminal

    async def on_event(self, event: Event) -> None:
        """Hand it on; what is pasted into a line of text with its controls made visible, as the box does it."""
        if isinstance(event, Paste) and isinstance(self.focused, Input):
            event.text = box_text(event.text)
        await super().on_event(event)

    @property
    def clipboard(self) -> str:
        """What was copied here last, as our own boxes take it."""
        text = box_text(super().clipboard)
        return text.partition("\n")[0] if isinstance(self.focused, Input) else text

    # the engine

    def _drain_later(self, wait_s: float) -> None:
        """Drain in so many seconds, and from then on whenever it is due.

        Not by a timer of Textual's: one that ticks twenty times a second takes a sixth of what the screen may.
        """
        asyncio.get_running_loop().call_later(wait_s, self._drain_and_go_on)

    def _drain_and_go_on(self) -> None:
        if not self.is_running:
            return
        try:
            wait_s = self.drain()
        except Exception as error:  # the screen's net, which Textual spreads under timers
            self._handle_exception(error)
        else:
            self._drain_later(wait_s)

    def drain(self) -> float:
        """Hand what the engine left to the chat; a few frames later while keys come in, which are to be seen first, and
        while a reply is written as seldom as the screen's share of the time asks for.

        Returns: in how many seconds to look again.
        """
        now_s, cpu_s = time.monotonic(), time.thread_time()
        if self._n_put_off < _MOST_PUT_OFF and now_s - self.chat.typed_s < _TYPING_S:
            self._n_put_off += 1
            return _DRAIN_S
        if self.chat.conversation.running is not None:
            frame_s = min((cpu_s - self._drained_cpu_s) / self.screen_share, _LONGEST_FRAME_S)
            if now_s - self._drained_s < frame_s:
                return self._drained_s + frame_s - now_s
            if now_s - self._looked_s >= _LOOK_EVERY_S:
                self._looked_s = now_s
                self.host.look()
        self._n_put_off = 0
        self._drained_s, self._drained_cpu_s = now_s, cpu_s
        events = self.host.mailbox.take()
        for event in events:
            if isinstance(event, Opened):
                self.facts = event.facts
        if events and self.chat.is_running:
            self.chat.take(events)
        return _DRAIN_S

    def reopen(self, choice: ModelChoice) -> None:
        """Use another model from now on, with its own defaults.

        Raises: ConfigError, SamplerSettingsError when what its folder says of them cannot be used.
        """
        defaults = self._session_of(self.chat.conversation.transcript, choice)
        self.choice, self.facts = choice, None
        self.chat.take_model(defaults)
        self.host.reopen(lambda: self._backend_factory(choice))

    # actions

    def run_action_id(self, action_id: str, argument: str = "") -> None:
        """Do an action of the table, whoever has its method: the focused widget, its screen, the chat, the app."""
        name = f"action_{action_id}"
        for owner in (self.focused, self.screen, self.chat, self):
            method = getattr(owner, name, None)
            if method is not None:
                result = method(argument) if argument else method()
                if asyncio.iscoroutine(result):
                    self.run_worker(result, exit_on_error=False)
                return
        self.notify(f"There is no action {action_id}.", severity="warning", markup=False)

    def open_screen(self, name: str, argument: str = "") -> None:
        """Show the named screen on top of the chat, with what was said after its command; nothing if it is on top."""
        module, _, cls = SCREENS[name].partition(":")
        screen_class: type[Screen[None]] = getattr(import_module(module), cls)
        if type(self.screen) is not screen_class:
            self.push_screen(screen_class(argument) if argument else screen_class())

    def open_transcript(self, transcript_id: str) -> None:
        """Show another conversation in the chat."""
        self.chat.open_transcript(transcript_id)

    async def action_quit(self) -> None:
        """Leave; a conversation that cannot be saved only after a warning."""
        if self.chat.may_leave():
            self.exit()

    def action_palette(self) -> None:
        """Show every action."""
        if not isinstance(self.screen, Palette):
            self.push_screen(Palette())

    def action_help(self) -> None:
        """Show the keys."""
        self.open_screen("help")

    def action_transcripts(self, argument: str = "") -> None:
        """List the conversations, and search them for `argument`."""
        self.open_screen("transcripts", argument)

    def action_resume(self, argument: str) -> None:
        """Go on with the conversation that has this id, or one that begins so."""
        try:
            path = self.store.path_of(argument)
        except TranscriptMissing as error:
            self.notify(f"{error}. {error.hint}", severity="warning", markup=False)
            return
        self.open_transcript(path.stem)

    def action_plan(self) -> None:
        """Show where the time goes."""
        self.open_screen("plan")

    def action_drives(self) -> None:
        """Show the drives."""
        self.open_screen("drives")

    def action_mirror(self) -> None:
        """Find drives for copies of the model."""
        self.open_screen("mirror")

    def action_settings(self, argument: str = "") -> None:
        """Show the settings; with a key begin on it, with a value after it ask for that."""
        self.open_screen("settings", argument)

    def action_logs(self) -> None:
        """Show the log."""
        self.open_screen("logs")

    def action_model(self, argument: str = "") -> None:
        """Choose a model, or judge the one in the named folder."""
        self.open_screen("model", argument)

    def action_theme(self, argument: str = "") -> None:
        """Take the named theme, or the next one."""
        name = argument or self.next_theme()
        if name not in THEMES:
            self.notify(f"There is no theme {name}.", severity="warning", markup=False)
            return
        self.take_theme(name)

    def action_mouse(self) -> None:
        """Leave the mouse to the terminal, or take it back."""
        self.has_mouse = not self.has_mouse
        ours, theirs = "The mouse scrolls and clicks here again.", "The mouse is the terminal's: select text with it."
        self.notify(ours if self.has_mouse else theirs)

    def action_suspend(self) -> None:
        """Go to the background."""
        self.action_suspend_process()
