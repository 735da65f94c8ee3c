"""Who gets how much: the plan from machine facts, a model's footprint and wishes. Pure: reads and allocates nothing.

Order of claims on the ceiling: what a forward cannot do without (program, resident weights, the conversation, a chunk's
scratch, one slot a layer), then everything else goes to expert slots, where a byte buys most. What was not asked for is
made smaller before anything is refused; what was asked for never is.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from planner.cards import Moved, card_chunk, card_parts, moved_weights, plan_cards, slots_note
from planner.errors import BadWish, DoesNotFit
from planner.facts import MachineFacts
from planner.footprint import Footprint
from planner.hits import Popularity
from planner.plan import DEFAULT_SPARE_SLOTS, Abilities, CardPlan, Part, Plan, Wishes
from planner.spreading import best_slots, spread
from storage.defaults import DEFAULT_CACHE_ROWS, DEFAULT_DEPTH
from storage.sizes import format_bytes

RESERVE_SHARE = 0.10
LEAST_RESERVE_BYTES = 2_000_000_000
MOST_RESERVE_BYTES = 16_000_000_000
"""Left to the system unless asked otherwise: a tenth of the memory, at least 2 GB, at most 16 GB, never more than a
quarter. Others found the largest cache that fits slower than one that leaves the page cache and the desktop room.
"""
DEFAULT_CONTEXT = 65_536
LEAST_CONTEXT = 4_096
CONTEXT_SHARE = 0.10
"""Of the ceiling, at most, for a conversation whose length nobody asked for."""
MOST_CHUNK = 8_192
LEAST_CHUNK = 32
CHUNK_SHARE = 0.125
"""Of what slots and a chunk's scratch may take together: a larger chunk reads each expert less often, slots save reads
of every token.
"""
DEFAULT_EMBEDDING_ROWS = 8_192
LEAST_ROWS = 1_024
ROWS_SHARE = 0.02
UNEVEN_GAIN = 0.01
"""Hits an answer must gain by uneven slots before they are planned: a profile is of the past."""
LEAST_SHARE_OF_EVEN = 4
"""No layer gets fewer than this part of what it would have if all had the same."""
_DEPTHS = {"hdd": 2, "memory": 2}
"""Reads in flight by drive kind, where more only cost: a disk seeks between them, memory has no queue."""


def make_plan(
    facts: MachineFacts,
    footprint: Footprint,
    wishes: Wishes | None = None,
    abilities: Abilities | None = None,
    shares: Mapping[int, Sequence[float]] | None = None,
) -> Plan:
    """The plan. `shares` are each layer's experts' shares of its traffic, of the usage profile.

    Raises: DoesNotFit with the smallest change that would fit; BadWish.
    """
    return _Solver(facts, footprint, wishes or Wishes(), abilities or Abilities(), shares or {}).plan()


def default_reserve(total_bytes: int) -> int:
    """What is left to the system on a machine with so much memory."""
    tenth = int(RESERVE_SHARE * total_bytes)
    return min(max(tenth, LEAST_RESERVE_BYTES), MOST_RESERVE_BYTES, total_bytes // 4)


def popularity(footprint: Footprint, shares: Mapping[int, Sequence[float]], *, drafting: bool) -> dict[int, Popularity]:
    """The law of each layer: its profile's where there is one, else the general one."""
    general: dict[tuple[int, int], Popularity] = {}
    laws = {}
    for layer, n_experts in footprint.n_experts(drafting=drafting).items():
        n_used = footprint.n_used(layer)
        if len(shares.get(layer, ())) == n_experts:
            laws[layer] = Popularity.watched(shares[layer], n_used)
        else:
            key = (n_experts, n_used)
            laws[layer] = general.setdefault(key, Popularity.zipf(n_experts, n_used))
    return laws


_NO_VRAM = "Leave --vram away, or take `vram` out of the settings."


@dataclass(slots=True, kw_only=True)
class _Sizes:
    """What may be made smaller before anything is refused."""

    context: int
    chunk: int
    cache_rows: int
    embedding_rows: int
    spare: int
    drafting: bool


