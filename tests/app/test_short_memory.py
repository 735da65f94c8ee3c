"""A lack of memory is told as one, whatever it calls itself."""

import errno
import subprocess
import sys

import pytest

from app.exits import ExitCode, exit_code_of
from app.short_memory import lacks_memory, told
from engine.errors import EngineError

UNLOADED = ImportError("libtorch_cpu.so: failed to map segment from shared object")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        UNLOADED,
        RuntimeError("[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried"),
        RuntimeError("can't start new thread"),
    ],
)
def test_what_the_loader_the_system_torch_and_python_say_of_it(error: BaseException) -> None:
    outer = RuntimeError("something else on the way out")
    outer.__context__ = error
    for one in (error, outer):
        assert lacks_memory(one) and exit_code_of(one) is ExitCode.TOO_BIG


@pytest.mark.parametrize("error", [ImportError("No module named 'torch'"), OSError(errno.ENOSPC, "full"), ValueError()])
def test_other_failures_are_none(error: BaseException) -> None:
    assert not lacks_memory(error) and exit_code_of(error) is ExitCode.FAILED


def test_a_failure_reported_on_purpose_keeps_its_code() -> None:
    error = EngineError("the model said so")
    error.__cause__ = MemoryError()
    assert exit_code_of(error) is ExitCode.FAILED


def test_the_library_that_found_no_room_is_named() -> None:
    message, hint = told(UNLOADED)
    assert message.startswith("there is too little memory to load the libraries (libtorch_cpu.so)") and hint


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_where_address_space_is_too_small_for_the_libraries_one_line_says_so() -> None:
    program = "import sys; from app.entry import main; sys.argv = ['artesian', 'ask', 'hi']; sys.exit(main())"
    command = f'ulimit -v 300000; exec "{sys.executable}" -c "{program}"'
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert result.returncode == 3 and result.stdout == ""
    first, *rest = result.stderr.splitlines()
    assert first.startswith("artesian: there is too little memory to load the libraries")
    assert first.endswith("address space is limited to 307 MB")
    assert rest == ["  Lift the limit with `ulimit -v unlimited`; --ram is what bounds memory here."]
