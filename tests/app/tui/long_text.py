"""A long reply with everything Markdown has, made from a seed."""

import random

_WORDS = (
    *("expert", "slot", "router", "drive", "layer", "token", "read", "hit", "miss", "cache", "memory", "plan", "wave"),
    *("extent", "replica", "shard", "draft", "verify", "prompt", "turn", "state", "window", "ring", "latent", "head"),
    *("trunk", "row", "engram", "rate", "share", "wait"),
)


def long_reply(n_tokens: int, seed: int = 1) -> str:
    """About `n_tokens` tokens, four characters each: paragraphs, lists, tables, quotes and code."""
    random_ = random.Random(seed)
    parts: list[str] = []
    size = 0
    while size < 4 * n_tokens:
        part = random_.choice((_paragraph, _paragraph, _paragraph, _list, _table, _code, _quote))(random_)
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)[: 4 * n_tokens]


def pieces(text: str, n_chars: int = 4) -> list[str]:
    """`text` in pieces as a tokenizer would give them."""
    return [text[begin : begin + n_chars] for begin in range(0, len(text), n_chars)]


def _words(random_: random.Random, count: int) -> str:
    words = random_.choices(_WORDS, k=count)
    for _ in range(count // 12):
        place = random_.randrange(count)
        words[place] = random_.choice(("**{}**", "*{}*", "`{}`", "[{}](https://example.org)")).format(words[place])
    return " ".join(words)


def _paragraph(random_: random.Random) -> str:
    return _words(random_, random_.randrange(30, 90)) + "."


def _list(random_: random.Random) -> str:
    return "\n".join(f"{number}. {_words(random_, 12)}" for number in range(1, random_.randrange(4, 9)))


def _table(random_: random.Random) -> str:
    rows = [f"| {_words(random_, 1)} | {random_.randrange(10_000):,} | {_words(random_, 3)} |" for _ in range(6)]
    return "\n".join(["| name | count | note |", "|---|---:|---|", *rows])


def _code(random_: random.Random) -> str:
    lines = [f"    {random_.choice(_WORDS)} = {random_.choice(_WORDS)}({random_.randrange(99)})  # {_words(random_, 3)}"
             for _ in range(random_.randrange(8, 40))]  # fmt: skip
    return "\n".join(["```python", "def run(plan):", *lines, "```"])


def _quote(random_: random.Random) -> str:
    return "> " + _words(random_, 30)
