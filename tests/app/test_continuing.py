"""`ask --continue`: which conversation, what is asked, what is saved, and the state beside it."""

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from app.backends.base import Backend, TurnRequest
from app.cli import main
from app.command_words import name_continued
from app.paths import transcripts_dir
from app.transcripts.files import FileOps
from app.transcripts.records import Node
from app.transcripts.store import TranscriptStore
from app.transcripts.transcript import Transcript
from engine.errors import DamagedState, PromptError
from engine.events import Event, PrefillProgress, TextDelta, TokenDrawn
from engine.prompt import AssistantMessage, UserMessage
from tests.app.conftest import FillingStream
from tests.fakes import ScriptedBackend, turn_done

Use = Callable[[Backend], None]
Output = pytest.CaptureFixture[str]

_REPLY: tuple[Event, ...] = (
    PrefillProgress(done_tokens=5, total_tokens=5, read_bytes=0, elapsed_s=0.1),
    TokenDrawn(token=7),
    TextDelta(text="Hello"),
    turn_done(),
)


class Stateful(ScriptedBackend):
    """Notes what it is asked to save and restore."""

    def __init__(self, *arguments: object, damaged: bool = False, **options: object) -> None:
        super().__init__(*arguments, **options)  # type: ignore[arg-type]
        self.saved: list[TurnRequest] = []
        self.restored: list[Path] = []
        self.damaged = damaged

    def save_state(self, path: Path, request: TurnRequest) -> int:
        self.saved.append(request)
        path.write_text("state")
        return 5

    def restore_state(self, path: Path) -> int:
        self.restored.append(path)
        if self.damaged:
            raise DamagedState(f"{path.name}: the saved state is damaged: a bit", hint="It is read again.")
        return 5


@pytest.fixture
def begun() -> str:
    """A conversation of one turn; its id."""
    with TranscriptStore(transcripts_dir()).create() as transcript:
        asked = transcript.add("user", "hi", None)
        from app.transcripts.session import ChatSession

        session = ChatSession(transcript, max_tokens=9)
        writer = session.begin_reply(asked, session.request(asked))
        for event in _REPLY:
            writer.take(event)
        writer.finish()
        return transcript.id


def messages(transcript_id: str) -> list[Node]:
    with TranscriptStore(transcripts_dir()).open(transcript_id) as transcript:
        return transcript.path()


@pytest.mark.parametrize(
    ("words", "taken"),
    [
        (["ask", "--continue"], ["ask", "--continue=latest"]),
        (["ask", "--continue", "why?"], ["ask", "--continue=latest", "why?"]),
        (["ask", "--continue", "ab2cdefgh3", "why?"], ["ask", "--continue=ab2cdefgh3", "why?"]),
        (["ask", "--continue=ab2", "why?"], ["ask", "--continue=ab2", "why?"]),
        (["ask", "--continue", "and then?"], ["ask", "--continue=latest", "and then?"]),
        (["ask", "--continue", "I'm", "lost"], ["ask", "--continue=latest", "I'm", "lost"]),
        (["ask", "--continue", "warum", "größer"], ["ask", "--continue=warum", "größer"]),
        (["ask", "--continue", "größer", "warum"], ["ask", "--continue=latest", "größer", "warum"]),
        (["ask", "--", "--continue"], ["ask", "--", "--continue"]),
        (["ask", "--continue", "4ahf", "why?"], ["ask", "--continue=4ahf", "why?"]),
        (["ask", "--continue", "zz", "hi"], ["ask", "--continue=zz", "hi"]),
        (["ask", "what", "then?", "--continue"], ["ask", "what", "then?", "--continue=latest"]),
        (["--debug", "ask", "--continue", "4AHF"], ["--debug", "ask", "--continue=4AHF"]),
        (["ask", "--continue", "4ah", "4ah"], ["ask", "--continue=4ah", "4ah"]),
        (["ask", "--continue", "-"], ["ask", "--continue=latest", "-"]),
        (["ask", "--continue", "--seed", "4ahf"], ["ask", "--continue=latest", "--seed", "4ahf"]),
        (["--continue"], ["--continue=latest"]),
        (["--continue", "4a", "--plain"], ["--continue=4a", "--plain"]),
        (["--debug", "--plain", "--continue", "none-such"], ["--debug", "--plain", "--continue=none-such"]),
        (["chat", "--continue", "--plain"], ["chat", "--continue=latest", "--plain"]),
        (["chat", "--continue", "why"], ["chat", "--continue=why"]),
    ],
)
def test_what_is_gone_on_with_is_named(words: list[str], taken: list[str]) -> None:
    assert name_continued(words) == taken


