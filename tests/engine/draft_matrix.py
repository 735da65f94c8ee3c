"""Every way of drafting, on every geometry and prompt there is, against decoding one token at a time: bit for bit.

Usage: python -m tests.engine.draft_matrix      (the whole matrix; prints what was compared and whether all agreed)

A run is a prompt and a sampler. Its sequential decoding is recorded: the logits of every position, and the whole state
behind it. Then it is decoded again in blocks, whose drafts are the recorded continuation with the k-th made wrong in
turn, or the head's own; every committed row's logits and every state after a commit must equal the recorded ones.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from engine.draft.source import DraftSource
from engine.draft.verify import most_drafts, verify
from engine.model import Model, never
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from tests.engine.conftest import TINY
from tests.engine.drafting import GREEDY, Forced, Sequential, opened, prefilled
from tests.geometries import CASES, Case
from tests.maker import make

N_TOKENS = 34
WARM = Sampler(SamplerSettings(temperature=1.1, top_p=0.9, seed=6))
TINY_PROMPTS = (1, 5, 8, 9, 26, 40, 61)
"""Lengths: one token, below a window of 8, exactly one, odd and even beyond it, and where selection and candidates
cut.
"""


@dataclass
class Seen:
    """What the runs went through, so that a matrix that misses what it is for shows."""

    accepted: Counter[int] = field(default_factory=Counter)
    """Rounds by drafts accepted."""
    rejected_after: Counter[str] = field(default_factory=Counter)
    """Rejections by what the last committed row left: `open` or `closed` groups of two, a `wrapped` ring, a `cut`
    selection."""
    differences: list[str] = field(default_factory=list)


def replay(
    model: Model, known: Sequential, source: DraftSource, sampler: Sampler, seen: Seen, what: str, *, every: int = 1
) -> None:
    """Decode in blocks, holding every committed row and the state behind every so many to the sequential ones.

    Who looks at a state has its draft keys made: of all rounds at once that came since somebody looked last.
    """
    state, logits = prefilled(model, known.prompt)
    said = [sampler.draw(logits, state.n_tokens)]

    def choose(row: Tensor, position: int) -> int:
        if not torch.equal(row, known.logits[position - len(known.prompt)]):
            seen.differences.append(f"{what}: logits at {position}")
        return sampler.draw(row, position)

    while len(said) < len(known.tokens):
        n = most_drafts(state, min(5, len(known.tokens) - len(said) - 1))
        drafts = source.propose(state, said[-1], n, sampler.draw, never).ids if n else ()
        verified = verify(model, state, said[-1], drafts, choose, (), never)
        state.commit(verified.step, len(verified.tokens))
        said += verified.tokens
        seen.accepted[verified.n_right] += 1
        if sum(seen.accepted.values()) % every == 0 or len(said) == len(known.tokens):
            seen.differences += [f"{what}: {name} behind {state.n_tokens}" for name in known.differences(state)]
        if verified.n_right < len(drafts):
            config = model.config
            seen.rejected_after["open" if state.n_tokens % 2 else "closed"] += 1
            seen.rejected_after["wrapped"] += state.n_tokens > config.window_size
            seen.rejected_after["cut"] += state.n_tokens // 2 > config.index_topk
    if said != known.tokens:
        seen.differences.append(f"{what}: tokens")


def run(model: Model, prompt: list[int], name: str, seen: Seen, *, whole: bool) -> None:
    """One prompt: greedy with forced drafts, and when `whole` in two phases, sampled, and with the head's own."""
    vocab_size = model.config.vocab_size
    known = Sequential.of(model, prompt, N_TOKENS)
    for shift in (0, 1) if whole else (len(prompt) % 2,):  # rounds begin in open and in closed groups
        replay(model, known, Forced(known, vocab_size, lambda r, shift=shift: (r + shift) % 6), GREEDY, seen, name)
    if not whole:
        return
    replay(model, known, Forced(known, vocab_size, lambda r: r % 3), GREEDY, seen, f"{name}, keys made late", every=9)
    if model.head is not None:
        replay(model, known, model.head, GREEDY, seen, f"{name}, own drafts")
    known = Sequential.of(model, prompt, N_TOKENS, WARM)
    replay(model, known, Forced(known, vocab_size, lambda r: r % 6), WARM, seen, f"{name}, sampled")
    if model.head is not None:
        replay(model, known, model.head, WARM, seen, f"{name}, sampled, own drafts")


def cases() -> Iterator[tuple[str, Case]]:
    """Every geometry that needs no rows written first."""
    yield from ((name, case) for name, case in CASES.items() if not case.sparse_rows)


def tiny_prompt(n_tokens: int) -> list[int]:
    """A prompt for the golden checkpoint."""
    return torch.randint(0, 512, (n_tokens,), generator=torch.Generator().manual_seed(n_tokens)).tolist()


def main() -> int:
    """The whole matrix."""
    seen, n_runs = Seen(), 0
    with opened(TINY / "checkpoint") as model:
        for n_tokens in TINY_PROMPTS:
            run(model, tiny_prompt(n_tokens), f"tiny-a, {n_tokens} tokens", seen, whole=True)
            n_runs += 1
    for name, case in cases():
        with tempfile.TemporaryDirectory() as root:
            folder = make(Path(root), case.geometry, seed=case.seed, tweak=case.tweak)
            with opened(folder) as model:
                run(model, case.prompt(), name, seen, whole=True)
        n_runs += 1
    print(f"{n_runs} geometries and prompts, {sum(seen.accepted.values())} rounds")
    print("rounds by accepted drafts:", dict(sorted(seen.accepted.items())))
    print("rejections:", dict(seen.rejected_after))
    print(f"{len(seen.differences)} differences", *seen.differences[:20], sep="\n")
    return bool(seen.differences)


if __name__ == "__main__":
    sys.exit(main())
