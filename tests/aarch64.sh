#!/bin/sh
# Installs the folder of `make bundle` in an emulated Debian for 64-bit ARM, lets its agent take part in a federation of
# this machine, and runs quick tests there. As root.
#
#     sh tests/aarch64.sh BUNDLE TOOLS ROOT PYTHON
#
# TOOLS: folder with the wheels of pytest; ROOT: of the emulated system; PYTHON: of this machine, with fl.
set -eu
bundle=$1 tools=$2 root=$3 python=$4
binfmt=/proc/sys/fs/binfmt_misc

which qemu-aarch64-static debootstrap > /dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends qemu-user-static debootstrap arch-test
}
[ -e $binfmt/register ] || mount -t binfmt_misc binfmt_misc $binfmt
[ -e $binfmt/qemu-aarch64 ] || grep -v '^#' /usr/lib/binfmt.d/qemu-aarch64.conf > $binfmt/register
[ -e "$root/etc/hosts" ] || {
    debootstrap --arch=arm64 --variant=minbase --include=python3,python3-venv bookworm "$root"
    echo "127.0.0.1 localhost" > "$root/etc/hosts"
}
rm -rf "$root/bundle" "$root/tools" "$root/work"
mkdir "$root/work"
cp -r "$bundle" "$root/bundle"
cp -r "$tools" "$root/tools"
cp -r tests docs examples pyproject.toml README.md CHANGELOG.md Makefile "$root/work"
rm -rf "$root/device"
"$python" -m tests.board "$root/device" &
trap "kill $! 2> /dev/null || true" EXIT

# The mounts end with the shell. Left out are a test of memory, which would count that of the emulator, and those of the
# script that has just run.
unshare --mount sh -euc '
    mount -t proc proc "$0/proc"
    mount --rbind /dev "$0/dev"
    exec chroot "$0" sh -euc "
        sh /bundle/install.sh /opt/edge
        /opt/edge/bin/netq doctor
        PYTHONPATH=/work timeout 300 /opt/edge/bin/edge run /device/client.toml
        /opt/edge/bin/pip install --quiet --isolated --no-index --find-links /tools --find-links /bundle \
            hypothesis paho-mqtt pytest pytest-timeout rich trustme
        cd /work
        /opt/edge/bin/python -m pytest -q -p no:cacheprovider -m \"not slow\" tests/netq/protocol tests/edge --ignore tests/edge/test_bundle.py \
            --deselect tests/netq/protocol/test_connection.py::test_huge_length_allocates_no_memory"
' "$root"
wait $!
