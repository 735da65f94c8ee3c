"""`artesian bench prompt`: time and memory as a prompt grows, on a model of tiny widths with the released windows.

The one thing a reader would get wrong: what it takes per token says nothing of a real model. What must hold of any
width is how it grows: not at all with the length of the prompt, but for choosing positions.
"""

import random
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
from cyclopts import Parameter

from app.errors import UsageError
from app.exits import ExitCode
from app.paths import demo_folder
from app.progress import CountProgress, ProgressLine
from app.report import envelope, format_bytes, table
from app.slices.geometry import RELEASED, slice_config
from app.slices.tokenizer import filled_tokenizer
from app.slices.write import write_slice
from app.stopping import StopKey
from engine.config import load_config
from engine.errors import Stopped
from planner.facts import peak_bytes

if TYPE_CHECKING:
    from engine.model import Model

LENGTHS = (128, 512, 2048, 8192, 32768)
DEFAULT_CHUNK_TOKENS = 512
N_LAYERS = 12
"""The fewest whose roles include an index source that chooses among another's candidates."""

TINY: Mapping[str, Any] = {
    **RELEASED,
    **{"vocab_size": 2048, "dim": 64, "n_heads": 4, "head_dim": 32, "rope_head_dim": 16, "q_lora_rank": 32},
    **{"o_groups": 2, "o_lora_rank": 32, "moe_inter_dim": 32, "n_routed_experts": 16, "n_activated_experts": 2},
    **{"index_n_heads": 4, "index_head_dim": 32, "engram_vocab_size": 10_000, "engram_n_heads": 2},
    **{"engram_head_dim": 32},
}
"""The released window, number of chosen positions and candidate blocks; every width is tiny."""


def run(
    *,
    lengths: Annotated[
        list[int] | None,
        Parameter(help=f"Tokens of a prompt; may be repeated. [default: {', '.join(map(str, LENGTHS))}]"),
    ] = None,
    chunk_tokens: Annotated[int, Parameter(help="Prompt tokens in one forward.")] = DEFAULT_CHUNK_TOKENS,
    as_json: Annotated[bool, Parameter(name="--json", help="Print one JSON object.")] = False,
) -> ExitCode:
    """Measure how time and memory grow with a prompt.

    A made-up model of tiny widths with the released window and numbers of chosen positions reads prompts of growing
    length. Only choosing positions may take more for each token of a longer one. Ctrl+C ends it with the lengths that
    are complete.

    Raises: UsageError; OSError when there is no room for the model, 3 MB.
    """
    asked = sorted(set(lengths or LENGTHS))
    if not all(1 <= n <= 1 << 20 for n in asked):
        raise UsageError(f"--lengths must be from 1 to {1 << 20:,}")
    if not 1 <= chunk_tokens <= 1 << 16:
        raise UsageError(f"--chunk-tokens must be from 1 to {1 << 16:,}, not {chunk_tokens}")
    # Here and not at the top: they bring torch, a second that `bench --help` need not wait.
    from engine.model import Model
    from engine.streams import StreamSettings
    from storage.checkpoint import Checkpoint

    line = ProgressLine(sys.stderr)
    results: list[dict[str, Any]] = []
    base_bytes = 0
    with tempfile.TemporaryDirectory() as root, StopKey() as stop:
        folder = make_model(Path(root) / "model")
        config = load_config(folder).config
        began, total = time.monotonic(), sum(asked)

        with Checkpoint.open(folder) as checkpoint:
            model = Model.open(checkpoint, config, streams=StreamSettings(slots_per_layer=config.n_routed_experts))
            try:
                _read(model, chunk_tokens, chunk_tokens, stop, lambda done: None)  # everything is started and loaded
                base_bytes = int(psutil.Process().memory_info().rss)
                for n in asked:
                    knows_peak = reset_peak()
                    done_before = sum(result["prompt_tokens"] for result in results)

                    def show(done: int, before: int = done_before) -> None:
                        elapsed_s = time.monotonic() - began
                        line.show(
                            CountProgress(
                                what="reading", unit="tokens", done=before + done, total=total, elapsed_s=elapsed_s
                            )
                        )

                    result = _read(model, n, chunk_tokens, stop, show)
                    results.append(result | {"peak_bytes": peak_bytes() if knows_peak else None})
            except Stopped:
                pass
            finally:
                line.clear()
                model.close()
    data = {"chunk_tokens": chunk_tokens, "base_bytes": base_bytes, "results": results}
    print(envelope("bench-prompt", data) if as_json else render(data))
    return ExitCode.STOPPED if stop.pressed() else ExitCode.DONE


def make_model(folder: Path) -> Path:
    """Write the model of tiny widths; 3 MB."""
    tokenizer, n_classes = filled_tokenizer(demo_folder(), TINY["vocab_size"])
    write_slice(folder, slice_config(N_LAYERS, n_classes=n_classes, sizes=TINY), tokenizer)
    return folder


def _read(
    model: "Model", n_tokens: int, chunk_tokens: int, stop: StopKey, show: Callable[[int], None]
) -> dict[str, Any]:
    """One prompt of random tokens into an empty state."""
    draw = random.Random(n_tokens)
    prompt = [draw.randrange(model.config.vocab_size) for _ in range(n_tokens)]
    state, before, begun = model.new_state(), model.clock.totals(), time.perf_counter()
    for first in range(0, n_tokens, chunk_tokens):
        chunk = prompt[first : first + chunk_tokens]
        state.commit(model.forward(state, chunk, "prefill", should_stop=stop.pressed).step)
        show(first + len(chunk))
    seconds = time.perf_counter() - begun
    indexer_s = model.clock.totals().since(before).seconds["indexer"]
    return {"prompt_tokens": n_tokens, "seconds": seconds, "indexer_s": indexer_s}


def reset_peak() -> bool:
    """Have `peak_bytes` count from now on; False where the system cannot."""
    try:
        Path("/proc/self/clear_refs").write_text("5", "ascii")
    except OSError:
        return False
    return True


def render(data: Mapping[str, Any]) -> str:
    """The report for people: a line for each length."""
    if not data["results"]:
        return "stopped before the first length was complete"
    rows: list[Sequence[str]] = [("prompt", "time", "a token", "choosing", "all else", "peak memory", "growth")]
    for result in data["results"]:
        n, rest_s = result["prompt_tokens"], result["seconds"] - result["indexer_s"]
        peak = result["peak_bytes"]
        rows.append(
            (
                f"{n:,}",
                f"{result['seconds']:.2f} s",
                _each(result["seconds"], n),
                _each(result["indexer_s"], n),
                _each(rest_s, n),
                "" if peak is None else format_bytes(peak),
                "" if peak is None else format_bytes(max(0, peak - data["base_bytes"])),
            )
        )
    note = f"chunks of {data['chunk_tokens']} tokens; growth: of the peak, over what was taken before"
    return table(rows, right=range(7)) + "\n\n" + note


def _each(seconds: float, n_tokens: int) -> str:
    return f"{seconds / n_tokens * 1e6:.0f} us"