class _Solver:
    def __init__(
        self,
        facts: MachineFacts,
        footprint: Footprint,
        wishes: Wishes,
        abilities: Abilities,
        shares: Mapping[int, Sequence[float]],
    ) -> None:
        self._facts = facts
        self._model = footprint
        self._wishes = wishes
        self._abilities = abilities
        self._shares = shares
        self._notes: list[str] = list(facts.notes)
        self._reserve = 0
        self._ceiling = 0

    def plan(self) -> Plan:
        """Solve."""
        facts, model = self._facts, self._model
        self._check_wishes()
        self._take_ceiling()
        sizes = self._first_sizes()
        most_chunk = self._most_chunk(sizes)
        cards = self._cards(sizes, most_chunk)
        moved = moved_weights(cards, model)
        self._choose_chunk(sizes, moved, most_chunk if moved.trunk.n_bytes else MOST_CHUNK)
        self._shrink(sizes, moved)
        self._drop_drafts(sizes, moved, cards)
        room = self._ceiling - self._fixed(sizes, moved)
        laws = popularity(model, self._shares, drafting=sizes.drafting)
        slots = self._slots(sizes, room, laws, cards)
        depth = {
            drive.name: self._wishes.depth or _DEPTHS.get(drive.kind, DEFAULT_DEPTH) for drive in facts.drives
        }  # fmt: skip
        self._note_small(slots, sizes, cards)
        return Plan(
            ceiling_bytes=self._ceiling,
            available_bytes=facts.available_bytes,
            ruled_by=facts.ruled_by,
            reserve_bytes=self._reserve,
            parts=(*self._parts(sizes, slots, moved), *card_parts(cards, model, sizes.context, most_chunk)),
            slots=slots,
            spare_slots=sizes.spare,
            cache_rows=sizes.cache_rows,
            embedding_rows=sizes.embedding_rows,
            context_tokens=sizes.context,
            chunk_tokens=sizes.chunk,
            depth=depth,
            threads=facts.n_cores,
            drafting=sizes.drafting,
            cards=cards,
            notes=tuple(self._notes),
        )

    def _check_wishes(self) -> None:
        wishes, limit = self._wishes, max_context(self._model)
        if wishes.context_tokens is not None and wishes.context_tokens > limit:
            raise BadWish(
                f"a context of {wishes.context_tokens:,} tokens is more than the model's {limit:,}",
                hint=f"At most --context {limit}.",
            )
        if wishes.drafting == "on" and not self._model.has_draft:
            raise BadWish("the checkpoint has no complete draft head", hint="Leave --draft at auto or off.")
        if wishes.drafting == "on" and not self._abilities.drafts:
            raise BadWish("this version does not draft", hint="Leave --draft at auto or off.")
        if wishes.vram is not None and not self._abilities.cards:
            raise BadWish("--vram has no effect: this version computes on the processor only", hint=_NO_VRAM)
        if wishes.vram is not None and not self._facts.cards:
            raise BadWish("--vram has no effect: there is no GPU with memory of its own", hint=_NO_VRAM)

    def _take_ceiling(self) -> None:
        """The ceiling and the reserve, of the wishes or by default."""
        facts, wishes = self._facts, self._wishes
        available = facts.available_bytes
        asked = None if wishes.reserve is None else wishes.reserve.of(facts.total_bytes)
        # On a machine that others have filled, half of what they left is still left to them.
        self._reserve = min(default_reserve(facts.total_bytes), available // 2) if asked is None else asked
        if wishes.ram is None:
            self._ceiling = max(available - self._reserve, 0)
            return
        self._ceiling = wishes.ram.of(available)
        most = available - (asked or 0)
        if self._ceiling > most:
            beside = "" if asked is None else f" beside a reserve of {gb(asked)}"
            raise DoesNotFit(
                f"{gb(self._ceiling)} were asked for and {gb(available)} are available{beside}",
                needed_bytes=self._ceiling,
                ceiling_bytes=most,
                hint=f"At most --ram {size_text(most)}, or close other programs." if most > 0 else _CLOSE,
            )
        if asked is None:  # who says how much may be taken also says what is left
            self._reserve = min(self._reserve, available - self._ceiling)

    def _first_sizes(self) -> _Sizes:
        """What one would like to have, made smaller with the ceiling."""
        wishes, model = self._wishes, self._model
        drafts = self._abilities.drafts and model.has_draft and wishes.drafting != "off"
        limit = max_context(model)
        context = wishes.context_tokens or min(max(DEFAULT_CONTEXT, wishes.least_context_tokens), limit)
        least = self._least_context()
        while wishes.context_tokens is None and context > least:
            if model.kv_bytes(context, drafting=drafts) <= CONTEXT_SHARE * self._ceiling:
                break
            context = max(context // 2, least)
        rows = DEFAULT_CACHE_ROWS if wishes.cache_rows is None else wishes.cache_rows
        embedding = min(DEFAULT_EMBEDDING_ROWS, model.config.vocab_size)
        while wishes.cache_rows is None and rows > LEAST_ROWS:
            if model.rows_bytes(rows, embedding) <= ROWS_SHARE * self._ceiling:
                break
            rows, embedding = rows // 2, max(embedding // 2, min(embedding, LEAST_ROWS))
        return _Sizes(
            context=context,
            chunk=wishes.chunk_tokens or LEAST_CHUNK,
            cache_rows=rows,
            embedding_rows=embedding,
            spare=DEFAULT_SPARE_SLOTS,
            drafting=drafts,
        )

    def _most_chunk(self, sizes: _Sizes) -> int:
        """The largest chunk there may be, as far as cards are concerned: what they have room for."""
        if self._wishes.chunk_tokens is not None:
            return self._wishes.chunk_tokens
        most = min(MOST_CHUNK, _power_of_two(sizes.context))
        if not self._facts.cards:
            return most
        return card_chunk(self._facts.cards, self._model, self._wishes.vram, most, LEAST_CHUNK)

    def _choose_chunk(self, sizes: _Sizes, moved: Moved, most: int) -> None:
        """The largest chunk whose scratch takes no more than its share of what slots and it have together."""
        if self._wishes.chunk_tokens is not None:
            return
        scratch = self._model.scratch_bytes
        free = self._ceiling - self._fixed(sizes, moved) + scratch(sizes.chunk, sizes.context)
        sizes.chunk = min(most, _power_of_two(sizes.context))
        while sizes.chunk > LEAST_CHUNK and scratch(sizes.chunk, sizes.context) > CHUNK_SHARE * free:
            sizes.chunk //= 2

    def _least_context(self) -> int:
        """What a context that nobody asked for is not made smaller than."""
        return min(max(LEAST_CONTEXT, self._wishes.least_context_tokens), max_context(self._model))

    def _fixed(self, sizes: _Sizes, moved: Moved) -> int:
        """Everything in RAM but slots."""
        model = self._model
        resident = model.trunk.n_bytes + model.head.n_bytes + (model.draft.n_bytes if sizes.drafting else 0)
        return (
            model.runtime_bytes
            + resident
            - moved.n_bytes
            + model.kv_bytes(sizes.context, drafting=sizes.drafting)
            + model.scratch_bytes(sizes.chunk, sizes.context)
            + model.rows_bytes(sizes.cache_rows, sizes.embedding_rows)
        )

    def _needed(self, sizes: _Sizes, moved: Moved) -> int:
        """The least for these sizes: the slots asked for, or one a layer, and those lent."""
        counts = self._model.n_experts(drafting=sizes.drafting)
        each = self._wishes.slots or 1
        n_slots = sum(min(each, n) for n in counts.values()) + sizes.spare
        return self._fixed(sizes, moved) + self._model.slot_bytes(n_slots)

    def _shrink(self, sizes: _Sizes, moved: Moved) -> None:
        """Make smaller what nobody asked for until it fits. Raises: DoesNotFit."""
        wishes = self._wishes
        least = self._least_context()
        while self._needed(sizes, moved) > self._ceiling:
            if sizes.spare > 4:
                sizes.spare //= 2
            elif sizes.drafting and wishes.drafting == "auto":
                sizes.drafting = False
                self._notes.append(_NO_DRAFTS)
            elif wishes.chunk_tokens is None and sizes.chunk > LEAST_CHUNK:
                sizes.chunk //= 2
            elif sizes.spare > 2:
                sizes.spare //= 2
            elif wishes.cache_rows is None and sizes.cache_rows > 0:
                sizes.cache_rows = sizes.cache_rows // 2 if sizes.cache_rows > LEAST_ROWS else 0
                sizes.embedding_rows = min(sizes.embedding_rows, max(sizes.cache_rows, 256))
            elif wishes.context_tokens is None and sizes.context > least:
                sizes.context = max(sizes.context // 2, least)
            else:
                raise self._too_little(sizes, moved)

    def _drop_drafts(self, sizes: _Sizes, moved: Moved, cards: Sequence[CardPlan]) -> None:
        """No drafts where their memory would leave a layer fewer slots than a token needs: experts are worth more."""
        if not sizes.drafting or self._wishes.drafting == "on" or self._wishes.slots is not None:
            return
        counts = self._model.n_experts(drafting=True)
        room = self._ceiling - self._fixed(sizes, moved) - self._model.slot_bytes(sizes.spare)
        on_cards = min(sum(card.slots.get(layer, 0) for card in cards) for layer in range(len(self._model.layers)))
        each = room // self._model.slot_bytes(1) // len(counts) + on_cards
        if each < min(self._model.config.n_activated_experts, self._model.config.n_routed_experts):
            sizes.drafting = False
            self._notes.append(_NO_DRAFTS)

    def _too_little(self, sizes: _Sizes, moved: Moved) -> DoesNotFit:
        """The refusal, with the smallest change that would fit."""
        needed, wishes, available = self._needed(sizes, moved), self._wishes, self._facts.available_bytes
        short = needed - self._ceiling
        resident = self._model.trunk.n_bytes + self._model.head.n_bytes - moved.trunk.n_bytes - moved.head.n_bytes
        message = (
            f"the model needs {gb(needed)} of memory at least here ({gb(resident)} of it resident weights), "
            f"and may take {gb(self._ceiling)} of {gb(available)} available"
        )
        changes = []
        if wishes.slots is not None and wishes.slots > 1:
            counts = self._model.n_experts(drafting=sizes.drafting)
            room = self._ceiling - self._fixed(sizes, moved) - self._model.slot_bytes(sizes.spare)
            most = room // self._model.slot_bytes(len(counts))
            if most >= 1:
                changes.append(f"--slots {most}")
        if wishes.context_tokens is not None and not changes:
            least = replace(sizes, context=1)
            if self._needed(least, moved) <= self._ceiling:
                changes.append(f"--context {self._most_context(sizes, moved)}")
        if wishes.chunk_tokens is not None and not changes:
            least = replace(sizes, chunk=min(wishes.chunk_tokens, LEAST_CHUNK))
            if self._needed(least, moved) <= self._ceiling:
                changes.append(f"--chunk-tokens {least.chunk}")
        if not changes and needed <= available:
            if wishes.ram is not None:
                changes.append(f"--ram {size_text(needed, up=True)}")
            else:
                changes.append(f"--reserve {size_text(available - needed)}")
        hint = f"It fits with {changes[0]}." if changes else f"{gb(short)} more would do. {_CLOSE}"
        return DoesNotFit(message, needed_bytes=needed, ceiling_bytes=self._ceiling, hint=hint)

    def _most_context(self, sizes: _Sizes, moved: Moved) -> int:
        low, high = 1, sizes.context
        while high - low > 1:
            middle = (low + high) // 2
            fits = self._needed(replace(sizes, context=middle), moved) <= self._ceiling
            low, high = (middle, high) if fits else (low, middle)
        return low // 1024 * 1024 or low

    def _slots(
        self, sizes: _Sizes, room: int, laws: Mapping[int, Popularity], cards: Sequence[CardPlan]
    ) -> dict[int, int]:
        """Slots of each layer in RAM. What is on a card needs none here."""
        on_cards = dict.fromkeys(laws, 0)
        for card in cards:
            for layer, n in card.slots.items():
                on_cards[layer] += n
        most = {layer: len(law.chances) - on_cards[layer] for layer, law in laws.items()}
        if self._wishes.slots is not None:
            return {layer: min(self._wishes.slots, n) for layer, n in most.items()}
        n_slots = (room - self._model.slot_bytes(sizes.spare)) // self._model.slot_bytes(1)
        even = spread(n_slots, most)
        if not any(layer in self._shares for layer in laws):
            return even
        curves = {layer: law.by_slots()[on_cards[layer] :] for layer, law in laws.items()}
        floor = {layer: min(n, max(1, even[layer] // LEAST_SHARE_OF_EVEN)) for layer, n in most.items()}
        uneven = best_slots(n_slots, curves, floor)
        asked = sum(law.n_used for law in laws.values())
        gain = sum(curves[layer][uneven[layer]] - curves[layer][even[layer]] for layer in laws) / asked
        if gain < UNEVEN_GAIN:
            return even
        self._notes.append(
            f"Layers get {min(uneven.values())} to {max(uneven.values())} slots, by what your prompts use: "
            f"{100 * gain:.1f} more of 100 experts are then found in memory."
        )
        return uneven

    def _note_small(self, slots: Mapping[int, int], sizes: _Sizes, cards: Sequence[CardPlan]) -> None:
        on_cards = {layer: sum(card.slots.get(layer, 0) for card in cards) for layer in slots}
        least = min(n + on_cards[layer] for layer, n in slots.items()) + sizes.spare
        needed = self._model.config.n_activated_experts
        if least < needed:
            more = (needed - least) * len(slots)
            self._notes.append(
                f"A token needs {needed} experts of a layer and {least} fit: each step is read in parts, which is "
                f"slow. {gb(self._model.slot_bytes(more))} more would hold them."
            )

    def _cards(self, sizes: _Sizes, chunk: int) -> tuple[CardPlan, ...]:
        if not self._abilities.cards:
            if self._facts.cards:
                self._notes.append("GPUs are not used: this version computes on the processor only.")
            return ()
        if not self._abilities.cards_unasked and self._wishes.vram is None:
            if self._facts.cards:
                self._notes.append(f"The GPU is used only when --vram asks for it. {UNTRIED}")
            return ()
        if self._facts.cards:
            self._notes.append(UNTRIED)
        # Left to itself the engine drafts nothing with a card: torch's sums hang on the number of rows.
        drafts = sizes.drafting and self._wishes.drafting == "on"
        return plan_cards(self._facts.cards, self._model, self._wishes.vram, sizes.context, chunk, drafts=drafts)

    def _parts(self, sizes: _Sizes, slots: Mapping[int, int], moved: Moved) -> tuple[Part, ...]:
        model = self._model
        trunk = model.trunk.n_bytes - moved.trunk.n_bytes
        head = model.head.n_bytes - moved.head.n_bytes
        parts = [
            Part(name="runtime", place="RAM", n_bytes=model.runtime_bytes, note="program, books, tokenizer"),
            Part(name="trunk", place="RAM", n_bytes=trunk, note="attention, shared experts: every token"),
            Part(name="head", place="RAM", n_bytes=head, note="the output layer"),
        ]
        if sizes.drafting:
            drafts = model.draft.n_bytes - moved.draft.n_bytes
            parts.append(Part(name="draft head", place="RAM", n_bytes=drafts, note="proposes tokens"))
        kv = model.kv_bytes(sizes.context, drafting=sizes.drafting)
        parts += [
            Part(name="conversation", place="RAM", n_bytes=kv, note=f"{sizes.context:,} tokens"),
            Part(
                name="scratch",
                place="RAM",
                n_bytes=model.scratch_bytes(sizes.chunk, sizes.context),
                note=f"{sizes.chunk:,} prompt tokens at a time",
            ),
            Part(
                name="rows",
                place="RAM",
                n_bytes=model.rows_bytes(sizes.cache_rows, sizes.embedding_rows),
                note=f"{sizes.cache_rows:,} rows of each engram table",
            ),
            Part(
                name="experts",
                place="RAM",
                n_bytes=model.slot_bytes(sum(slots.values())),
                note=slots_note(slots, model),
            ),
            Part(
                name="experts lent", place="RAM", n_bytes=model.slot_bytes(sizes.spare), note="while a prompt is read"
            ),
        ]
        return tuple(part for part in parts if part.n_bytes)


def max_context(footprint: Footprint) -> int:
    """The most positions a conversation can have: what the config states, else what its rotary scaling reaches."""
    config = footprint.config
    return config.max_position_embeddings or int(config.original_seq_len * config.rope_factor)


UNTRIED = "No card has run this version yet: what one gives is assumed."
"""Said wherever cards are counted on."""
_NO_DRAFTS = "There is too little memory for the draft head: answers are not drafted."
_CLOSE = "Close other programs, or raise the memory limit."


def gb(n_bytes: int) -> str:
    """A size for a sentence, decimal: "12.3 GB", "87 MB", "512 B"."""
    if n_bytes >= 1_000_000_000:
        return f"{n_bytes / 1e9:.1f} GB"
    return f"{n_bytes / 1e6:.3g} MB" if 1_000_000 <= n_bytes < 999_500_000 else format_bytes(n_bytes)


def size_text(n_bytes: int, *, up: bool = False) -> str:
    """A size that an option takes, rounded so that it still fits: "12.3GB"."""
    if n_bytes >= 10_000_000_000:
        tenths = ceil(n_bytes / 1e8) if up else n_bytes // 100_000_000
        return f"{tenths / 10:g}GB"
    return f"{ceil(n_bytes / 1e6) if up else n_bytes // 1_000_000}MB"


def _power_of_two(n: int) -> int:
    """The largest power of two of at most `n`, at least the smallest chunk."""
    return max(LEAST_CHUNK, 1 << max(0, n.bit_length() - 1))
