"""Tables that are written into pages, between two marks."""


def marks(name: str) -> tuple[str, str]:
    """The comments around a table."""
    return f"<!-- {name}: begin -->", f"<!-- {name}: end -->"


def fill(page: str, name: str, table: str) -> str:
    """A page's text with another table between its marks."""
    begin, end = marks(name)
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n{table}{end}{rest.partition(end)[2]}"
