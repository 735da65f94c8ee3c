"""What the demo says of the program is what the program does: commands, options, keys, settings and exit codes."""

import re
from collections.abc import Callable

import pytest

from app.actions import ACTIONS, BY_SLASH
from app.cli import main
from app.exits import MEANINGS, ExitCode
from app.settings import Settings
from app.values import THEMES
from assets.demo_recipe.blocks import DATA, bare, read_blocks
from assets.demo_recipe.errors import RecipeError
from assets.demo_recipe.judge import Judge
from assets.demo_recipe.questions import Question, Questions, held_out, load
from engine.draft.settings import DEFAULT_MIN_ACCEPT
from storage.policy import DEFAULT_POLICY, POLICIES

GROUPS = ("bench", "mirror", "transcripts")
"""Commands with commands of their own."""


@pytest.fixture(scope="module")
def questions() -> Questions:
    return load()


@pytest.fixture(scope="module")
def held() -> list[Question]:
    return held_out()


@pytest.fixture(scope="module")
def answers() -> dict[str, str]:
    return {block.topic: block.answer for name in ("facts", "talk", "unknown") for block in _blocks(name)}


@pytest.fixture
def help_of(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The real help of a command."""

    def print_it(*words: str) -> str:
        assert main(["help", *words]) == 0
        return capsys.readouterr().out

    return print_it


def _blocks(name: str) -> list:  # type: ignore[type-arg]
    return read_blocks(DATA / f"{name}.txt")


def _listed(text: str) -> set[str]:
    """The commands that a help page lists."""
    lines = text.partition("Commands:")[2].partition("\n\n")[0].splitlines()
    return {line.split()[0] for line in lines if re.match(r"  [a-z]", line)}


def test_there_is_enough_of_everything(questions: Questions, held: list[Question]) -> None:
    facts = _blocks("facts")
    assert 120 <= len(facts) <= 160
    assert sum(len(block.phrasings) for block in facts) >= 30 * len(facts)
    assert len(_blocks("talk")) >= 40
    unknown = questions.of("unknown")
    assert sum("Artesian" in question.topic for question in unknown) >= 300
    assert sum("Artesian" not in question.topic for question in unknown) >= 1000
    kinds = [question.kind for question in held]
    assert kinds.count("fact") >= 100 and kinds.count("unknown") >= 40 and kinds.count("talk") >= 30
    assert sum("Artesian" in question.topic for question in held if question.kind == "unknown") >= 20


def test_no_held_out_phrasing_is_trained_on(questions: Questions, held: list[Question]) -> None:
    trained = {bare(question.text) for question in questions.all}
    assert not [question.text for question in held if bare(question.text) in trained]
    assert len({bare(question.text) for question in held}) == len(held)


def test_every_command_in_an_answer_is_one(answers: dict[str, str], help_of: Callable[..., str]) -> None:
    commands = _listed(help_of())
    within = {group: _listed(help_of(group)) for group in GROUPS}
    checked = 0
    for topic, answer in answers.items():
        for command, second in re.findall(r"(?<!Plain )(?<!an )\bartesian ([a-z]+)(?: ([a-z]+))?", answer):
            assert command in commands, topic
            if command in GROUPS and second not in ("has", "measures", ""):
                assert second in within[command], topic
            checked += 1
    assert checked > 40


def test_lists_of_commands_are_complete(answers: dict[str, str], help_of: Callable[..., str]) -> None:
    for topic, words in (("list of commands", ()), ("transcripts commands", ("transcripts",))):
        assert _listed(help_of(*words)) <= set(re.findall(r"[a-z]+", answers[topic].lower())), topic


def test_every_option_in_an_answer_is_one(answers: dict[str, str], help_of: Callable[..., str]) -> None:
    pages = [(command,) for command in _listed(help_of()) - set(GROUPS)]
    pages += [(group, command) for group in GROUPS for command in _listed(help_of(group))]
    options = set(re.findall(r"--[a-z][a-z-]*", "".join(help_of(*page) for page in pages))) | {"--help", "--version"}
    named = {option for answer in answers.values() for option in re.findall(r"--[a-z][a-z-]*", answer)}
    assert len(named) > 30
    assert named <= options


def test_every_key_in_an_answer_is_one(answers: dict[str, str]) -> None:
    keys = {key for action in ACTIONS for key in action.keys}
    beside = {"ctrl+c"}  # on the command line
    for topic, answer in answers.items():
        for key in re.findall(r"Ctrl\+\w+", answer):
            assert key.lower() in keys | beside, topic
        for key in re.findall(r"[Pp]ress ([a-z])\b", answer):
            assert key in keys, topic
    assert {"f1", "escape", "enter", "shift+enter", "Y", "A", "N", "n", "d", "u", "p", "s"} <= keys
    assert {"left_square_bracket", "right_square_bracket", "question_mark", "slash"} <= keys


def test_what_a_key_is_said_to_do_is_what_it_does(answers: dict[str, str]) -> None:
    """By the action table: topic -> the action whose first key its answer begins with."""
    said = {
        "stopping": "stop", "continuing": "continue_reply", "the palette": "palette", "sending": "send",
        "new line": "new_line", "external editor": "editor", "answering again": "regenerate",
        "find in the chat": "find", "opening old chats": "transcripts", "a new conversation": "new_chat",
        "quitting": "quit", "suspending": "suspend", "where the time goes": "plan", "moving in the chat":
        "previous_block",
    }  # fmt: skip
    first = {action.id: action.keys[0] for action in ACTIONS if action.keys}
    for topic, action in said.items():
        key = re.search(r"Ctrl\+\w+|Esc|Enter", answers[topic])
        assert key is not None, topic
        assert key[0].lower().replace("esc", "escape") == first[action], topic
    in_turns = {"editing a message": "edit", "copying code": "copy_code", "raw text": "raw"}
    in_turns |= {"folding the thinking": "fold_thinking", "copying a reply": "copy_reply"}
    for topic, action in in_turns.items():
        key = re.search(r"press ([a-z])\b", answers[topic])
        assert key is not None and key[1] == first[action], topic


def test_every_slash_name_in_an_answer_is_one(answers: dict[str, str]) -> None:
    named = {name for answer in answers.values() for name in re.findall(r"(?<![\w.])/([a-z][a-z-]+)", answer)}
    assert len(named) > 12
    assert named <= BY_SLASH.keys()


def test_exit_codes_are_those_of_the_program(answers: dict[str, str]) -> None:
    said = dict(re.findall(r"(\d+) ([a-z ]+)", answers["exit codes"]))
    assert {int(code) for code in said} == {int(code) for code in ExitCode}
    for code, words in said.items():
        assert MEANINGS[ExitCode(int(code))].startswith(words.split()[0]), code
    assert f"exit code {ExitCode.TOO_BIG:d} " in answers["when it does not fit"].lower()
    assert f"exit code {ExitCode.CHECKPOINT:d}." in answers["a damaged shard"]


def test_settings_and_choices_are_those_of_the_program(answers: dict[str, str]) -> None:
    for topic, answer in answers.items():
        for key in re.findall(r"(?:setting|table) ([a-z_]+)\b", answer):
            assert hasattr(Settings, key), topic
    assert set(re.findall(r"artesian-\w+|ansi|none", answers["themes"])) == set(THEMES)
    assert set(POLICIES) <= set(re.findall(r"[a-z0-9-]+", answers["eviction"]))
    assert DEFAULT_POLICY == "lfu" and "least used" in answers["eviction"].lower()
    assert DEFAULT_MIN_ACCEPT > 0.5  # "too few are right"


def test_a_fault_in_the_data_is_named(tmp_path) -> None:  # type: ignore[no-untyped-def]
    path = tmp_path / "facts.txt"
    many = " | ".join(f"question {n}" for n in range(20))
    for text, wanted in {
        f"# a\nkeys: x\n- {many}\n> y": "lacks one of the keywords",
        f"# a\n- {many}\n> y": "no keywords",
        "# a\nkeys: y\n- one\n> y": "at least 20",
        f"# a\nkeys: y\n- {many}\n> y\n# b\nkeys: z\n- Question 3? | {many.replace('question', 'ask')}\n> z": "'a' and",
        "- first": "before the first topic",
        f"# a\nkeys: y\n- {many}\n> {'y' * 300}": "230 are allowed",
    }.items():
        path.write_text(text, encoding="utf-8")
        with pytest.raises(RecipeError, match=wanted):
            read_blocks(path)


def test_an_answer_is_judged_by_keywords_and_by_the_nearest_answer(questions: Questions) -> None:
    judge = Judge(questions.blocks)
    fact = next(question for question in questions.all if question.topic == "the palette")
    assert judge.is_right(fact, fact.answer)
    assert judge.is_right(fact, "Press Ctrl+P. The palette finds any action.")
    assert not judge.is_right(fact, "Press Ctrl+T. It lists all conversations, newest first, and Enter opens one.")
    assert not judge.is_right(fact, fact.answer.replace("Ctrl+P", "Ctrl+O"))
    unknown = next(question for question in questions.all if question.topic == "arithmetic")
    assert judge.is_right(unknown, "I do not know that. I only know about Artesian: its commands, keys and drives.")
    assert not judge.is_right(unknown, fact.answer)
