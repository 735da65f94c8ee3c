"""The beginning of `tmux_chat`, which is run whole by hand: the command in a real terminal, on the demo."""

import pytest

from tests.app.tui.tmux import HAS_TMUX
from tests.app.tui.tmux_chat import first_answer, run, stop_in_prefill

pytestmark = pytest.mark.tui


@pytest.mark.skipif(not HAS_TMUX, reason="there is no tmux here")
def test_it_takes_typing_while_loading_answers_stops_and_leaves_the_terminal_as_it_was() -> None:
    run((first_answer, stop_in_prefill))
