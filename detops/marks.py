"""Writing of generated tables into pages, between two marks."""


def marks(name: str) -> tuple[str, str]:
    """Returns the comments around a table."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def fill(page: str, name: str, table: str) -> str:
    """Returns a page's text with a new table between its marks.

    Raises:
        ValueError: the page lacks a mark, or has them in the wrong order.
    """
    begin, end = marks(name)
    before, _, rest = page.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"fill: expected {begin} and after it {end} in the page")
    return f"{before}{begin}\n{table}{end}{after}"
