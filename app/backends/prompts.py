"""Requests as prompts, from a checkpoint's small files alone.

The one thing a reader would get wrong: what cannot fit is refused before it is encoded, where that is certain from its
length; two million bytes take seconds to encode, and a context of a thousand tokens never holds them.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from app.backends.base import TurnRequest
from engine.config import ModelConfig, load_config
from engine.errors import ContextOverflow
from engine.prompt import Rendered, UserMessage, render, render_raw
from engine.tokens import ChatTokenizer

_LONG_CHARS = 100_000
"""Text that takes a noticeable time to encode."""


@dataclass(frozen=True, slots=True)
class TextFiles:
    """What making a prompt needs."""

    config: ModelConfig
    sources: tuple[Path, ...]
    """Files the config was read from."""
    tokenizer: ChatTokenizer


class Prompts:
    """Makes the prompts of one checkpoint. From any thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._newest: tuple[TurnRequest, Rendered] | None = None
        self._limit: int | None = None

    @cached_property
    def files(self) -> TextFiles:
        """The small files. Raises: ConfigError and TokenizerError when they cannot be used."""
        loaded = load_config(self._folder)
        tokenizer = ChatTokenizer.load(self._folder, image_token_id=loaded.config.image_token_id)
        return TextFiles(loaded.config, loaded.sources, tokenizer)

    @property
    def context_tokens(self) -> int:
        """The most positions of a conversation: what was planned, before that what the model can take."""
        return most_context_tokens(self.files.config) if self._limit is None else self._limit

    def limit_context(self, n_tokens: int) -> None:
        """What was planned."""
        self._limit = n_tokens

    def make(self, request: TurnRequest) -> Rendered:
        """The prompt; that of the newest request is at hand.

        Raises: ContextOverflow when it leaves no place for an answer; PromptError when there is none.
        """
        newest = self._newest
        if newest is not None and (newest[0] is request or newest[0] == request):
            prompt = newest[1]
        else:
            self._require_room(_n_chars(request) // self.files.tokenizer.longest_bytes, at_least=True)
            tokenizer = self.files.tokenizer
            if request.raw_text is not None:
                prompt = render_raw(tokenizer, request.raw_text)
            else:
                prompt = render(tokenizer, request.messages, request.effort is not None, request.effort)
            self._newest = (request, prompt)
        self._require_room(len(prompt.ids), at_least=False)
        return prompt

    def guess_tokens(self, request: TurnRequest) -> int | None:
        """About how many tokens a prompt has that takes a while to make; None when it takes none."""
        newest, n_chars = self._newest, _n_chars(request)
        at_hand = newest is not None and newest[0] is request
        return None if at_hand or n_chars < _LONG_CHARS else n_chars // 4

    def _require_room(self, n_tokens: int, *, at_least: bool) -> None:
        limit = self.context_tokens
        if n_tokens < limit:
            return
        hint = (
            "Shorten it, begin a new conversation, or go on from an earlier message; part must be left to the answer."
        )
        if limit < most_context_tokens(self.files.config):
            hint += " Or plan for more with --context."
        raise ContextOverflow(
            f"the prompt has {'at least ' if at_least else ''}{n_tokens:,} tokens, the context {limit:,}",
            hint=hint,
            prompt_tokens=n_tokens,
            context_tokens=limit,
        )


def most_context_tokens(config: ModelConfig) -> int:
    """The most positions of a conversation: what the config states, else the length its rotary scaling reaches."""
    if config.max_position_embeddings is not None:
        return config.max_position_embeddings
    return int(config.original_seq_len * config.rope_factor)


def _n_chars(request: TurnRequest) -> int:
    """Characters of text that are in the prompt whatever its mode; each is a byte at least."""
    n_chars = len(request.raw_text or "")
    for message in request.messages:
        if isinstance(message, UserMessage):
            n_chars += sum(len(part) for part in message.parts if isinstance(part, str))
        else:
            n_chars += len(message.text)
    return n_chars
