#!/bin/bash
# Is mixed precision as accurate as FP32 on your data, and what is gained? Trains pairs that differ in
# nothing else (initial weights, order of the images, augmentation), and writes one page about them.
#
#   scripts/compare.sh DATA CFG [WEIGHTS] [options]
#
#   DATA                 a data file, paths in it relative to the working directory as in Darknet; or
#                        a folder with one *.data file, or one *.names file with train.txt and
#                        valid.txt, paths in them relative to the folder
#   WEIGHTS              what all runs start from (with -clear); without, weights drawn by the seed
#   --seeds N            pairs of runs, default 5
#   --iterations N       instead of the cfg's max_batches; steps in proportion, burn_in as it is
#   --variant NAME:KEY=VALUE,..
#                        one more to compare: mixed_precision=1 and these keys of [net], or
#                        layerN.KEY of layer N; e.g. bf16:amp_dtype=bf16, static:loss_scale=128,
#                        head:layer12.mixed_precision=0; may be repeated
#   --stock              also stock Darknet's own code, for one seed; --stock-seeds N: for N
#   --margin X           what counts as equal, default 0.01 (one point of mAP)
#   --metric NAME        what the verdict is on: map50 (default), map75, map (COCO's, [.5:.95])
#   --map-every N        mAP during training every N iterations, default a tenth of them, 0: none
#   --samples N          validation images that are shown with detections, default 3
#   --out DIR            default out/compare
#   --report-only        trains nothing, reports on what is in --out
#   --gpu N              which GPU, -1: none
#   --preset NAME        what is built and run: auto (default: cuda where an NVIDIA GPU is, else cpu; one
#                        line says why), cpu, cuda
#   -y                   install missing packages without asking
#
# Installs what is missing (apt; CUDA for a GPU by scripts/get-cuda.sh), fetches and builds Darknet and
# the plugin, trains, evaluates. Stop it when you like: the same command goes on where it was, finished
# runs are not repeated, and more seeds or variants are added to those that are there. The results are
# DIR/report.html (one file, to be sent as it is), report.json (the record for
# measurements/: settings, figures of every run, verdicts, machine) and report.md.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

. "$root/scripts/setup.sh"

yes=0
preset=auto
arguments=()
while [ $# -gt 0 ]; do
    case $1 in
    -y) yes=1 ;;
    --preset)
        [ -n "${2-}" ] || fail "--preset needs a name"
        preset=$2
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *) arguments+=("$1") ;;
    esac
    shift
done

set_up "$preset" python3-scipy
exec /usr/bin/python3 -B "$root/scripts/compare" --darknet "$program" "${arguments[@]}"