@pytest.fixture
def _three_of_them() -> None:
    """Conversations whose ids are known; the one that is changed last begins unlike the others."""
    for n, name in enumerate(["4ahfk2mnp7", "4ahbk2mnp7", "zz2cdefgh3"]):
        path = transcripts_dir() / f"{name}.jsonl"
        with Transcript(path, FileOps(), exists=False) as transcript:
            transcript.add("user", f"I am {name}", None)
        os.utime(path, (n, n))


@pytest.mark.usefixtures("_three_of_them")
def test_the_beginning_of_an_id_names_the_conversation(use_backend: Use, capsys: Output) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "--continue", "4ahf", "and", "then?"]) == 0
    named = backend.requests[-1].messages
    assert named == (UserMessage(parts=("I am 4ahfk2mnp7",)), UserMessage(parts=("and then?",)))
    assert main(["ask", "--continue", "what then?"]) == 0
    asked = backend.requests[-1].messages[-1]
    assert asked == UserMessage(parts=("what then?",))
    capsys.readouterr()
    assert main(["ask", "--continue", "4ah", "and then?"]) == 2
    assert "2 transcripts begin with 4ah" in capsys.readouterr().err


@pytest.mark.usefixtures("_three_of_them")
@pytest.mark.parametrize(
    ("name", "near"),
    [("zz3", "zz2cdefgh3"), ("4ahc", "4ahfk2mnp7 or 4ahbk2mnp7"), ("4ahfk2mnpz", "4ahfk2mnp7 or 4ahbk2mnp7")],
)
def test_a_mistyped_id_is_no_part_of_the_question(use_backend: Use, capsys: Output, name: str, near: str) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "--continue", name, "hi"]) == 2
    out, err = capsys.readouterr()
    assert out == "" and not backend.requests
    told = f"there is no transcript {name}\n  Did you mean {near}? A question stands before the option, or in quotes: "
    assert f'{told}artesian ask "{name} hi" --continue\n' in err


@pytest.mark.usefixtures("_three_of_them")
@pytest.mark.parametrize("command", [[], ["chat"]])
def test_the_chat_takes_any_word_for_the_conversation(capsys: Output, command: list[str]) -> None:
    assert main([*command, "--continue", "why", "--plain"]) == 2
    assert "there is no transcript why" in capsys.readouterr().err


