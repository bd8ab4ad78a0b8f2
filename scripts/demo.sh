#!/bin/bash
# Trains the same small detector twice with unmodified Darknet, in FP32 and with mixed_precision=1,
# on real images, and compares the two: mAP, seconds per iteration, peak memory.
#
#   scripts/demo.sh [-y] [--data DIR] [--preset NAME]
#
#   -y             install missing packages without asking (also where there is no terminal to ask on)
#   --data DIR     your own data set in Darknet's format instead of the demo's garments: DIR holds one
#                  *.data file, or one *.names file with train.txt and valid.txt; relative paths in
#                  them are relative to DIR
#   --preset NAME  what is built and run: auto (default: cuda where an NVIDIA GPU is, else cpu; one line
#                  says why), cpu, cuda
#
# Installs what is missing (apt; CUDA for a GPU by scripts/get-cuda.sh), fetches and builds Darknet and
# the plugin, makes the data set, trains, evaluates. Everything it makes is in build/, darknet/upstream/
# and out/demo/; the result is out/demo/summary.json. Run it again as often as you like: finished steps
# are not repeated, the two trainings are.
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
