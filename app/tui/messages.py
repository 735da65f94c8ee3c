"""Textual messages that cross widgets and screens. What only a parent listens to is nested in its widget instead."""

from dataclasses import dataclass

from textual.message import Message


@dataclass
class ConversationChanged(Message):
    """Another conversation is shown, or this one has a new title."""

    transcript_id: str
    title: str


@dataclass
class TurnEnded(Message):
    """A turn ended, however: its figures are in the app's `last_turn`."""


@dataclass
class ThemeChanged(Message):
    """Another theme is in force: what is drawn by hand is drawn again."""
