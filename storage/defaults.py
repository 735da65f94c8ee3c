"""What is taken where nobody says: numbers that a plan needs too, without importing what reads by them."""

DEFAULT_DEPTH = 8
"""Reads of megabytes in flight on a drive, each with a thread.

Whole experts, 18.8 MB in two reads, on a virtual NVMe drive and two busy cores, as shares of the best depth and size in
two runs of `artesian bench io SLICE` (40 and 28 rounds): depth 1 82% and 93%, 2 88% and 95%, 4 93% and 95%, 8 100% and
99%, 16 97% and 100%. Smaller reads never did better: at depth 8 with 4.2 MB 89% and 95%, 1 MB 81% and 89%, 262 kB 57%
and 63%. fio with the same pattern at depth 8 gave 0.89 (psync), 1.00 (libaio) and 1.00 (io_uring) of our rate.
io_uring in our place, a C loop on liburing, gave 1.04, 1.07 and 1.13 of the threads' rate at depths 4, 8 and 16, and
kernel AIO 1.08, 1.03 and 1.09: medians of 16 interleaved rounds whose rates spread by a factor of 1.6, no clear win.
"""
DEFAULT_CACHE_ROWS = 65_536
"""Rows kept of each engram table."""
