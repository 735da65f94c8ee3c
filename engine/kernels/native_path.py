"""Matrix products by the native library, which reads weights as they are stored.

The library is called through ctypes, so Python's lock is free while it works. The one thing a reader would get wrong:
it trusts its caller. Every shape, dtype and stride is checked here, before a pointer is taken.
"""

import ctypes
from collections.abc import Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from engine.errors import KernelError
from engine.formats import SCALE_BLOCK
from engine.kernels import native_sublayers
from engine.kernels.checks import done, require, require_tensor
from engine.kernels.matrix import Matrix, NativeMatrix
from engine.kernels.native_sublayers import NativeSublayers
from engine.kernels.workspace import FRESH, Workspace

_ABI = 2
_FP8, _FP4, _BF16, _F32 = range(4)
_PLAIN = {torch.bfloat16: _BF16, torch.float32: _F32}

INSTRUCTION_SETS = ("avx512", "avx2", "neon", "portable")
"""What the library may have been compiled for, the widest first."""


class NativeKernels(NativeSublayers):
    """The library, with one of its instruction sets chosen.

    Attributes:
        instruction_set: One of `INSTRUCTION_SETS`.
    """

    def __init__(self, library: ctypes.CDLL, instruction_set: str) -> None:
        self.instruction_set = instruction_set
        self._library = library

    @classmethod
    def load(cls, wanted: str = "native") -> "NativeKernels":
        """Load the library and choose an instruction set; "native" is the widest that runs here. The choice is the
        whole process's.

        Raises: KernelError when the library was not built, is of another version, or the processor lacks the set.
        """
        file = library_file()
        if file is None:
            raise KernelError(
                "the native kernels were not built with this installation",
                hint="Install a C++17 compiler and then the package again, or leave ARTESIAN_KERNELS unset.",
            )
        try:
            library = ctypes.CDLL(str(file))
            abi = int(library.artesian_abi())
        except (OSError, AttributeError) as error:
            raise KernelError(f"{file.name} cannot be loaded: {error}", hint="Install the package again.") from error
        if abi != _ABI:
            raise KernelError(f"{file.name} is of version {abi}, not {_ABI}", hint="Install the package again.")
        _declare(library)
        native_sublayers.declare(library)
        name = library.artesian_choose(wanted.encode())
        if name is None:
            raise KernelError(
                f"this processor, or the compiler that built the kernels, has no {wanted}",
                hint="Leave ARTESIAN_KERNELS unset to use the best there is.",
            )
        return cls(library, name.decode())

    def set_threads(self, n: int) -> None:
        """How many threads a product may use, the caller's included."""
        self._library.artesian_set_threads(n)

    def matmul(self, x: Tensor, matrix: Matrix, groups: int = 1, work: Workspace = FRESH) -> Tensor:
        """x W^T, block-diagonal over `groups`: group g of x's columns meets rows g*N/groups of W and on.

        Shapes: x [T, groups*K] float32 with contiguous rows; result [T, N] float32. A row's result depends on that row
        alone, to the last bit.
        Raises: KernelError when a shape, dtype or stride is not what the library can read.
        """
        code, n, k, weight, scale = check_matrix(matrix)
        require(groups >= 1 and n % groups == 0, "%s rows cannot be cut into %s groups", n, groups)
        require(x.dtype is torch.float32 and x.is_cpu, "activations are %s", x.dtype)
        require(x.dim() == 2 and x.shape[1] == groups * k, "activations are %s, not [T, %s]", x.shape, groups * k)
        rows, stride = x.shape[0], x.stride(0)
        require(x.stride(1) == 1 and (rows < 2 or stride >= groups * k), "rows are not contiguous")
        out = work.take(rows, n)
        if rows == 0:
            return out
        status = self._library.artesian_matmul(
            code, weight, scale, n, k, groups, x.data_ptr(), stride, rows, out.data_ptr()
        )
        done(status)
        return out

    def routed_experts(
        self,
        x: Tensor,
        experts: Sequence[tuple[Matrix, Matrix, Matrix]],
        uses: Sequence[Sequence[int]],
        weights: Tensor,
        limit: float,
        out: Tensor,
    ) -> None:
        """Contributions of some experts of a layer to all rows that use them, written into `out`.

        Shapes: x [T, D] float32; experts (w1 [F, D], w3 [F, D], w2 [D, F]), all of one format; uses of each expert:
        indices into the T*k places of weights [T, k] float32; out [T, k, D] float32, only those places are written.
        The gated unit clamps at `limit`; 0 is no clamp.
        Raises: KernelError when a shape, dtype or stride is not what the library can read.
        """
        (rows, width), used = x.shape, weights.shape[1]
        inner = experts[0][0].weight.shape[0] if experts else 0
        for tensor, shape in ((x, (rows, width)), (weights, (rows, used)), (out, (rows, used, width))):
            require_tensor(tensor, shape)
        code = check_matrix(experts[0][0]).format if experts else 0
        up, down = (code, inner, width), (code, width, inner)
        pointers: list[int | None] = []
        for w1, w3, w2 in experts:
            gate, value, out_of = check_matrix(w1), check_matrix(w3), check_matrix(w2)
            found = (gate[:3], value[:3], out_of[:3])
            require(found == (up, up, down), "an expert's matrix is not as the others: %s", found)
            pointers += gate[3:] + value[3:] + out_of[3:]
        places = [place for some in uses for place in some]
        require(len(uses) == len(experts), "%s experts have %s lists of uses", len(experts), len(uses))
        if not places:
            return
        require(min(places) >= 0 and max(places) < rows * used, "a use lies outside of %s rows", rows)
        starts = [0]
        for some in uses:
            starts.append(starts[-1] + len(some))
        of_place = [share for row in weights.tolist() for share in row]
        shares = [of_place[place] for place in places]
        rows_of = places if used == 1 else [place // used for place in places]
        self._experts(code, pointers, starts, rows_of, places, shares, x, inner, limit, out)

    def _experts(
        self, code: int, pointers: Sequence[int | None], starts: Sequence[int], rows_of: Sequence[int],
        places: Sequence[int], shares: Sequence[float], x: Tensor, inner: int, limit: float, out: Tensor,
    ) -> None:  # fmt: skip
        """The call itself; everything was checked."""
        rows, width = x.shape
        status = self._library.artesian_experts(
            code,
            (ctypes.c_void_p * len(pointers))(*pointers),
            len(starts) - 1,
            _int64(starts),
            _int64(rows_of),
            _int64(places),
            (ctypes.c_float * len(shares))(*shares),
            x.data_ptr(),
            rows,
            width,
            inner,
            limit,
            out.data_ptr(),
        )
        done(status)

    def gated_expert(
        self, x: Tensor, w1: Matrix, w3: Matrix, w2: Matrix, limit: float, work: Workspace = FRESH
    ) -> Tensor:
        """w2 (silu(min(w1 x, limit)) * clamp(w3 x, limit)) of every row; a limit of 0 is no clamp.

        Shapes: x [T, D] float32; w1, w3 [F, D]; w2 [D, F]; result [T, D].
        Raises: KernelError when a shape, dtype or stride is not what the library can read.
        """
        rows, width = x.shape
        require_tensor(x, (rows, width))
        gate, value, out_of = check_matrix(w1), check_matrix(w3), check_matrix(w2)
        up, found = (gate.format, gate.n, width), (gate[:3], value[:3], out_of[:3])
        require(found == (up, up, (gate.format, width, gate.n)), "an expert's matrix is not as the others: %s", found)
        out = work.take(rows, width)
        if rows:
            every, pointers = range(rows), gate[3:] + value[3:] + out_of[3:]
            self._experts(gate.format, pointers, (0, rows), every, every, (1.0,) * rows, x, gate.n, limit, out)
        return out

    def attend(
        self,
        query: Tensor,
        window: Tensor,
        window_size: int,
        latents: Tensor | None,
        selection: Tensor | None,
        sink: Tensor,
        work: Workspace = FRESH,
    ) -> Tensor:
        """Softmax over each row's window keys and chosen latents, with a per-head sink in the denominator only.

        Shapes: query [T, H, hd]; window [P, hd] keys by position, the last T of which are the rows' own (row t sees the
        `window_size` up to its own); latents [G, hd]; selection [T, K] int64, -1 for none; sink [H]; result [T, H, hd].
        Raises: KernelError when a shape, dtype or stride is not what the library can read, or a choice is out of range.
        """
        rows, heads, width = query.shape
        require_tensor(query, (rows, heads, width))
        require_tensor(window, (window.shape[0], width))
        require_tensor(sink, (heads,))
        require(window.shape[0] >= rows and window_size >= 1, "%s keys are fewer than rows", window.shape[0])
        if selection is None or latents is None or selection.numel() == 0:
            latents = selection = None
        else:
            require_tensor(latents, (latents.shape[0], width))
            require(
                selection.dtype is torch.int64 and selection.is_contiguous() and selection.shape[0] == rows,
                "the selection is not int64 rows",
            )
            require(int(selection.max()) < latents.shape[0], "the selection names a latent there is not")
        out = work.take(rows, heads, width)
        status = self._library.artesian_attend(
            query.data_ptr(),
            rows,
            heads,
            width,
            window.data_ptr(),
            window.shape[0] - rows,
            window_size,
            None if latents is None else latents.data_ptr(),
            None if selection is None else selection.data_ptr(),
            0 if selection is None else selection.shape[1],
            sink.data_ptr(),
            width**-0.5,
            out.data_ptr(),
        )
        done(status)
        return out

    def index_scores(self, query: Tensor, weight: Tensor, keys: Tensor) -> Tensor:
        """sum over heads of weight[h] * max(0, query[h] . key).

        Shapes: query [T, Hi, di]; weight [T, Hi]; keys [n, di]; result [T, n]; all float32.
        Raises: KernelError when a shape, dtype or stride is not what the library can read.
        """
        rows, heads, width = query.shape
        require_tensor(query, (rows, heads, width))
        require_tensor(weight, (rows, heads))
        require_tensor(keys, (keys.shape[0], width))
        out = torch.empty((rows, keys.shape[0]), dtype=torch.float32)
        if out.numel():
            done(
                self._library.artesian_index_scores(
                    query.data_ptr(), weight.data_ptr(), rows, heads, width, keys.data_ptr(), keys.shape[0],
                    out.data_ptr(),
                )
            )  # fmt: skip
        return out

    def read(self, data: Tensor) -> None:
        """Read a float32 tensor once, in one stream a task: what memory gives. Any shape, contiguous."""
        require_tensor(data, tuple(data.shape))
        self._library.artesian_read(data.data_ptr(), data.numel())

    def multiply_adds(self, steps: int) -> int:
        """Make float32 multiply-adds in registers on every thread, and say how many: what the processor gives."""
        return int(self._library.artesian_multiply_adds(steps))


def library_file() -> Path | None:
    """The library that was built with the package, if it was."""
    folder = Path(__file__).parent
    return next((file for suffix in EXTENSION_SUFFIXES if (file := folder / f"_native{suffix}").is_file()), None)


def check_matrix(matrix: Matrix) -> NativeMatrix:
    """What the library is told of a matrix; looked at once.

    Raises: KernelError when weight and scale are not contiguous tensors in memory whose shapes belong together.
    """
    if not matrix.checked:
        matrix.checked.append(_checked(matrix))
    return matrix.checked[0]


def _checked(matrix: Matrix) -> NativeMatrix:
    weight, scale = matrix.weight, matrix.scale
    require(weight.dim() == 2 and weight.is_contiguous() and weight.is_cpu, "the weight is not a matrix")
    n, k = weight.shape
    require(n > 0 and k > 0, "the weight is empty")
    if matrix.kind == "plain":
        code = _PLAIN.get(weight.dtype)
        require(code is not None and scale is None, "a plain weight is %s", weight.dtype)
        assert code is not None
        return NativeMatrix(code, n, k, weight.data_ptr(), None)
    if matrix.kind == "fp8":
        code, want = _FP8, (-(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK))
    else:
        code, k = _FP4, 2 * k
        require(k % SCALE_BLOCK == 0, "an fp4 matrix has %s columns, not a multiple of 32", k)
        want = (n, k // SCALE_BLOCK)
    require(weight.dtype is torch.uint8, "a packed weight is %s", weight.dtype)
    require(
        scale is not None and tuple(scale.shape) == want and scale.dtype is torch.uint8 and scale.is_contiguous(),
        "the scale is not contiguous bytes of shape %s",
        list(want),
    )
    assert scale is not None
    return NativeMatrix(code, n, k, weight.data_ptr(), scale.data_ptr())


def _int64(values: Sequence[int]) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(values))(*values)


def _declare(library: ctypes.CDLL) -> None:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.artesian_choose.argtypes = [ctypes.c_char_p]
    library.artesian_choose.restype = ctypes.c_char_p
    library.artesian_set_threads.argtypes = [ctypes.c_int]
    library.artesian_set_threads.restype = None
    library.artesian_matmul.argtypes = [
        ctypes.c_int, pointer, pointer, size, size, size, pointer, size, size, pointer,
    ]  # fmt: skip
    library.artesian_read.argtypes = [pointer, size]
    library.artesian_read.restype = None
    library.artesian_multiply_adds.argtypes = [size]
    library.artesian_multiply_adds.restype = size
    library.artesian_experts.argtypes = [
        ctypes.c_int, pointer, size, pointer, pointer, pointer, pointer, pointer, size, size, size, ctypes.c_float,
        pointer,
    ]  # fmt: skip
    library.artesian_attend.argtypes = [
        pointer, size, size, size, pointer, size, size, pointer, pointer, size, pointer, ctypes.c_float, pointer,
    ]  # fmt: skip
    library.artesian_index_scores.argtypes = [pointer, pointer, size, size, size, pointer, size, pointer]
