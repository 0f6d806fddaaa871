"""The README as a package index shows it; everything else of the package is declared in pyproject.toml.

An index shows the text alone: a link to a file of the repository leads nowhere there. It becomes absolute where
[project.urls] names the repository as `Source`, else plain text; pictures likewise, or they are left out.
"""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def for_index(text: str, source: str | None) -> str:
    """The text without links that are relative."""
    address = f"{source.rstrip('/')}/raw/main/" if source else None
    picture = r"!\[([^]]*)\]\((?!\w+:)([^)]*)\)"
    link = r"\[([^]]*)\]\((?!\w+:|#)([^)]*)\)"
    text = re.sub(picture, (rf"![\1]({address}\2)" if address else ""), text)
    return re.sub(link, (rf"[\1]({source.rstrip('/')}/blob/main/\2)" if source else r"\1"), text)


if __name__ == "__main__":
    project = tomllib.loads((HERE / "pyproject.toml").read_text("utf-8"))["project"]
    readme = for_index((HERE / "README.md").read_text("utf-8"), project.get("urls", {}).get("Source"))
    setup(long_description=readme, long_description_content_type="text/markdown")
