"""The installed version, of netq, fl and edge alike: they are one distribution."""

from __future__ import annotations

DISTRIBUTION = "netq-fl"  # the name on the package index; `netq` is another project there


def version() -> str:
    """Return the version; "unknown" if the packages are used without being installed."""
    import importlib.metadata  # 2 MB of modules, which an agent does not need

    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
