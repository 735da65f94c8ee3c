"""How people vary a question: another opening or ending, case, typing slips, words dropped or replaced."""

import random

_OPENERS = ("hi, ", "hello, ", "please tell me ", "so ", "ok, ", "and ", "quick question: ", "tell me, ", "sorry, ",
            "just asking, ", "excuse me, ", "i wonder, ", "hm, ", "hey, ", "ehm ")  # fmt: skip
_CLOSERS = (" please", " thanks", "?", "??", "!", " ?", ".", " in artesian", " in artesian?", ", please?", " here?")

_REPHRASED: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (("how do i ", "how can i ", "how to "),
     ("how do i {}?", "how can i {}", "how to {}", "i want to {}", "is there a way to {}?", "how would i {}?",
      "what do i do to {}", "{}", "how do you {}", "i'd like to {}", "need to {}")),
    (("what is ", "what are ", "what's "),
     ("what is {}?", "what's {}", "explain {}", "tell me about {}", "{}?", "what does {} mean",
      "what do you mean by {}", "{}, what is it", "can you explain {}?", "what exactly is {}")),
    (("explain ", "define "),
     ("explain {}", "what is {}?", "describe {}", "please explain {}", "what's {}", "tell me what {} is")),
    (("why is ", "why are ", "why does "),
     ("why is {}?", "{}, why?", "what is the reason that {}", "tell me why {}", "how come {}")),
    (("does it ", "can it ", "will it "),
     ("does it {}?", "can it {}?", "is it able to {}", "will it {}?", "does artesian {}?", "can artesian {}?")),
    (("how big is ", "how large is ", "size of "),
     ("how big is {}?", "size of {}", "how large is {}", "what size is {}", "how much space does {} take")),
    (("how many ",), ("how many {}", "what is the number of {}", "number of {}", "how many {} exactly")),
    (("can i ",), ("can i {}?", "is it possible to {}?", "may i {}", "how can i {}", "could i {}?")),
)  # fmt: skip

_ALIKE = [
    words.split()
    for words in (
        "drive disk ssd", "drives disks ssds", "answer reply response", "answers replies responses",
        "chat conversation", "chats conversations", "memory ram", "show display", "stop halt interrupt",
        "change modify adjust set", "fast quick", "big large huge", "question prompt message", "computer pc machine",
        "delete remove erase", "need require", "begin start", "folder directory", "key shortcut hotkey", "size space",
        "model checkpoint weights", "quit exit leave", "open load", "copy duplicate", "does will", "can could",
        "it artesian", "tell explain describe", "the this my", "work function", "find search locate",
    )
]  # fmt: skip
_OTHERS = {word: group for group in _ALIKE for word in group}
_SMALL = frozenset(("the", "a", "do", "is", "i", "it", "can", "my", "to"))


def vary(text: str, rng: random.Random) -> str:
    """A casual variant of a question; often the question itself."""
    text = _rephrase(text, rng) if rng.random() < 0.4 else text
    if rng.random() < 0.25:
        text = text.rstrip("?. ") or text
    if rng.random() < 0.15:
        text = rng.choice(_OPENERS) + text[0].lower() + text[1:]
    if rng.random() < 0.15:
        text = (text.rstrip("?. ") or text) + rng.choice(_CLOSERS)
    text = _case(text, rng)
    if rng.random() < 0.2:
        text = _slip(text, rng)
    if rng.random() < 0.3:
        text = _replace(text, rng)
    while rng.random() < 0.2 and text.count(" ") >= 3:
        words = text.split(" ")
        del words[rng.randrange(len(words))]
        text = " ".join(words)
    return text


def _rephrase(text: str, rng: random.Random) -> str:
    low = text.lower()
    for starts, forms in _REPHRASED:
        start = next((one for one in starts if low.startswith(one)), None)
        if start:
            return rng.choice(forms).format(text[len(start) :].rstrip("?. "))
    return text


def _case(text: str, rng: random.Random) -> str:
    drawn = rng.random()
    if drawn < 0.2:
        return text.lower()
    if drawn < 0.45:
        return text[0].upper() + text[1:]
    return text.upper() if drawn < 0.47 else text


def _slip(text: str, rng: random.Random) -> str:
    """A letter lost, doubled or swapped in one word, or a small word lost."""
    words = text.split(" ")
    i = rng.randrange(len(words))
    word = words[i]
    if len(word) > 3:
        j = rng.randrange(1, len(word) - 1)
        head, tail = word[:j], word[j + 1 :]
        words[i] = rng.choice((head + tail, head + tail[0] + word[j] + tail[1:], head + word[j] * 2 + tail))
    elif len(words) > 3 and word.lower() in _SMALL:
        del words[i]
    return " ".join(words)


def _replace(text: str, rng: random.Random) -> str:
    words = text.split(" ")
    places = [i for i, word in enumerate(words) if word.lower() in _OTHERS]
    if places:
        i = rng.choice(places)
        words[i] = rng.choice(_OTHERS[words[i].lower()])
    return " ".join(words)