def test_naming_a_conversation_loads_neither_torch_nor_textual() -> None:
    program = (
        "import sys; from app.command_words import name_continued; name_continued(['ask', '--continue', '4ahf']); "
        "print({'torch', 'textual'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize("named", [False, True])
def test_a_question_goes_on_with_the_conversation_and_both_are_saved(
    use_backend: Use, capsys: Output, begun: str, named: bool
) -> None:
    backend = Stateful(_REPLY)
    use_backend(backend)
    assert main(["ask", "--continue", *([begun, "and", "then?"] if named else ["and then?"])]) == 0
    assert capsys.readouterr().out == "Hello\n"
    asked = (UserMessage(parts=("hi",)), AssistantMessage(text="Hello", ids=(7,)), UserMessage(parts=("and then?",)))
    assert backend.requests[-1].messages == asked
    roles = [(node.role, node.text, node.status) for node in messages(begun)]
    assert roles[2:] == [("user", "and then?", "complete"), ("assistant", "Hello", "complete")]
    assert messages(begun)[-1].facts == backend.facts()
    assert backend.saved == [] and backend.restored == []


def test_without_a_question_a_reply_that_was_cut_goes_on(use_backend: Use, begun: str) -> None:
    use_backend(ScriptedBackend((*_REPLY[:-1], turn_done("stopped"))))
    assert main(["ask", "more", "--continue"]) == 130
    backend = Stateful(_REPLY)
    use_backend(backend)
    assert main(["ask", "--continue"]) == 0
    last = backend.requests[-1].messages[-1]
    assert last == AssistantMessage(text="Hello", ids=(7,), prefix=True)
    node = messages(begun)[-1]
    assert (node.text, node.ids, node.status) == ("HelloHello", (7, 7), "complete")
    assert main(["ask", "--continue"]) == 2  # there is nothing to go on with any more


def test_without_a_question_one_whose_reply_never_began_is_answered(use_backend: Use, begun: str) -> None:
    use_backend(ScriptedBackend([turn_done("stopped", answer_tokens=0)]))
    assert main(["ask", "more", "--continue"]) == 130
    backend = Stateful(_REPLY)
    use_backend(backend)
    assert main(["ask", "--continue"]) == 0
    assert backend.requests[-1].messages[-1] == UserMessage(parts=("more",))
    *_, asked, reply = messages(begun)
    assert (asked.text, reply.text, reply.status, reply.parent) == ("more", "Hello", "complete", asked.id)


def test_a_question_that_cannot_be_run_is_not_saved(use_backend: Use, begun: str) -> None:
    class Full(ScriptedBackend):
        def measure(self, request: TurnRequest) -> object:  # type: ignore[override]
            raise PromptError("the prompt has 5,000 tokens, the context 4,096")

    use_backend(Full(_REPLY))
    before = messages(begun)
    assert main(["ask", "--continue", "a novel"]) == 2
    assert messages(begun) == before


def test_a_turn_that_fails_keeps_question_and_text(use_backend: Use, begun: str) -> None:
    use_backend(ScriptedBackend(_REPLY[:-1], failure=PromptError("it broke")))
    assert main(["ask", "more", "--continue"]) == 2
    *_, asked, reply = messages(begun)
    assert (asked.text, reply.text, reply.status, reply.error) == ("more", "Hello", "failed", "it broke")


@pytest.mark.parametrize(("number", "code"), [(errno.ENOSPC, 1), (errno.EPIPE, 0)])
@pytest.mark.parametrize("n_writes", [0, 1])
def test_what_of_the_answer_could_not_be_shown_is_saved(
    use_backend: Use, capsys: Output, begun: str, monkeypatch: pytest.MonkeyPatch, number: int, code: int, n_writes: int
) -> None:
    use_backend(ScriptedBackend([TokenDrawn(token=7), TextDelta(text="Hel"), TokenDrawn(token=8), *_REPLY[2:]]))
    with monkeypatch.context() as patch:
        patch.setattr("sys.stdout", FillingStream(n_writes, number))
        patch.setattr("app.cli._closed_pipe", lambda: 0)  # which is about a file descriptor, and stdout has none here
        assert main(["ask", "more", "--continue"]) == code
    err = capsys.readouterr().err
    told = f"artesian: stdout: {os.strerror(errno.ENOSPC)}, so the answer cannot be written\n"
    assert err.endswith(told) == (number == errno.ENOSPC) and "Traceback" not in err
    *_, asked, reply = messages(begun)
    assert (asked.text, reply.text, reply.status) == ("more", "Hel" if n_writes == 0 else "HelHello", "failed")


def test_the_state_is_saved_when_asked_for_and_restored_when_it_is_there(
    use_backend: Use, capsys: Output, begun: str
) -> None:
    first, second, third = Stateful(_REPLY), Stateful(_REPLY), Stateful(_REPLY, damaged=True)
    use_backend(first)
    assert main(["ask", "--continue", "--save-state", "one"]) == 0
    state = transcripts_dir() / f"{begun}.state"
    assert first.restored == [] and state.exists()
    assert first.saved[0].messages[-1] == AssistantMessage(text="Hello", ids=(7,))
    use_backend(second)
    assert main(["ask", "two", "--continue"]) == 0
    assert second.restored == [state] and second.saved == []
    capsys.readouterr()
    use_backend(third)
    assert main(["ask", "three", "--continue"]) == 0
    out, err = capsys.readouterr()
    assert out == "Hello\n" and "the saved state is damaged: a bit. It is read again.\n" in err


def test_a_deleted_conversation_leaves_no_state(begun: str) -> None:
    state = transcripts_dir() / f"{begun}.state"
    state.write_text("state")
    TranscriptStore(transcripts_dir()).delete(begun)
    assert not state.exists()


def test_replay_asks_for_everything_to_be_read_again(use_backend: Use, begun: str) -> None:
    backend = ScriptedBackend(_REPLY)
    use_backend(backend)
    assert main(["ask", "--continue", "--replay", "again?"]) == 0
    assert backend.requests[-1].replay


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--replay", "hi"], "--replay has no effect without --continue"),
        (["--save-state", "hi"], "--save-state has no effect without --continue"),
        (["--continue", "--raw", "hi"], "--raw cannot be used with --continue"),
        (["--continue", "--system", "x", "hi"], "--system cannot be used with --continue"),
        (["hi", "--continue"], "there is no conversation to go on with"),
        (["--continue", "ab2cdefgh3", "hi"], "there is no transcript ab2cdefgh3"),
    ],
)
def test_what_cannot_act_is_refused_by_name(use_backend: Use, capsys: Output, arguments: list[str], told: str) -> None:
    use_backend(ScriptedBackend(_REPLY))
    assert main(["ask", *arguments]) != 0
    out, err = capsys.readouterr()
    assert out == "" and told in err and "Traceback" not in err
