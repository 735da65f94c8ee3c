"""Every way of reading a checkpoint, and the answer each must give: the same one.

Usage: python -m tests.engine.stream_matrix      (the whole matrix; prints how many runs and whether all agreed)
"""

import itertools
import random
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine.config import load_config
from engine.model import Model
from engine.streams import Streams, StreamSettings
from storage.checkpoint import Checkpoint
from storage.direct import IoMode
from storage.drives import DriveFacts, drive_of
from storage.policy import POLICIES

TINY = Path(__file__).parent.parent / "data" / "tiny-a" / "checkpoint"
SMALL_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors.index.json")
PROMPT = [0, 285, 151, 303, 141, 22, 77, 78, 79, 80, 81]
STEPS = 3

AXES: Mapping[str, Sequence[object]] = {
    "slots": (1, 3, 8, 16),
    "depth": (1, 8),
    "io": ("direct", "buffered"),
    "copies": ("one drive", "mirror", "partial mirror", "split", "split and mirror"),
    "policy": tuple(POLICIES),
    "rows": (0, 7, 65_536),
}


@dataclass(frozen=True)
class Way:
    """One way of reading."""

    slots: int
    depth: int
    io: IoMode
    copies: str
    policy: str
    rows: int


def every_way() -> Iterator[Way]:
    """The whole matrix."""
    for values in itertools.product(*AXES.values()):
        yield Way(*values)  # type: ignore[arg-type]


def some_ways() -> Iterator[Way]:
    """Slots x I/O x copies in full, depths, policies and row caches drawn so that every pair of values occurs."""
    draw = random.Random(_PAIRS_SEED)
    for copies in AXES["copies"]:
        policies = [policy for _ in range(2) for policy in draw.sample(tuple(AXES["policy"]), len(AXES["policy"]))]
        for (slots, io), policy in zip(itertools.product(AXES["slots"], AXES["io"]), policies, strict=False):
            yield Way(slots, draw.choice(AXES["depth"]), io, copies, policy, draw.choice(AXES["rows"]))  # type: ignore[arg-type]


_PAIRS_SEED = 822
"""Found by search: `test_the_ways_tried_here_hold_every_pair_of_values`."""


@dataclass(frozen=True)
class Folders:
    """Where copies of the checkpoint lie; each folder counts as a drive of its own."""

    whole: Path
    partial: Path
    first_half: Path
    second_half: Path

    @classmethod
    def make(cls, root: Path) -> "Folders":
        """Copies of the fixture below `root`."""
        shards = sorted(path.name for path in TINY.glob("*.safetensors"))
        folders = cls(*(root / name for name in ("whole", "partial", "first", "second")))
        for folder, names in (
            (folders.whole, shards),
            (folders.partial, shards[2:5]),
            (folders.first_half, [*shards[::2], *SMALL_FILES]),
            (folders.second_half, shards[1::2]),
        ):
            folder.mkdir()
            for name in names:
                shutil.copyfile(TINY / name, folder / name)
        return folders

    def drive(self, path: Path) -> DriveFacts:
        """The facts of the real drive under the name of the folder, so that folders are drives."""
        facts = drive_of(path)
        folder = path if path.is_dir() else path.parent
        return replace(facts, disks=frozenset({folder.name}))

    def open(self, copies: str) -> Checkpoint:
        """The checkpoint over the folders that `copies` says."""
        mirrors: dict[str, list[Path]] = {
            "mirror": [self.whole], "partial mirror": [self.partial], "split and mirror": [self.partial, self.whole],
        }  # fmt: skip
        folder, splits = (self.first_half, [self.second_half]) if copies.startswith("split") else (TINY, [])
        return Checkpoint.open(folder, mirrors=mirrors.get(copies, []), splits=splits, find_drive=self.drive)


class Answers:
    """Greedy answers of one checkpoint, its resident weights read once for all ways."""

    def __init__(self, folders: Folders) -> None:
        self._folders = folders
        self._config = load_config(TINY).config
        with Checkpoint.open(TINY) as checkpoint:
            self._opened = Model.open(checkpoint, self._config, streams=StreamSettings(slots_per_layer=1))
            self._opened.close()  # its resident weights serve every way

    @contextmanager
    def model(self, way: Way) -> Iterator[Model]:
        """The model, read in this way."""
        settings = StreamSettings(
            slots_per_layer=way.slots, spare_slots=0 if way.slots < 3 else 4, cache_rows=way.rows, policy=way.policy,
            io=way.io, depth=way.depth,
        )  # fmt: skip
        with self._folders.open(way.copies) as checkpoint:
            streams = Streams.open(checkpoint, self._config, settings)
            model = Model(
                checkpoint, self._config, self._opened._trunk, streams, self._opened._front, deque(), numerics="exact",
                index_owner="published",
            )  # fmt: skip
            try:
                yield model
            finally:
                model.close()

    def tokens(self, way: Way) -> list[int]:
        """The greedy answer when the checkpoint is read in this way."""
        with self.model(way) as model:
            return greedy(model)


def greedy(model: Model, steps: int = STEPS) -> list[int]:
    """A chunked prefill and some decode steps, drawn greedily; logits are compared through the choices they make."""
    state = model.new_state()
    for first in range(0, len(PROMPT), 7):
        result = model.forward(state, PROMPT[first : first + 7], "prefill")
        state.commit(result.step)
    found = [int(result.logits[-1].argmax())]
    for _ in range(steps):
        result = model.forward(state, found[-1:], "decode")
        state.commit(result.step)
        found.append(int(result.logits[-1].argmax()))
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as root:
        answers = Answers(Folders.make(Path(root)))
        reference = answers.tokens(Way(16, 1, "buffered", "one drive", "lru", 0))
        ways = list(every_way())
        wrong = [way for way in ways if answers.tokens(way) != reference]
    print(f"{len(ways)} ways, {len(wrong)} with other tokens than {reference}")
    sys.exit(bool(wrong))
