"""For the site of the docs (mkdocs.yml): files of the repository that are no pages of it are named, not linked."""

import re
from typing import Any

OUTSIDE = re.compile(r"\[([^\]]+)\]\(\.\./[^)]*\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The page's text without links that lead out of docs/."""
    return OUTSIDE.sub(r"\1", markdown)
