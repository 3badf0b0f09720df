"""Tables that are written into pages, between two marks."""


def marks(name: str) -> tuple[str, str]:
    """The comments around a table."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def fill(page: str, name: str, table: str) -> str:
    """A page's text with another table between its marks.

    Raises:
        ValueError: the page lacks a mark, or has them in the other order.
    """
    begin, end = marks(name)
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"fill: expected {begin} and after it {end} in the page")
    return f"{before}{begin}\n{table}{end}{after}"
