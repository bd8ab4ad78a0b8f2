#!/bin/bash
# Is mixed precision as accurate as FP32 on your data, and what does it gain? Trains pairs of runs that differ in
# the precision only (same initial weights, images and augmentation) and writes a page about them. CFG is a
# detector's or a classifier's.
#
#   scripts/compare.sh DATA CFG [WEIGHTS] [options]
#
#   DATA                 a data file, whose paths start at the current folder as in Darknet; or a folder with
#                        one *.data file, or with one *.names file, train.txt and valid.txt, whose paths start
#                        at that folder
#   WEIGHTS              all runs start from these (with -clear); without them the seed draws the weights
#   --seeds N            pairs of runs (default: 5, the fewest that give a verdict)
#   --iterations N       instead of the cfg's max_batches; scales steps, not burn_in
#   --variant NAME:KEY=VALUE,..
#                        compare this too: mixed_precision=1 with these keys under [net], or layerN.KEY for
#                        layer N; e.g. bf16:amp_dtype=bf16, static:loss_scale=128,
#                        head:layer12.mixed_precision=0; may be repeated
#   --control            train FP32 once more per seed, with a learning rate 0.01 % higher: how far do runs
#                        end apart by chance? A difference inside that is no verdict
#   --stock              compare stock Darknet's own code too, with one seed; not for cfgs of AlexeyAB's rules
#   --stock-seeds N      the same with N seeds
#   --margin X           differences up to X count as equal (default: 0.01, one point of mAP)
#   --metric NAME        metric of the verdict: map50 (default), map75, map (COCO's, [.5:.95]); of a classifier
#                        top1 (default), top5
#   --map-every N        measure it every N iterations (default: a tenth of them); 0: not during training
#   --samples N          show a detector's boxes on N validation images (default: 3)
#   --out DIR            folder for runs and results (default: out/compare)
#   --report-only        train nothing; report on the runs in --out
#   --gpu N              number of the GPU; -1: none
#   --preset NAME        build and run this: auto (default: cuda if there is an NVIDIA GPU, else cpu), cpu, cuda
#   -y                   install missing packages without asking
#
# Installs what is missing (by apt; CUDA by scripts/get-cuda.sh), builds Darknet and the plugin, trains and
# evaluates. Stop it when you like: the same command goes on from there. Finished runs are not repeated, and you
# can add seeds and variants later. Results: DIR/report.html (one file to send on), report.json (the record for
# measurements/: settings, figures of every run, verdicts, machine) and report.md.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }

# Whether a row of the usage begins with this option.
is_known() { usage | awk -v word="${1%%=*}" '$1 == word { found = 1 } END { exit !found }'; }

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
    *)
        # A number may be negative: --gpu -1
        if [[ $1 == -[!0-9]* ]] && ! is_known "$1"; then
            usage >&2
            fail "unknown argument $1"
        fi
        arguments+=("$1")
        ;;
    esac
    shift
done
if [ ${#arguments[@]} -lt 2 ]; then
    usage >&2
    fail "DATA and CFG are needed"
fi

set_up "$preset" python3-scipy
exec /usr/bin/python3 -B "$root/scripts/compare" --darknet "$program" "${arguments[@]}"
