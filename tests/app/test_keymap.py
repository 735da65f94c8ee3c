import pytest
from textual.keys import _character_to_key

from app.actions import ACTIONS
from app.keymap import key_name, keys_in_force, problem_of, shown_keys


def test_without_a_keymap_the_defaults_are_in_force() -> None:
    assert problem_of({}) is None
    assert keys_in_force(None) == {action.id: action.keys for action in ACTIONS}


def test_a_moved_key_takes_the_place_of_all_defaults() -> None:
    keymap = {"help": "f2, ctrl+b"}
    assert problem_of(keymap) is None
    keys = keys_in_force(keymap)
    assert keys["help"] == ("f2", "ctrl+b") and keys["stop"] == ("escape",)


@pytest.mark.parametrize(
    ("keymap", "problem", "hint"),
    [
        ({"stopp": "f2"}, "there is no action 'stopp'", "Did you mean stop?"),
        ({"zzz": "f2"}, "there is no action 'zzz'", "The actions are palette, help,"),
        ({"stop": ""}, "stop = '' cannot be used", "Keys are named"),
        ({"stop": 3}, "stop = 3 cannot be used", "Keys are named"),
        ({"stop": "ctrl+"}, "stop = 'ctrl+' cannot be used", "Keys are named"),
        ({"stop": "enter"}, "enter is a key of send and of stop", "Give one"),
        ({"edit": "y"}, "y is a key of copy_reply and of edit", "Give one"),
        ({"rename_transcript": "ctrl+p"}, "ctrl+p is a key of palette and of rename_transcript", "Give one"),
    ],
)
def test_a_keymap_that_cannot_act_is_refused(keymap: dict[str, object], problem: str, hint: str) -> None:
    said = problem_of(keymap)
    assert said is not None
    assert problem in said[0] or said[0] == problem.replace("send and of stop", "stop and of send")
    assert hint in said[1]


def test_keys_may_be_swapped() -> None:
    assert problem_of({"regenerate": "ctrl+l", "continue_reply": "ctrl+r"}) is None


@pytest.mark.parametrize("sign", "?/[]@-+_\\.,;:!#'\"")
def test_signs_have_the_names_textual_gives_them(sign: str) -> None:
    assert key_name(sign) == _character_to_key(sign)


def test_keys_are_shown_as_people_write_them() -> None:
    assert shown_keys(("f1", "question_mark")) == "f1 or ?"
    assert shown_keys(("ctrl+j", "shift+enter")) == "ctrl+j or shift+Enter"
