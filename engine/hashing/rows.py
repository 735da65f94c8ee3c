"""Which rows a position reads: sticky look-back, then the cumulative hash.

The one thing a reader would get wrong: blocking is sticky. Once one look-back is blocked, by the start of the
sequence or by an image token, every longer one is, even if it lands on live text again.
"""

import numpy as np
import numpy.typing as npt

from engine.hashing.tables import EngramTable

Int64 = npt.NDArray[np.int64]


def lookback(compressed: Int64, start: int, n_gram: int, pad: int, dead: npt.NDArray[np.bool_] | None = None) -> Int64:
    """The last `n_gram` classes of every position from `start` on, column `i` holding the token `i` places back.

    `compressed` holds the classes of the tokens so far, new ones included; a caller that dropped its far past must
    keep at least the `n_gram - 1` tokens before `start`. `pad` is the class of the pad token, which stands for what is
    blocked. `dead` marks image positions: each blocks itself and everything behind it, for itself too (the model
    adds nothing there, so its own row does not matter).

    Shapes: compressed [n]; dead [n] or None; result [n - start, n_gram].
    Source: section 6.4; section 8 of the image specification for `dead`.
    """
    assert 0 <= start <= len(compressed), (start, len(compressed))
    assert dead is None or len(dead) == len(compressed)
    window = np.full((len(compressed) - start, n_gram), pad, dtype=np.int64)
    positions = np.arange(start, len(compressed))
    live = np.ones(len(positions), dtype=np.bool_)
    for back in range(n_gram):
        source = positions - back
        live = live & (source >= 0)
        if dead is not None:
            live[live] = ~dead[source[live]]
        window[live, back] = compressed[source[live]]
    return window


def row_ids(table: EngramTable, window: Int64) -> Int64:
    """Table rows of each position, columns ordered by n-gram size, then head.

    Shapes: window [T, N] from `lookback`; result [T, (N-1)*He], each entry in [0, table.rows).
    Source: section 6.4. Products fit in signed 64 bits by the bound on the multipliers (section 6.3), so
    neither they nor their XOR can be negative.
    """
    assert window.dtype == np.int64 and window.shape[1] == len(table.multipliers)
    columns: list[Int64] = []
    offsets = iter(table.offsets)
    mixed = window[:, 0] * table.multipliers[0]
    for back, primes in enumerate(table.primes, start=1):
        mixed = mixed ^ (window[:, back] * table.multipliers[back])
        columns.extend(next(offsets) + mixed % prime for prime in primes)
    return np.stack(columns, axis=1)
