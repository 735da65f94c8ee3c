"""The in-process engine as a front end uses it: what a turn costs, what is kept, and how it is closed."""

import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.backends.base import TurnRequest
from app.backends.local import LocalBackend
from app.backends.use import Use
from app.paths import demo_folder
from app.reading import Reading
from engine.errors import ContextOverflow, DamagedState, SavedStateError, Stopped
from engine.events import PrefillProgress, TextDelta, TokenDrawn, TurnDone
from engine.prompt import AssistantMessage, Message, UserMessage
from engine.sampler_settings import SamplerSettings
from storage.checkpoint import Checkpoint
from storage.payload_mark import payload_mark
from tests.demo_answer import ANSWER, QUESTION
from tests.engine.conftest import TINY

never: Callable[[], bool] = lambda: False  # noqa: E731


def backend_of(folder: Path, numerics: str = "exact") -> LocalBackend:
    return LocalBackend(
        folder,
        numerics=numerics,  # type: ignore[arg-type]
        index_owner="published",
        reading=Reading(),
        token_map_cache=None,
        profiles=None,
    )


@pytest.fixture
def backend() -> Iterator[LocalBackend]:
    """The tiny checkpoint, open."""
    opened = backend_of(TINY / "checkpoint")
    opened.open(lambda event: None, never)
    yield opened
    opened.close()


def request(*messages: Message, **options: object) -> TurnRequest:
    arguments: dict[str, object] = {"effort": None, "sampling": SamplerSettings(temperature=0, seed=1), "max_tokens": 3}
    return TurnRequest(messages=messages, **(arguments | options))  # type: ignore[arg-type]


HI = UserMessage(parts=("hi",))
MORE = UserMessage(parts=("more",))


def turn(backend: LocalBackend, asked: TurnRequest) -> tuple[AssistantMessage, TurnDone]:
    events = list(backend.generate(asked, never))
    assert isinstance(events[-1], TurnDone)
    text = "".join(event.text for event in events if isinstance(event, TextDelta))
    ids = tuple(event.token for event in events if isinstance(event, TokenDrawn))
    return AssistantMessage(text=text, ids=ids), events[-1]


def test_what_a_turn_costs_is_known_before_and_is_what_it_costs(backend: LocalBackend) -> None:
    first = request(HI)
    cost = backend.measure(first)
    assert (cost.reused_tokens, cost.expected_s) == (0, None)
    reply, done = turn(backend, first)
    assert (done.stats.prompt_tokens, done.stats.reused_tokens) == (cost.prompt_tokens, 0)
    second = request(HI, reply, MORE)
    cost = backend.measure(second)
    assert cost.reused_tokens == done.stats.prompt_tokens + len(reply.ids) - 1
    assert cost.expected_s is not None and cost.expected_s > 0
    assert backend.measure(request(HI, reply, MORE, replay=True)).reused_tokens == 0
    _, done = turn(backend, second)
    assert (done.stats.prompt_tokens, done.stats.reused_tokens) == (cost.prompt_tokens, cost.reused_tokens)


def test_a_conversation_that_outgrows_the_context_is_told_before_it_is_sent(backend: LocalBackend) -> None:
    limit = backend.measure(request(HI)).context_tokens
    for text in ("word " * limit, "x" * limit * backend.prompts.files.tokenizer.longest_bytes):
        asked = request(UserMessage(parts=(text,)))
        for ask in (backend.measure, lambda asked: next(iter(backend.generate(asked, never)))):
            with pytest.raises(ContextOverflow, match=rf"the context {limit:,}") as caught:
                ask(asked)  # type: ignore[operator]
            assert caught.value.prompt_tokens >= caught.value.context_tokens == limit
            assert "begin a new conversation" in caught.value.hint


