"""How much faster a saved conversation is restored than read again.

Usage: python -m tests.engine.restore_speed [TOKENS] [FOLDER]     (4,000 tokens of the golden checkpoint)
"""

import sys
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.config import load_config
from engine.conversation import Conversations
from engine.events import TokenDrawn
from engine.model import Model
from engine.prompt import Rendered
from engine.sampler_settings import SamplerSettings
from engine.sampling import Sampler
from engine.saved_state import Identity
from engine.streams import StreamSettings
from engine.tokens import ChatTokenizer
from storage.checkpoint import Checkpoint
from tests.engine.conftest import TINY

IDENTITY = Identity(
    fingerprint="f", payload="p", tokenizer="t", numerics="exact", index_owner="published", kernels="here"
)


@dataclass(frozen=True, slots=True)
class Times:
    """What was measured."""

    n_tokens: int
    file_bytes: int
    read_s: float
    save_s: float
    restore_s: float
    """From the file to a state that the next token can be run on."""
    same: bool
    """Whether the next token is the one of the state that was never closed."""


def measure(model: Model, tokenizer: ChatTokenizer, n_tokens: int, file: Path) -> Times:
    """Read a prompt of random tokens, save it, restore it into other conversations, and go on with both."""
    generator = torch.Generator().manual_seed(7)
    ids = tuple(torch.randint(3, model.config.vocab_size - 1, (n_tokens + 1,), generator=generator).tolist())
    prompt, before = Rendered(text="", special_ranges=(), ids=ids), Rendered(text="", special_ranges=(), ids=ids[:-1])

    def fresh() -> Conversations:
        return Conversations(model, tokenizer, context_tokens=n_tokens + 8, chunk_tokens=512)

    def first_token(chat: Conversations, what: Rendered) -> list[int]:
        events = chat.answer(what, sampler=Sampler(SamplerSettings(temperature=0)), max_tokens=1, stop_ids=())
        return [event.token for event in events if isinstance(event, TokenDrawn)]

    first, second = fresh(), fresh()
    began_s = time.perf_counter()
    first_token(first, before)
    read_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    n_bytes = first.save(file, prompt, IDENTITY)
    save_s = time.perf_counter() - began_s
    began_s = time.perf_counter()
    second.restore(file, IDENTITY)
    second.kept.go_to(second.kept.find(ids))
    restore_s = time.perf_counter() - began_s
    assert second.kept.state.n_tokens == n_tokens
    same = first_token(second, prompt) == first_token(first, prompt)
    return Times(n_tokens, n_bytes, read_s, save_s, restore_s, same)


def main() -> None:
    """Measure and print."""
    n_tokens = int(sys.argv[1]) if len(sys.argv) > 1 else 4_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else TINY / "checkpoint"
    config = load_config(folder).config
    tokenizer = ChatTokenizer.load(folder, image_token_id=config.image_token_id)
    with Checkpoint.open(folder) as files, tempfile.TemporaryDirectory() as scratch:
        slots = StreamSettings(slots_per_layer=config.n_routed_experts)
        with closing(Model.open(files, config, streams=slots)) as model:
            times = measure(model, tokenizer, n_tokens, Path(scratch) / "state")
    next_token = "the same" if times.same else "ANOTHER"
    print(
        f"{times.n_tokens:,} tokens: read in {times.read_s:.2f} s, saved in {times.save_s:.3f} s "
        f"({times.file_bytes / 1e6:.1f} MB), restored in {times.restore_s:.3f} s: "
        f"{times.read_s / times.restore_s:.0f} times faster; the next token is {next_token}"
    )


if __name__ == "__main__":
    main()
