"""What `netq.new` and SecurityOptions import. Run by PyInstaller."""

from netq.options import Protocol, Purpose

hiddenimports = [
    *[f"netq.{protocol}.{purpose}" for protocol in Protocol for purpose in Purpose],
    "netq.security.standard",
    "netq.security.openssl",
]