def test_a_saved_state_comes_back_in_another_process_and_only_to_the_same_model_and_mode(
    backend: LocalBackend, tmp_path: Path
) -> None:
    first, file = request(HI), tmp_path / "state"
    assert backend.save_state(file, first) == 0 and not file.exists()
    reply, _ = turn(backend, first)
    second = request(HI, reply, MORE)
    held = backend.measure(second).reused_tokens
    assert backend.save_state(file, second) == file.stat().st_size
    want, _ = turn(backend, second)

    again = backend_of(TINY / "checkpoint")
    again.open(lambda event: None, never)
    assert again.restore_state(file) == held == again.measure(second).reused_tokens
    got, done = turn(again, second)
    assert got == want and done.stats.reused_tokens == held
    again.close()

    other = backend_of(TINY / "checkpoint", numerics="reference")
    other.open(lambda event: None, never)
    with pytest.raises(SavedStateError, match=r"another numerics \(exact, not reference\)"):
        other.restore_state(file)
    other.close()
    assert file.exists()

    flipped = bytearray(file.read_bytes())
    flipped[len(flipped) // 2] ^= 4
    file.write_bytes(flipped)
    with pytest.raises(DamagedState, match="checksum"):
        backend.restore_state(file)
    assert not file.exists()  # it would be refused at every start


def test_weights_of_the_same_shape_are_another_model(backend: LocalBackend, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(TINY / "checkpoint", folder)
    with Checkpoint.open(folder) as files:
        before, extent = payload_mark(files), files.tensors["norm.weight"].extent
    shard = folder / extent.shard
    payload = bytearray(shard.read_bytes())
    # Everything behind the header, as training would: a sample cannot see a single byte.
    header = 8 + int.from_bytes(payload[:8], "little")
    payload[header:] = bytes(byte ^ 1 for byte in payload[header:])
    shard.write_bytes(payload)
    with Checkpoint.open(folder) as files:
        assert payload_mark(files) != before
    file = tmp_path / "state"
    reply, _ = turn(backend, request(HI))
    backend.save_state(file, request(HI, reply, MORE))
    other = backend_of(folder)
    other.open(lambda event: None, never)
    with pytest.raises(SavedStateError, match="another model"):
        other.restore_state(file)
    other.close()


def test_closing_ends_a_turn_that_rests_between_two_events(backend: LocalBackend) -> None:
    events = backend.generate(request(HI, max_tokens=100), never)
    assert isinstance(next(iter(events)), PrefillProgress)
    backend.close()
    assert list(events) == []
    backend.close()


def test_closing_from_another_thread_stops_a_turn_and_waits_for_it(backend: LocalBackend) -> None:
    drawn, ended = threading.Event(), []

    def run() -> None:
        for event in backend.generate(request(HI, max_tokens=10_000), never):
            if isinstance(event, TokenDrawn):
                drawn.set()
            ended.append(event)

    thread = threading.Thread(target=run)
    thread.start()
    assert drawn.wait(60)
    backend.close()
    thread.join(60)
    assert isinstance(ended[-1], TurnDone) and ended[-1].reason == "stopped"


def test_closing_while_it_opens_stops_the_opening() -> None:
    opening = backend_of(TINY / "checkpoint")
    begun, outcome = threading.Event(), []

    def run() -> None:
        def wait_for_close(event: object) -> None:
            begun.set()
            closing.wait(60)

        try:
            opening.open(wait_for_close, never)
        except Stopped as stopped:
            outcome.append(stopped)

    closing = threading.Event()
    thread = threading.Thread(target=run)
    thread.start()
    assert begun.wait(60)
    closer = threading.Thread(target=opening.close)
    closer.start()
    while not opening.use.is_ending:
        assert closer.is_alive()
    closing.set()
    closer.join(60)
    thread.join(60)
    assert len(outcome) == 1


def test_two_uses_at_once_are_a_mistake_of_ours() -> None:
    use = Use()
    with use, pytest.raises(AssertionError, match="one thread at a time"), use:
        raise RuntimeError("both were let in")


def test_the_demo_goes_on_with_a_conversation() -> None:
    demo = backend_of(demo_folder())
    demo.open(lambda event: None, never)
    reply, _ = turn(demo, request(UserMessage(parts=(QUESTION,)), max_tokens=60))
    assert reply.text.startswith(ANSWER[:30])
    _, done = turn(demo, request(UserMessage(parts=(QUESTION,)), reply, MORE))
    # All of the first turn but its end token, which nobody had run.
    assert done.stats.reused_tokens == demo.measure(request(UserMessage(parts=(QUESTION,)))).prompt_tokens + len(
        reply.ids
    )
    demo.close()
