#!/bin/sh
# Tests and measures everything that needs a GPU, on one NVIDIA GPU, without a network, in at most
# nine minutes (--quick: four).
#
#   scripts/gpu-check.sh [--quick] [--stages NAME,NAME...] [--binaries DIR|TARBALL] [--out DIR]
#                        [-- ARGUMENT...]
#
#   --stages     only these
#   --binaries   what scripts/gpu-pack.sh made, or a build folder (default: build/cuda)
#   --out        where the results go (default: measurements): GPU-DATE.json, .md and .log, written
#                again after every stage, so that what is cut off keeps what it has
#   -- ...       arguments for scripts/bench-gpu in place of the usual ones
#
# Stages, in this order:
#   device-properties  as cuDNN reads them
#   conformance        every operation against the reference on fresh random inputs
#   loss-curves        losses of FP32 and mixed precision over 200 steps (--quick: 52)
#   invariants         what must be the same to the bit
#   bench              speed and memory, outputs and gradients beside PyTorch's
#   profile            `amp profile`
#   leaky-slope        whether cuDNN's fused batch-norm engines honour one (only reported)
#   engines            convolutions against the reference, by the engines that are fastest here
#   memcheck racecheck compute-sanitizer where it is
# A stage passes, fails, or is skipped with a reason (exit status 77); after a failure the next ones
# run, and the exit status is 1 at the end. Without a GPU: one line, exit status 77.
#
# Plans of convolutions are timed once, and kept where they always are ($XDG_CACHE_HOME/darknet-amp).
#
# CUDA's libraries and cuDNN are also found in the nvidia/* packages of python3's environment, and
# then those are used, so that PyTorch and Darknet run on the same cuDNN.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    echo "gpu-check.sh: $*" >&2
    exit 1
}

quick=0
stages=
binaries=$root/build/cuda
out=$root/measurements
while [ $# -gt 0 ]; do
    case "$1" in
    --quick) quick=1 ;;
    --stages) stages=${2:?--stages needs names} && shift ;;
    --binaries) binaries=${2:?--binaries needs a folder or tarball} && shift ;;
    --out) out=${2:?--out needs a folder} && shift ;;
    --)
        shift
        break
        ;;
    *) fail "unknown argument \"$1\"; usage: scripts/gpu-check.sh [--quick] [--stages NAMES] [--binaries DIR] [--out DIR]" ;;
    esac
    shift
done

names="device-properties conformance loss-curves invariants bench profile leaky-slope engines memcheck racecheck"
for name in $(echo "$stages" | tr ',' ' '); do
    case " $names " in *" $name "*) ;; *) fail "no stage \"$name\"; there are: $names" ;; esac
done

if [ "${CUDA_VISIBLE_DEVICES-all}" = "" ] || { ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ]; }; then
    echo "SKIPPED gpu-check: no NVIDIA GPU here (no answer from nvidia-smi, no /dev/nvidia0, or hidden)"
    exit 77
fi

if [ "$quick" = 1 ]; then budget=240; else budget=530; fi
started=$(date +%s)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$binaries" ]; then
    mkdir "$work/binaries"
    tar -C "$work/binaries" -xf "$binaries" || fail "cannot unpack $binaries"
    binaries=$work/binaries
fi
binaries=$(cd "$binaries" && pwd) || fail "no folder $binaries"
[ -x "$binaries/bin/bench_step" ] || fail "$binaries/bin/bench_step is missing; build the preset cuda"

python_libraries=$(
    python3 - <<'PYTHON'
import glob, importlib.util
found = importlib.util.find_spec("nvidia")
print(":".join(folder for path in (found.submodule_search_locations if found else [])
               for folder in sorted(glob.glob(path + "/*/lib"))))
PYTHON
)
LD_LIBRARY_PATH=$binaries/lib${python_libraries:+:$python_libraries}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
XDG_CACHE_HOME=${XDG_CACHE_HOME:-${HOME:-$work}/.cache}
PYTHONDONTWRITEBYTECODE=1
AMP_BINARIES=$binaries
AMP_WORK=$work
export LD_LIBRARY_PATH XDG_CACHE_HOME PYTHONDONTWRITEBYTECODE AMP_BINARIES AMP_WORK

