"""What a card gives and whether what it computes is right: its rates, the products of released shapes, a model's tiers.

The processor may stand in for a card, so that all of this runs everywhere; its figures then say nothing of any card.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from engine.config import ModelConfig
from engine.experts import expert_bytes
from engine.formats import expand_fp4, expand_fp8
from engine.kernels import Matrix, matmul
from engine.model import Model
from engine.phases import PHASES
from engine.streams import StreamSettings
from engine.tiers.card import Card
from engine.tiers.trunk import TrunkPlaces
from storage.checkpoint import Checkpoint

_PASSES = 5
_READ_BYTES = 256 << 20
_SHAPES: Mapping[str, tuple[tuple[int, int], ...]] = {
    "fp8": ((1280, 5120), (32768, 1280), (5120, 8192)),
    "fp4": ((2304, 5120), (5120, 2304)),
    "plain": ((8192, 5120),),
}
"""Of the release: low-rank queries, heads, the output projection; an expert; a part of the output matrix."""
_ROWS = (1, 8, 64)
TOLERANCE = 1e-5
"""Of a product, relative to its largest value: float32 sums of 8,192 terms in another order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CardRates:
    """What the device gives by itself."""

    read_bytes_s: float
    """Of its memory."""
    upload_bytes_s: float
    """From pinned memory."""
    trip_s: float
    """A row there and back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductFigures:
    """One product on the device."""

    kind: str
    n: int
    k: int
    rows: int
    median_s: float
    """With the rows there already."""
    rate_bytes_s: float
    """Stored weights a second."""
    error: float
    """Largest difference from the slow decoding in float64, relative to the largest value."""
    same_alone: bool
    """Whether the first row has the same bits when it is multiplied alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """Where a model lies for one measurement."""

    name: str
    trunk: bool
    """Resident weights and output matrix on the card."""
    share: float
    """Of each layer's experts that the card has room for."""


