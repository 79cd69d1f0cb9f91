"""The settings of Sphinx, which makes a site of these pages: `make docs`. Offline; a warning is an error.

index.md is the table of contents: each of its `##` headings is a section of the sidebar, with the pages that it links.
Some of these are lists of links themselves (`HUBS`).
"""

from __future__ import annotations

import dataclasses
import inspect
import os
import re
import time
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"
LANGUAGES = {".py": "python", ".toml": "toml", ".conf": "text"}  # of the examples' files that the site shows
LONGEST = 300  # lines of such a file

project = "netq"
author = "the authors of netq"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton"]
html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_title = "netq, fl and edge"
html_show_copyright = html_show_sphinx = html_copy_source = False
html_theme_options = {"navigation_with_keys": True}

myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
highlight_language = "text"

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
default_role = "py:obj"
# Other projects' names have no page here, and this build fetches none; neither have modules that are not public.
nitpick_ignore_regex = [
    (
        "py:.*",
        r"(?!(netq|fl|edge)\.).*|netq\.(runtime|io)\..*|fl\.strategies\.server_optimizers\..*|fl\.config\..*|netq\.(cli|toml_file)\..*",
    )
]

# Classes that a function makes, or that users only receive: without the arguments of their constructors.
NO_SIGNATURE = {
    "netq.Communicator",
    "netq.exchange.Worker",
    "netq.exchange.Job",
    "netq.aio.Communicator",
    "netq.aio.Delivery",
    "netq.trio.Communicator",
    "netq.trio.Delivery",
    "fl.FailureKind",
    "fl.ClientState",
}


def setup(app: Sphinx) -> None:
    """Connect the functions below to the steps of a build."""
    app.add_lexer("hex", TextLexer)
    began = time.monotonic()
    app.connect("source-read", _add_contents)
    app.connect("source-read", _link_sources)
    app.connect("source-read", _add_examples)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-process-docstring", _to_rst)
    app.connect("missing-reference", _leave_as_code)
    app.connect("build-finished", lambda app, error: _report(app, time.monotonic() - began))


def _report(app: Sphinx, seconds: float) -> None:
    print(f"{len(app.env.found_docs)} pages in {seconds:.1f} s: {app.outdir}/index.html")


LOWER = ("netq", "fl ", "asyncio", "systemd")  # names that have no capital letter
# Pages whose lists of links are a part of the contents, as those of index.md are.
HUBS = ("queue", "reference/wire", "reference/python", "reference/measured", "explanation/transports")


def _add_contents(app: Sphinx, page: str, source: list[str]) -> None:
    """Append the sidebar's sections to index.md and to the hubs, from their own links and the texts of these."""
    if page == "index":
        sections = [each.partition("\n") for each in source[0].split("\n## ")[1:]]
    elif page in HUBS:
        sections = [("", "", source[0])]
    else:
        return
    for title, _, text in sections:
        links = re.findall(r"\[`?([^\]`]+)`?\]\(([\w/-]+)\.md\)", text)
        names = [" ".join(name.split()) for name, _ in links]
        names = [name if name.startswith(LOWER) else f"{name[:1].upper()}{name[1:]}" for name in names]
        entries = [f"{name} <{path}>" for name, (_, path) in zip(names, links, strict=True)]
        caption = [f":caption: {title}"] if title else []
        source[0] += "\n".join(["\n```{toctree}", ":hidden:", *caption, "", *entries, "```\n"])


def _link_sources(app: Sphinx, page: str, source: list[str]) -> None:
    """Link an example to the page of all examples. Show links to other files outside of docs/ as plain text."""
    source[0] = _linked(source[0], (DOCS / page).parent, (DOCS / page).parent)


def _linked(text: str, folder: Path, shown: Path) -> str:
    """Return a text of this folder as a page of the folder `shown` has it."""

    def link(found: re.Match[str]) -> str:
        target, anchor = (folder / found[2]).resolve(), found[3] or ""
        if not target.exists():  # a line of code
            return found[0]
        if target.is_relative_to(EXAMPLES):
            first = target.relative_to(EXAMPLES).parts[:1]
            target, anchor = DOCS / "examples.md", "".join(f"#{name}" for name in first if name != "README.md")
        if not target.is_relative_to(DOCS):
            return f"`{found[1].strip('`')}`"
        return f"[{found[1]}]({os.path.relpath(target, shown)}{anchor})"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!http)([^)#]+)(#[^)]*)?\)", link, text)


def _add_examples(app: Sphinx, page: str, source: list[str]) -> None:
    """Append a section for each folder of the examples, with its README and its files."""
    if page != "examples":
        return
    for name in re.findall(r"^\| \[(\w+)\]", (EXAMPLES / "README.md").read_text(), re.MULTILINE):
        readme = (EXAMPLES / name / "README.md").read_text().partition("\n")[2]
        source[0] += f"\n## {name}\n{_linked(re.sub('^#', '##', readme, flags=re.MULTILINE), EXAMPLES / name, DOCS)}\n"
        for path in sorted((EXAMPLES / name).rglob("*.*")):
            where = os.path.relpath(path, DOCS)
            if path.suffix == ".ipynb":
                source[0] += f"\n{{download}}`{path.name} <{where}>`\n"
            elif (language := LANGUAGES.get(path.suffix)) and 1 < len(path.read_text().splitlines()) < LONGEST:
                title = path.relative_to(EXAMPLES.parent)
                source[0] += f"""
```{{raw}} html
<details><summary><code>{title}</code></summary>
```

```{{literalinclude}} {where}
:language: {language}
```

```{{raw}} html
</details>
```
"""


def _signature(
    app: Sphinx, what: str, name: str, target: Any, options: Any, arguments: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Correct the signatures of classes with a `__new__` of their own, of fields with a factory, and of fl.simulate."""
    if name in NO_SIGNATURE:
        return "", None
    if arguments == "(*args: Any, **kwargs: Any)" and dataclasses.is_dataclass(target):
        arguments = re.sub(r": '([^']+)'", r": \1", str(inspect.signature(target).replace(return_annotation=())))[:-6]
    return arguments and arguments.replace("<factory>", "...").replace(
        "[Train | Client]", "[Train | fl.Client]"
    ), returns


def _to_rst(app: Sphinx, what: str, name: str, target: object, options: Any, lines: list[str]) -> None:
    """Turn blocks of `name: text` into lists, and other indented blocks into literal ones."""
    lines[:] = [line for block in "\n".join(lines).split("\n\n") for line in (*_block(block.splitlines()), "")]


ITEM = re.compile(r"(\w[\w, ()>-]*): +(\S.*)")  # such as `queue_size:  messages that may wait`


def _block(lines: list[str]) -> list[str]:
    # A single line is an item if it begins with the name of a parameter: "Source: …" is a sentence.
    is_list = lines and ITEM.fullmatch(lines[0]) and (len(lines) > 1 or re.match(r"[a-z_]+:", lines[0]))
    if is_list and all(line[0] == " " or ITEM.fullmatch(line) for line in lines):
        return [ITEM.sub(r"- ``\1``: \2", line) if line[0] != " " else f"  {line.strip()}" for line in lines]
    if any(line.startswith("    ") or re.search("[│├└─►]", line) for line in lines):
        return ["::", "", *(f"    {line}" for line in lines)]
    return lines


def _leave_as_code(app: Sphinx, env: Any, node: Any, content: nodes.Node) -> nodes.Node | None:
    """In docstrings `x` is a link where x is documented, and else just code."""
    return content if node.get("reftype") == "obj" else None
