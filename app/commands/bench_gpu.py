"""`artesian bench gpu`: what a graphics card gives, and whether the model says the same with its parts there.

No card has run this yet. `--emulate` goes the same way with the processor in the card's place: it shows that the
command works, and nothing of any card.
"""

import random
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from app.errors import NoCard, UsageError
from app.exits import ExitCode
from app.paths import as_named, demo_folder
from app.report import envelope, format_bytes, table
from app.sanitize import one_line
from engine.config import load_config
from planner.facts import available_bytes

if TYPE_CHECKING:
    import torch

DEFAULT_TOKENS = 16
PROMPT_TOKENS = 24
_MEMORY_SHARE = 0.5
"""Of the memory available, at most, for the slots of a model that is measured."""
_EMULATED_SHRINK = 8
"""Products and copies are so many times smaller each way where the processor stands in."""


def run(
    models: Annotated[
        tuple[Path, ...],
        Parameter(
            name="MODEL", help="Models' folders, or slices. [default: the demo]", negative="", show_default=False
        ),
    ] = (),
    /,
    *,
    golden: Annotated[Path | None, Parameter(help="Golden results of the first MODEL.")] = None,
    tokens: Annotated[int, Parameter(help="Tokens decoded in each placement.")] = DEFAULT_TOKENS,
    emulate: Annotated[bool, Parameter(help="Let the processor stand in for a card.")] = False,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Measure a graphics card, and compare what the model says with its parts there.

    Rates of the card, products of released shapes against slow decoding, golden results in both numeric modes, and
    MODEL in memory only, on the card only and mixed: tokens, seconds of a token and of a layer. The exit code is 1 when
    anything differs, 6 when there is no card.

    Raises: UsageError; NoCard; what opening and running a model raise.
    """
    if not 1 <= tokens <= 4096:
        raise UsageError(f"--tokens must be from 1 to 4096, not {tokens}")
    if golden is not None and not models:
        raise UsageError("--golden needs the MODEL that it belongs to")
    # Here and not at the top: it brings torch, a second that `bench --help` need not wait.
    from engine.device import card_devices

    devices = card_devices()
    if not devices and not emulate:
        raise NoCard(
            "there is no graphics card that torch can compute on",
            hint="`--emulate` goes the same way without one; `artesian doctor` says what torch finds.",
        )
    data = _measure(devices[0] if devices and not emulate else None, models or (demo_folder(),), golden, tokens)
    print(envelope("bench-gpu", data) if as_json else render(data))
    return ExitCode.DONE if data["agrees"] else ExitCode.FAILED


def _measure(
    card: "torch.device | None", models: tuple[Path, ...], golden: Path | None, n_tokens: int
) -> dict[str, Any]:
    """Everything, on a card or, for None, on the processor in its place."""
    import torch

    from engine.kernels import path
    from engine.kernels.fused import available
    from engine.tiers.bench import TOLERANCE, card_rates, product_figures

    device = card or torch.device("cpu")
    small = 1 if card is not None else _EMULATED_SHRINK
    rates = card_rates(device) if card is not None else card_rates(device, read_bytes=1 << 20)
    products = [asdict(figures) for figures in product_figures(device, shrink=small)]
    for figures in products:
        figures["of_bandwidth"] = figures["rate_bytes_s"] / rates.read_bytes_s
    checked = [] if golden is None else [_golden(device, models[0], golden, name) for name in ("exact", "reference")]
    measured = [_model(device, model, n_tokens, rates.read_bytes_s) for model in models]
    agrees = all(figures["error"] <= TOLERANCE for figures in products)
    agrees &= all(result["agrees"] for result in (*checked, *measured))
    return {
        "emulated": card is None,
        "card": "the processor" if card is None else torch.cuda.get_device_name(card),
        "torch": torch.__version__,
        "triton": available(),
        "kernels": path(),
        "rates": asdict(rates),
        "products": products,
        "golden": checked,
        "models": measured,
        "agrees": agrees,
    }


def _golden(device: "torch.device", model: Path, golden: Path, numerics: str) -> dict[str, Any]:
    """Golden results with resident weights and experts on the card."""
    from engine.golden import compare
    from engine.tiers.card import Card

    report = compare(as_named(model), as_named(golden), numerics=numerics, card=Card(device))  # type: ignore[arg-type]
    return {"numerics": numerics, **asdict(report)}


def _model(device: "torch.device", model: Path, n_tokens: int, read_bytes_s: float) -> dict[str, Any]:
    """A model in each placement, beside the least that its bytes on the card take at the card's own rate."""
    from engine.experts import expert_bytes
    from engine.tiers.bench import tier_figures
    from storage.checkpoint import Checkpoint

    config = load_config(model).config
    draw = random.Random(0)
    prompt = [draw.randrange(config.vocab_size) for _ in range(PROMPT_TOKENS)]
    room = int(_MEMORY_SHARE * (available_bytes() or 0)) // (expert_bytes(config) * config.n_layers)
    with Checkpoint.open(model) as checkpoint:
        found = tier_figures(
            checkpoint, config, device, prompt, n_tokens, slots_per_layer=max(1, min(room, config.n_routed_experts))
        )
    placements = [
        asdict(figures)
        | {"same_tokens": figures.tokens == found[0].tokens, "floor_s": figures.card_bytes / read_bytes_s}
        for figures in found
    ]
    return {"model": str(model), "placements": placements, "agrees": all(p["same_tokens"] for p in placements)}


def render(data: Mapping[str, Any]) -> str:
    """The report for people."""
    rates = data["rates"]
    stands_in = " (standing in: these figures say nothing of any card)" if data["emulated"] else ""
    text = (
        f"{one_line(data['card'])}{stands_in}: memory gives {format_bytes(round(rates['read_bytes_s']))}/s, the bus "
        f"{format_bytes(round(rates['upload_bytes_s']))}/s, a trip takes {rates['trip_s'] * 1e6:.0f} us; "
        f"Triton {'is' if data['triton'] else 'is not'} there\n\n"
    )
    rows = [("product", "rows", "time", "weights", "of memory", "error", "row alone")]
    for product in data["products"]:
        rows.append(
            (
                f"{product['kind']} {product['n']}x{product['k']}",
                str(product["rows"]),
                f"{product['median_s'] * 1e3:.3f} ms",
                f"{format_bytes(round(product['rate_bytes_s']))}/s",
                f"{product['of_bandwidth']:.0%}",
                f"{product['error']:.1e}",
                "same bits" if product["same_alone"] else "differs",
            )
        )
    text += table(rows, right=(1, 2, 3, 4, 5))
    for result in data["golden"]:
        text += f"\ngolden, {result['numerics']}: {'agrees' if result['agrees'] else 'DISAGREES'}"
    for model in data["models"]:
        lines = [("placement", "token", "a layer", "floor on the card", "served there", "tokens")]
        for placed in model["placements"]:
            lines.append(
                (
                    str(placed["placement"]),
                    f"{placed['median_token_s'] * 1e3:.2f} ms",
                    f"{placed['layer_s'] * 1e3:.2f} ms",
                    f"{placed['floor_s'] * 1e3:.2f} ms",
                    f"{placed['n_served']:,}",
                    "same" if placed["same_tokens"] else "DIFFER",
                )
            )
        text += f"\n\n{one_line(model['model'])}\n" + table(lines, right=(1, 2, 3, 4))
    return text
