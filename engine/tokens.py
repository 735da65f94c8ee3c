"""The checkpoint's tokenizer as the chat needs it: plain text to ids, ids to bytes, control tokens by spelling.

The one thing a reader would get wrong: text and control tokens never meet in one encode call. `encode_plain` has no
added vocabulary, so whatever a user types stays text; a control token only ever comes from `id_of`.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Self

from engine.errors import TokenizerError
from engine.tokenizer_file import TokenizerFile, read_tokenizer_file

BOS = "<｜begin▁of▁sentence｜>"
EOS = "<｜end▁of▁sentence｜>"
SYSTEM = "<｜System｜>"
USER = "<｜User｜>"
ASSISTANT = "<｜Assistant｜>"
THINK = "<think>"
END_THINK = "</think>"
REMINDER = "<｜latest_reminder｜>"
GROUNDING = tuple(f"<｜{slash}{name}｜>" for name in ("ref", "box", "point", "polygon") for slash in ("", "/"))
"""Markers the model writes around things it points at in a picture."""

_TURN_ENDS = (EOS, BOS, SYSTEM, USER, ASSISTANT)
_RESERVED = ("place▁holder", "place_holder", "<｜▁pad▁｜>")
"""What the spelling of a token without meaning contains."""


def repair(text: str) -> str:
    """The text with halves of surrogate pairs joined, or replaced by U+FFFD where alone; all else is untouched.

    Such text comes from a broken clipboard or file name and could be neither encoded nor stored.
    """
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


class ChatTokenizer:
    """One checkpoint's tokenizer. Safe to share between threads: nothing changes after it is made."""

    def __init__(self, file: TokenizerFile, *, image_token_id: int = -1) -> None:
        """Build from a read file; `image_token_id` is the config's, -1 = the model takes no pictures.

        Raises: TokenizerError if the file is unusable or has no token with that id.
        """
        self._path = file.path
        self.sha256 = file.sha256
        """Of the file."""
        self._plain = file.plain()
        self._added = added_tokens(file, image_token_id)
        self._spellings = {token: spelling for spelling, token in self._added.items()}
        try:
            self._bytes = _bytes_table(file.content["model"]["vocab"], self._spellings)
        except UnicodeEncodeError as error:
            raise TokenizerError(f"{file.path}: token {error.object!r} is no text that can be encoded") from error
        plain = (text for token, text in enumerate(self._bytes) if text and token not in self._spellings)
        self._longest = max(map(len, plain), default=1)
        self._image_token_id = image_token_id

    @classmethod
    def load(cls, folder: Path, *, image_token_id: int = -1) -> Self:
        """The tokenizer of a checkpoint folder. Raises: TokenizerError if it is missing, broken, or of another kind."""
        return cls(read_tokenizer_file(folder / "tokenizer.json"), image_token_id=image_token_id)

    @property
    def vocab_size(self) -> int:
        """One more than the highest id. The model's own vocabulary may be padded beyond it."""
        return len(self._bytes)

    @property
    def longest_bytes(self) -> int:
        """The most bytes of text that one token stands for, so that a text's least number of tokens is known unread."""
        return self._longest

    @property
    def image_marker(self) -> str | None:
        """How this tokenizer spells the image token; two spellings of the same id are about. None without pictures."""
        return self._spellings.get(self._image_token_id)

    @property
    def turn_ends(self) -> frozenset[int]:
        """Ids that end a turn when drawn: the end token, and those that would open another speaker's turn."""
        return frozenset(self._added[spelling] for spelling in _TURN_ENDS if spelling in self._added)

    @property
    def never_drawn(self) -> frozenset[int]:
        """Ids that mean nothing in an answer: reserved places, padding, and the image token."""
        reserved = {token for spelling, token in self._added.items() if any(part in spelling for part in _RESERVED)}
        return frozenset(reserved | ({self._image_token_id} if self._image_token_id >= 0 else set()))

    def id_of(self, spelling: str) -> int:
        """The id of a control token. Raises: TokenizerError naming it if this tokenizer has none."""
        if spelling not in self._added:
            raise TokenizerError(
                f"{self._path}: there is no control token {spelling}",
                hint="This is not the tokenizer of a DeepSeek-V4.1 checkpoint; V4 has no <｜System｜>, for instance.",
            )
        return self._added[spelling]

    def has(self, spelling: str) -> bool:
        """Whether this tokenizer has that control token."""
        return spelling in self._added

    def is_control(self, token: int) -> bool:
        """Whether an id is a control token, whose spelling is no ordinary text."""
        return token in self._spellings

    def encode_plain(self, text: str) -> list[int]:
        """The ids of text as text: no control token, whatever it spells. Lone surrogates are repaired first."""
        return self._plain.encode(repair(text), add_special_tokens=False).ids

    def token_bytes(self, token: int) -> bytes | None:
        """The bytes a token stands for, a control token's being its spelling; None for an id outside the vocabulary.

        Bytes, since a character may be spread over several tokens.
        """
        return self._bytes[token] if 0 <= token < len(self._bytes) else None

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens spelled out, ids outside the vocabulary left out, broken UTF-8 replaced."""
        return b"".join(self.token_bytes(token) or b"" for token in ids).decode("utf-8", "replace")


def added_tokens(file: TokenizerFile, image_token_id: int = -1) -> dict[str, int]:
    """Spelling -> id of the added tokens.

    Raises: TokenizerError if two meanings claim one id, or one has two, and when none is the config's image token; -1 =
    the model takes no pictures.
    """
    by_id = {token: spelling for spelling, token in file.content["model"]["vocab"].items()}
    added: dict[str, int] = {}
    for entry in file.content["added_tokens"]:
        spelling, token = entry["content"], entry["id"]
        if by_id.setdefault(token, spelling) != spelling or spelling in added:
            raise TokenizerError(f"{file.path}: added token {spelling!r} cannot have id {token}: one of them is taken")
        added[spelling] = token
    if image_token_id >= 0 and image_token_id not in added.values():
        raise TokenizerError(
            f"{file.path}: no added token has id {image_token_id} (image_token_id of the config)",
            hint="This tokenizer does not belong to this checkpoint; fetch both from the same release.",
        )
    return added


def _bytes_table(vocabulary: dict[str, int], added: dict[int, str]) -> list[bytes | None]:
    """Bytes of every id. The added tokens come last: where one is in both tables, its spelling counts."""
    table: list[bytes | None] = [None] * (max([*vocabulary.values(), *added], default=-1) + 1)
    for spelling, token in vocabulary.items():
        table[token] = _bytes_of(spelling)
    for token, spelling in added.items():
        table[token] = spelling.encode()
    return table


def _byte_alphabet() -> dict[str, int]:
    """Character -> byte of byte-level BPE: printable Latin-1 stands for itself, the rest from U+0100 upward.

    Source: the released GPT-2 encoder, `encoder.py: bytes_to_unicode`; the `ByteLevel` decoder is its inverse.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()


def _bytes_of(spelling: str) -> bytes:
    """The bytes of a vocabulary entry; one that is not in the byte alphabet stands for itself, as in the decoder."""
    try:
        return bytes([_BYTE_OF[char] for char in spelling])
    except KeyError:
        return spelling.encode()
