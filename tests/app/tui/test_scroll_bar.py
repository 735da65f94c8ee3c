"""The scroll bar beside a conversation: in whole cells, and painted only when it looks different."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual.color import Color

from app.tui.widgets.scroll_bar import PlainScrollBar, thumb_cells
from engine.events import TextDelta
from tests.app.tui.chat_stage import CueBackend, chat, send
from tests.app.tui.snapshot import wait_until


@given(height=st.integers(1, 80), n_rows=st.integers(1, 5_000), share=st.floats(0, 1))
def test_the_thumb_is_where_textual_paints_it(height: int, n_rows: int, share: float) -> None:
    position = int(share * max(n_rows - height, 0) * 8) / 8  # as Textual's bar rounds it
    window = height if height < n_rows else 0  # and without a thumb when all is in sight
    bar = PlainScrollBar.render_bar(
        height, n_rows, window, position, back_color=Color.parse("red").rich_color,
        bar_color=Color.parse("blue").rich_color,
    )  # fmt: skip
    painted = [index for index, segment in enumerate(bar.segments) if segment.style and segment.style.reverse]
    first, end = thumb_cells(height, n_rows, position)
    assert painted == list(range(first, min(end, height)))


@pytest.mark.tui
async def test_a_growing_reply_moves_the_bar_and_paints_it_only_where_its_thumb_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with chat(tmp_path, CueBackend([None])) as (app, pilot):
        await send(pilot, "go")
        await wait_until(pilot, lambda: app.chat.conversation.running is not None)
        view, bar = app.chat.view, app.chat.view.vertical_scrollbar

        async def grow(n_rows: int) -> None:
            app.host.mailbox.put(TextDelta(text="a line\n\n" * (n_rows // 2)))
            size = view.virtual_size.height
            await wait_until(pilot, lambda: view.virtual_size.height >= size + n_rows - 2)
            await pilot.pause()

        await grow(2_000)
        painted: list[object] = []
        refresh = bar.refresh
        monkeypatch.setattr(bar, "refresh", lambda *regions, **how: (painted.append(1), refresh(*regions, **how))[1])
        await grow(10)
        assert not painted, "a cell of the bar stands for a hundred rows"
        assert (bar.window_virtual_size, bar.position) == (view.virtual_size.height, view.scroll_y)
        view.scroll_to(y=0, animate=False, force=True)
        await pilot.pause()
        assert painted and bar.position == 0
