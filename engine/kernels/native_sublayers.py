"""What lies between the products of a layer, by the native library: one call each, for all rows of a forward.

In torch each is a dozen to a hundred steps of some microseconds, of which a forward of one row has thousands. A row is
made by itself. All tensors are contiguous float32 where nothing else is said; results lie in the `work`space that was
given, or are fresh, but where a docstring says in place.
"""

import ctypes

import torch
from torch import Tensor

from engine.kernels.checks import done, require, require_tensor
from engine.kernels.workspace import FRESH, Workspace


class NativeSublayers:
    """The part of `NativeKernels` that needs no packed weights.

    Every method raises KernelError when a shape, dtype or stride is not what the library can read.
    """

    _library: ctypes.CDLL

    def norm(self, x: Tensor, weight: Tensor, eps: float, work: Workspace = FRESH) -> Tensor:
        """weight * x / rms(x). Shapes: x [..., W]; weight [W]; result like x."""
        require_tensor(x, tuple(x.shape))
        require_tensor(weight, tuple(x.shape[-1:]))
        out = work.take(*x.shape)
        if x.numel():
            width = x.shape[-1]
            status = self._library.artesian_norm(
                x.data_ptr(), weight.data_ptr(), x.numel() // width, width, eps, out.data_ptr()
            )
            done(status)
        return out

    def rotate(self, x: Tensor, positions: Tensor, freq: Tensor, *, back: bool = False) -> Tensor:
        """Turn the last 2 * len(freq) values of each vector by its position, in place.

        Shapes: x [T, ..., W]; positions [T] int64; freq [pairs]; result is x.
        """
        require_tensor(x, tuple(x.shape))
        require_tensor(positions, (x.shape[0],), torch.int64)
        require_tensor(freq, (freq.numel(),))
        width = x.shape[-1]
        require(2 * freq.numel() <= width, "%s pairs do not fit into %s values", freq.numel(), width)
        if x.numel():
            heads = x.numel() // (x.shape[0] * width)
            done(
                self._library.artesian_rotate(
                    x.data_ptr(), x.shape[0], heads, width, positions.data_ptr(), freq.data_ptr(), freq.numel(),
                    int(back),
                )
            )  # fmt: skip
        return x

    def mix(
        self, h: Tensor, fn: Tensor, base: Tensor, scale: Tensor, norm_eps: float, eps: float, rounds: int,
        work: Workspace = FRESH,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        """The coefficient sets of a half block, as `engine.hyper.mix` has them.

        Shapes: h [T, m, D]; fn [(2+m)*m, m*D]; base [(2+m)*m]; scale [3]; result pre [T, m], post [T, m], comb [T, m,
        m].
        """
        rows, m, width = h.shape
        n = (2 + m) * m
        require_tensor(h, (rows, m, width))
        require_tensor(fn, (n, m * width))
        require_tensor(base, (n,))
        require_tensor(scale, (3,))
        pre, post, comb = work.take(rows, m), work.take(rows, m), work.take(rows, m, m)
        if rows:
            done(
                self._library.artesian_mix(
                    h.data_ptr(), rows, m, width, fn.data_ptr(), base.data_ptr(), scale.data_ptr(), norm_eps, eps,
                    rounds, pre.data_ptr(), post.data_ptr(), comb.data_ptr(),
                )
            )  # fmt: skip
        return pre, post, comb

    def collapse(self, h: Tensor, pre: Tensor, weight: Tensor | None, eps: float, work: Workspace = FRESH) -> Tensor:
        """sum over copies of pre[c] * h[c], normed if there is a weight.

        Shapes: h [T, m, D]; pre [T, m]; weight [D]; result [T, D].
        """
        rows, m, width = h.shape
        require_tensor(h, (rows, m, width))
        require_tensor(pre, (rows, m))
        if weight is not None:
            require_tensor(weight, (width,))
        out = work.take(rows, width)
        done(
            self._library.artesian_collapse(
                h.data_ptr(), pre.data_ptr(), None if weight is None else weight.data_ptr(), rows, m, width, eps,
                out.data_ptr(),
            )
        )  # fmt: skip
        return out

    def update(self, h: Tensor, y: Tensor, post: Tensor, comb: Tensor, out: Tensor | None = None) -> Tensor:
        """post[j] * y + sum over i of comb[i, j] * h[i].

        Shapes: h [T, m, D]; y [T, D]; post [T, m]; comb [T, m, m]; result like h, in `out` if given, which is not h.
        """
        rows, m, width = h.shape
        require_tensor(h, (rows, m, width))
        require_tensor(y, (rows, width))
        require_tensor(post, (rows, m))
        require_tensor(comb, (rows, m, m))
        if out is None:
            out = torch.empty_like(h)
        require_tensor(out, (rows, m, width))
        require(out is not h, "the stream cannot be mixed in place")
        done(
            self._library.artesian_update(
                h.data_ptr(), y.data_ptr(), post.data_ptr(), comb.data_ptr(), rows, m, width, out.data_ptr()
            )
        )
        return out

    def total(self, parts: Tensor, last: Tensor, work: Workspace = FRESH) -> Tensor:
        """parts[0] + parts[1] + .. + last, in that order. Shapes: parts [T, k, D]; last [T, D]; result [T, D]."""
        rows, n, width = parts.shape
        require(n >= 1, "there are no parts to add")
        require_tensor(parts, (rows, n, width))
        require_tensor(last, (rows, width))
        out = work.take(rows, width)
        done(self._library.artesian_total(parts.data_ptr(), last.data_ptr(), rows, n, width, out.data_ptr()))
        return out

    def route(
        self, logits: Tensor, bias: Tensor, used: int, *, over_sum: bool, scale: float, work: Workspace = FRESH
    ) -> tuple[Tensor, Tensor]:
        """The experts of each row, best first, and their weights, as `engine.moe.route` has them.

        Shapes: logits [T, E]; bias [E]; result [T, used] int64 and [T, used] float32.
        """
        rows, n = logits.shape
        require_tensor(logits, (rows, n))
        require_tensor(bias, (n,))
        require(1 <= used <= n, "%s of %s experts cannot be chosen", used, n)
        experts, weights = work.take(rows, used, dtype=torch.int64), work.take(rows, used)
        done(
            self._library.artesian_route(
                logits.data_ptr(), bias.data_ptr(), rows, n, used, int(over_sum), scale, experts.data_ptr(),
                weights.data_ptr(),
            )
        )  # fmt: skip
        return experts, weights

    def choose_groups(
        self, scores: Tensor, counts: Tensor, allowed: Tensor | None, block_size: int, wanted: int
    ) -> Tensor:
        """The `wanted` largest of the first `counts` scores of each row, ascending, -1 behind the last; of equal ones
        the lowest index. Scores of -inf are never chosen.

        Shapes: scores [T, n]; counts [T] int64; allowed [T, blocks] bool, of `block_size` scores each, or None for
        all; result [T, min(wanted, n)] int64.
        """
        rows, n = scores.shape
        require_tensor(scores, (rows, n))
        require_tensor(counts, (rows,), torch.int64)
        if allowed is not None:
            require_tensor(allowed, (rows, allowed.shape[1]), torch.bool)
        require(block_size >= 1 and wanted >= 0, "%s groups of blocks of %s", wanted, block_size)
        out = torch.empty((rows, min(wanted, n)), dtype=torch.int64)
        if out.numel():
            done(
                self._library.artesian_choose_groups(
                    scores.data_ptr(), rows, n, counts.data_ptr(), None if allowed is None else allowed.data_ptr(),
                    0 if allowed is None else allowed.shape[1], block_size, out.shape[1], out.data_ptr(),
                )
            )  # fmt: skip
        return out

    def engram(self, h: Tensor, projected: Tensor, weight: Tensor, eps: float, out: Tensor | None = None) -> Tensor:
        """The stream with the gated value added to every copy, as `engine.engram.engram` has it.

        Shapes: h [T, m, D]; projected [T, (m+1)*D], the keys of the copies and then the value; weight [m, D], of query
        and key together; result like h, in `out` if given, which may be h.
        """
        rows, m, width = h.shape
        require_tensor(h, (rows, m, width))
        require_tensor(projected, (rows, (m + 1) * width))
        require_tensor(weight, (m, width))
        if out is None:
            out = torch.empty_like(h)
        require_tensor(out, (rows, m, width))
        done(
            self._library.artesian_engram(
                h.data_ptr(), projected.data_ptr(), weight.data_ptr(), rows, m, width, eps, out.data_ptr()
            )
        )
        return out


def declare(library: ctypes.CDLL) -> None:
    """Tell ctypes the signatures of the functions used here."""
    pointer, size, real, flag = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
    library.artesian_norm.argtypes = [pointer, pointer, size, size, real, pointer]
    library.artesian_rotate.argtypes = [pointer, size, size, size, pointer, pointer, size, flag]
    library.artesian_mix.argtypes = [
        pointer, size, size, size, pointer, pointer, pointer, real, real, size, pointer, pointer, pointer,
    ]  # fmt: skip
    library.artesian_collapse.argtypes = [pointer, pointer, pointer, size, size, size, real, pointer]
    library.artesian_update.argtypes = [pointer, pointer, pointer, pointer, size, size, size, pointer]
    library.artesian_total.argtypes = [pointer, pointer, size, size, size, pointer]
    library.artesian_route.argtypes = [pointer, pointer, size, size, size, flag, real, pointer, pointer]
    library.artesian_choose_groups.argtypes = [
        pointer, size, size, pointer, pointer, size, size, size, pointer,
    ]  # fmt: skip
    library.artesian_engram.argtypes = [pointer, pointer, pointer, size, size, size, real, pointer]
