"""What the names of `fl` import at their first use. Run by PyInstaller."""

from fl import MODULES

hiddenimports = [
    *[module for module in MODULES if module != "fl"],
    *[f"fl.{name}" for name in MODULES["fl"]],
]
