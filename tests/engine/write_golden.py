"""`python -m tests.engine.write_golden CHECKPOINT OUT`: golden data of a chat checkpoint, from the slow reference.

Writes what `artesian verify CHECKPOINT --golden OUT` compares with: the layout is that of `tests/data/tiny-a/golden`.
The one thing a reader would get wrong: a prompt is taken only when every choice that the oracle made on it has a margin
that float32 cannot bridge, so a difference found later is a fault and not a coin that fell the other way.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from tests.engine.oracle import Draft, Oracle, Row

MARGINS = {"top1": 1e-3, "draft_top1": 1e-3, "router": 5e-6, "index": 1e-6, "candidates": 1e-6}
"""Smallest allowed distance between chosen and refused: ten times what float32 and float64 differ by, or more. Less
than the random fixture's, as a trained model is often of two minds at a prompt's first tokens."""

STEPS = 20
"""Tokens generated behind each prompt."""

QUESTIONS: Sequence[Sequence[str]] = (
    ("hello there",),
    ("what is a slot",),
    ("how do i stop an answer",),
    ("Which keys are there?",),
    ("how much memory do i need",),
    ("what is the capital of france",),
)
"""Conversations that may be taken; with every answer but the last as the model gives it."""

LONG = (
    "what is artesian", "how does it work", "what are experts", "what is a slot", "what is engram", "thanks",
    "how do i stop an answer", "where are my chats",
)  # fmt: skip
"""One conversation long enough that the indexer and the candidates leave positions out."""

WANTED = 3
"""Short conversations taken."""

END_TURN = "<｜end▁of▁sentence｜>"
"""Control token that ends an answer."""


class Chat:
    """Prompts in the chat format, put together from ids; not by the engine, which is to be judged."""

    def __init__(self, folder: Path) -> None:
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def id_of(self, name: str) -> int:
        """Id of a control token."""
        found = self._tokenizer.token_to_id(name)
        assert found is not None, name
        return int(found)

    def turn(self, question: str) -> list[int]:
        """A question, and where the model begins."""
        text = self._tokenizer.encode(question, add_special_tokens=False).ids
        return [self.id_of("<｜User｜>"), *text, self.id_of("<｜Assistant｜>"), self.id_of("</think>")]

    def text(self, ids: Sequence[int]) -> str:
        """For people who read the golden data."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=False))


class Recorded:
    """Arrays by name, and the smallest margin of every kind of choice."""

    def __init__(self, oracle: Oracle) -> None:
        self.arrays: dict[str, NDArray[Any]] = {}
        self.gaps = dict.fromkeys(MARGINS, math.inf)
        self._top_k = oracle.c["index_topk"]

    def rows(self, key: str, rows: Sequence[Row]) -> None:
        """What was computed at positions."""
        self.arrays[f"{key}.logits"] = np.array([row.logits for row in rows], dtype=np.float32)
        for layer in rows[0].hashes:
            self._ints(f"{key}.hash.{layer}", [row.hashes[layer] for row in rows])
        for layer in rows[0].experts:
            self._ints(f"{key}.experts.{layer}", [row.experts[layer] for row in rows])
        for layer in rows[0].index:
            widest = max(len(row.index[layer]) for row in rows)
            picks = [row.index[layer] + [-1] * (widest - len(row.index[layer])) for row in rows]
            self._ints(f"{key}.index.{layer}", picks)
            self._ints(f"{key}.index_owner.{layer}", [[row.owner[layer]] for row in rows])
        for row in rows:
            self._margins(row.gaps, {})

    def drafts(self, key: str, drafts: Sequence[Draft]) -> None:
        """Rounds of the draft head."""
        self._ints(f"{key}.ids", [draft.ids for draft in drafts])
        for name in ("confidence", "top_logit"):
            self.arrays[f"{key}.{name}"] = np.array([getattr(draft, name) for draft in drafts], dtype=np.float32)
        for stage in drafts[0].experts:
            self._ints(f"{key}.experts.{stage}", [draft.experts[stage] for draft in drafts])
        for draft in drafts:
            self._margins(draft.gaps, {"top1": "draft_top1"})

    def _ints(self, name: str, values: Sequence[Any]) -> None:
        self.arrays[name] = np.array(values, dtype=np.int32)

    def _margins(self, gaps: dict[str, float], renamed: dict[str, str]) -> None:
        for kind, gap in gaps.items():
            if gap == 0:  # scores that the rectifier made zero: a tie by rule in any arithmetic
                continue
            kind = renamed.get(kind, kind)
            self.gaps[kind] = min(self.gaps[kind], gap)

    def unsafe(self) -> list[str]:
        """Choices that were too close."""
        return [f"{kind} {gap:.1e}" for kind, gap in self.gaps.items() if gap < MARGINS[kind]]