PLACEMENTS = (
    Placement(name="memory only", trunk=False, share=0.0),
    Placement(name="card only", trunk=True, share=1.0),
    Placement(name="trunk on the card, a quarter of the experts", trunk=True, share=0.25),
    Placement(name="half of the experts on the card", trunk=False, share=0.5),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierFigures:
    """A model in one placement."""

    placement: str
    tokens: tuple[int, ...]
    """Drawn greedily."""
    logits_error: float
    """Largest difference from the first placement's, relative to the largest value."""
    median_token_s: float
    layer_s: float
    """Of a token, by layer, the output matrix not counted."""
    card_bytes: int
    """Stored weights that the card goes through for a token."""
    phases_s: Mapping[str, float]
    """Of all decoded tokens, by phase."""
    n_served: int
    """Experts that the card multiplied, of all decoded tokens."""
    n_copied: int
    notices: tuple[str, ...]


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _median_s(device: torch.device, work: Callable[[], object]) -> float:
    seconds = []
    for _ in range(_PASSES + 1):
        synchronize(device)
        begun = time.perf_counter()
        work()
        synchronize(device)
        seconds.append(time.perf_counter() - begun)
    return max(median(seconds[1:]), 1e-9)  # the first may compile


def card_rates(device: torch.device, *, read_bytes: int = _READ_BYTES) -> CardRates:
    """What the device gives now. Raises: torch.OutOfMemoryError."""
    memory = torch.ones(read_bytes // 4, device=device)
    host = torch.ones(read_bytes // 16, pin_memory=device.type == "cuda")
    row = torch.ones(1, 5120)
    return CardRates(
        read_bytes_s=memory.nbytes / _median_s(device, memory.sum),
        upload_bytes_s=host.nbytes / _median_s(device, lambda: memory[: host.numel()].copy_(host, non_blocking=True)),
        trip_s=_median_s(device, lambda: row.to(device).to("cpu")),
    )


def product_figures(device: torch.device, *, shrink: int = 1, seed: int = 0) -> list[ProductFigures]:
    """Products of released shapes, or of such divided by `shrink`, on the device. Raises: CardFull."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for kind, shapes in _SHAPES.items():
        for n, k in ((n // shrink, k // shrink) for n, k in shapes):
            matrix, exact = _made_up(kind, n, k, draw)
            there = Matrix(
                kind=matrix.kind,
                weight=matrix.weight.to(device),
                scale=None if matrix.scale is None else matrix.scale.to(device),
            )
            stored = matrix.weight.nbytes + (0 if matrix.scale is None else matrix.scale.nbytes)
            for rows in _ROWS:
                x = torch.randn((rows, k), generator=draw)
                want = x.to(torch.float64) @ exact.t()
                on_card = x.to(device)
                got = matmul(on_card, there).to("cpu")
                alone = matmul(on_card[:1], there).to("cpu")
                seconds = _median_s(device, lambda x=on_card, m=there: matmul(x, m))  # type: ignore[misc]
                found.append(
                    ProductFigures(
                        kind=kind,
                        n=n,
                        k=k,
                        rows=rows,
                        median_s=seconds,
                        rate_bytes_s=stored / seconds,
                        error=float((got - want).abs().max() / want.abs().max()),
                        same_alone=torch.equal(alone[0], got[0]),
                    )
                )
    return found


def _made_up(kind: str, n: int, k: int, draw: torch.Generator) -> tuple[Matrix, Tensor]:
    """A matrix of random codes, and what it stands for in float64."""
    if kind == "plain":
        weight = torch.randn((n, k), generator=draw).to(torch.bfloat16)
        return Matrix(kind="plain", weight=weight, scale=None), weight.to(torch.float64)
    width = k // 2 if kind == "fp4" else k
    weight = torch.randint(0, 256, (n, width), generator=draw, dtype=torch.uint8)
    rows = n if kind == "fp4" else -(-n // 32)
    scale = torch.randint(120, 131, (rows, -(-k // 32)), generator=draw, dtype=torch.uint8)
    if kind == "fp4":
        return Matrix(kind="fp4", weight=weight, scale=scale), expand_fp4(weight, scale).to(torch.float64)
    weight[(weight & 0x7F) == 0x7F] = 0  # NaN
    return Matrix(kind="fp8", weight=weight, scale=scale), expand_fp8(weight, scale).to(torch.float64)


def tier_figures(
    checkpoint: Checkpoint,
    config: ModelConfig,
    device: torch.device,
    prompt: Sequence[int],
    n_tokens: int,
    *,
    slots_per_layer: int,
    placements: Sequence[Placement] = PLACEMENTS,
) -> list[TierFigures]:
    """A prompt and greedy tokens in each placement; the first is what the others are compared with.

    Raises: what opening and running a model raise.
    """
    found: list[TierFigures] = []
    first: list[Tensor] = []
    for placement in placements:
        figures, logits = _run(checkpoint, config, device, prompt, n_tokens, slots_per_layer, placement, first)
        first = first or logits
        found.append(figures)
    return found


def _run(
    checkpoint: Checkpoint, config: ModelConfig, device: torch.device, prompt: Sequence[int], n_tokens: int,
    slots_per_layer: int, placement: Placement, first: Sequence[Tensor],
) -> tuple[TierFigures, list[Tensor]]:  # fmt: skip
    notices: deque[str] = deque()
    card = Card(device)
    room = round(placement.share * config.n_routed_experts)
    layers = range(config.n_layers)
    places = TrunkPlaces(dict.fromkeys(layers, card), card) if placement.trunk else None
    with ExitStack() as undo:
        model = Model.open(
            checkpoint,
            config,
            streams=StreamSettings(
                slots_per_layer=slots_per_layer, cards=[(card, dict.fromkeys(layers, room))] if room else ()
            ),
            trunk_places=places,
            notices=notices,
        )
        undo.callback(model.close)
        model.streams.warm(dict.fromkeys(layers, range(config.n_routed_experts)), lambda: False)
        state = model.new_state()
        result = model.forward(state, prompt, "prefill")
        state.commit(result.step)
        before, begun_with = model.clock.totals(), _served(model)
        tokens: list[int] = []
        logits: list[Tensor] = []
        seconds: list[float] = []
        for _ in range(n_tokens):
            logits.append(result.logits[-1].clone())
            tokens.append(int(result.logits[-1].argmax()))
            begun = time.perf_counter()
            result = model.forward(state, tokens[-1:], "decode")
            seconds.append(time.perf_counter() - begun)
            state.commit(result.step)
        phases = model.clock.totals().since(before).seconds
        tiers = () if model.streams.cards is None else model.streams.cards.figures()
        served = _served(model) - begun_with
        on_card = (0 if places is None else places.moved_bytes) + served * expert_bytes(config) // n_tokens
    error = max((float((a - b).abs().max() / b.abs().max()) for a, b in zip(logits, first, strict=False)), default=0.0)
    figures = TierFigures(
        placement=placement.name,
        tokens=tuple(tokens),
        logits_error=error,
        median_token_s=median(seconds),
        layer_s=(median(seconds) - phases["head"] / n_tokens) / config.n_layers,
        card_bytes=on_card,
        phases_s={phase: phases[phase] for phase in PHASES},
        n_served=served,
        n_copied=sum(tier.n_copied for tier in tiers),
        notices=tuple(notices),
    )
    return figures, logits


def _served(model: Model) -> int:
    return 0 if model.streams.cards is None else sum(tier.n_served for tier in model.streams.cards.figures())
