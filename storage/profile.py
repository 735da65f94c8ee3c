"""Which experts this user's prompts route to: a small file per checkpoint, kept outside the model folder.

A profile holds, per layer, each expert's share of the traffic, as a running average over turns. Shares, not counts: a
count only grows, and after a million tokens no new habit could change what is called hot. Every turn moves the average
by the same part, so after `HALF_LIFE_TURNS` turns of something new the old habits weigh half.

The file is a cache of habits, worth nothing when in doubt: whatever is wrong with it, it is set aside under another
name with one notice, and the profile starts empty. Nothing here raises for what a disk or a file does.

    8 bytes  magic "ARTUSAGE"      u16 version 1
    u16      bytes of fingerprint, then the fingerprint of the checkpoint, UTF-8
    u16      number of layers, then for each: u16 layer, u16 experts in it
    f32      shares, layer by layer    u32 CRC-32 of everything before
"""

import os
import stat
import struct
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from storage.errors import shown
from storage.waves import Phase

MAGIC = b"ARTUSAGE"
VERSION = 1
HALF_LIFE_TURNS = 8
FULL_TURN_REQUESTS = 200
"""Experts a layer asks for in a turn of some 30 tokens; shorter turns move the average by less."""
SAVE_INTERVAL_S = 60.0
ASIDE_SUFFIX = ".set-aside"
_MOVE = 1 - 0.5 ** (1 / HALF_LIFE_TURNS)


class _Unusable(Exception):  # noqa: N818 - a reason, caught in this module
    """Why a profile file cannot be used."""


class UsageProfile:
    """Shares of each layer's traffic by expert. For one thread.

    Args:
        path: The file; its folder need not exist. Not in the model folder, which may be read-only, shared or copied.
        fingerprint: What tells this checkpoint from others; up to 65,535 bytes of UTF-8.
        n_experts: Experts of each layer.
        on_notice: Told, once each, of a file that was set aside and of saves that fail.
        clock: Seconds, for the least time between two saves.
    """

    def __init__(
        self,
        path: Path,
        fingerprint: str,
        n_experts: Mapping[int, int],
        *,
        on_notice: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._on_notice = on_notice
        self._clock = clock
        self._saved_at = -SAVE_INTERVAL_S
        self._save_failed = False
        self._changed = False
        self._n_experts = dict(sorted(n_experts.items()))
        self._head = self._header(fingerprint)
        self._shares: dict[int, NDArray[np.float64]] = {n: np.zeros(e) for n, e in self._n_experts.items()}
        self._turn: dict[int, NDArray[np.float64]] = {n: np.zeros(e) for n, e in self._n_experts.items()}

    @classmethod
    def load(
        cls,
        path: Path,
        fingerprint: str,
        n_experts: Mapping[int, int],
        *,
        on_notice: Callable[[str], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> "UsageProfile":
        """The profile in `path`; an empty one when there is none, or one that cannot be used."""
        profile = cls(path, fingerprint, n_experts, on_notice=on_notice, clock=clock)
        try:
            profile._read()
        except FileNotFoundError:
            pass
        except (OSError, _Unusable) as error:
            reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
            on_notice(f"The usage profile {shown(str(path))} is not used: {reason}. {profile._set_aside()}")
        return profile

    def record(self, layer: int, experts: Sequence[int], phase: Phase = "decode") -> None:
        """A layer asked for these distinct experts."""
        self._turn[layer][list(experts)] += 1

    def end_turn(self) -> None:
        """Let the turn's requests move the average."""
        for layer, counts in self._turn.items():
            total = counts.sum()
            if total:
                move = _MOVE * min(1.0, total / FULL_TURN_REQUESTS)
                shares = self._shares[layer]
                move = move if shares.any() else 1.0
                shares *= 1 - move
                shares += move * counts / total
                counts[:] = 0
                self._changed = True

    def shares(self, layer: int) -> list[float]:
        """Each expert's share of the layer's traffic; all 0 for a layer that was never watched."""
        return [float(share) for share in self._shares[layer]]

    def hottest(self, layer: int, n: int) -> list[int]:
        """At most `n` experts that were asked for, hottest first, ties to the lowest id."""
        shares = self._shares[layer]
        order = np.argsort(-shares, kind="stable")[:n]
        return [int(expert) for expert in order if shares[expert] > 0]

    def save(self, *, force: bool = False) -> bool:
        """Write the file if something changed and the last time is at least `SAVE_INTERVAL_S` ago, or with `force`.

        The old file stays whole until the new one is safely on the disk. Returns whether the file holds what the
        profile does.
        """
        if not self._changed:
            return not self._save_failed
        now = self._clock()
        if not force and now - self._saved_at < SAVE_INTERVAL_S:
            return False
        self._saved_at = now
        body = self._head + b"".join(s.astype("<f4").tobytes() for s in self._shares.values())
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            _replace(self._path, body + struct.pack("<I", zlib.crc32(body)))
        except OSError as error:
            if not self._save_failed:
                self._save_failed = True
                reason = error.strerror or str(error)
                name = shown(str(self._path))
                self._on_notice(f"The usage profile {name} cannot be saved: {reason}. It is tried again later.")
            return False
        self._save_failed = self._changed = False
        return True

    def _header(self, fingerprint: str) -> bytes:
        name = fingerprint.encode()
        layers = b"".join(struct.pack("<HH", layer, n) for layer, n in self._n_experts.items())
        return MAGIC + struct.pack("<HH", VERSION, len(name)) + name + struct.pack("<H", len(self._n_experts)) + layers

    def _read(self) -> None:
        data = _read_regular(self._path, len(self._head) + 4 * sum(self._n_experts.values()) + 4)
        if data[:8] != MAGIC:
            raise _Unusable("it is not a profile")
        if data[8:10] != self._head[8:10]:
            raise _Unusable("it is of another version")
        if data[: len(self._head)] != self._head:
            raise _Unusable("it belongs to another checkpoint")
        if len(data) != len(self._head) + 4 * sum(self._n_experts.values()) + 4:
            raise _Unusable("it is cut short or too long")
        if zlib.crc32(data[:-4]) != struct.unpack("<I", data[-4:])[0]:
            raise _Unusable("it is damaged")
        values = np.frombuffer(data[len(self._head) : -4], "<f4").astype(np.float64)
        if not np.isfinite(values).all() or (values < 0).any():
            raise _Unusable("it holds negative or infinite shares")
        start = 0
        for layer, n in self._n_experts.items():
            shares = values[start : start + n]
            total = shares.sum()
            self._shares[layer] = shares / total if total else shares  # whatever was written, old habits weigh 1
            start += n

    def _set_aside(self) -> str:
        aside = self._path.with_name(self._path.name + ASIDE_SUFFIX)
        try:
            self._path.replace(aside)
        except OSError as error:
            return f"It could not be renamed: {error.strerror or error}."
        return f"It is kept as {shown(aside.name)}; a new one is begun."


def _read_regular(path: Path, expected_bytes: int) -> bytes:
    """At most one byte more than expected of a regular file; never waits on a pipe."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise _Unusable("it is not a file")
    with os.fdopen(fd, "rb") as file:
        return file.read(expected_bytes + 1)


def _replace(path: Path, data: bytes) -> None:
    """Write `data` beside `path`, make it durable, and only then give it the name."""
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(fd)
        Path(temporary).replace(path)
    except OSError:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
