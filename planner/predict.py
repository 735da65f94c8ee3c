"""What a plan is expected to do: seconds a token, phase by phase, and how often an expert is in memory.

Every phase is bytes over a rate, or multiply-adds over a rate where that takes longer, as many rows share the bytes.
Reads of a decode step are waited for; those of a prompt run while experts are multiplied, so only what is longer
counts. The one thing a reader would get wrong: a short answer from a cold start misses far more than the warm rate
says, and is predicted so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from planner.cards import ASSUMED_CARD_BYTES_S, Moved, card_draft_s, card_trunk_s, moved_weights
from planner.facts import MachineFacts
from planner.footprint import Footprint, Weights
from planner.hits import Popularity
from planner.plan import Plan

LAYER_S = 0.0006
"""Of a forward, beside the arithmetic: Python between the calls, for each layer."""
DRAW_S = 3e-8
"""Of drawing a token, for each id of the vocabulary: 4 ms for 129,280 at temperature 1, on one AVX2 core."""
WAITING = "waiting for drives"
DRAFTING = "draft"
AT_TOKENS = 2_000
"""Positions of the conversation a figure is given for when nobody says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """One thing that takes time."""

    name: str
    """"trunk", "trunk on cards", "experts", "head", "attention", "waiting for drives", "draft", "other"."""
    seconds: float
    n_bytes: int = 0
    """Read from memory, or from drives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """One forward, or a number of them."""

    n_tokens: int
    """Tokens read, or forwards that decoded."""
    phases: tuple[Phase, ...]
    n_asked: float
    """Experts asked for, each once a forward and layer."""
    hit_rate: float
    """Share of them that are in memory."""
    read_bytes: int
    """From drives."""

    @property
    def seconds(self) -> float:
        """All phases."""
        return sum(phase.seconds for phase in self.phases)

    @property
    def arithmetic_s(self) -> float:
        """All phases but the waiting and the draft head, which waits for reads of its own."""
        return sum(phase.seconds for phase in self.phases if phase.name not in (WAITING, DRAFTING))

    @property
    def tokens_s(self) -> float:
        """Tokens a second."""
        return self.n_tokens / self.seconds if self.seconds > 0 else 0.0


class Predictor:
    """Forecasts for one plan.

    `laws` are each layer's, by `solve.popularity`; a forward goes through the backbone's layers, a round of drafts
    through the stages behind them.
    """

    def __init__(self, facts: MachineFacts, footprint: Footprint, plan: Plan, laws: Mapping[int, Popularity]) -> None:
        self._facts = facts
        self._model = footprint
        self._plan = plan
        n_layers = footprint.config.n_layers
        self._laws = {layer: laws[layer] for layer in range(n_layers)}
        self._stages = {layer: law for layer, law in laws.items() if layer >= n_layers}
        self._drives_bytes_s = max(1.0, sum(drive.rate_bytes_s for drive in facts.drives))

    def answer(
        self,
        n_forwards: int,
        *,
        rows: float = 1.0,
        after_tokens: int = AT_TOKENS,
        fresh_rows: int | None = None,
        n_rounds: int = 0,
    ) -> Forecast:
        """So many decode forwards behind `after_tokens`, each of a token and the drafts it verifies: `rows` in all; and
        `n_rounds` times the draft head.

        Slots are warm, unless `fresh_rows` says that they were empty when a prompt of so many rows was read.
        """
        asked = hits = 0.0
        for layer, law in self._laws.items():
            slots, wanted = self._slots(layer), law.distinct(rows)
            share = law.hits(slots) if fresh_rows is None else law.hits_after(slots, fresh_rows, max(1, n_forwards))
            asked += wanted
            hits += wanted * share
        read = (asked - hits) * self._model.expert_bytes
        once = self._forward(rows, asked, after_tokens + n_forwards // 2, head_rows=rows)
        once = _scaled(once, self._facts.rates.answer_factor)
        once.append(Phase(name=WAITING, seconds=read / self._drives_bytes_s, n_bytes=round(read)))
        answer = _times(n_forwards, once, asked, hits / asked if asked else 1.0, round(read))
        return answer if not n_rounds else self._with_drafts(answer, n_rounds, is_fresh=fresh_rows is not None)

    def prompt(self, n_tokens: int, *, after_tokens: int = 0, cold: bool = True) -> Forecast:
        """Reading so many tokens, in chunks of the plan's size, from empty slots or warm ones."""
        sums: dict[str, tuple[float, int]] = {}
        asked = hits = 0.0
        done, filled = 0, not cold
        while done < n_tokens:
            rows = min(self._plan.chunk_tokens, n_tokens - done)
            forecast, n_asked, n_hits = self._chunk(rows, after_tokens + done, filled)
            for phase in forecast:
                seconds, n_bytes = sums.get(phase.name, (0.0, 0))
                sums[phase.name] = (seconds + phase.seconds, n_bytes + phase.n_bytes)
            asked, hits, done, filled = asked + n_asked, hits + n_hits, done + rows, True
        return Forecast(
            n_tokens=n_tokens,
            phases=tuple(Phase(name=name, seconds=s, n_bytes=b) for name, (s, b) in sums.items()),
            n_asked=asked,
            hit_rate=hits / asked if asked else 1.0,
            read_bytes=round((asked - hits) * self._model.expert_bytes),
        )

    def _chunk(self, rows: int, after_tokens: int, filled: bool) -> tuple[Sequence[Phase], float, float]:
        """One chunk: its phases, the distinct experts it asks for and those in memory."""
        asked = hits = 0.0
        for layer, law in self._laws.items():
            distinct = law.distinct(rows)
            asked += distinct
            # A chunk that wants nearly everything finds what is there; one that wants little finds the popular part.
            hits += min(self._slots(layer), distinct * max(law.hits(self._slots(layer)), 0.0)) if filled else 0.0
        read = (asked - hits) * self._model.expert_bytes
        phases = self._forward(rows, asked, after_tokens + rows // 2, head_rows=1)
        phases = _scaled(phases, self._facts.rates.prompt_factor)
        experts_s = sum(phase.seconds for phase in phases if phase.name == "experts")
        waited_s = max(0.0, read / self._drives_bytes_s - experts_s)
        phases.append(Phase(name=WAITING, seconds=waited_s, n_bytes=round(read)))
        return phases, asked, hits

    def _forward(self, rows: float, n_asked: float, at_tokens: int, *, head_rows: float) -> list[Phase]:
        """The arithmetic of one forward that asks for so many experts; `head_rows` of its rows are drawn from."""
        model = self._model
        moved = moved_weights(self._plan.cards, model)
        trunk = Weights(
            fp8_bytes=model.trunk.fp8_bytes - moved.trunk.fp8_bytes,
            plain_bytes=model.trunk.plain_bytes - moved.trunk.plain_bytes,
        )
        head = Weights(plain_bytes=model.head.n_bytes - moved.head.n_bytes)
        return [
            self._weights("trunk", trunk, rows),
            self._experts(rows, n_asked, self._laws),
            self._weights("head", head, head_rows),
            *self._on_cards(rows, moved),
            self._attention(rows, at_tokens),
            Phase(name="other", seconds=LAYER_S * len(model.layers) + DRAW_S * head_rows * model.config.vocab_size),
        ]

    def _on_cards(self, rows: float, moved: Moved) -> list[Phase]:
        """What cards compute of the resident weights, while the processor waits; nothing without cards."""
        n_bytes = moved.trunk.n_bytes + moved.head.n_bytes
        if not n_bytes:
            return []
        seconds = card_trunk_s(self._plan.cards, self._model, rows)
        return [Phase(name="trunk on cards", seconds=seconds, n_bytes=n_bytes)]

    def _with_drafts(self, answer: Forecast, n_rounds: int, *, is_fresh: bool) -> Forecast:
        """The same with so many rounds of the draft head: a whole block through its stages, and the output layer.

        A prompt asks for none of its experts.
        """
        model, block = self._model, self._model.config.dspark_block_size
        asked = hits = 0.0
        for layer, law in self._stages.items():
            slots, wanted = self._slots(layer), law.distinct(block)
            asked += wanted
            hits += wanted * (law.hits_after(slots, 0, n_rounds) if is_fresh else law.hits(slots))
        read = (asked - hits) * model.expert_bytes
        moved = moved_weights(self._plan.cards, model)
        draft, head = self._weights(DRAFTING, model.draft, block), self._weights(DRAFTING, model.head, block)
        if moved.draft.n_bytes:
            draft = replace(draft, seconds=card_draft_s(model))
        if moved.head.n_bytes:
            head = replace(head, seconds=model.head.n_bytes / ASSUMED_CARD_BYTES_S)
        parts = [draft, head, self._experts(block, asked, self._stages)]
        arithmetic_s = self._facts.rates.answer_factor * sum(part.seconds for part in parts)
        drafted = Phase(
            name=DRAFTING,
            seconds=n_rounds * (arithmetic_s + read / self._drives_bytes_s),
            n_bytes=n_rounds * sum(part.n_bytes for part in parts),
        )
        n_asked = answer.n_asked + n_rounds * asked
        n_hits = answer.n_asked * answer.hit_rate + n_rounds * hits
        return replace(
            answer,
            phases=(*answer.phases, drafted),
            n_asked=n_asked,
            hit_rate=n_hits / n_asked if n_asked else 1.0,
            read_bytes=answer.read_bytes + round(n_rounds * read),
        )

    def _experts(self, rows: float, n_asked: float, laws: Mapping[int, Popularity]) -> Phase:
        """Multiplying rows by so many distinct experts."""
        config, rates = self._model.config, self._facts.rates
        n_bytes = n_asked * self._model.expert_bytes
        multiply_adds = rows * sum(law.n_used for law in laws.values()) * 3 * config.dim * config.moe_inter_dim
        seconds = max(n_bytes / rates.fp4_bytes_s, multiply_adds / rates.multiply_adds_s)
        share = self._card_share(rows, laws)
        if share:
            # Cards and the processor work at once, each on the experts that lie with it.
            seconds = max((1 - share) * seconds, share * n_bytes / ASSUMED_CARD_BYTES_S)
        return Phase(name="experts", seconds=seconds, n_bytes=round(n_bytes))

    def _card_share(self, rows: float, laws: Mapping[int, Popularity]) -> float:
        """Of the experts that these layers are asked for, the share that lies on cards: the most used of each."""
        asked = served = 0.0
        for layer, law in laws.items() if self._plan.cards else ():
            wanted = law.distinct(rows)
            asked += wanted
            served += wanted * law.hits(sum(card.slots.get(layer, 0) for card in self._plan.cards))
        return served / asked if asked else 0.0

    def _slots(self, layer: int) -> int:
        return self._plan.slots[layer] + sum(card.slots.get(layer, 0) for card in self._plan.cards)

    def _weights(self, name: str, weights: Weights, rows: float) -> Phase:
        """Multiplying rows by resident weights."""
        rates = self._facts.rates
        read_s = weights.fp8_bytes / rates.fp8_bytes_s + weights.plain_bytes / rates.plain_bytes_s
        multiply_adds = rows * (weights.fp8_bytes + weights.plain_bytes / 2)
        seconds = max(read_s, multiply_adds / rates.multiply_adds_s)
        return Phase(name=name, seconds=seconds, n_bytes=weights.n_bytes)

    def _attention(self, rows: float, at_tokens: int) -> Phase:
        """Keys seen by each row: the window, the selected groups, and all groups where a layer selects. In layers on
        cards that is little beside what telling them takes.
        """
        config = self._model.config
        on_cards = {layer for card in self._plan.cards for layer in card.layers}
        multiply_adds = 0
        for layer in range(config.n_layers):
            if layer in on_cards:
                continue
            ratio = config.ratio(layer)
            groups = at_tokens // ratio if ratio else 0
            seen = min(config.window_size, at_tokens + 1) + min(config.index_topk, groups)
            multiply_adds += 2 * seen * config.n_heads * config.head_dim
            if layer in config.index_source_layers:
                multiply_adds += groups * config.index_n_heads * config.index_head_dim
        return Phase(name="attention", seconds=rows * multiply_adds / self._facts.rates.multiply_adds_s)


def _scaled(phases: Sequence[Phase], factor: float) -> list[Phase]:
    return [replace(phase, seconds=factor * phase.seconds) for phase in phases]


def _times(n: int, once: Sequence[Phase], n_asked: float, hit_rate: float, read_bytes: int) -> Forecast:
    phases = tuple(Phase(name=p.name, seconds=n * p.seconds, n_bytes=n * p.n_bytes) for p in once)
    return Forecast(n_tokens=n, phases=phases, n_asked=n * n_asked, hit_rate=hit_rate, read_bytes=n * read_bytes)
