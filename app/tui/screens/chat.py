"""The chat: a conversation, the box to write in, and one line that says what the machine does."""

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import BindingType
from textual.screen import Screen

from app.host import HostEvent
from app.tui.action_bindings import bindings_of


class ChatScreen(Screen[None]):
    """One conversation."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_of("chat", leave_out=("send", "new_line"))

    def __init__(self, transcript_id: str | None) -> None:
        """`transcript_id` names the conversation to resume; None begins a new one."""
        super().__init__()
        self._transcript_id = transcript_id

    def take(self, events: Sequence[HostEvent]) -> None:
        """Show what the engine did since the last call."""

    def open_transcript(self, transcript_id: str) -> None:
        """Show another conversation; a reply that grows is stopped and kept first."""
