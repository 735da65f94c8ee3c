"""Drafting against the clock, cold from the drive: a head that agrees, and one that never does.

Usage: python -m tests.engine.draft_timing [--head knows|wrong] [--width N] [--tokens N] [--pairs N] [FOLDER]
(FOLDER on the drive to be read), or with --model CHECKPOINT for a chat checkpoint's own answers to a few questions.

Both checkpoints have the same trunk: whatever it reads, it says the successor of the last token in one long cycle, and
every token routes to experts of its own. The head of the one knows the successors by its bigram pair; that of the other
has another cycle in mind. Runs with and without drafts take turns, each with a cache of its own that begins empty, past
the page cache: whole runs with the head that agrees, and token by token with the other, where one in a hundred counts
and the machine changes its pace by more than that from minute to minute. Printed are medians, and each way's times in
order.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from engine.config import load_config
from engine.draft.drafter import make_drafter
from engine.draft.settings import DraftSettings
from engine.events import Event, TokenDrawn, TurnDone, TurnStats
from engine.generate import generate
from engine.model import Model
from engine.streams import StreamSettings
from storage.checkpoint import Checkpoint
from tests.engine.drafting import GREEDY
from tests.engine.write_golden import END_TURN, QUESTIONS, Chat
from tests.maker import NO_TOWER, Geometry, Weight, find, make, poke
from tests.maker.codes import encode_bf16

WIDE = Geometry(
    dim=1024,
    n_layers=6,
    head_dim=64,
    moe_inter_dim=1024,
    n_routed_experts=32,
    n_activated_experts=4,
    compress_ratios=(0, 2, 2, 1, 1, 1),
    candidate_source_layer=3,
    n_mtp_layers=2,
    dspark_markov_rank=64,
    vision=NO_TOWER,
)
"""Experts of 1.7 MB, 24 of them for a token: most of a token's time is waiting for the drive."""

SLOTS = 8
PROMPT = (3, 1, 4, 15, 9, 2, 6)
_QUIET = ("attn.wo_b", ".w2", "engram.wkv")
"""What adds to the stream; made so small that the stream stays the token's own row."""


def _quiet(weight: Weight) -> Weight:
    return replace(weight, std=weight.std * 0.01) if weight.name.endswith(_QUIET) else weight


def successors(vocab_size: int, seed: int = 7) -> list[int]:
    """The next token of each: one cycle through all of them."""
    order = np.random.Generator(np.random.PCG64(seed)).permutation(vocab_size)
    following = [0] * vocab_size
    for token, after in zip(order, np.roll(order, -1), strict=True):
        following[int(token)] = int(after)
    return following


def cycling(folder: Path, *, head_knows: bool, geometry: Geometry = WIDE) -> Path:
    """A checkpoint whose trunk says the successor of the last token, and whose head knows them, or others."""
    make(folder, geometry, seed=3, tweak=_quiet)
    following = successors(geometry.vocab_size)
    _write_rows(folder, "head.weight", _rows(folder, "embed.weight"), following, gain=0.1)
    last = f"mtp.{geometry.n_mtp_layers - 1}.markov_head"
    guesses = following if head_knows else successors(geometry.vocab_size, seed=8)
    _write_rows(folder, f"{last}.head.weight", _rows(folder, f"{last}.embed.weight"), guesses, gain=8.0)
    return folder


def _rows(folder: Path, name: str) -> np.ndarray:
    place = find(folder, name)
    raw = np.fromfile(place.path, dtype="<u2", count=int(np.prod(place.shape)), offset=place.offset)
    return (raw.astype(np.uint32) << 16).view(np.float32).reshape(place.shape).astype(np.float64)


def _write_rows(folder: Path, name: str, rows: np.ndarray, to: Sequence[int], *, gain: float) -> None:
    """Row t of `rows` becomes row `to[t]` of a bf16 matrix."""
    placed = np.empty_like(rows)
    placed[np.asarray(to)] = rows * gain
    poke(folder, name, 0, encode_bf16(placed).astype("<u2").tobytes())


@contextmanager
def decoding(
    folder: Path, drafts: DraftSettings, n_tokens: int, prompt: Sequence[int] = PROMPT, stop_ids: Sequence[int] = ()
) -> Iterator[Iterator[Event]]:
    """The events of a turn; from an empty cache, past the page cache."""
    config = load_config(folder).config
    with Checkpoint.open(folder) as files:
        settings = StreamSettings(slots_per_layer=SLOTS, cache_rows=64, io="auto")
        model = Model.open(files, config, streams=settings, drafts=drafts.mode != "off")
        yield generate(
            model, model.new_state(), prompt, sampler=GREEDY, max_tokens=n_tokens, stop_ids=stop_ids,
            drafter=make_drafter(model, drafts),
        )  # fmt: skip
        model.close()


def decode(
    folder: Path, drafts: DraftSettings, n_tokens: int, prompt: Sequence[int] = PROMPT, stop_ids: Sequence[int] = ()
) -> tuple[list[int], TurnStats]:
    """Tokens, and figures of the turn."""
    with decoding(folder, drafts, n_tokens, prompt, stop_ids) as coming:
        events = list(coming)
    done = events[-1]
    assert isinstance(done, TurnDone)
    return [e.token for e in events if isinstance(e, TokenDrawn)], done.stats


