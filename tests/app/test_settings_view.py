from pathlib import Path
from typing import Any

import pytest

from app.errors import SettingsError
from app.model_choice import choose_model
from app.setting_text import require_known, value_of
from app.settings import Settings, known_keys
from app.settings_view import WORDS, effective
from app.values import RULES


def test_every_key_has_words_a_rule_and_a_place_in_the_list() -> None:
    assert set(WORDS) == set(known_keys()) <= set(RULES)
    settings = Settings()
    shown = effective(settings, choose_model(None, settings, environ={}), environ={})
    assert tuple(one.key for one in shown) == known_keys()
    assert all(one.value and one.about.endswith(".") and one.origin == "default" for one in shown)
    assert next(one.value for one in shown if one.key == "model") == "the bundled demo", "not where it is installed"


def test_who_said_it_is_named() -> None:
    settings = Settings(model="/set", slots=12, mirror=("/a", "/b"), mouse=False)
    choice = choose_model(None, settings, environ={"ARTESIAN_MODEL": "/env"})
    by_key = {one.key: one for one in effective(settings, choice, environ={"NO_COLOR": "1"})}
    assert (by_key["model"].value, by_key["model"].origin, by_key["model"].is_set) == ("/env", "ARTESIAN_MODEL", True)
    assert (by_key["slots"].value, by_key["slots"].origin) == ("12", "settings")
    assert by_key["mirror"].value == "/a, /b" and by_key["mouse"].value == "false"
    assert (by_key["theme"].value, by_key["theme"].origin, by_key["theme"].is_set) == ("none", "NO_COLOR", False)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("top_k", "40", 40),
        ("temperature", " 0.7 ", 0.7),
        ("model", "/models/with blanks", "/models/with blanks"),
        ("model", '"/quoted"', "/quoted"),
        ("mouse", "no", False),
        ("verify_mirror", "true", True),
        ("think", "high", "high"),
        ("think", "42", 42),
        ("mirror", "/a, /b", ["/a", "/b"]),
        ("mirror", '["/a,b"]', ["/a,b"]),
        ("ram", "80%", "80%"),
        ("keymap", '{ stop = "f2" }', {"stop": "f2"}),
        ("io", "direct", "direct"),
    ],
)
def test_a_value_is_taken_as_people_write_it(key: str, text: str, value: Any) -> None:
    assert value_of(key, text) == value and type(value_of(key, text)) is type(value)


@pytest.mark.parametrize(
    ("key", "text"),
    [("top_k", "many"), ("top_k", "1.5"), ("mouse", "maybe"), ("io", "fast"), ("mirror", " , "), ("model", " ")],
)
def test_a_value_it_cannot_have_is_refused_with_what_it_can(key: str, text: str) -> None:
    with pytest.raises(SettingsError) as caught:
        value_of(key, text)
    assert caught.value.hint == f"It must be {RULES[key].wanted}."


def test_a_key_there_is_not_is_answered_with_the_one_meant() -> None:
    with pytest.raises(SettingsError) as caught:
        require_known("modle")
    assert caught.value.hint == "Did you mean model?"


def test_it_is_safe_for_a_terminal(tmp_path: Path) -> None:
    settings = Settings(model=f"{tmp_path}/\x1b[31m\n\u202e")
    (model, *_) = effective(settings, choose_model(None, settings, environ={}), environ={})
    assert model.value == f"{tmp_path}/\u241b[31m\u240a<U+202E>"


def test_keys_are_changed_in_the_form_they_are_shown_in() -> None:
    moved = {"regenerate": "ctrl+e,f5", "stop": "f8"}
    shown = effective(Settings(keymap=moved), choose_model(None, Settings(), environ={}), environ={})
    text = next(one.value for one in shown if one.key == "keymap")
    assert value_of("keymap", text) == moved
    assert value_of("keymap", 'regenerate = "ctrl+e"') == {"regenerate": "ctrl+e"}
    with pytest.raises(SettingsError, match="keymap cannot be"):
        value_of("keymap", "ctrl+e")
