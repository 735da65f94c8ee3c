"""`ask --continue`: the saved conversation that a question goes on with, the reply saved as it comes, and the engine's
state beside it.

The one thing a reader would get wrong: nothing is saved before the prompt was measured. A question that cannot be run
must not stand in the conversation for ever.
"""

from collections.abc import Callable

from app.backends.base import Backend, TurnRequest
from app.command_words import CONTINUE, LATEST
from app.errors import TranscriptMissing, UsageError
from app.slips import asked
from app.transcripts.reply import ReplyWriter
from app.transcripts.session import ChatSession, as_message
from app.transcripts.store import user_store
from app.transcripts.transcript import Transcript
from app.values import Effort
from engine.events import Event
from engine.prompt import UserMessage
from engine.sampler_settings import SamplerSettings


def open_continued(name: str, question: str = "") -> Transcript:
    """The transcript that `--continue` names; `question` is what stands behind it, which the name may belong to.

    Raises: TranscriptMissing when there is none; TranscriptError when it cannot be read, or another window has it.
    """
    store = user_store()
    if name != LATEST:
        try:
            transcript = store.open(name)
        except TranscriptMissing as error:
            meant = asked([name, *([question] if question else [])])
            raise TranscriptMissing(
                str(error), hint=f"{error.hint} A question stands before the option, or in quotes: {meant} {CONTINUE}"
            ) from error
    else:
        latest = store.latest()
        if latest is None:
            raise TranscriptMissing("there is no conversation to go on with", hint="Begin one with `artesian`.")
        transcript = latest
    transcript.require_writable()
    return transcript


class Continuation:
    """One more turn of a saved conversation.

    Attributes:
        request: The turn.
    """

    def __init__(
        self,
        transcript: Transcript,
        question: str,
        *,
        effort: Effort,
        sampling: SamplerSettings,
        max_tokens: int,
        saves_state: bool,
    ) -> None:
        """Without a question the last reply is gone on with, or the last message answered that has no reply.

        `sampling` has a seed. Raises: UsageError when there is neither.
        """
        self._session = ChatSession(
            transcript, effort=effort, sampling=sampling, max_tokens=max_tokens, saves_state=saves_state
        )
        self._question = question
        self._writer: ReplyWriter | None = None
        head = transcript.head
        if question:
            before = () if head is None else self._session.request(head).messages
            asked = TurnRequest(
                messages=(*before, UserMessage(parts=(question,))),
                effort=effort,
                sampling=sampling,
                max_tokens=max_tokens,
            )
            self.request = asked
        elif head is None or (head.role == "assistant" and head.status == "complete"):
            raise UsageError("there is no question, and no reply that was cut off", hint="Give a question.")
        elif head.role == "assistant" and as_message(head) is not None:
            self.request = self._session.continue_request(head)
        else:
            if head.role == "assistant":  # it was stopped before its first token: what it was to answer is answered
                assert head.parent is not None, "a reply is one to something"
                head = transcript.node(head.parent)
            self.request = self._session.request(head)
        self._answered = head

    def restore(self, backend: Backend, tell: Callable[[str], None]) -> None:
        """Take in the state that was saved beside the transcript, if there is one and it belongs to the model."""
        self._session.states.restore(backend, tell)

    def begin(self, backend: Backend) -> None:
        """Save the question, and make a place for the reply. After `open`.

        Raises: TranscriptError when the transcript can only be read.
        """
        session = self._session
        node = session.add_user(self._question) if self._question else self._answered
        assert node is not None
        self._writer = session.begin_reply(node, self.request, backend.facts())

    def take(self, event: Event) -> None:
        """Save one event of the turn."""
        if self._writer is not None:
            self._writer.take(event)

    def finish(self, error: str, tell: Callable[[str], None]) -> None:
        """The turn is over; with `error` it failed of that. Says what could not be saved."""
        if self._writer is not None:
            self._writer.finish(error)
        problem = self._session.transcript.problem
        if problem is not None:
            tell(problem)

    def save_state(self, backend: Backend, tell: Callable[[str], None]) -> None:
        """Save the engine's state beside the transcript, if that is wanted."""
        self._session.states.save(backend, tell)

    def close(self) -> None:
        """Close the transcript."""
        self._session.transcript.close()


def last_effort(transcript: Transcript, otherwise: Effort) -> Effort:
    """How much the conversation's last reply was to think: in another mode nothing of its state could be used."""
    runs = [node.runs[-1] for node in transcript.path() if node.runs]
    return runs[-1].effort if runs else otherwise
