"""Hooks of mkdocs.yml: the home page is README.md, the API reference has a page per package, links to sources lead on.

A page of docs/ links to files of the repository by relative paths, which GitHub follows. On the site, a module of the
package leads to its place in the API reference; any other file leads to the repository where ``REPO_URL`` names one,
and is plain text where not.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

REPO = Path(__file__).resolve().parent.parent
PACKAGES = {
    "edelweiss": "What `import edelweiss` offers.",
    "strategies": "The algorithms, one module each.",
    "problems": "Objectives: values, gradients, metrics.",
    "models": "Networks as flat vectors.",
    "datasets": "Sources of samples, splits, samplers.",
    "evidence": "Performance with its uncertainty.",
    "federation": "The loop without any algorithm in it, and the interfaces that an algorithm uses.",
    "config": "Keys of a run and of a site.",
    "web": "The frame of the pages.",
    "common": "Options, files, random streams.",
    "client_app": "The site.",
    "server_app": "The coordinator and the local engine.",
    "lab": "Studies: sweep, compare, report, importers.",
}
"""Every package, in the order of the reference, with its purpose."""

INTERNAL = ("__main__",)
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)")


def modules(package: str) -> list[str]:
    """Return the dotted names of a package and all its modules, the package first."""
    folder = REPO / package
    paths = sorted(path.relative_to(folder).with_suffix("") for path in folder.rglob("*.py") if path.is_file())
    if package == "edelweiss":  # its subpackages have pages of their own
        paths = [path for path in paths if len(path.parts) == 1]
    names = ["" if path.name == "__init__" and not path.parent.name else ".".join(path.parts) for path in paths]
    names = [name.removesuffix(".__init__") for name in names if name.rpartition(".")[2] not in INTERNAL]
    root = package if package == "edelweiss" else f"edelweiss.{package}"
    return [f"{root}.{name}" if name else root for name in sorted(names)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    readme = (REPO / "README.md").read_text(encoding="utf-8")
    pages = {"index.md": re.sub(r"\]\((?!\w+:)(?:docs/)?", lambda found: found[0].replace("docs/", ""), readme)}
    rows = [f"| [{name}]({name}.md) | {purpose} |" for name, purpose in PACKAGES.items()]
    pages["api/index.md"] = "\n".join(["# API reference\n", "| package | purpose |", "|---|---|", *rows])
    for name in PACKAGES:
        pages[f"api/{name}.md"] = f"# {name}\n\n" + "\n\n".join(f"::: {module}" for module in modules(name))
    for path, content in pages.items():
        files.append(File.generated(config, path, content=content))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, **_: Any) -> str:
    """Lead links that leave docs/ to the API reference, to the repository, or nowhere."""
    folder = posixpath.dirname(page.file.src_uri)
    top = "" if page.file.src_uri == "index.md" else "docs/"  # the home page is README.md, at the top

    def led(found: re.Match[str]) -> str:
        text, link = found.groups()
        place = posixpath.normpath(posixpath.join(top, folder, link.partition("#")[0]))
        inside = place.startswith("docs/") or (not top and (REPO / "docs" / place).exists())
        if "://" in link or link.startswith("#") or inside or page.file.src_uri.startswith("api/"):
            return found[0]
        package, _, rest = place.partition("/")
        if package in PACKAGES and rest.endswith(".py"):
            module = ".".join(("edelweiss", package, *rest.removesuffix(".py").removesuffix("__init__").split("/")))
            back = posixpath.relpath(f"api/{package}.md", folder or ".")
            return f"[{text}]({back}#{module.strip('.')})"
        if config.repo_url and (REPO / place).exists():
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{place})"
        return text if (REPO / place).exists() else found[0]

    return LINK.sub(led, markdown)
