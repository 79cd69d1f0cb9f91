"""The structure of the packages, counted: `python -m tests.structure`.

For each package: the boxes (modules and folders directly in it), the arrows (imports between boxes), the floors (boxes
on the longest chain of imports), cycles, the share of comment lines. Then the longest files, the classes with the most
attributes, the tables of clients in fl, and how often the prose uses words that STYLE rules out.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("netq", "fl", "edge")
# Attributes that hold something for each client: mappings and sets of ids, members or tasks, and queues of ids.
TABLE = re.compile(r"^(dict|set|deque|OrderedDict|Counter)\[(tuple\[)?(uuid\.UUID|Key|bytes\b|object)")
MANY = 15  # attributes of a class
HARD_WORDS = re.compile(r"\b(whoever|nobody|somebody|beside)\b", re.IGNORECASE)


def modules(package: str) -> dict[str, ast.Module]:
    """Every module of a package by its dotted name."""
    found = {}
    for path in sorted((ROOT / package).rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        found[name] = ast.parse(path.read_text(encoding="utf-8"))
    return found


def imported(tree: ast.Module, names: set[str]) -> set[str]:
    """The modules among `names` that a module imports, at its top or in a function."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names} & names
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= inside & names or {node.module} & names
    return found


def graph(package: str) -> dict[str, set[str]]:
    """Which boxes of a package each box imports. `__init__` and `__main__` are no boxes: they import the others."""
    trees = modules(package)
    boxes: dict[str, set[str]] = {}
    for name, tree in trees.items():
        parts = name.split(".")
        if len(parts) == 1 or parts[1] == "__main__":
            continue
        targets = {other.split(".")[1] for other in imported(tree, set(trees)) if "." in other}
        boxes.setdefault(parts[1], set()).update(targets - {parts[1], "__main__"})
    return boxes


def floors(boxes: dict[str, set[str]]) -> tuple[int, list[str]]:
    """How many boxes the longest chain of imports has, and the boxes that import themselves through others."""
    reach = {box: _reachable(box, boxes) for box in boxes}
    cycles = sorted(box for box in boxes if box in reach[box])

    @cache
    def depth(box: str) -> int:
        return 1 + max((depth(other) for other in boxes[box] if box not in reach[other]), default=0)

    return max(map(depth, boxes), default=0), cycles


def _reachable(start: str, boxes: dict[str, set[str]]) -> set[str]:
    seen: set[str] = set()
    stack = [*boxes[start]]
    while stack:
        box = stack.pop()
        if box not in seen:
            seen.add(box)
            stack += boxes[box]
    return seen


def attributes(package: str) -> Counter[str]:
    """How many attributes each class assigns of itself, or declares as the mutable fields of a dataclass."""
    counted: Counter[str] = Counter()
    for name, tree in modules(package).items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                counted[f"{name}.{node.name}"] = len(
                    {
                        target.attr
                        for target in ast.walk(node)
                        if isinstance(target, ast.Attribute)
                        and isinstance(target.ctx, ast.Store)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == "self"
                    }
                    | _fields(node)
                )
    return counted


def _fields(node: ast.ClassDef) -> set[str]:
    """The fields of a dataclass that is not frozen."""
    decorators = [ast.unparse(each) for each in node.decorator_list]
    if not any(each.startswith("dataclass") and "frozen" not in each for each in decorators):
        return set()
    return {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }


def client_tables() -> list[str]:
    """The attributes of the server in fl that hold something for each client."""
    found = []
    for name, tree in modules("fl").items():
        if not name.startswith(("fl.server.", "fl.report")):
            continue
        for owner in [node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]:
            frozen = any("frozen" in ast.unparse(each) for each in owner.decorator_list)
            for node in ast.walk(owner):
                if isinstance(node, ast.AnnAssign) and TABLE.match(ast.unparse(node.annotation)) and not frozen:
                    attribute = ast.unparse(node.target)
                    if attribute.startswith("self.") or node in owner.body:
                        found.append(f"{owner.name}.{attribute.removeprefix('self.')}")
    return found


def comments(path: Path) -> tuple[int, int]:
    """Lines with a comment, and lines that are not blank."""
    text = path.read_text(encoding="utf-8")
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    lines = {token.start[0] for token in tokens if token.type == tokenize.COMMENT}
    return len(lines), sum(bool(line.strip()) for line in text.splitlines())


def main() -> None:
    """Print the counts."""
    print(f"{'package':8} {'modules':>8} {'lines':>7} {'boxes':>6} {'arrows':>7} {'floors':>7} {'comments':>9}  cycles")
    for package in PACKAGES:
        files = [*(ROOT / package).rglob("*.py")]
        boxes = graph(package)
        depth, cycles = floors(boxes)
        lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        noted, filled = map(sum, zip(*map(comments, files), strict=True))
        arrows = sum(map(len, boxes.values()))
        print(
            f"{package:8} {len(files):8} {lines:7} {len(boxes):6} {arrows:7} {depth:7} {100 * noted / filled:9.1f}"
            f"  {', '.join(cycles) or 'none'}"
        )
    sizes = [
        (len(path.read_text(encoding="utf-8").splitlines()), path)
        for p in PACKAGES
        for path in (ROOT / p).rglob("*.py")
    ]
    for size, path in sorted(sizes, reverse=True)[:3]:
        print(f"longest file: {path.relative_to(ROOT)}, {size} lines")
    counted = sum((attributes(package) for package in PACKAGES), Counter[str]())
    for name, count in counted.most_common(3):
        print(f"most attributes: {name}, {count}")
    print(f"classes with more than {MANY} attributes: {sum(count > MANY for count in counted.values())}")
    tables = client_tables()
    print(f"tables of clients in fl's server: {len(tables)}: {', '.join(tables)}")
    for folder, pattern in (*((package, "*.py") for package in PACKAGES), ("docs", "*.md")):
        texts = [path.read_text(encoding="utf-8") for path in (ROOT / folder).rglob(pattern)]
        hard = sum(bool(HARD_WORDS.search(line)) for text in texts for line in text.splitlines())
        print(f"hard words: {folder}, {hard} lines")


if __name__ == "__main__":
    main()
