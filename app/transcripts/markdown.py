"""A reply, which is Markdown, made fit to stand inside another document; and any text inside a fence.

The one thing a reader would get wrong: what counts is what a Markdown parser would see, and where that depends on what
surrounds a line, both readings must be harmless. So a fence inside a list is closed where its indentation ends, and
once a backtick has no partner on its line, nothing up to the next blank line is taken for code.
Source of the rules: CommonMark 0.31, sections 4.2, 4.3, 4.5, 6.1.
"""

import re

from app.sanitize import visible

_OPENS = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r"( {0,3})(#{1,6})(?=[ \t]|$)")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")
_LIVE = re.compile(r"(\\*)(<(?=[A-Za-z/!?])|!(?=\[))")


def inline(text: str) -> str:
    """One line of text with Markdown's signs escaped."""
    return re.sub(r"([\\`*_\[\]<>#!&|~])", r"\\\1", text)


def fenced(text: str) -> str:
    """Text in a fence longer than any in it, shown as it stands."""
    shown = visible(text)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", shown)), default=0))
    return f"{fence}text\n{shown}\n{fence}"


def contained(text: str) -> str:
    """The reply with what could leave its place taken out of it, and safe for a terminal.

    Outside code, HTML and pictures become text, and headings go two levels down, below those of the document. A fence
    that is open at the end is closed.
    """
    lines, fence, indent = list[str](), "", ""
    paragraph = _Paragraph()
    for line in visible(text).split("\n"):
        if fence and line.strip() and not line.startswith(indent):
            lines.append(indent + fence)
            fence = ""
        if fence:
            lines.append(line)
            if re.fullmatch(rf" {{0,3}}{re.escape(fence[0])}{{{len(fence)},}}[ \t]*", line):
                fence = ""
        elif opened := _OPENS.match(line):
            indent, fence = opened.groups()
            lines.append(line.replace("|", " "))  # or some parsers take it for the head of a table
            paragraph = _Paragraph()
        else:
            lines.append(paragraph.contained(line))
            if not line.strip():
                paragraph = _Paragraph()
    return "\n".join([*lines, indent + fence] if fence else lines)


class _Paragraph:
    """The lines since the last blank one."""

    def __init__(self) -> None:
        self._has_lines = False
        self._has_open_span = False

    def contained(self, line: str) -> str:
        """The next line, made harmless."""
        if self._has_lines and _UNDERLINE.match(line):
            line = "\\" + line.lstrip(" ")
        self._has_lines = True
        line = _HEADING.sub(lambda match: f"{match[1]}{'#' * min(6, len(match[2]) + 2)}", line, count=1)
        done, parts = 0, list[str]()
        for start, end in self._spans(line):
            parts += [_LIVE.sub(_escaped, line[done:start]), line[start:end]]
            done = end
        return "".join([*parts, _LIVE.sub(_escaped, line[done:])])

    def _spans(self, line: str) -> list[tuple[int, int]]:
        """The parts of the line that are code, whatever the lines after it are."""
        self._has_open_span |= "\\`" in line
        if self._has_open_span:
            return []
        runs = [found.span() for found in re.finditer("`+", line)]
        partner, later = dict[int, int](), dict[int, int]()
        for number in range(len(runs) - 1, -1, -1):
            length = runs[number][1] - runs[number][0]
            if length in later:
                partner[number] = later[length]
            later[length] = number
        spans, number = list[tuple[int, int]](), 0
        while number < len(runs):
            if number not in partner:
                self._has_open_span = True
                return spans
            start, end = runs[number][0], runs[partner[number]][1]
            if "|" not in line[start:end]:  # in a table it would end the cell, and the code with it
                spans.append((start, end))
            number = partner[number] + 1
        return spans


def _escaped(match: re.Match[str]) -> str:
    """The sign behind an even number of backslashes is live; behind an odd one it is escaped already."""
    backslashes, sign = match.groups()
    return match.group() if len(backslashes) % 2 else f"{backslashes}\\{sign}"
