"""The engine against golden results, number by number: the judge of everything else.

A golden folder holds `golden.json` (prompts and the recorded continuation), `exact.safetensors` and
`vendor.safetensors` (what a correct engine computes, by array name). Recorded tokens are fed, not the engine's own,
so that one early difference does not hide the rest. In `exact` every choice must be equal; in `reference` one
bfloat16 value that rounds the other way grows to a difference of order 1 on random weights, so that mode is judged by
statistics.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from engine.config import load_config
from engine.draft.head import DraftHead, DraftTrace
from engine.errors import GoldenError
from engine.model import Model, Trace, never
from engine.numerics import NumericsName
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.small_files import read_regular
from engine.state import State
from engine.streams import StreamSettings
from engine.tiers.card import Card
from engine.tiers.trunk import TrunkPlaces
from storage.checkpoint import Checkpoint

EXACT_LOGIT_LIMIT = 2e-4
"""Largest allowed |difference| of a logit in `exact`. Independent float32 implementations differ by 2e-5 to 9e-5."""

CONFIDENCE_LIMIT = 2e-4
"""Likewise for a draft's confidence, whose scale is that of the logits; the fixture's own noise is below 5e-5."""

STREAM_LIMIT = 1e-3
"""Likewise for a value of the residual stream, whose scale grows over the layers."""

REFERENCE_MEDIAN_LIMIT = 0.05
REFERENCE_RMS_LIMIT = 0.8
REFERENCE_TOKEN_LIMIT = 0.05
"""Largest share of positions whose next token differs; double-precision sums alone change 4 % of them."""

REFERENCE_DRAFT_LIMIT = 0.25
"""Largest share of draft rounds of which some draft differs; double-precision sums alone change 17 % of them."""

_DRAFT_STEPS: Mapping[NumericsName, int] = {"exact": 1, "reference": 4}
"""Every how many steps the draft head is compared: a share is known well enough from a quarter of the rounds."""

_MAX_JSON_BYTES = 1 << 28

_FILES: Mapping[NumericsName, tuple[str, str]] = {
    "exact": ("exact.safetensors", "exact"),
    "reference": ("vendor.safetensors", "vendor"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class KindResult:
    """How one kind of value compared."""

    kind: str
    rows: int
    """Rows compared."""
    mismatches: int
    """Rows in which a choice differs; 0 for kinds that are numbers."""
    worst: float | None
    """For numbers the figure that is judged; None for choices."""
    limit: float | None
    agrees: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldenReport:
    """The whole comparison."""

    kinds: tuple[KindResult, ...]
    agrees: bool


@dataclass(slots=True)
class _Tally:
    """Rows and mismatches of the choices, differences of the numbers."""

    rows: dict[str, int] = field(default_factory=dict)
    mismatches: dict[str, int] = field(default_factory=dict)
    differences: dict[str, list[Tensor]] = field(default_factory=dict)

    def choices(self, kind: str, equal: Tensor) -> None:
        """Shapes: equal [n] bool, one a row."""
        self.rows[kind] = self.rows.get(kind, 0) + equal.numel()
        self.mismatches[kind] = self.mismatches.get(kind, 0) + int((~equal).sum())

    def numbers(self, kind: str, ours: Tensor, theirs: Tensor) -> None:
        """Shapes: equal, first axis rows."""
        self.rows[kind] = self.rows.get(kind, 0) + ours.shape[0]
        self.differences.setdefault(kind, []).append((ours - theirs.float()).abs().flatten())


class _Golden:
    """Recorded arrays by name, each shape checked as it is asked for."""

    def __init__(self, folder: Path, numerics: NumericsName) -> None:
        name, self.mode = _FILES[numerics]
        try:
            self._meta: dict[str, Any] = json.loads(read_regular(folder / "golden.json", _MAX_JSON_BYTES))
            if not (folder / name).is_file():  # a pipe would be waited for
                raise GoldenError(f"{folder / name}: missing, or not a regular file")
            self._arrays = load_file(folder / name)
        except (OSError, ValueError, SafetensorError) as error:
            raise GoldenError(
                f"{folder}: cannot read golden.json and {name}: {error}", hint="Name a folder of golden results."
            ) from error

    def prompts(self) -> list[tuple[str, list[int], list[int]]]:
        """Key, prompt ids and recorded continuation of every prompt."""
        try:
            found = [
                (f"p{i}", list(prompt["ids"]), list(prompt[self.mode]["greedy"]))
                for i, prompt in enumerate(self._meta["prompts"])
            ]
        except (KeyError, TypeError) as error:
            raise GoldenError(f"golden.json has no prompts with ids and a {self.mode} continuation: {error}") from error
        if not all(isinstance(token, int) for _, ids, greedy in found for token in (*ids, *greedy)):
            raise GoldenError("golden.json: a prompt or its continuation holds something other than token ids")
        return found

    def array(self, name: str, n_rows: int) -> Tensor:
        """An array with `n_rows` rows. Raises: GoldenError when it is missing or has another number of rows."""
        array = self._arrays.get(name)
        if array is None:
            raise GoldenError(f"the golden results have no array {name!r}")
        if array.dim() < 2 or array.shape[0] != n_rows:
            raise GoldenError(f"golden array {name!r} has shape {list(array.shape)}, expected {n_rows} rows")
        return array

    @property
    def has_drafts(self) -> bool:
        """Whether rounds of the draft head were recorded."""
        return any(".draft.ids" in name for name in self._arrays)

    def optional(self, name: str) -> Tensor | None:
        """An array that only some prompts have."""
        return self._arrays.get(name)


def compare(
    checkpoint: Path,
    golden: Path,
    *,
    numerics: NumericsName = "exact",
    on_progress: Callable[[int, int], None] | None = None,
    card: Card | None = None,
) -> GoldenReport:
    """Run every golden prompt and its recorded continuation and compare what was computed and chosen.

    With a `card` resident weights and experts lie there. `on_progress` gets positions done and in all.
    Raises: GoldenError when the golden folder cannot be read or does not fit the model; what opening and running raise.
    """
    recorded = _Golden(golden, numerics)
    prompts = recorded.prompts()
    config = load_config(checkpoint).config
    for key, ids, greedy in prompts:
        if not ids or any(not 0 <= token < config.vocab_size for token in (*ids, *greedy)):
            raise GoldenError(
                f"golden prompt {key} is empty or holds ids outside the vocabulary of {config.vocab_size:,}"
            )
    total = sum(len(ids) + len(greedy) - 1 for _, ids, greedy in prompts)
    done = 0
    tally = _Tally()

    def advance(n: int) -> None:
        nonlocal done
        done += n
        if on_progress is not None:
            on_progress(done, total)

    with Checkpoint.open(checkpoint) as files, _one_thread():
        layers = range(config.n_layers)
        everything = StreamSettings(
            slots_per_layer=config.n_routed_experts,
            cards=() if card is None else [(card, dict.fromkeys(layers, config.n_routed_experts))],
        )
        places = None if card is None else TrunkPlaces(dict.fromkeys(layers, card), card, card)
        model = Model.open(
            files, config, streams=everything, numerics=numerics, drafts=recorded.has_drafts, trunk_places=places
        )
        if card is not None:
            model.streams.warm(dict.fromkeys(layers, range(config.n_routed_experts)), never)
        if recorded.has_drafts and model.head is None:
            raise GoldenError(f"the golden results have drafts, the checkpoint gives none: {model.no_drafts}")
        for key, ids, greedy in prompts:
            state = model.new_state()
            trace = Trace()
            result = model.forward(state, ids, "prefill", n_logits=len(ids), trace=trace)
            state.commit(result.step)
            _compare_rows(tally, recorded, f"{key}.prefill", slice(0, len(ids)), len(ids), result.logits, trace)
            _compare_next(tally, result.logits[-1:], greedy[0])
            stream = recorded.optional(f"{key}.prefill.last_stream")
            if stream is not None:
                ours = torch.stack(trace.streams)  # [L, m, D]
                if ours.shape != stream.shape:
                    raise GoldenError(f"golden array '{key}.prefill.last_stream' has shape {list(stream.shape)}")
                tally.numbers("residual stream", ours, stream)
            if model.head is not None and recorded.optional(f"{key}.first_draft.ids") is not None:
                _compare_drafts(tally, recorded, f"{key}.first_draft", None, 1, model.head, state, greedy[0])
            advance(len(ids))
            n_steps = len(greedy) - 1
            for step, token in enumerate(greedy[:-1]):
                trace = Trace()
                result = model.forward(state, [token], "decode", trace=trace)
                state.commit(result.step)
                rows = slice(step, step + 1)
                _compare_rows(tally, recorded, f"{key}.step", rows, n_steps, result.logits, trace)
                _compare_next(tally, result.logits, greedy[step + 1])
                if model.head is not None and step % _DRAFT_STEPS[numerics] == 0:
                    _compare_drafts(tally, recorded, f"{key}.draft", step, n_steps, model.head, state, greedy[step + 1])
                advance(1)
        model.close()
    kinds = _judge_exact(tally) if numerics == "exact" else _judge_reference(tally)
    return GoldenReport(kinds=tuple(kinds), agrees=all(kind.agrees for kind in kinds))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One torch thread: three or more split the sums of a product elsewhere, and `reference` shows it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _compare_rows(
    tally: _Tally, golden: _Golden, key: str, rows: slice, n_rows: int, logits: Tensor, trace: Trace
) -> None:
    """Everything recorded for some rows of a phase against the forward that computed them."""
    theirs = golden.array(f"{key}.logits", n_rows)[rows]
    if theirs.shape != logits.shape:
        raise GoldenError(f"golden array '{key}.logits' has {theirs.shape[1]} columns, the model {logits.shape[1]}")
    tally.numbers("logits", logits, theirs)
    tally.choices("best token", logits.argmax(1) == theirs.float().argmax(1))
    for layer, ids in trace.rows.items():
        tally.choices("engram rows", _same_sets(ids, golden.array(f"{key}.hash.{layer}", n_rows)[rows], ordered=True))
    for layer, routing in trace.routing.items():
        tally.choices("experts", _same_sets(routing.experts, golden.array(f"{key}.experts.{layer}", n_rows)[rows]))
    for layer, picks in trace.selections.items():
        tally.choices("selections", _same_sets(picks, golden.array(f"{key}.index.{layer}", n_rows)[rows]))
        owners = torch.tensor(trace.owners[layer]).unsqueeze(1)
        tally.choices("key owners", _same_sets(owners, golden.array(f"{key}.index_owner.{layer}", n_rows)[rows]))


def _compare_drafts(
    tally: _Tally, golden: _Golden, key: str, step: int | None, n_steps: int, head: DraftHead, state: State, token: int
) -> None:
    """A round of the draft head behind `token`, of which a round by itself is recorded without its steps' axis."""

    def recorded(name: str) -> Tensor | None:
        if step is None:
            return golden.optional(f"{key}.{name}")
        return golden.array(f"{key}.{name}", n_steps)[step]

    trace = DraftTrace()
    choose = Sampler(SamplerSettings(temperature=0)).draw
    proposal = head.propose(state, token, head.block_size, choose, never, trace)
    ours = {
        "ids": torch.tensor([token, *proposal.ids]),
        "confidence": torch.tensor(proposal.confidence),
        "top_logit": torch.tensor(trace.top_logits),
    }
    kinds = {"confidence": "draft confidence", "top_logit": "draft logits"}
    for name, values in ours.items():
        theirs = recorded(name)
        if theirs is None and step is None and name == "top_logit":
            continue  # not recorded for the first round
        if theirs is None or theirs.shape != values.shape:
            found = "missing" if theirs is None else f"of shape {list(theirs.shape)}"
            raise GoldenError(f"golden array '{key}.{name}' is {found}, expected {list(values.shape)} a round")
        if name == "ids":
            tally.choices("draft tokens", (values == theirs).all().unsqueeze(0))
        else:
            tally.numbers(kinds[name], values.unsqueeze(0), theirs.unsqueeze(0))
    for stage, routing in trace.routing.items():
        theirs = recorded(f"experts.{stage}")
        if theirs is not None:
            tally.choices("draft experts", _same_sets(routing.experts, theirs))


