"""Makes replies again as they were made, and says whether they are the same tokens.

The one thing a reader would get wrong: a reply depends on how its prompt was read. Positions read as a prompt and
positions that were drawn leave different index keys, by design of the model. So a conversation is run again turn by
turn from the last reply that began with an empty state, and not as one long prompt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields

from app.backends.base import Backend, RunFacts, TurnRequest
from app.errors import TranscriptError
from app.transcripts.records import Node, Run
from app.transcripts.session import as_message
from engine.events import DoneReason, Event, TokenDrawn, TurnDone
from engine.prompt import AssistantMessage, Message

_NOT_NUMBERS = frozenset({"model", "is_demo"})
"""Where the checkpoint lies; the fingerprint says which it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One run of the conversation, to be made again."""

    turn: int
    """Number of the reply on the branch, from 1."""
    node: Node
    run: Run
    request: TurnRequest
    ids: tuple[int, ...]
    """What it drew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Something a reply depends on that is not as it was."""

    name: str
    then: str
    now: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One run, made again."""

    turn: int
    node: str
    n_tokens: int
    """Tokens that are the same, from the first on."""
    equal: bool
    token_then: int | None
    """The first that differs; None where the reply had ended, or when all are equal."""
    token_now: int | None
    changes: tuple[Change, ...]
    reused_then: int | None
    """Tokens of the prompt that a kept state held; None when it was not recorded."""
    reused_now: int


def steps(path: Sequence[Node], turn: int | None = None, *, reread: bool = False) -> list[Step]:
    """What has to be run to make a reply of the branch again, the last or number `turn`.

    `reread` runs that reply alone, its whole prompt read anew.
    Raises: TranscriptError when there is no such reply, or its tokens are not known.
    """
    replies = [node for node in path if node.role == "assistant"]
    if not replies:
        raise TranscriptError("there is no reply in this conversation")
    if turn is not None and not 1 <= turn <= len(replies):
        raise TranscriptError(f"there is no turn {turn}", hint=f"The branch in view has {len(replies)}.")
    last = len(replies) if turn is None else turn
    found = [step for number in range(last) for step in _steps_of(path, replies[number], number + 1, reread)]
    if not found or found[-1].turn != last:
        raise TranscriptError(f"turn {last} drew no tokens, or they are not in the file")
    if reread:
        return found[-1:]
    begins = [number for number, step in enumerate(found) if step.run.stats is None or not step.run.stats.reused_tokens]
    return found[begins[-1] if begins else 0 :]


def _steps_of(path: Sequence[Node], node: Node, turn: int, reread: bool) -> Iterator[Step]:
    before = [message for one in path[: path.index(node)] if (message := as_message(one)) is not None]
    ends = [run.first for run in node.runs[1:]] + [len(node.ids)]
    for run, end in zip(node.runs, ends, strict=True):
        ids = node.ids[run.first : end]
        if not ids:
            continue
        # One that was cut short by hand is run as far as it went.
        most = run.max_tokens if run.reason in ("stop", "length", "context") else len(ids)
        request = TurnRequest(
            messages=tuple(before + _begun(node, run)),
            effort=run.effort,
            sampling=run.sampling,
            max_tokens=most,
            replay=reread,
        )
        yield Step(turn=turn, node=node, run=run, request=request, ids=ids)


def _begun(node: Node, run: Run) -> list[Message]:
    if not run.first:
        return []
    text, thinking = node.text[: run.first_text], node.thinking[: run.first_thinking]
    return [AssistantMessage(text=text, reasoning=thinking or None, ids=node.ids[: run.first], prefix=True)]


def compare(
    step: Step, backend: Backend, should_stop: Callable[[], bool], on_event: Callable[[Event], None]
) -> Compared | None:
    """Run one step on an open backend; None when it was stopped before anything differed.

    Raises: what the backend raises.
    """
    drawn, differs_at = list[int](), list[int]()
    done: TurnDone | None = None
    # What differs once differs for good: the rest need not be waited for.
    for event in backend.generate(step.request, lambda: bool(differs_at) or should_stop()):
        on_event(event)
        if isinstance(event, TokenDrawn):
            if not differs_at and step.ids[len(drawn) : len(drawn) + 1] != (event.token,):
                differs_at.append(len(drawn))
            drawn.append(event.token)
        elif isinstance(event, TurnDone):
            done = event
    assert done is not None, "the turn ended without saying so"
    if done.reason == "stopped" and not differs_at:
        return None
    n_same = differs_at[0] if differs_at else len(drawn)
    equal = n_same == len(drawn) == len(step.ids) and _same_end(step.run.reason, done.reason)
    return Compared(
        turn=step.turn,
        node=step.node.id,
        n_tokens=n_same,
        equal=equal,
        token_then=step.ids[n_same] if n_same < len(step.ids) else None,
        token_now=drawn[n_same] if n_same < len(drawn) else None,
        changes=tuple(_changes(step.run.facts, backend.facts())),
        reused_then=None if step.run.stats is None else step.run.stats.reused_tokens,
        reused_now=done.stats.reused_tokens,
    )


def _same_end(then: DoneReason | None, now: DoneReason) -> bool:
    return then not in ("stop", "length", "context") or then == now


def _changes(then: RunFacts | None, now: RunFacts) -> Iterator[Change]:
    if then is None:
        return
    for field in fields(RunFacts):
        was, is_now = getattr(then, field.name), getattr(now, field.name)
        if was != is_now and field.name not in _NOT_NUMBERS:
            yield Change(name=field.name, then=str(was), now=str(is_now))
