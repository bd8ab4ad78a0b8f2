#!/bin/bash
# Trains a small detector twice on real images with unmodified Darknet, in FP32 and with mixed_precision=1, and
# compares mAP, seconds per iteration and peak memory.
#
#   scripts/demo.sh [-y] [--data DIR] [--preset NAME]
#
#   -y             install missing packages without asking (without a terminal nothing is asked either)
#   --data DIR     your own data set in Darknet's format: DIR holds one *.data file, or one *.names file with
#                  train.txt and valid.txt; relative paths in them start at DIR
#   --preset NAME  build and run this: auto (default: cuda if there is an NVIDIA GPU, else cpu), cpu, cuda
#
# Installs what is missing (by apt; CUDA by scripts/get-cuda.sh), builds Darknet and the plugin, makes the data
# set, trains and evaluates. Writes to build/, darknet/upstream/ and out/demo/ only; the result is
# out/demo/summary.json. Run it again as often as you like: it repeats the two trainings and nothing else.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

. "$root/scripts/setup.sh"

yes=0
data=
preset=auto
while [ $# -gt 0 ]; do
    case $1 in
    -y) yes=1 ;;
    --data)
        [ -n "${2-}" ] || fail "--data needs a folder"
        [ -d "$2" ] || fail "--data $2: no such folder"
        data=$(cd "$2" && pwd)
        shift
        ;;
    --preset)
        [ -n "${2-}" ] || fail "--preset needs a name"
        preset=$2
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

packages=()
[ -n "$data" ] || packages+=(dataset-fashion-mnist)
set_up "$preset" "${packages[@]}"

exec /usr/bin/python3 "$root/scripts/demo.py" --darknet "$program" ${data:+--data "$data"}
