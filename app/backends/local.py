"""The in-process engine behind the backend protocol.

The one thing a reader would get wrong: the prompt is made and measured from the tokenizer alone, so that a question
that cannot be run is refused before gigabytes are read.
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from app.backends.base import OpenEvent, PromptCost, RunFacts, TurnRequest
from app.backends.keeping import Keeper
from app.backends.observing import Observers
from app.backends.opening import check_mirrors, measure_weights, open_checkpoint
from app.backends.prompts import Prompts, TextFiles
from app.backends.returning import ReturnWatch
from app.backends.use import Use
from app.paths import runs_file
from app.planning import Planned, shares_of
from app.rates import RateBook
from app.reading import MemoryOptions, Reading, make_wishes
from app.report import artesian_version
from app.settings import Settings
from app.usage import profile_file, watched_layers
from engine.config import ModelConfig
from engine.conversation import Conversations
from engine.device import card_devices, free_card_bytes
from engine.draft.drafter import make_drafter, wants_head
from engine.draft.settings import DraftSettings
from engine.errors import DamagedState, EngineError
from engine.events import Event, Notice, PrefillProgress, TurnDone
from engine.experts import expert_prefixes
from engine.kernels import path
from engine.model import Model
from engine.numerics import NumericsName
from engine.sampling import Sampler
from engine.saved_state import Identity
from engine.schedule import IndexOwner
from engine.streams import StreamSettings
from engine.tiers.opening import OpenCards, open_cards
from planner.footprint import footprint, places
from planner.plan import Plan, Wishes
from storage.checkpoint import Checkpoint
from storage.errors import StorageError
from storage.expert_layout import expert_layouts
from storage.extents import Extent
from storage.fingerprint import fingerprint
from storage.payload_mark import payload_mark

_ANSWER_TOKENS = 4_096
"""Of a reply, for which a plan makes room behind a prompt that is long already."""


class LocalBackend:
    """A checkpoint folder and, once opened, the model in it.

    Attributes:
        prompts: Makes the prompts of requests.
        use: Who is using the model at the moment.
    """

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
        self._wishes = wishes or make_wishes(MemoryOptions(), Settings(), reading)
        self._book = None if rates is None else RateBook(rates)
        self._least_context = 0
        self._keeper: Keeper | None = None
        self._reading = reading
        self._token_map_cache = token_map_cache
        self._profiles = profiles
        self._notices: deque[str] = deque()
        self.prompts = Prompts(folder)
        self.use = Use()
        self._conversations: Conversations | None = None
        self._identity: Identity | None = None
        self._checkpoint: Checkpoint | None = None
        self._observers: Observers | None = None
        self._model: Model | None = None
        self._returning: ReturnWatch | None = None

    @property
    def planned(self) -> Planned | None:
        """The plan that the opened model runs by, with all it was made from; None before `open`."""
        return None if self._keeper is None else self._keeper.planned

    def measure(self, request: TurnRequest) -> PromptCost:
        """What the prompt takes.

        Raises: ContextOverflow; PromptError when there is no text; ConfigError and TokenizerError when the folder's
        small files cannot be used.
        """
        prompt, conversations = self.prompts.make(request), self._conversations
        n_tokens, reused, expected_s = len(prompt.ids), 0, None
        self._least_context = n_tokens + min(request.max_tokens, _ANSWER_TOKENS)
        if conversations is not None:
            reused = 0 if request.replay else conversations.reusable(prompt)
            expected_s = conversations.expected_s(n_tokens - reused)
        return PromptCost(
            prompt_tokens=n_tokens,
            reused_tokens=reused,
            context_tokens=self.prompts.context_tokens,
            expected_s=expected_s,
        )

    def facts(self) -> RunFacts:
        """What replies depend on. Raises: OSError when a config can no longer be read."""
        assert self._checkpoint is not None, "open() comes before facts()"
        configs = [path.read_bytes() for path in self.prompts.files.sources]
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
        with self.use:
            try:
                self._open(on_event, self.use.stopping(should_stop))
            finally:
                for notice in self._taken():
                    on_event(notice)

    def _open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
        def say() -> None:
            for notice in self._taken():
                on_event(notice)

        files, reading = self.prompts.files, self._reading
        checkpoint = self._checkpoint = open_checkpoint(self._folder, reading, self._notices.append)
        say()
        if reading.verify_mirrors:
            check_mirrors(checkpoint, reading.mirrors, self._notices.append, on_event, should_stop)
            say()
        if reading.weights is None:
            measure_weights(
                checkpoint, lambda: _experts(checkpoint, files.config), reading, self._notices.append, self._book
            )
            say()
        observers = self._observers = self._observe(checkpoint, files)
        keeper = self._keeper = self._make_keeper(checkpoint, files.config, observers)
        planned, plan = keeper.planned, keeper.planned.plan
        cards = open_cards(plan.cards, card_devices() if plan.cards else ())
        model = self._model = Model.open(
            checkpoint,
            files.config,
            streams=self._stream_settings(plan, cards),
            numerics=self._numerics,
            index_owner=self._index_owner,
            # Without a complete head there is no room in the plan, and opening says what is missing.
            drafts=wants_head(self._draft, self._numerics, on_card=cards.elsewhere)
            and (plan.drafting or not planned.footprint.has_draft),
            observers=[observers.record, keeper.record],
            notices=self._notices,
            token_map_cache=self._token_map_cache,
            trunk_places=cards.trunk,
            on_progress=on_event,
            should_stop=should_stop,
        )
        free = {index: partial(free_card_bytes, card.device) for index, (card, _) in cards.experts.items()}
        keeper.watch(model.streams.experts, self._notices.append, model.streams.cards, free)
        self._returning = ReturnWatch(model.streams.files, checkpoint.headers, self._notices.append)
        self.prompts.limit_context(plan.context_tokens)
        self._conversations = Conversations(
            model,
            files.tokenizer,
            drafter=make_drafter(model, self._draft),
            context_tokens=plan.context_tokens,
            chunk_tokens=plan.chunk_tokens,
            state_bytes=sum(p.n_bytes for p in plan.parts if (p.name, p.place) == ("conversation", "RAM")),
        )

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """Answer; only what no kept state holds is read. `open` comes first.

        Raises: ContextOverflow; PromptError; what the forward raises.
        """
        return self.use.turn(self._generate(request, self.use.stopping(should_stop)))

    def _generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Generator[Event]:
        assert self._conversations is not None and self._keeper is not None, "open() comes before generate()"
        files = self.prompts.files
        about = self.prompts.guess_tokens(request)
        if about is not None:
            yield PrefillProgress(done_tokens=0, total_tokens=about, read_bytes=0, elapsed_s=0.0)
        stop_ids = frozenset({files.config.eos_token_id}) if request.raw_text is not None else files.tokenizer.turn_ends
        events = self._conversations.answer(
            self.prompts.make(request),
            sampler=Sampler(request.sampling, never=files.tokenizer.never_drawn),
            max_tokens=request.max_tokens,
            stop_ids=stop_ids,
            replay=request.replay,
            should_stop=should_stop,
        )
        try:
            for event in events:
                if isinstance(event, TurnDone):
                    self._end_turn()
                    event = self._keeper.finish(event)
                    yield from self._taken()
                yield event
        except (EngineError, StorageError):
            self._end_turn()
            yield from self._taken()  # such as the drive that failed before the last one did
            raise

    def reading(self) -> PrefillProgress | None:
        """How far the prompt is read now, layer by layer; None when none is."""
        model = self._model
        now = None if model is None else model.reading
        return None if now is None else now()

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
        with self.use:
            if self._keeper is not None:
                self._keeper.tick()
            return self._model.streams.warm(hottest, self.use.stopping(should_stop))

    def save_state(self, path: Path, request: TurnRequest) -> int:
        """Write the states kept of the request's conversation; the bytes of the file, 0 when none is kept.

        Raises: SavedStateError; PromptError; StorageError when the model's identity cannot be read.
        """
        assert self._conversations is not None, "open() comes before save_state()"
        with self.use:
            return self._conversations.save(path, self.prompts.make(request), self._what_it_is())

    def restore_state(self, path: Path) -> int:
        """Take in the states that `save_state` wrote; how many tokens they hold. A damaged file is removed.

        Raises: SavedStateError; StorageError when the model's identity cannot be read.
        """
        assert self._conversations is not None, "open() comes before restore_state()"
        with self.use:
            try:
                return self._conversations.restore(path, self._what_it_is())
            except DamagedState:
                with suppress(OSError):  # it would fail at every start
                    path.unlink()
                raise

    def close(self) -> None:
        """Close the model and its files, once a turn or an opening in the works has ended, which it is asked to."""
        with self.use.ending():
            if self._returning is not None:
                self._returning.close()
            if self._model is not None:
                self._model.close()
            if self._observers is not None:
                self._observers.close()
            if self._checkpoint is not None:
                self._checkpoint.close()
            self._model = self._observers = self._checkpoint = self._conversations = self._identity = None

    def _end_turn(self) -> None:
        """Take the turn into the profile, and ask after drives that were given up."""
        assert self._observers is not None and self._returning is not None
        self._observers.end_turn()
        self._returning.look()

    def _what_it_is(self) -> Identity:
        """What a state's numbers depend on."""
        assert self._checkpoint is not None
        if self._identity is None:
            facts = self.facts()
            on_cards = self._model is not None and self._model.computes_on_card
            self._identity = Identity(
                fingerprint=facts.fingerprint,
                payload=payload_mark(self._checkpoint),
                tokenizer=self.prompts.files.tokenizer.sha256,
                numerics=facts.numerics,
                index_owner=facts.index_owner,
                kernels=f"{facts.kernels} and cards" if on_cards else facts.kernels,
            )
        return self._identity

    def _taken(self) -> Iterator[Notice]:
        while self._notices:
            yield Notice(text=self._notices.popleft())

    def _observe(self, checkpoint: Checkpoint, text: TextFiles) -> Observers:
        n_experts = watched_layers(text.config)
        profile = None
        if self._profiles is not None:
            profile = profile_file(self._profiles, checkpoint.headers, text.sources)
        return Observers.open(n_experts, profile=profile, trace=self._reading.trace, say=self._notices.append)

    def _make_keeper(self, checkpoint: Checkpoint, config: ModelConfig, observers: Observers) -> Keeper:
        """Who gets how much, from the machine as it is now. Raises: PlanError."""
        folders = (self._folder, *self._reading.splits, *self._reading.mirrors)
        shares = shares_of(observers.profile, watched_layers(config)) if observers.profile is not None else {}
        return Keeper.plan(
            footprint(config, places(checkpoint.tensors), numerics=self._numerics),
            folders,
            replace(self._wishes, least_context_tokens=self._least_context),
            shares,
            self._book or RateBook(None),
            runs=None if self._book is None else runs_file(),
        )

    def _stream_settings(self, plan: Plan, cards: OpenCards) -> StreamSettings:
        """The plan's sizes, and how the drives are read."""
        return StreamSettings(
            # One at least: where cards take every expert of a layer, those that one gives up are computed from memory.
            slots_per_layer={layer: max(1, n) for layer, n in plan.slots.items()},
            spare_slots=plan.spare_slots,
            cache_rows=plan.cache_rows,
            embedding_rows=plan.embedding_rows,
            policy=self._reading.policy,
            io=self._reading.io,
            depth=plan.depth,
            cards=tuple(cards.experts.values()),
        )


def _experts(checkpoint: Checkpoint, config: ModelConfig) -> list[tuple[Extent, ...]]:
    """The extents of every expert."""
    return [layout.extents for layout in expert_layouts(checkpoint.tensors, expert_prefixes(config)).values()]
