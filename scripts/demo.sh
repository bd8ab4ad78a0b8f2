#!/bin/bash
# Trains the same small detector twice with unmodified Darknet, in FP32 and with mixed_precision=1,
# on real images, and compares the two: mAP, seconds per iteration, peak memory.
#
#   scripts/demo.sh [-y] [--data DIR]
#
#   -y          install missing packages without asking (also where there is no terminal to ask on)
#   --data DIR  your own data set in Darknet's format instead of the demo's garments: DIR holds one
#               *.data file, or one *.names file with train.txt and valid.txt; relative paths in
#               them are relative to DIR
#
# Installs what is missing (apt), fetches and builds Darknet and the plugin, makes the data set,
# trains, evaluates. Everything it makes is in build/, darknet/upstream/ and out/demo/; the result is
# out/demo/summary.json. Run it again as often as you like: finished steps are not repeated, the two
# trainings are.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

fail() {
    echo "demo: $*" >&2
    exit 1
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_missing PACKAGE...: installs those that are not there; $yes=1: without asking.
install_missing() {
    local package missing=() as_root=()
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "These packages are missing: ${missing[*]}"
    if [ "$yes" = 0 ] && [ -t 0 ]; then
        read -r -p "Install them with apt-get now? [y/N] " answer
        case $answer in [yY]*) ;; *) fail "nothing installed" ;; esac
    fi
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "run this as root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"
}

yes=0
data=
while [ $# -gt 0 ]; do
    case $1 in
    -y) yes=1 ;;
    --data)
        [ -n "${2-}" ] || fail "--data needs a folder"
        [ -d "$2" ] || fail "--data $2: no such folder"
        data=$(cd "$2" && pwd)
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        fail "unknown argument $1"
        ;;
    esac
    shift
done

command -v dpkg-query >/dev/null || fail "this script needs Debian 12 or Ubuntu 24.04, or later"
packages=(build-essential cmake pkg-config dpkg-dev xz-utils patch ca-certificates
    libopencv-dev libdnnl-dev python3 python3-numpy python3-pil)
[ -n "$data" ] || packages+=(dataset-fashion-mnist)
install_missing "${packages[@]}"

cd "$root"
echo "== Darknet's source"
scripts/get-darknet.sh
echo "== Build"
cmake --preset cpu
cmake --build --preset cpu --parallel "$(nproc)"

exec /usr/bin/python3 scripts/demo.py ${data:+--data "$data"}
