"""Stand-ins with behaviour of their own, for tests that need no model, drive or clock."""

import errno
import threading
import time
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.backends.base import OpenEvent, PromptCost, RunFacts, TurnRequest
from engine.events import DoneReason, Event, PrefillProgress, TurnDone, TurnStats
from storage.syscalls import DioAlignment, Syscalls


class ScriptedBackend:
    """Answers with given events. Looks at `should_stop` before each one and then ends the turn as an engine would."""

    def __init__(
        self,
        events: Sequence[Event] = (),
        *,
        prompt_tokens: int = 5,
        loading: Sequence[OpenEvent] = (),
        failure: BaseException | None = None,
        before_each: Callable[[], None] = lambda: None,
    ) -> None:
        """`failure` is raised after the events; `before_each` runs before every event."""
        self.requests: list[TurnRequest] = []
        self.opened = False
        self.closed = False
        self._events = events
        self._prompt_tokens = prompt_tokens
        self._loading = loading
        self._failure = failure
        self._before_each = before_each

    def measure(self, request: TurnRequest) -> PromptCost:
        """The number the script was given."""
        self.requests.append(request)
        return PromptCost(prompt_tokens=self._prompt_tokens, reused_tokens=0, context_tokens=4096, expected_s=None)

    def facts(self) -> RunFacts:
        """Made up."""
        return RunFacts(
            model="/models/scripted", is_demo=False, fingerprint="f" * 64, numerics="exact", index_owner="published",
            kernels="scripted", version="0",
        )  # fmt: skip

    def reading(self) -> PrefillProgress | None:
        """Told by events alone."""
        return None

    def warm(self, should_stop: Callable[[], bool]) -> int:
        """Nothing to warm."""
        return 0

    def save_state(self, path: Path, request: TurnRequest) -> int:
        """Nothing is kept."""
        return 0

    def restore_state(self, path: Path) -> int:
        """Nothing is kept."""
        return 0

    def open(self, on_event: Callable[[OpenEvent], None], should_stop: Callable[[], bool]) -> None:
        """Report the scripted loading."""
        for event in self._loading:
            on_event(event)
        self.opened = True

    def generate(self, request: TurnRequest, should_stop: Callable[[], bool]) -> Iterator[Event]:
        """The script, cut off with a "stopped" when asked."""
        for event in self._events:
            self._before_each()
            if should_stop():
                yield turn_done("stopped")
                return
            yield event
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Note it."""
        self.closed = True


class Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        """The time in seconds."""
        return self.now_s


def turn_done(
    reason: DoneReason = "stop", *, answer_tokens: int = 3, thinking_tokens: int = 0, **figures: Any
) -> TurnDone:
    """The last event of a turn with round figures: 5 prompt tokens in 0.5 s, the reply in 2 s; `figures` adds."""
    stats = TurnStats(
        prompt_tokens=5,
        reused_tokens=0,
        answer_tokens=answer_tokens,
        thinking_tokens=thinking_tokens,
        prefill_s=0.5,
        decode_s=2.0,
        read_bytes=0,
    )
    return TurnDone(reason=reason, stats=replace(stats, **figures))


class FlakyDrive(Syscalls):
    """A drive whose reads come short or fail. Reads are numbered from 1, those that prove alignment included."""

    def __init__(
        self,
        *,
        fail_on: Container[int] = (),
        error: int = errno.EIO,
        longest: Callable[[int], int] = lambda n_bytes: n_bytes,
        refuse_direct: bool = False,
        block_bytes: int = 1,
        kind: str | None = None,
    ) -> None:
        """`fail_on` holds the numbers of the reads that fail with `error`; `longest` gives the most bytes a read of a
        size gets; direct reads not aligned to `block_bytes` fail with EINVAL; `kind` is the file system's name."""
        self.fail_on = fail_on
        self.error = error
        self.longest = longest
        self.n_reads = 0
        self.read_bytes = 0
        self._refuse_direct = refuse_direct
        self._block_bytes = block_bytes
        self._kind = kind
        self._direct: set[int] = set()
        self._lock = threading.Lock()

    def open(self, path: Path, *, direct: bool) -> int:
        """The real one, or EINVAL."""
        if direct and self._refuse_direct:
            raise OSError(errno.EINVAL, "no direct reads here")
        fd = super().open(path, direct=direct)
        if direct:
            self._direct.add(fd)
        return fd

    def close(self, fd: int) -> None:
        """The real one."""
        self._direct.discard(fd)
        super().close(fd)

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """The real one, if it is not this read's turn to fail."""
        with self._lock:
            self.n_reads += 1
            number = self.n_reads
        if number in self.fail_on:
            raise OSError(self.error, "as the test wants")
        if fd in self._direct and (offset % self._block_bytes or len(target) % self._block_bytes):
            raise OSError(errno.EINVAL, "misaligned")
        count = super().pread(fd, target[: max(1, self.longest(len(target)))] if len(target) else target, offset)
        with self._lock:
            self.read_bytes += count
        return count

    def dio_alignment(self, fd: int) -> DioAlignment | None:
        """Nothing, so that what works has to be found out."""
        return None

    def file_system(self, fd: int) -> str:
        """The name the test gave, or the real one."""
        return super().file_system(fd) if self._kind is None else self._kind


class SlowDrive(Syscalls):
    """A drive that delivers `rate_bytes_s` and not more, however many reads are in flight."""

    def __init__(self, rate_bytes_s: float) -> None:
        self._rate_bytes_s = rate_bytes_s
        self._lock = threading.Lock()
        self._free_at = 0.0

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """The real one, late."""
        count = super().pread(fd, target, offset)
        with self._lock:
            self._free_at = max(self._free_at, time.monotonic()) + count / self._rate_bytes_s
            wait_s = self._free_at - time.monotonic()
        time.sleep(max(0.0, wait_s))
        return count


class GatedDrive(Syscalls):
    """A drive on which reads begin when they are asked for and end when the test lets them. Open until `shut`."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        """Offsets of the reads since `shut`, in the order they began."""
        self._let = threading.Semaphore(0)
        self._shut = False

    def shut(self) -> None:
        """From now on reads wait."""
        self._shut = True

    def let(self, n_reads: int = 1) -> None:
        """Let this many reads end."""
        self._let.release(n_reads)

    def pread(self, fd: int, target: memoryview, offset: int) -> int:
        """The real one, when the gate lets it."""
        if self._shut:
            self.begun.append(offset)
            self._let.acquire()
        return super().pread(fd, target, offset)