def answered(oracle: Oracle, first: int, end: int, most: int) -> list[int]:
    """The oracle's own greedy answer behind `first`, the end token included."""
    ids = [first]
    while ids[-1] != end and len(ids) < most:
        ids.append(int(oracle.decode(ids[-1]).logits.argmax()))
    return ids


def conversation(folder: Path, chat: Chat, questions: Sequence[str]) -> list[int]:
    """Prompt of the last question, behind the earlier ones with the answers that the model gives them."""
    end = chat.id_of(END_TURN)
    ids = [chat.id_of("<｜begin▁of▁sentence｜>")]
    for question in questions[:-1]:
        ids += chat.turn(question)
        oracle = Oracle(folder)
        ids += answered(oracle, int(oracle.prefill(ids)[-1].logits.argmax()), end, 60)
    return ids + chat.turn(questions[-1])


def record(folder: Path, key: str, ids: Sequence[int], steps: int) -> tuple[Recorded, list[int]]:
    """Run a prompt and `steps` tokens behind it; drafts are of an oracle that is at the same place."""
    oracle = Oracle(folder)
    recorded = Recorded(oracle)
    rows = oracle.prefill(ids)
    recorded.rows(f"{key}.prefill", rows)
    greedy = [int(rows[-1].logits.argmax())]
    stepped, drafts = [], []
    for _ in range(steps):
        stepped.append(oracle.decode(greedy[-1]))
        greedy.append(int(stepped[-1].logits.argmax()))
        drafts.append(oracle.draft(greedy[-1]))
    recorded.rows(f"{key}.step", stepped)
    recorded.drafts(f"{key}.draft", drafts)
    return recorded, greedy


def write(folder: Path, out: Path) -> int:
    """Everything; the number of prompts."""
    chat = Chat(folder)
    arrays: dict[str, NDArray[Any]] = {}
    prompts: list[dict[str, Any]] = []
    candidates = [(f"short {i}", conversation(folder, chat, asked)) for i, asked in enumerate(QUESTIONS)]
    long = [(f"long {n}", LONG[:n]) for n in range(5, len(LONG) + 1)]
    wanted = {"short": WANTED, "long": 1}
    for name, ids in [*candidates, *((name, conversation(folder, chat, asked)) for name, asked in long)]:
        kind = name.split()[0]
        if not wanted[kind]:
            continue
        key = f"p{len(prompts)}"
        recorded, greedy = record(folder, key, ids, STEPS)
        if close := recorded.unsafe():
            print(f"{name}, {len(ids)} tokens: left out, too close: {', '.join(close)}", file=sys.stderr)
            continue
        print(f"{name}, {len(ids)} tokens: {chat.text(greedy)!r}", file=sys.stderr)
        wanted[kind] -= 1
        arrays |= recorded.arrays
        exact = {"greedy": greedy, "greedy_text": chat.text(greedy), "smallest_gaps": recorded.gaps}
        prompts.append({"name": name, "ids": ids, "length": len(ids), "text": chat.text(ids), "exact": exact})
    out.mkdir(parents=True, exist_ok=True)
    save_file(arrays, out / "exact.safetensors")
    meta = {"format": 1, "steps": STEPS, "limits": MARGINS, "prompts": prompts}
    (out / "golden.json").write_text(json.dumps(meta, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return len(prompts)


def main() -> int:
    """Run it; 1 when fewer prompts than wanted are safe."""
    parser = argparse.ArgumentParser(prog="python -m tests.engine.write_golden", description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("out", type=Path)
    args = parser.parse_args()
    return 0 if write(args.checkpoint, args.out) == WANTED + 1 else 1


if __name__ == "__main__":
    sys.exit(main())
