"""What a chat does with a transcript: take what the user wrote, ask for the reply, save the reply as it comes.

The one thing a reader would get wrong: regenerate, edit and branch are not calls. A reply to a message that has one
already is a sibling of it; an edited message is a sibling of the one it replaces.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from app.backends.base import RunFacts, TurnRequest
from app.model_choice import ModelChoice
from app.transcripts.records import Node, Run
from app.transcripts.reply import ReplyWriter
from app.transcripts.states import StateKeeper
from app.transcripts.transcript import Transcript
from app.values import Effort, default_max_tokens
from engine.prompt import AssistantMessage, Message, SystemMessage, UserMessage
from engine.sampler_settings import SamplerSettings


class _Head:
    """The place behind the head."""


HEAD: Final = _Head()


class ChatSession:
    """A transcript, and how its next reply is to be made.

    Attributes:
        transcript: What it writes to.
        effort: How much the model thinks, None = not at all.
        sampling: How tokens are drawn; without a seed each request gets one of its own.
        max_tokens: Most tokens of a reply, or None for what the effort suggests.
        system: Begins a conversation that has no messages yet; "" for nothing.
        states: The engine's state of it, beside the transcript.
    """

    def __init__(
        self,
        transcript: Transcript,
        *,
        effort: Effort = None,
        sampling: SamplerSettings | None = None,
        max_tokens: int | None = None,
        system: str = "",
        saves_state: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`clock` gives seconds; it decides when a growing reply is saved."""
        self.transcript = transcript
        self.effort: Effort = effort
        self._default_effort: Effort = effort
        self.sampling = sampling or SamplerSettings()
        self.max_tokens = max_tokens
        self.system = system
        self.states = StateKeeper(self, saves=saves_state)
        self._clock = clock

    def take_defaults(self, other: "ChatSession") -> None:
        """Make the next replies as `other` would: another model answers. What the user said of thinking stays."""
        if self.effort == self._default_effort:
            self.effort = other.effort
        self._default_effort = other.effort
        self.sampling, self.max_tokens = other.sampling, other.max_tokens

    def add_user(self, text: str, parent: str | _Head | None = HEAD) -> Node:
        """What the user sent, behind the head or another message; None makes it a first one.

        It is on the drive when this returns, unless `transcript.problem` says why not.
        Raises: TranscriptError when the transcript can only be read.
        """
        if isinstance(parent, _Head):
            head = self.transcript.head
            parent = None if head is None else head.id
            if head is None and self.system:
                parent = self.transcript.add("system", self.system, None).id
        return self.transcript.add("user", text, parent)

    def edit(self, node: Node, text: str) -> Node:
        """What the user sent instead of `node`: a sibling of it. Raises: as `add_user`."""
        return self.add_user(text, node.parent)

    def request(self, node: Node) -> TurnRequest:
        """The conversation up to a message of the user, to be answered: a first time, or once more as a sibling.

        Called twice without a seed in `sampling`, it draws two seeds: keep the request for `begin_reply`.
        """
        return self._request(self._messages(node))

    def continue_request(self, node: Node) -> TurnRequest:
        """The conversation up to a reply, to be gone on with from its last token, with the seed it had."""
        *before, last = self._messages(node)
        assert isinstance(last, AssistantMessage)
        request = self._request([*before, replace(last, prefix=True)])
        if not node.runs:
            return request
        run = node.runs[-1]
        # The mode stands at the front of the prompt: in another one it would not be the same reply that goes on.
        return replace(
            request, effort=run.effort, sampling=replace(request.sampling, seed=run.sampling.seed),
            max_tokens=self.max_tokens or default_max_tokens(run.effort),
        )  # fmt: skip

    def begin_reply(self, node: Node, request: TurnRequest, facts: RunFacts | None = None) -> ReplyWriter:
        """A reply that is about to be made: under a message of the user, or more of a reply.

        `request` is what will be run. `facts` may come later, through the writer.
        Raises: TranscriptError when the transcript can only be read, or the reply to go on with has been answered.
        """
        goes_on = node.role == "assistant"
        run = Run(
            first=len(node.ids) if goes_on else 0,
            first_text=len(node.text) if goes_on else 0,
            first_thinking=len(node.thinking) if goes_on else 0,
            effort=request.effort,
            sampling=request.sampling,
            max_tokens=request.max_tokens,
            facts=facts,
        )
        return ReplyWriter(self.transcript, node, run, clock=self._clock)

    def _request(self, messages: list[Message]) -> TurnRequest:
        sampling = self.sampling
        if sampling.seed is None:
            sampling = replace(sampling, seed=secrets.randbits(32))
        return TurnRequest(
            messages=tuple(messages),
            effort=self.effort,
            sampling=sampling,
            max_tokens=self.max_tokens or default_max_tokens(self.effort),
        )

    def _messages(self, node: Node) -> list[Message]:
        return [message for one in self.transcript.path(node) if (message := as_message(one)) is not None]


SessionOf = Callable[[Transcript, ModelChoice], ChatSession]
"""Gives a conversation the defaults of the model that answers it. Raises: ConfigError, SamplerSettingsError."""


def as_message(node: Node) -> Message | None:
    """A message of the tree as the prompt wants it; None for a reply that failed before its first token."""
    match node.role:
        case "system":
            return SystemMessage(text=node.text)
        case "user":
            return UserMessage(parts=(node.text,))
        case "assistant":
            if not (node.text or node.thinking or node.ids):
                return None
            return AssistantMessage(text=node.text, reasoning=node.thinking or None, ids=node.ids)
