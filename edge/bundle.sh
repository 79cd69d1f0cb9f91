#!/bin/sh
# Installs the edge agent on a board without a network, from the wheels in this folder, which `make bundle` has made.
#
#     sh install.sh [FOLDER]     FOLDER: of the new virtual environment; /opt/edge
#
# PYTHON=python3.13 names another Python than python3.
set -eu
umask 022 # the service runs as another user

machine=@MACHINE@
pythons="@PYTHONS@"
extras="@EXTRAS@"
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:-/opt/edge}
python=${PYTHON:-python3}

fail() {
    echo "install.sh: $1" >&2
    exit 1
}

[ "$(uname -m)" = "$machine" ] || fail "this machine is $(uname -m), and the wheels are for $machine"
(cd "$here" && sha256sum --quiet --check SHA256SUMS) || fail "a file is damaged or missing; copy the folder again"
command -v "$python" > /dev/null || fail "there is no $python; install Python, or name another one with PYTHON="
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
"$python" -c 'import sys; sys.exit(sys.maxsize < 2**32)' || fail "$python is a program of 32 bits; install a 64-bit system"
case " $pythons " in
*" $version "*) ;;
*) fail "$python is $version, and the wheels are for $pythons; make them with: make bundle PYTHONS=$version" ;;
esac
# An older bundle's environment stays: a slow board takes long to make it again.
found=$("$folder/bin/python" -I -c 'import pip, sys; print("%d.%d" % sys.version_info[:2])' 2> /dev/null || true)
[ "$found" = "$version" ] || "$python" -m venv "$folder" ||
    fail "no virtual environment in $folder; Debian has venv in the package python3-venv"
# --force-reinstall: the version of a new bundle may be that of the old one.
"$folder/bin/python" -I -m pip install --quiet --isolated --disable-pip-version-check --no-index --find-links "$here" \
    --force-reinstall "netq-fl[$extras]"
"$folder/bin/edge" --version
echo "installed in $folder; next: $folder/bin/edge check CLIENT.toml, then $folder/bin/edge install CLIENT.toml"
