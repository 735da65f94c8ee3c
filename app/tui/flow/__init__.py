"""Markdown as rows of styled text: no widget, no colour, nothing that waits. The transcript paints what it makes."""