def compare(folder: Path, ways: dict[str, DraftSettings], n_tokens: int, n_pairs: int) -> dict[str, float]:
    """Run the ways one after the other, `n_pairs` times; median seconds of each, printed too."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    last: dict[str, TurnStats] = {}
    expected: list[int] = []
    for _ in range(n_pairs):
        for name, settings in ways.items():
            tokens, last[name] = decode(folder, settings, n_tokens)
            expected = expected or tokens
            assert tokens == expected, f"{name} says something else"
            times[name].append(last[name].decode_s)
    return _told(times, last, n_tokens)


def keep_step(folder: Path, ways: dict[str, DraftSettings], n_tokens: int, n_pairs: int) -> dict[str, float]:
    """Run the ways side by side, a token of each in turn, `n_pairs` times; median seconds of each, printed too.

    Printed is the processor's time as well, which other programs change less.
    """
    times: dict[str, list[float]] = {name: [] for name in ways}
    busy = dict.fromkeys(ways, 0.0)
    last: dict[str, TurnStats] = {}
    for _ in range(n_pairs):
        spent = dict.fromkeys(ways, 0.0)
        with ExitStack() as undo:
            runs = {name: undo.enter_context(decoding(folder, ways[name], n_tokens)) for name in ways}
            for number in range(n_tokens + 1):  # the end of the turn comes behind the last token
                order = list(ways) if number % 2 else list(ways)[::-1]
                said = set()
                for name in order:
                    began, busy_before = time.perf_counter(), time.process_time()
                    event = next(e for e in runs[name] if isinstance(e, TokenDrawn | TurnDone))
                    if number:  # the first follows the prompt
                        spent[name] += time.perf_counter() - began
                        busy[name] += time.process_time() - busy_before
                    if isinstance(event, TurnDone):
                        last[name] = event.stats
                    else:
                        said.add(event.token)
                assert len(said) == (number < n_tokens), "one way says something else"
        for name, seconds in spent.items():
            times[name].append(seconds)
    print("  processor  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in busy.items()))
    return _told(times, last, n_tokens)


def answers(folder: Path, ways: dict[str, DraftSettings], n_tokens: int, n_pairs: int) -> dict[str, float]:
    """Have a chat checkpoint answer `QUESTIONS` every way, one question after the other, `n_pairs` times; median
    seconds of all answers, printed with what they were: every way has to say the same.
    """
    chat = Chat(folder)
    begin, end = chat.id_of("<｜begin▁of▁sentence｜>"), chat.id_of(END_TURN)
    prompts = [[begin, *chat.turn(asked[0])] for asked in QUESTIONS]
    times: dict[str, list[float]] = {name: [] for name in ways}
    accepted, rounds, length = dict.fromkeys(ways, 0), dict.fromkeys(ways, 0), 0
    for _ in range(n_pairs):
        for some in times.values():
            some.append(0.0)
        for prompt in prompts:
            said: list[list[int]] = []
            for name, settings in ways.items():
                tokens, stats = decode(folder, settings, n_tokens, prompt, (end,))
                said.append(tokens)
                times[name][-1] += stats.decode_s
                if stats.draft is not None:
                    accepted[name] += stats.draft.accepted
                    rounds[name] += stats.draft.rounds
            assert all(tokens == said[0] for tokens in said), "the ways differ"
            length += len(said[0])
    medians = {name: statistics.median(some) for name, some in times.items()}
    for name, some in times.items():
        each = " ".join(f"{seconds:.2f}" for seconds in some)
        drafts = f", {accepted[name] / rounds[name]:.2f} drafts right a round" if rounds[name] else ""
        print(f"  {name:<10} {length / n_pairs / medians[name]:6.1f} tokens/s  [{each}]{drafts}")
    return medians


def _told(times: dict[str, list[float]], last: dict[str, TurnStats], n_tokens: int) -> dict[str, float]:
    medians = {name: statistics.median(some) for name, some in times.items()}
    for name, some in times.items():
        draft, seconds = last[name].draft, some[-1]
        did = f"{last[name].wait_s / seconds:.0%} of it waiting"
        if draft is not None:
            did += f", {draft.accepted} of {draft.drafted} right in {draft.rounds} rounds, {len(draft.pauses)} pauses"
        each = " ".join(f"{seconds:.2f}" for seconds in some)
        print(f"  {name:<10} {medians[name]:6.2f} s  {n_tokens / medians[name]:6.1f} tokens/s  [{each}]  {did}")
    return medians


def main() -> int:
    """Measure both heads."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", help="where the checkpoints are made")
    parser.add_argument("--head", choices=("knows", "wrong"), default="knows")
    parser.add_argument("--width", type=int, default=WIDE.dim, help="of the model and of its experts")
    parser.add_argument("--tokens", type=int, default=512)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--model", type=Path, help="a chat checkpoint to answer instead")
    options = parser.parse_args()
    knows = options.head == "knows"
    ways = {"off": DraftSettings(mode="off"), "auto": DraftSettings()}
    if options.model is not None:
        medians = answers(options.model, ways, options.tokens, options.pairs)
        print(f"with drafts an answer takes {medians['auto'] / medians['off']:.3f} times as long as without")
        return int(medians["auto"] >= medians["off"])
    if knows:
        ways["always 5"] = DraftSettings(mode="on")
    with tempfile.TemporaryDirectory(dir=options.folder) as root:
        geometry = replace(WIDE, dim=options.width, moe_inter_dim=options.width)
        folder = cycling(Path(root), head_knows=knows, geometry=geometry)
        medians = (compare if knows else keep_step)(folder, ways, options.tokens, options.pairs)
    ratio = medians["auto"] / medians["off"]
    print(f"with drafts a token takes {ratio:.3f} times as long as without")
    return int(ratio >= (1.0 if knows else 1.03))


if __name__ == "__main__":
    sys.exit(main())
