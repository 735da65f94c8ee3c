"""The in-process engine behind the backend protocol.

The one thing a reader would get wrong: the prompt is made and measured from the tokenizer alone, so that a question
that cannot be run is refused before gigabytes are read.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from app.backends.base import OpenEvent, PromptCost, RunFacts, TurnRequest
from app.backends.observing import Observers, profile_file, watched_layers
from app.backends.opening import check_mirrors, measure_weights, open_checkpoint
from app.planning import Planned, gather_facts, plan_for, shares_of
from app.rates import RateBook
from app.reading import MemoryOptions, Reading, make_wishes
from app.report import artesian_version
from app.settings import Settings
from engine.config import ModelConfig, load_config
from engine.draft.drafter import Drafter, make_drafter
from engine.draft.settings import DraftSettings
from engine.errors import EngineError, PromptError, SavedStateError
from engine.events import Event, Notice, TurnDone
from engine.experts import expert_prefixes
from engine.kernels import path, set_threads
from engine.model import Model
from engine.numerics import NumericsName
from engine.prompt import render, render_raw
from engine.sampling import Sampler
from engine.schedule import IndexOwner
from engine.streams import StreamSettings
from engine.tokens import ChatTokenizer
from engine.turn import run_turn
from planner.footprint import footprint, places
from planner.plan import Plan, Wishes
from storage.checkpoint import Checkpoint
from storage.errors import StorageError
from storage.expert_layout import expert_layouts
from storage.extents import Extent
from storage.fingerprint import fingerprint


@dataclass(frozen=True, slots=True)
class _Text:
    """What measuring a prompt needs: small files only."""

    config: ModelConfig
    sources: tuple[Path, ...]
    """Files the config was read from."""
    tokenizer: ChatTokenizer


class LocalBackend:
    """A checkpoint folder and, once opened, the model in it."""

    def __init__(
        self,
        folder: Path,
        *,
        numerics: NumericsName,
        index_owner: IndexOwner,
        reading: Reading,
        token_map_cache: Path | None,
        profiles: Path | None,
        wishes: Wishes | None = None,
        draft: DraftSettings | None = None,
        rates: Path | None = None,
    ) -> None:
        """`token_map_cache` is the file that saves folding the tokenizer at each start, `profiles` the folder of usage
        profiles, `rates` the file of measured rates; None goes without. `wishes` are for the planner, by default what
        `reading` says; `draft` says how drafts are used where the plan has room for them.
        """
        self._folder = folder
        self._numerics: NumericsName = numerics
        self._index_owner: IndexOwner = index_owner
        self._draft = draft or DraftSettings()
        self._drafter: Drafter | None = None
        self._wishes = wishes or make_wishes(MemoryOptions(), Settings(), reading)
        self._book = None if rates is None else RateBook(rates)
        self._planned: Planned | None = None
        self._reading = reading
        self._token_map_cache = token_map_cache
        self._profiles = profiles
        self._notices: deque[str] = deque()
        self._text: _Text | None = None
        self._checkpoint: Checkpoint | None = None
        self._observers: Observers | None = None
        self._model: Model | None = None

    def measure(self, request: TurnRequest) -> PromptCost:
        """What the prompt takes.

        Raises: PromptError when there is no text, or more than the context takes; ConfigError and TokenizerError when
        the folder's small files cannot be used.
        """
        n_tokens, limit = len(self._prompt(request)), context_tokens(self._load_text().config)
        return PromptCost(prompt_tokens=n_tokens, reused_tokens=0, context_tokens=limit, expected_s=None)

    def facts(self) -> RunFacts:
        """What replies depend on. Raises: OSError when a config can no longer be read."""
        assert self._checkpoint is not None, "open() comes before facts()"
        configs = [path.read_bytes() for path in self._load_text().sources]
        return RunFacts(
            model=str(self._folder),
            is_demo=self._profiles is None,
            fingerprint=fingerprint(self._checkpoint.headers, configs),
            numerics=self._numerics,
            index_owner=self._index_owner,
            kernels=path(),
            version=artesian_version(),
        )

    def open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
        """Open the drives, plan, read the resident weights and take memory for experts.

        Raises: what `Checkpoint.open` and `Model.open` raise; PlanError; TraceError; Stopped.
        """

        def say() -> None:
            for notice in self._taken():
                on_event(notice)

        text, reading = self._load_text(), self._reading
        try:
            checkpoint = self._checkpoint = open_checkpoint(self._folder, reading, self._notices.append)
            say()
            if reading.verify_mirrors:
                check_mirrors(checkpoint, reading.mirrors, self._notices.append, on_event, should_stop)
                say()
            if reading.weights is None:
                measure_weights(checkpoint, lambda: _experts(checkpoint, text.config), reading, self._notices.append)
                say()
            observers = self._observers = self._observe(checkpoint, text)
            planned = self._planned = self._make_plan(checkpoint, text.config, observers)
            set_threads(planned.plan.threads)
            self._model = Model.open(
                checkpoint,
                text.config,
                streams=self._stream_settings(planned.plan),
                numerics=self._numerics,
                index_owner=self._index_owner,
                # Without a complete head there is no room in the plan, and opening says what is missing.
                drafts=self._draft.mode != "off" and (planned.plan.drafting or not planned.footprint.has_draft),
                observers=[observers.record],
                notices=self._notices,
                token_map_cache=self._token_map_cache,
                on_progress=on_event,
                should_stop=should_stop,
            )
            self._drafter = make_drafter(self._model, self._draft)
        finally:
            say()

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """Answer from an empty state. `open` comes first. Raises: what the forward raises."""
        assert self._model is not None and self._observers is not None, "open() comes before generate()"
        assert self._planned is not None
        text = self._load_text()
        stop_ids = frozenset({text.config.eos_token_id}) if request.raw_text is not None else text.tokenizer.turn_ends
        events = run_turn(
            self._model,
            self._model.new_state(),
            text.tokenizer,
            self._prompt(request),
            sampler=Sampler(request.sampling, never=text.tokenizer.never_drawn),
            max_tokens=request.max_tokens,
            thinking=request.effort is not None,
            stop_ids=stop_ids,
            drafter=self._drafter,
            chunk_tokens=self._planned.plan.chunk_tokens,
            context_tokens=self._planned.plan.context_tokens,
            should_stop=should_stop,
        )
        try:
            for event in events:
                if isinstance(event, TurnDone):
                    self._observers.end_turn()
                    yield from self._taken()
                yield event
        except (EngineError, StorageError):
            self._observers.end_turn()
            yield from self._taken()  # such as the drive that failed before the last one did
            raise

    def warm(self, should_stop: Callable[[], bool]) -> int:
        """Read the experts this user's prompts route to, hottest first, into slots no turn has used; how many.

        For when nobody waits: an answer that is begun at once needs the drives itself, so a command that asks one
        question has nothing to gain. Yields to demand reads; 0 without a profile. Raises: StorageError.
        """
        if self._model is None or self._observers is None or self._observers.profile is None:
            return 0
        profile, drafts = self._observers.profile, self._model.head is not None
        layers = expert_prefixes(self._model.config, drafts=drafts).items()
        hottest = {layer: profile.hottest(layer, n) for layer, (_, n) in layers}
        return self._model.streams.experts.warm(hottest, should_stop)

    def save_state(self, path: Path, request: TurnRequest) -> int:
        """Write the states kept of the request's conversation: none yet, so nothing."""
        return 0

    def restore_state(self, path: Path) -> int:
        """Take saved states in. Raises: SavedStateError: none can be yet."""
        raise SavedStateError(f"{path}: states cannot be restored yet")

    def close(self) -> None:
        """Close the model and its files."""
        if self._model is not None:
            self._model.close()
        if self._observers is not None:
            self._observers.close()
        if self._checkpoint is not None:
            self._checkpoint.close()
        self._model = self._observers = self._checkpoint = self._drafter = None

    def _taken(self) -> Iterator[Notice]:
        while self._notices:
            yield Notice(text=self._notices.popleft())

    def _observe(self, checkpoint: Checkpoint, text: _Text) -> Observers:
        n_experts = watched_layers(text.config)
        profile = None
        if self._profiles is not None:
            profile = profile_file(self._profiles, checkpoint.headers, text.sources)
        return Observers.open(n_experts, profile=profile, trace=self._reading.trace, say=self._notices.append)

    def _make_plan(self, checkpoint: Checkpoint, config: ModelConfig, observers: Observers) -> Planned:
        """Who gets how much, from the machine as it is now. Raises: PlanError."""
        folders = (self._folder, *self._reading.splits, *self._reading.mirrors)
        facts = gather_facts(folders, self._book or RateBook(None))
        shares = shares_of(observers.profile, watched_layers(config)) if observers.profile is not None else {}
        return plan_for(facts, footprint(config, places(checkpoint.tensors)), self._wishes, shares)

    def _stream_settings(self, plan: Plan) -> StreamSettings:
        """The plan's sizes, and how the drives are read."""
        return StreamSettings(
            slots_per_layer=plan.slots,
            spare_slots=plan.spare_slots,
            cache_rows=plan.cache_rows,
            embedding_rows=plan.embedding_rows,
            policy=self._reading.policy,
            io=self._reading.io,
            depth=plan.depth,
        )

    def _load_text(self) -> _Text:
        if self._text is None:
            loaded = load_config(self._folder)
            tokenizer = ChatTokenizer.load(self._folder, image_token_id=loaded.config.image_token_id)
            self._text = _Text(loaded.config, loaded.sources, tokenizer)
        return self._text

    def _prompt(self, request: TurnRequest) -> tuple[int, ...]:
        text = self._load_text()
        if request.raw_text is not None:
            ids = render_raw(text.tokenizer, request.raw_text).ids
        else:
            ids = render(text.tokenizer, request.messages, request.effort is not None, request.effort).ids
        limit = context_tokens(text.config)
        if len(ids) >= limit:
            raise PromptError(
                f"the prompt has {len(ids):,} tokens, the model's context {limit:,}",
                hint="Shorten the question; part of the context must be left for the answer.",
            )
        return ids


def _experts(checkpoint: Checkpoint, config: ModelConfig) -> list[tuple[Extent, ...]]:
    """The extents of every expert."""
    return [layout.extents for layout in expert_layouts(checkpoint.tensors, expert_prefixes(config)).values()]


def context_tokens(config: ModelConfig) -> int:
    """The most positions of a conversation: what the config states, else the length its rotary scaling reaches."""
    if config.max_position_embeddings is not None:
        return config.max_position_embeddings
    return int(config.original_seq_len * config.rope_factor)
