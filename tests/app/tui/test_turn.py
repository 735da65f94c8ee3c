import pytest

from app.tui.widgets.turn import ReplyRows
from tests.app.tui.long_text import long_reply, pieces


@pytest.mark.parametrize("is_raw", [False, True])
def test_rows_that_are_said_to_stay_are_the_same_when_more_comes(is_raw: bool) -> None:
    rows = ReplyRows("m1", 60)
    rows.set_raw(is_raw)
    for piece in pieces(long_reply(300, seed=4)):
        still = [rows.row(index) for index in range(rows.n_still_rows)]
        rows.push_text(piece)
        assert [rows.row(index) for index in range(len(still))] == still
