#!/bin/sh
# Tests and measures everything that needs a GPU, on one NVIDIA GPU, without a network, in at most nine minutes
# (--quick: seven), or in what --budget gives.
#
#   sh scripts/gpu-check.sh [--quick] [--budget SECONDS] [--stages NAME,NAME...]
#                           [--binaries DIR|TARBALL] [--plans FILE] [--out DIR] [-- ARGUMENT...]
#
#   --quick      yolov3-tiny; after bench only leaky-slope
#   --budget     seconds in all (default: 530; --quick: 420)
#   --stages     only these; they share the time equally, but a stage before bench takes no more than usual, so
#                that bench has the rest
#   --binaries   a folder or tarball made by scripts/gpu-pack.sh, or a build folder (default: build/cuda)
#   --plans      start with the plans of convolutions in this file, which is another run's GPU-DATE.plans
#   --out        folder for the results (default: measurements): GPU-DATE.json, .md, .log and .plans. They are
#                written after every stage, so a run that is cut off keeps what it has. Another run on the same
#                day, machine and commit adds to the record; a stage that runs again replaces itself, and runs of
#                bench with other contestants stand side by side. Another commit gets its own record (GPU-DATE-2)
#   -- ...       arguments for scripts/bench-gpu; each replaces the usual one
#
# Stages, in this order:
#   device-properties  as cuDNN reads them
#   conformance        every operation against the reference on fresh random inputs
#   bench              speed and memory; outputs and gradients compared with PyTorch's
#   loss-curves        losses of FP32 and mixed precision over 200 steps
#   invariants         what must be the same to the bit
#   profile            `amp profile`
#   leaky-slope        whether cuDNN's fused batch-norm engines honour one (reported only)
#   engines            convolutions against the reference, by the engines that are fastest here
#   memcheck racecheck compute-sanitizer, if it is installed
# A stage passes, fails, is skipped with a reason, or is cut off: nothing of ours went wrong, but time ran out or
# PyTorch failed. The other stages run after a failure too. Exit status: 1 after a failure; 75 if nothing failed
# but something was cut off, also by a program that hangs on the device; 77 without a GPU, with one line.
#
# In half an hour on a machine three runs, each with --budget 480, show most:
#   gpu-check.sh ... --stages device-properties,conformance,bench
#   gpu-check.sh ... --plans FILE --stages loss-curves,invariants,profile,leaky-slope,engines,memcheck,racecheck
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --batches 4,16 \
#       --contestants fixed,fp16,stock,torch-compile,torch
# The first compares with PyTorch eager at 16 images, the third with torch.compile and stock Darknet in FP32, and
# at 4 images with PyTorch eager. More models and batches: the third call with --models and --batches. It names
# what does not fit, and the same call with less of it goes on. By estimate a batch takes 280 s for yolov3-608,
# 230 s for darknet53 and 140 s for the others; --end-to-end adds 35 s, --alexeyab 45 s. yolov3-608 with 64 images
# fills the card with two contestants: add --separate --rounds 1 --seconds 5. If every run has a folder of its
# own, copy the folder of the run before into it first: then there is one record.
# For --alexeyab build AlexeyAB's Darknet for the card (90: its compute capability) with
#   make GPU=1 CUDNN=1 CUDNN_HALF=1 OPENCV=0 ARCH="-gencode arch=compute_90,code=[sm_90,compute_90]"
#
# Plans are timed once, with all engines for every convolution: tens of seconds for a network and a batch. They
# are kept in $XDG_CACHE_HOME/darknet-amp, with --plans in a folder of this run alone. PyTorch keeps none: for
# yolov3 each of its processes times cuDNN's engines for about half a minute, and torch.compile takes minutes.
#
# If python3's environment has CUDA's libraries and cuDNN in nvidia/* packages, PyTorch and Darknet both use those.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    echo "gpu-check.sh: $*" >&2
    exit 1
}

quick=0
budget=
usual_budget=530
stages=
binaries=$root/build/cuda
plans=
out=$root/measurements
while [ $# -gt 0 ]; do
    case "$1" in
    --quick) quick=1 ;;
    --budget) budget=${2:?--budget needs seconds} && shift ;;
    --stages) stages=${2:?--stages needs names} && shift ;;
    --binaries) binaries=${2:?--binaries needs a folder or tarball} && shift ;;
    --plans) plans=${2:?--plans needs a file} && shift ;;
    --out) out=${2:?--out needs a folder} && shift ;;
    --)
        shift
        break
        ;;
    *) fail "unknown argument \"$1\"; usage: scripts/gpu-check.sh [--quick] [--budget SECONDS] [--stages NAMES] [--binaries DIR] [--plans FILE] [--out DIR]" ;;
    esac
    shift
