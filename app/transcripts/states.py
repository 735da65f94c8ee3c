"""The engine's state of a conversation, in a file beside its transcript: restored before its first turn, saved when
there is time.

A cache of what reading the conversation again would give. So nothing here can fail a turn: what went wrong is said, and
the conversation is read again.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from app.backends.base import Backend, TurnRequest
from app.transcripts.records import Node
from engine.errors import EngineError
from storage.errors import StorageError

if TYPE_CHECKING:
    from app.transcripts.session import ChatSession

Tell = Callable[[str], None]
"""Takes one sentence for the user."""


class StateKeeper:
    """One conversation's state. For the thread that runs the turns.

    Attributes:
        saves: Whether the state is saved at all; what is there is restored in any case.
    """

    def __init__(self, session: "ChatSession", *, saves: bool) -> None:
        self.saves = saves
        self._session = session
        self._restored_into: Backend | None = None
        self._saved: Node | None = None

    def restore(self, backend: Backend, tell: Tell) -> None:
        """Take the saved state into an open backend, unless this one has it already."""
        if backend is self._restored_into:
            return
        self._restored_into = backend
        path = self._session.transcript.state_path
        if not path.exists():
            return
        try:
            backend.restore_state(path)
        except (EngineError, StorageError) as error:
            tell(f"{error}. {error.hint}".strip())

    def save(self, backend: Backend, tell: Tell) -> None:
        """Save the state behind the newest message, unless that was done already or is not wanted."""
        transcript = self._session.transcript
        head = transcript.head
        if not self.saves or head is None or head == self._saved or transcript.problem is not None:
            return
        self._saved = head
        try:
            backend.save_state(transcript.state_path, self._request(head))
        except (EngineError, StorageError) as error:
            tell(f"{error}. {error.hint}".strip())

    def _request(self, head: Node) -> TurnRequest:
        """What the next turn's prompt begins with: a reply that was cut off may be gone on with."""
        session = self._session
        if head.role == "assistant" and head.status != "complete" and head.ids:
            return session.continue_request(head)
        request = session.request(head)
        # The state belongs to the mode of the turn it comes from.
        return replace(request, effort=head.runs[-1].effort) if head.runs else request
