"""What a line the user entered is: a message for the model, a command of ours, or a command that there is not.

A message may begin with a slash: `/usr/bin/env is what?` is one, as its first word is not a name alone. A blank before
the slash makes a message of anything.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from app.actions import BY_SLASH, Action

_COMMAND = re.compile(r"/([A-Za-z][A-Za-z-]*|)(?=\s|\Z)")


@dataclass(frozen=True, slots=True)
class Say:
    """A message for the model, exactly as typed."""

    text: str


@dataclass(frozen=True, slots=True)
class Command:
    """A known command."""

    action: Action
    argument: str
    """What stands after the name, without the blanks around it; "" when nothing does."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that looks like a command and is none, or misses what it needs. Nothing is sent."""

    problem: str
    """What is wrong and what was probably meant, for the user."""


Entry = Say | Command | Unknown

_AS_TEXT = "To send it to the model, put a blank before the slash."


def parse(text: str, commands: Mapping[str, Action] = BY_SLASH) -> Entry:
    """What `text` is. Upper and lower case of a command's name are the same."""
    match = _COMMAND.match(text)
    if match is None:
        return Say(text)
    name, argument = match[1].lower(), text[match.end() :].strip()
    if not name:
        return Unknown(f"A command has a name, such as /help. {_AS_TEXT}")
    action = commands.get(name)
    if action is None:
        near = [c for c in commands if c.startswith(name)] or get_close_matches(name, commands, n=1, cutoff=0.5)
        meant = f"Did you mean /{near[0]}?" if near else "/help lists them all."
        return Unknown(f"There is no command /{name}. {meant} {_AS_TEXT}")
    if argument and not action.argument:
        return Unknown(f"/{name} takes nothing after it. {_AS_TEXT}")
    if action.needs_argument and not argument:
        return Unknown(f"/{name} needs {action.argument} after it.")
    return Command(action, argument)


def completions(text: str, commands: Mapping[str, Action] = BY_SLASH) -> tuple[Action, ...]:
    """The commands whose name goes on from `text`, in the table's order; none once the name is ended by a blank."""
    if not re.fullmatch(r"/[A-Za-z-]*", text):
        return ()
    return tuple(action for name, action in commands.items() if name.startswith(text[1:].lower()))
