#!/bin/sh
# Tests and measures everything that needs a GPU, on one NVIDIA GPU, without a network, in at most
# nine minutes (--quick: seven), or in what --budget gives.
#
#   sh scripts/gpu-check.sh [--quick] [--budget SECONDS] [--stages NAME,NAME...]
#                           [--binaries DIR|TARBALL] [--plans FILE] [--out DIR] [-- ARGUMENT...]
#
#   --budget     seconds in all (default: 530; --quick: 420)
#   --stages     only these, each with an equal share of what time is left; before bench not more of it than
#                usual, so that bench has the rest
#   --binaries   what scripts/gpu-pack.sh made, or a build folder (default: build/cuda)
#   --plans      begin with the plans of convolutions in this file, another run's GPU-DATE.plans
#   --out        where the results go (default: measurements): GPU-DATE.json, .md, .log and .plans,
#                written again after every stage, so that what is cut off keeps what it has. A further
#                run on that day and machine adds to the record, a stage run again replaces itself (bench with
#                other contestants is beside it); a run of another commit has a record of its own (GPU-DATE-2)
#   -- ...       arguments for scripts/bench-gpu, which replace the usual ones one by one
#
# Stages, in this order:
#   device-properties  as cuDNN reads them
#   conformance        every operation against the reference on fresh random inputs
#   bench              speed and memory, outputs and gradients beside PyTorch's
#   loss-curves        losses of FP32 and mixed precision over 200 steps
#   invariants         what must be the same to the bit
#   profile            `amp profile`
#   leaky-slope        whether cuDNN's fused batch-norm engines honour one (only reported)
#   engines            convolutions against the reference, by the engines that are fastest here
#   memcheck racecheck compute-sanitizer where it is
# A stage passes, fails, is skipped with a reason, or is cut off: nothing of ours went wrong, but not all of it
# was done, for lack of time or since PyTorch failed. After a failure the next ones run, and the exit status is
# 1 at the end; 75 where nothing failed but something was cut off, which a program that hangs on the device is
# too. Without a GPU: one line, exit status 77.
#
# Where the machine is there for half an hour, three runs, each with --budget 480, show most:
#   gpu-check.sh ... --stages device-properties,conformance,bench
#   gpu-check.sh ... --plans FILE --stages loss-curves,invariants,profile,leaky-slope,engines,memcheck,racecheck
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --batches 4,16 \
#       --contestants fixed,fp16,stock,torch-compile,torch
# The first compares with PyTorch and decides at 16 images against PyTorch eager, the third against
# torch.compile and stock Darknet in FP32, with 4 images also against PyTorch eager. In another half hour:
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --batches 64 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --models yolov3-tiny-416,yolov2-416,darknet53-256 \
#       --contestants fixed,torch,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --contestants fp16,fp32,tf32,bf16,stock,stock-tf32
# All models, batches, peers and the rate with the loader are twelve more, each with --budget 480, three in a half hour:
#   gpu-check.sh ... --plans FILE --stages bench -- --models yolov3-608,darknet19-256 --batches 4 --contestants fixed
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov3-608 --batches 4 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov3-608 --batches 16 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov3-608 --batches 64 --separate --rounds 1 \
#       --seconds 5 --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov3-tiny-416 --batches 4,16,64 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov2-416 --batches 4,16,64 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models darknet19-256 --batches 4,16,64 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models darknet53-256 --batches 4,16 --rounds 3 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models darknet53-256 --batches 64 \
#       --contestants fixed,torch,torch-compile,fp16,stock
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov3-416,yolov3-608,yolov3-tiny-416,yolov2-416 \
#       --batches 4,16,64 --rounds 1 --contestants fp16 --end-to-end
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov3-416,yolov3-tiny-416 \
#       --batches 4,16,64 --rounds 1 --contestants fp16 --alexeyab CHECKOUT/darknet
#   gpu-check.sh ... --plans FILE --stages bench -- --no-check --models yolov3-608,yolov2-416 \
#       --batches 4,16,64 --rounds 1 --contestants fp16 --alexeyab CHECKOUT/darknet
# By estimate 280 s for each batch of yolov3-608 (our plans 40, PyTorch's timing 30, torch.compile 150, the others 20,
# five rounds 40), 230 s for darknet53, 140 s for the others, 35 s for a rate with the loader and 45 s beside
# AlexeyAB's program; what does not fit is named, and the same call with less of it goes on. yolov3-608 with 64
# images fills the card with two contestants: there they run one after the other.
# CHECKOUT is yours, of AlexeyAB's Darknet, built for the card (90: its compute capability) with
#   make GPU=1 CUDNN=1 CUDNN_HALF=1 OPENCV=0 ARCH="-gencode arch=compute_90,code=[sm_90,compute_90]"
# and --quick where it is there for less: yolov3-tiny, and none of the stages after bench but leaky-slope.
# Where every run has a folder of its own, copy what the one before left there first: then there is one record.
#
# Plans are timed once, all engines for every convolution: tens of seconds for a network and a batch. They
# are kept in $XDG_CACHE_HOME/darknet-amp, with --plans in a folder of this run alone. PyTorch keeps none: for
# yolov3 each of its processes times cuDNN's engines for about half a minute, by estimate, and torch.compile
# compiles for minutes.
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