done

names="device-properties conformance bench loss-curves invariants profile leaky-slope engines memcheck racecheck"
case $budget in *[!0-9]* | 0*) fail "--budget $budget: not a number of seconds" ;; esac
for name in $(echo "$stages" | tr ',' ' '); do
    case " $names " in *" $name "*) ;; *) fail "no stage \"$name\"; there are: $names" ;; esac
done

if [ "${CUDA_VISIBLE_DEVICES-all}" = "" ] || { ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ]; }; then
    echo "SKIPPED gpu-check: no NVIDIA GPU here (no answer from nvidia-smi, no /dev/nvidia0, or hidden)"
    exit 77
fi

[ "$quick" = 0 ] || usual_budget=420
budget=${budget:-$usual_budget}
started=$(date +%s)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ -f "$binaries" ]; then
    mkdir "$work/binaries"
    tar -C "$work/binaries" -xf "$binaries" 2>"$work/tar.err" ||
        python3 -m tarfile -e "$binaries" "$work/binaries" || # where tar finds no xz
        fail "cannot unpack $binaries: $(cat "$work/tar.err")"
    binaries=$work/binaries
fi
binaries=$(cd "$binaries" && pwd) || fail "no folder $binaries"
[ -x "$binaries/bin/bench_step" ] || fail "$binaries/bin/bench_step is missing; build the preset cuda"

