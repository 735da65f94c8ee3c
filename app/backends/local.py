"""The in-process engine behind the backend protocol.

The one thing a reader would get wrong: the prompt is made and measured from the tokenizer alone, so that a question
that cannot be run is refused before gigabytes are read.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.backends.base import TurnRequest
from app.machine import available_bytes
from engine.config import ModelConfig, load_config
from engine.errors import PromptError
from engine.events import Event, LoadProgress
from engine.model import Model
from engine.numerics import NumericsName
from engine.prompt import Message, SystemMessage, UserMessage, render, render_raw
from engine.sampling import Sampler
from engine.schedule import IndexOwner
from engine.streams import StreamSettings, slots_within
from engine.tokens import ChatTokenizer
from engine.turn import run_turn
from storage.checkpoint import Checkpoint


@dataclass(frozen=True, slots=True)
class _Text:
    """What measuring a prompt needs: small files only."""

    config: ModelConfig
    tokenizer: ChatTokenizer


class LocalBackend:
    """A checkpoint folder and, once opened, the model in it."""

    def __init__(
        self,
        folder: Path,
        *,
        numerics: NumericsName,
        index_owner: IndexOwner,
        chunk_tokens: int,
        token_map_cache: Path | None,
    ) -> None:
        """`token_map_cache` is the file that saves folding the tokenizer at each start; None goes without."""
        self._folder = folder
        self._numerics: NumericsName = numerics
        self._index_owner: IndexOwner = index_owner
        self._chunk_tokens = chunk_tokens
        self._token_map_cache = token_map_cache
        self._text: _Text | None = None
        self._checkpoint: Checkpoint | None = None
        self._model: Model | None = None

    def measure(self, request: TurnRequest) -> int:
        """Tokens of the prompt.

        Raises: PromptError when there is no text, or more than the context takes; ConfigError and TokenizerError when
        the folder's small files cannot be used.
        """
        return len(self._prompt(request))

    def open(self, on_progress: Callable[[LoadProgress], None], should_stop: Callable[[], bool]) -> None:
        """Read the resident weights and take memory for experts, at most half of what is available.

        Raises: what `Checkpoint.open` and `Model.open` raise; Stopped.
        """
        config = self._load_text().config
        self._checkpoint = Checkpoint.open(self._folder)
        slots = slots_within(self._checkpoint, config, available_bytes() // 2)
        self._model = Model.open(
            self._checkpoint,
            config,
            streams=StreamSettings(slots_per_layer=slots),
            numerics=self._numerics,
            index_owner=self._index_owner,
            token_map_cache=self._token_map_cache,
            on_progress=on_progress,
            should_stop=should_stop,
        )

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """Answer from an empty state. `open` comes first. Raises: what the forward raises."""
        assert self._model is not None, "open() comes before generate()"
        text = self._load_text()
        stop_ids = frozenset({text.config.eos_token_id}) if request.raw else text.tokenizer.turn_ends
        return run_turn(
            self._model,
            self._model.new_state(),
            text.tokenizer,
            self._prompt(request),
            sampler=Sampler(request.sampling, never=text.tokenizer.never_drawn),
            max_tokens=request.max_tokens,
            thinking=request.effort is not None,
            stop_ids=stop_ids,
            chunk_tokens=self._chunk_tokens,
            context_tokens=context_tokens(text.config),
            should_stop=should_stop,
        )

    def close(self) -> None:
        """Close the model and its files."""
        if self._model is not None:
            self._model.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._model = self._checkpoint = None

    def _load_text(self) -> _Text:
        if self._text is None:
            config = load_config(self._folder).config
            self._text = _Text(config, ChatTokenizer.load(self._folder, image_token_id=config.image_token_id))
        return self._text

    def _prompt(self, request: TurnRequest) -> tuple[int, ...]:
        text = self._load_text()
        if request.raw:
            ids = render_raw(text.tokenizer, request.question).ids
        else:
            messages: list[Message] = [SystemMessage(text=request.system)] if request.system else []
            messages.append(UserMessage(parts=(request.question,)))
            ids = render(text.tokenizer, messages, request.effort is not None, request.effort).ids
        limit = context_tokens(text.config)
        if len(ids) >= limit:
            raise PromptError(
                f"the prompt has {len(ids):,} tokens, the model's context {limit:,}",
                hint="Shorten the question; part of the context must be left for the answer.",
            )
        return ids


def context_tokens(config: ModelConfig) -> int:
    """The most positions of a conversation: what the config states, else the length its rotary scaling reaches."""
    if config.max_position_embeddings is not None:
        return config.max_position_embeddings
    return int(config.original_seq_len * config.rope_factor)
