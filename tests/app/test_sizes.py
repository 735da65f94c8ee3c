import pytest

from app.sizes import bytes_of, size_of
from planner.plan import Size


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("24GB", 24_000_000_000), ("1.5 tb", 1_500_000_000_000), ("500MB", 500_000_000), ("4096B", 4096),
        ("1kB", 1000), ("1KiB", 1024), ("0", 0), ("0.0", 0), ("0GB", 0),
    ],
)  # fmt: skip
def test_a_size_is_decimal_unless_it_says_otherwise(text: str, n_bytes: int) -> None:
    assert bytes_of(text) == n_bytes
    assert size_of(text) == Size(n_bytes=n_bytes)


@pytest.mark.parametrize("text", ["24", "4096", "1.5", "24 ", "", "GB", "24G", "2e9", "-1GB", "\u0663GB"])
def test_a_number_without_a_unit_is_no_size(text: str) -> None:
    """Who writes 24 means 24GB: 24 bytes would be refused a moment later, with a riddle."""
    assert bytes_of(text) is None and size_of(text) is None