def _compare_next(tally: _Tally, logits: Tensor, token: int) -> None:
    tally.choices("next token", logits.argmax(1) == token)


def _same_sets(ours: Tensor, theirs: Tensor, *, ordered: bool = False) -> Tensor:
    """Row by row whether two [n, *] id arrays hold the same ids; -1 is padding: [n] bool."""
    if ordered:
        return (
            (ours == theirs.to(torch.int64)).all(1)
            if ours.shape == theirs.shape
            else torch.zeros(ours.shape[0], dtype=torch.bool)
        )
    pairs = zip(ours.tolist(), theirs.tolist(), strict=True)
    return torch.tensor([sorted(x for x in a if x >= 0) == sorted(x for x in b if x >= 0) for a, b in pairs])


def _judge_exact(tally: _Tally) -> list[KindResult]:
    kinds = [
        KindResult(kind=kind, rows=rows, mismatches=tally.mismatches[kind], worst=None, limit=None,
                   agrees=tally.mismatches[kind] == 0)
        for kind, rows in tally.rows.items() if kind in tally.mismatches
    ]  # fmt: skip
    limits = {"logits": EXACT_LOGIT_LIMIT, "residual stream": STREAM_LIMIT}
    limits |= {"draft logits": EXACT_LOGIT_LIMIT, "draft confidence": CONFIDENCE_LIMIT}
    for kind, limit in limits.items():
        if kind in tally.differences:
            worst = float(torch.cat(tally.differences[kind]).max())
            agrees = worst <= limit  # also False for NaN
            kinds.append(
                KindResult(kind=kind, rows=tally.rows[kind], mismatches=0, worst=worst, limit=limit, agrees=agrees)
            )
    return kinds


def _judge_reference(tally: _Tally) -> list[KindResult]:
    """Hashes and key owners involve no arithmetic and must be equal; the rest is judged by how often and how far it is
    off.
    """
    kinds = []
    for kind, rows in tally.rows.items():
        if kind in tally.differences:
            continue
        mismatches = tally.mismatches[kind]
        share = mismatches / rows
        limits = {"engram rows": 0.0, "key owners": 0.0, "best token": REFERENCE_TOKEN_LIMIT}
        limit = (limits | {"draft tokens": REFERENCE_DRAFT_LIMIT}).get(kind)
        agrees = limit is None or share <= limit
        kinds.append(KindResult(kind=kind, rows=rows, mismatches=mismatches, worst=share, limit=limit, agrees=agrees))
    logits = torch.cat(tally.differences["logits"])
    for name, worst, limit in (
        ("logits, median", float(logits.median()), REFERENCE_MEDIAN_LIMIT),
        ("logits, root mean square", float(logits.square().mean().sqrt()), REFERENCE_RMS_LIMIT),
    ):
        rows = tally.rows["logits"]
        kinds.append(KindResult(kind=name, rows=rows, mismatches=0, worst=worst, limit=limit, agrees=worst <= limit))
    return kinds
