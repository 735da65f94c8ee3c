"""Transcripts to search in: many, quickly made, of a vocabulary with a long tail like that of a language."""

import random
from pathlib import Path

from app.transcripts.lines import encode

_SYLLABLES = [a + b for a in "bdfgklmnprstvw" for b in ("a", "e", "i", "o", "u", "an", "el", "or")]


def make_transcripts(folder: Path, count: int, *, n_turns: int = 6, words_per_message: int = 80) -> None:
    """Write `count` files of `n_turns` questions and answers each; one message in all of them says "needle"."""
    folder.mkdir(parents=True)
    rng = random.Random(1)
    words = ["".join(rng.choices(_SYLLABLES, k=rng.randint(1, 4))) for _ in range(20_000)]
    weights = [1 / rank for rank in range(1, len(words) + 1)]
    texts = rng.choices(words, weights, k=count * n_turns * 2 * words_per_message)
    time = "2026-01-02T03:04:05+00:00"
    for number in range(count):
        lines = [encode({"kind": "artesian-transcript", "format": 1, "created": time, "version": "0"})]
        parent = None
        for turn in range(2 * n_turns):
            start = (number * 2 * n_turns + turn) * words_per_message
            said = " ".join(texts[start : start + words_per_message]) + (" needle" if (number, turn) == (7, 3) else "")
            node = {"id": f"m{turn + 1}", "parent": parent, "created": time}
            if turn % 2:
                ids = list(range(words_per_message))
                lines += map(
                    encode,
                    [
                        {
                            "kind": "reply",
                            **node,
                            "run": {"first": [0, 0, 0], "max_tokens": 100, "sampling": {"seed": 1}},
                        },
                        {"kind": "more", "id": node["id"], "at": [0, 0, 0], "text": said, "ids": ids},
                        {"kind": "end", "id": node["id"], "status": "complete", "reason": "stop"},
                    ],
                )
            else:
                lines.append(encode({"kind": "message", **node, "role": "user", "text": said}))
            parent = node["id"]
        (folder / f"made{number:04}.jsonl").write_bytes(b"".join(lines))