# A library that PyTorch also uses is to be the one it came with.
LD_LIBRARY_PATH=$(PYTHONPATH=$root/scripts${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1 \
    python3 -c 'import bench_lib, sys; print(bench_lib.library_path(sys.argv[1]))' "$binaries") ||
    fail "python3 cannot run scripts/bench_lib.py"
XDG_CACHE_HOME=${XDG_CACHE_HOME:-${HOME:-$work}/.cache}
if [ -n "$plans" ]; then
    XDG_CACHE_HOME=$work/plans
    mkdir -p "$XDG_CACHE_HOME/darknet-amp"
    cp "$plans" "$XDG_CACHE_HOME/darknet-amp/plans" || fail "no plans in $plans"
fi
PYTHONDONTWRITEBYTECODE=1
AMP_BINARIES=$binaries
AMP_WORK=$work
export LD_LIBRARY_PATH XDG_CACHE_HOME PYTHONDONTWRITEBYTECODE AMP_BINARIES AMP_WORK

missing=$(ldd "$binaries"/bin/* "$binaries"/lib/*.so* "$binaries"/tests/*gpu_* 2>&1 |
    awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
[ -z "$missing" ] || fail "not found: $missing; install them, or their nvidia-* packages for python3"

# ---- stages ----

failures=0
cut=0
reported=0
asked=$(echo "$stages" | tr ',' '\n' | sort -u | grep -c .)
awaited=0
case ",$stages," in *,bench,*) awaited=1 ;; esac
# What the tests' harness and the sanitizer say of an error, long before they end.
error='^FAILED \|^========= \(Invalid\|Misaligned\|Error: Race\|Warning: Race\)'
: >"$work/stages"

left() {
    echo $((budget - $(date +%s) + started))
}

# share SECONDS: as many, or what is left; of --stages an equal part of that for each that is to come, but
# while bench is to come not more than so many.
share() {
    part=$(left)
    [ "$asked" -le 0 ] || part=$((part / asked))
    if [ "$asked" -gt 0 ] && [ $awaited = 0 ]; then
        echo "$part"
    else
        echo $(($1 < part ? $1 : part))
    fi
}

# note NAME RESULT SECONDS REASON
note() {
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$work/stages"
    printf '%-24s %-8s %4s s  %s\n' "$@"
    python3 "$root/scripts/gpu_report.py" "$work" "$out" >"$work/report"
    reported=$?
}

# run_stage MOST_SECONDS COMMAND...: again where an engine that made the device fault is left out the next time.
# bench-gpu does that itself.
run_stage() {
    seconds=$1
    AMP_END=$(($(date +%s) + seconds))
    export AMP_END
    shift
    for attempt in 1 2 3 4 5; do
        said=$(wc -c <"$work/$name.log")
        timeout -k 5 "$seconds" "$@"
        status=$?
        seconds=$((AMP_END - $(date +%s)))
        [ $status != 0 ] && [ $status != 75 ] && [ "$name" != bench ] && [ $seconds -gt 0 ] &&
            tail -c +$((said + 1)) "$work/$name.log" | grep -q 'left out from the next start on' || break
    done
    return $status
}

# stage NAME MOST_SECONDS COMMAND...
stage() {
    name=$1
    limit=$2
    shift 2
    case ",${stages:-$name}," in *",$name,"*) ;; *) return ;; esac
    limit=$(share "$limit")
    asked=$((asked - 1))
    if [ "$(left)" -lt 5 ]; then
        note "$name" skipped 0 "no time left of $budget s"
        return
    fi
    begin=$(date +%s)
    run_stage "$limit" "$@" >"$work/$name.log" 2>&1
    status=$?
    seconds=$(($(date +%s) - begin))
    last=$(tr '\t' ' ' <"$work/$name.log" | LC_ALL=C tr -cd '\n\40-\176' | grep -v '^ *$' | tail -n 1 | cut -c 1-300)
    if [ $status -ge 124 ] && [ $seconds -ge "$limit" ]; then
        last="stopped after $limit s; last: $last"
        status=75
    fi
    if [ $status = 75 ] && grep -q "$error" "$work/$name.log"; then status=1; fi
    case $status in
    0) note "$name" pass "$seconds" "" ;;
    75)
        cut=$((cut + 1))
        note "$name" "cut off" "$seconds" "$last"
        ;;
    77) note "$name" skipped "$seconds" "$last" ;;
    *)
        failures=$((failures + 1))
        note "$name" FAIL "$seconds" "$last"
        sed 's/^/    /' "$work/$name.log" | tail -n 25
        ;;
    esac
}

# bench KEPT ARGUMENT...: with all the time left but so many seconds, for the stages after it. It ends by
# itself, 30 s after its budget, and then writes its page.
bench() {
    awaited=0
    time=$(share $(($(left) - $1)))
    shift
    stage bench $((time > 5 ? time : 5)) python3 "$root/scripts/bench-gpu" --binaries "$binaries" \
        --budget $((time - 40)) --json "$work/bench.json" "$@"
}

part=$root/scripts/gpu-stage.sh
darknet=$binaries/bin/darknet
stage device-properties 30 sh "$part" properties
if [ "$quick" = 1 ]; then
    stage conformance 120 sh "$part" conformance 1 0
    bench 90 --models yolov3-tiny-416 --batches 16 --check-batch 16 --rounds 3 --seconds 0.5 \
        --contestants fixed,torch,stock-tf32,fp16 "$@"
    stage loss-curves 90 python3 "$root/tests/gpu/loss_curves.py" "$darknet" --dtypes fp16 \
        --json "$work/losses.json"
else
    stage conformance 150 sh "$part" conformance 3 40
    # In order of what is to be known first. What is checked is what is timed, and its plans are timed once: the
    # same batch. FP64 takes some 20 GB then. With 64 images, two stock Darknets of yolov3 beside ours (50 GB
    # each) fill any card: --separate.
    bench 120 --models yolov3-416 --batches 16 --check-batch 16 --rounds 3 --seconds 0.5 \
        --contestants fixed,torch,torch-graphs,stock-tf32,fp16 "$@"
    stage loss-curves 90 python3 "$root/tests/gpu/loss_curves.py" "$darknet" --json "$work/losses.json"
    stage invariants 90 python3 "$root/tests/gpu/invariants.py" "$darknet"
    stage profile 60 python3 "$root/tests/gpu/profile.py" "$darknet"
fi
stage leaky-slope 60 sh "$part" leaky_slope
if [ "$quick" = 0 ]; then
    stage engines 300 sh "$part" engines
    stage memcheck 240 sh "$part" sanitize memcheck
    stage racecheck 240 sh "$part" sanitize racecheck
fi

[ -f "$work/report" ] || fail "--quick has none of these stages: $stages"
cat "$work/report"
[ "$reported" = 0 ] || failures=$((failures + 1))
echo "$failures failures, $cut cut off, $(($(date +%s) - started)) s"
[ $failures = 0 ] || exit 1
[ "$cut" = 0 ] || exit 75
