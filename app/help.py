"""How `--help` looks: two columns, no boxes, no colour, the same on a terminal, in a pipe and for a screen reader."""

import textwrap
from typing import TYPE_CHECKING

from cyclopts.help import PlainFormatter

if TYPE_CHECKING:
    from cyclopts.help import HelpEntry, HelpPanel
    from rich.console import Console, ConsoleOptions

_NAMES_WIDTH = 24


class TwoColumns(PlainFormatter):
    """Cyclopts' plain formatter with the descriptions in a column of their own."""

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Print one panel: its title, then each entry."""
        if panel.entries:
            lines = [f"{panel.title}:"]
            for entry in panel.entries:
                one_line = console.render(entry.description or "", options.update(width=10_000))
                lines += _lines(entry, "".join(segment.text for segment in one_line), console.width)
            console.print("\n".join([*lines, ""]), highlight=False, markup=False, soft_wrap=True)


def _lines(entry: "HelpEntry", description: str, width: int) -> list[str]:
    """The entry's names and its description, wrapped; names too long for their column have a line to themselves."""
    names = ", ".join(entry.display_labels_with_metavar)
    if entry.choices:
        description += f" [{' | '.join(entry.choices)}]"
    if entry.default not in (None, "False"):
        description += f" [default: {entry.default}]"
    body = textwrap.wrap(" ".join(description.split()), max(width - _NAMES_WIDTH - 1, 20)) or [""]
    if len(names) > _NAMES_WIDTH - 4:
        return [f"  {names}", *(" " * _NAMES_WIDTH + line for line in body)]
    return [f"  {names.ljust(_NAMES_WIDTH - 2)}{body[0]}", *(" " * _NAMES_WIDTH + line for line in body[1:])]