missing=$(ldd "$binaries"/bin/* "$binaries"/lib/*.so* "$binaries"/tests/*gpu_* 2>&1 |
    awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
[ -z "$missing" ] || fail "not found: $missing; install them, or their nvidia-* packages for python3"

# ---- stages ----

failures=0
reported=0
: >"$work/stages"

left() {
    echo $((budget - $(date +%s) + started))
}

# note NAME RESULT SECONDS REASON
note() {
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$work/stages"
    printf '%-24s %-8s %4s s  %s\n' "$@"
    python3 "$root/scripts/gpu_report.py" "$work" "$out" >"$work/report"
    reported=$?
}

# stage NAME MOST_SECONDS COMMAND...
stage() {
    name=$1
    limit=$2
    shift 2
    case ",${stages:-$name}," in *",$name,"*) ;; *) return ;; esac
    if [ "$(left)" -lt 5 ]; then
        note "$name" skipped 0 "no time left of $budget s"
        return
    fi
    [ "$(left)" -ge "$limit" ] || limit=$(left)
    begin=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$work/$name.log" 2>&1
    status=$?
    seconds=$(($(date +%s) - begin))
    last=$(grep -v '^ *$' "$work/$name.log" | tail -n 1 | tr '\t' ' ' | cut -c 1-300)
    case $status in
    0) note "$name" pass "$seconds" "" ;;
    77) note "$name" skipped "$seconds" "$last" ;;
    *)
        failures=$((failures + 1))
        case $status in 124 | 137) last="stopped after $limit s; last: $last" ;; esac
        note "$name" FAIL "$seconds" "$last"
        sed 's/^/    /' "$work/$name.log" | tail -n 25
        ;;
    esac
}

# bench KEPT ARGUMENT...: with all the time left but so many seconds, for the stages after it.
bench() {
    time=$(($(left) - $1))
    [ -z "$stages" ] || time=$(left)
    shift
    # The run in progress when the budget ends may take a minute.
    stage bench $((time > 5 ? time : 5)) python3 "$root/scripts/bench-gpu" --binaries "$binaries" \
        --budget $((time - 60)) --json "$work/bench.json" "$@"
}

part=$root/scripts/gpu-stage.sh
darknet=$binaries/bin/darknet
stage device-properties 60 "$part" properties
if [ "$quick" = 1 ]; then
    stage conformance 90 "$part" conformance 1 0
    stage loss-curves 60 python3 "$root/tests/gpu/loss_curves.py" "$darknet" --steps 52 --dtypes fp16 \
        --json "$work/losses.json"
    [ $# -gt 0 ] || set -- --models yolov3-tiny-416 --batches 16 --rounds 3 --seconds 0.5 \
        --contestants stock-tf32,fp16,fixed,torch
    bench 0 "$@"
else
    stage conformance 120 "$part" conformance 3 40
    stage loss-curves 90 python3 "$root/tests/gpu/loss_curves.py" "$darknet" --json "$work/losses.json"
    stage invariants 90 python3 "$root/tests/gpu/invariants.py" "$darknet"
    # With 64 images, two stock Darknets of yolov3 beside ours (50 GB each) fill any card: --separate.
    [ $# -gt 0 ] || set -- --models yolov3-416,darknet53-256,yolov3-tiny-416 --batches 16,4 \
        --rounds 3 --seconds 0.5 --contestants stock-tf32,fp16,fixed,fixed-one-stream,torch,torch-graphs
    bench 100 "$@"
    stage profile 60 python3 "$root/tests/gpu/profile.py" "$darknet"
fi
stage leaky-slope 60 "$part" leaky_slope
if [ "$quick" = 0 ]; then
    stage engines 300 "$part" engines
    stage memcheck 150 "$part" sanitize memcheck 60
    stage racecheck 150 "$part" sanitize racecheck 60
fi

[ -f "$work/report" ] || fail "--quick has none of these stages: $stages"
cat "$work/report"
[ "$reported" = 0 ] || failures=$((failures + 1))
echo "$failures failures, $(($(date +%s) - started)) s"
[ $failures = 0 ]
