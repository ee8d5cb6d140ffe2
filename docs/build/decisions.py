"""For the pages: decision records, in order, are the last section of the navigation. A MkDocs hook."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def on_config(config: Any) -> Any:
    """Adds the section, so that a new record need not be listed in mkdocs.yml."""
    docs = Path(config.docs_dir)
    records = sorted(docs.glob("decisions/*.md"))
    config.nav.append({"Decisions": [record.relative_to(docs).as_posix() for record in records]})
    return config
