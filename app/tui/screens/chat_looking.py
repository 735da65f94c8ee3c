"""Looking around in the conversation: the block cursor, folding, finding."""

from textual import on

from app.tui.screens.chat_frame import ChatFrame
from app.tui.widgets.find_bar import FindBar
from app.tui.widgets.turn import ReplyRows


class LookActions(ChatFrame):
    """What changes the view alone."""

    def action_previous_block(self) -> None:
        """Up."""
        self.set_focus(self.view)
        self.view.move_cursor(-1)

    def action_next_block(self) -> None:
        """Down; at last into the box."""
        if not self.view.move_cursor(1):
            self.set_focus(self.prompt.editor)

    def action_bottom(self) -> None:
        """To the end."""
        self.view.to_end()
        self.set_focus(self.prompt.editor)

    def action_fold_thinking(self) -> None:
        """Fold or open the thinking of the reply."""
        rows = self._rows_of_reply()
        if rows is None or not rows.thinking.source:
            self.note("There is no thinking in this reply.")
            return
        rows.fold(not rows.is_folded)
        self.conversation.folds = rows.is_folded
        self._rows_changed(rows)

    def action_raw(self) -> None:
        """Show the reply as it was written, or rendered."""
        rows = self._rows_of_reply()
        if rows is None:
            self.note("There is no reply yet.")
            return
        rows.set_raw(not rows.is_raw)
        self._rows_changed(rows)

    def _rows_changed(self, rows: ReplyRows) -> None:
        self.look_again()
        self.view.changed(self.view.messages.index(rows))

    def action_find(self, argument: str = "") -> None:
        """Look for text in the conversation."""
        self._find.open(argument)
        self._look(self._find.text)

    def action_find_next(self) -> None:
        """The next place."""
        self.view.find_step(1)
        self._show_count()

    def action_find_previous(self) -> None:
        """The place before."""
        self.view.find_step(-1)
        self._show_count()

    @on(FindBar.Changed)
    def _find_changed(self, event: FindBar.Changed) -> None:
        self._look(event.text)

    @on(FindBar.Stepped)
    def _find_stepped(self, event: FindBar.Stepped) -> None:
        self.view.find_step(event.step)
        self._show_count()

    @on(FindBar.Closed)
    def _find_closed(self) -> None:
        self._close_find()

    def _look(self, text: str) -> None:
        self.view.find(text)
        self._show_count()

    def _close_find(self) -> None:
        self._find.close()
        self.view.find("")
        self.set_focus(self.prompt.editor)
