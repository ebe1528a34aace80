"""How a count stands in a sentence."""


def counted(count: int, thing: str) -> str:
    """`1 row`, `3,000 rows`."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"
