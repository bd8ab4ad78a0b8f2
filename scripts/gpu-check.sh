#!/bin/sh
# Tests and measures what needs a GPU, on one NVIDIA GPU, without a network, in at most nine minutes (--quick:
# seven), or in what --budget gives.
#
#   sh scripts/gpu-check.sh [--quick] [--budget SECONDS] [--stages NAME,NAME...]
#                           [--binaries DIR|TARBALL] [--plans FILE] [--out DIR] [-- ARGUMENT...]
#
#   --quick      yolov3-tiny; after bench only leaky-slope
#   --budget     seconds in all (default: 530; --quick: 420)
#   --stages     only these
#   --binaries   a folder or tarball made by scripts/gpu-pack.sh, or a build folder (default: build/cuda)
#   --plans      start with the plans of convolutions in this file, which is another run's GPU-DATE.plans. It also says
#                what that run tried when it ended, so that an engine that hangs costs one run
#   --out        folder for the results (default: measurements): GPU-DATE.json, .md, .log and .plans. They are
#                written after every stage, so a run that is cut off keeps what it has. Another run on the same
#                day, machine and commit adds to the record; a stage that runs again replaces itself, and runs of
#                bench with other contestants stand side by side. Another commit gets its own record (GPU-DATE-2)
#   -- ...       arguments for scripts/bench-gpu; each replaces the usual one
#
# Stages, in this order, with the seconds that they take by estimate (with --quick):
#   device-properties    5 (5)    as cuDNN reads them
#   conformance        100 (90)   every operation against the reference on fresh random inputs
#   bench              280 (170)  speed and memory; outputs and gradients compared with PyTorch's
#   invariants          45        what must be the same to the bit
#   loss-curves         40 (30)   losses of FP32 and mixed precision over 200 steps
#   processes           40        training by NCCL in one process, and two on the card through the host; needs mpirun
#   profile             20        `amp profile`
#   memcheck racecheck  80 each   our kernels under compute-sanitizer, if it is installed
#   engines             90        convolutions against the reference, by the engines that are fastest here
#   leaky-slope         30 (30)   whether cuDNN's fused batch-norm engines honour one (reported only)
# The plan is printed first: stages in this order, as far as their estimates fit into four fifths of the budget;
# the last fifth is for what takes longer. A stage may use what is left but for the estimates of those after it.
# What does not fit is left out, and named with the command that runs it.
#
# A stage passes, fails, is skipped with a reason, or is cut off: nothing of ours went wrong, but time ran out, a
# library is missing or PyTorch failed. Its verdict is printed and written as it ends. The other stages run after
# a failure too. Exit status: 1 after a failure; 75 if nothing failed but something was cut off, also by a program
# that hangs on the device; 77 without a GPU, with one line.
#
# Half an hour on a machine, in calls of at most ten minutes. Each leaves OUT/GPU-DATE.json, .md, .log and .plans; give
# the next one that .plans, and the folder OUT itself, so that there is one record. Before: scripts/gpu-pack.sh makes
# PACK, for the card's compute capability alone. B: --binaries PACK --out OUT. FILE: OUT/GPU-DATE.plans
#
#   1. 500 s  gpu-check.sh B --budget 500 --stages device-properties,conformance,bench
#             by estimate 385 s. Right or wrong, and the first speeds: PyTorch eager, in CUDA graphs, stock, batch 16
#   2. 500 s  gpu-check.sh B --budget 500 --plans FILE --stages \
#                 invariants,loss-curves,processes,profile,memcheck,racecheck,engines
#             by estimate 395 s
#   3. 500 s  gpu-check.sh B --budget 500 --plans FILE --stages bench -- --no-check --batches 4,16 --rounds 3
#                 --seconds 0.5 --contestants fixed,torch,torch-graphs,fp16,stock,torch-compile --end-to-end
#             by estimate 130 s a batch, and torch.compile up to 100 s more: it comes last, and may be cut off
#   4. 150 s  the contests, with the plans of the calls before:
#             gpu-check.sh B --budget 150 --plans FILE --stages bench -- --no-check --batches 16 --contestants \
#                 fixed,fixed-one-stream,fixed-kernel-sums,fixed-kernel-gradient-sums,fixed-library-image,\
#                 fixed-library-image-gradient
#
# If 1 fails: read its log, mend, and run 1 again before 2; conformance that fails only under side-stream, epilogue-sums,
# gradient-sums or image-forward leaves training right with that way's variable set to 0. Later hours: batch 64 with
# --separate, more --models (yolov3-tiny-416, darknet53-256, yolov3-608: 280 s a batch by estimate), the contestants
# torch-autotune and ...-bf16, --alexeyab. What a call names as left out or not complete it names with its command.
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
said_quick=
budget=
usual_budget=530
stages=
binaries=$root/build/cuda
plans=
out=$root/measurements
while [ $# -gt 0 ]; do
    case "$1" in
    --quick) quick=1 said_quick=' --quick' ;;
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

names="device-properties conformance bench invariants loss-curves processes profile memcheck racecheck engines leaky-slope"
[ "$quick" = 0 ] || names="device-properties conformance bench loss-curves leaky-slope"
case $budget in *[!0-9]* | 0*) fail "--budget $budget: not a number of seconds" ;; esac
for name in $(echo "$stages" | tr ',' ' '); do
    case " $names " in *" $name "*) ;; *) fail "no stage \"$name\"; there are: $names" ;; esac
done

if [ "${CUDA_VISIBLE_DEVICES-all}" = "" ] || { ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ]; }; then
    echo "SKIPPED gpu-check: no NVIDIA GPU here (no answer from nvidia-smi, no /dev/nvidia0, or hidden)"
    exit 77
fi

[ "$quick" = 0 ] || usual_budget=420
asked_binaries=$binaries
for_bench="$*"
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

# ---- stages ----

failures=0
cut=0
reported=0
unfinished= # names of stages
later=0     # seconds that the stages to come take by estimate
# What the tests' harness, the sanitizer and bench-gpu say of an error, long before they end.
error='^FAILED \|^========= \(Invalid\|Misaligned\|Error: Race\|Warning: Race\)\|^  \*\*.* PyTorch disagree'
: >"$work/stages"

left() {
    echo $((budget - $(date +%s) + started))
}

# estimate NAME: seconds, as the head of this file has them.
estimate() {
    case $1 in
    device-properties) echo 5 ;;
    conformance) echo $((quick ? 90 : 100)) ;;
    bench) echo $((quick ? 170 : 280)) ;;
    loss-curves) echo $((quick ? 30 : 40)) ;;
    processes) echo 40 ;;
    invariants) echo 45 ;;
    profile) echo 20 ;;
    leaky-slope) echo 30 ;;
    engines) echo 90 ;;
    memcheck | racecheck) echo 80 ;;
    esac
}

# make_plan: $planned and $left_out. The first stage is planned whatever it takes.
make_plan() {
    planned=
    left_out=
    said=
    for name in $names; do
        case ",${stages:-$name}," in *",$name,"*) ;; *) continue ;; esac
        seconds=$(estimate "$name")
        if [ -z "$planned" ] || [ $((later + seconds)) -le $((budget * 4 / 5)) ]; then
            planned="$planned $name"
            said="$said, $name $seconds"
            later=$((later + seconds))
        else
            left_out="$left_out $name"
        fi
    done
    echo "plan, in seconds by estimate: ${said#, }; $later of $budget"
}

# command_for NAME...: what runs these stages as they were asked for, with the plans that this run leaves.
command_for() {
    kept=$(ls -t "$out"/*.plans 2>/dev/null | head -n 1)
    case " $* " in *" bench "*) arguments=${for_bench:+ -- $for_bench} ;; *) arguments= ;; esac
    echo "sh scripts/gpu-check.sh$said_quick${kept:+ --plans $kept}" \
        "--binaries $asked_binaries --out $out --stages $(echo "$@" | tr ' ' ,)$arguments"
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

# stage NAME PROGRAM COMMAND...: PROGRAM: of the binaries, what it cannot do without; -: it looks for itself.
stage() {
    name=$1
    program=$2
    shift 2
    case " $planned " in *" $name "*) ;; *) return ;; esac
    later=$((later - $(estimate "$name")))
    limit=$(($(left) - later))
    if [ "$limit" -lt 5 ]; then
        cut=$((cut + 1))
        unfinished="$unfinished $name"
        note "$name" skipped 0 "no time left of $budget s"
        return
    fi
    libraries=
    [ "$program" = - ] || libraries=$(ldd "$binaries/$program" 2>&1 |
        awk '/not found/ { print $1 }' | sort -u | tr '\n' ' ')
    if [ -n "$libraries" ]; then
        cut=$((cut + 1))
        unfinished="$unfinished $name"
        note "$name" skipped 0 "not found: $libraries; install them, or their nvidia-* packages for python3"
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
        unfinished="$unfinished $name"
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

# bench ARGUMENT...: it ends by itself, 30 s after its budget, and then writes its page.
bench() {
    time=$(($(left) - later + $(estimate bench)))
    stage bench bin/bench_step python3 "$root/scripts/bench-gpu" --binaries "$binaries" \
        --budget $((time > 45 ? time - 40 : 5)) --json "$work/bench.json" "$@"
}

make_plan
# The first import of PyTorch takes a minute from a cold disk: it is read while other stages run.
case "$planned" in *bench*) python3 -c 'import torch' >/dev/null 2>&1 & ;; esac
part=$root/scripts/gpu-stage.sh
darknet=$binaries/bin/darknet
stage device-properties tests/gpu_device_properties sh "$part" properties
if [ "$quick" = 1 ]; then
    stage conformance - sh "$part" conformance 1 0
    bench --models yolov3-tiny-416 --batches 16 --check-batch 16 --rounds 3 --seconds 0.5 \
        --contestants fixed,torch,stock-tf32,fp16 "$@"
    stage loss-curves bin/darknet python3 "$root/tests/gpu/loss_curves.py" "$darknet" --dtypes fp16 \
        --json "$work/losses.json"
else
    stage conformance - sh "$part" conformance 3 40
    # In order of what is to be known first. What is checked is what is timed, and its plans are timed once: the
    # same batch. FP64 takes some 20 GB then. With 64 images, two stock Darknets of yolov3 beside ours (50 GB
    # each) fill any card: --separate.
    bench --models yolov3-416 --batches 16 --check-batch 16 --rounds 3 --seconds 0.5 \
        --contestants fixed,torch,torch-graphs,stock-tf32,fp16 "$@"
    stage invariants bin/darknet python3 "$root/tests/gpu/invariants.py" "$darknet"
    stage loss-curves bin/darknet python3 "$root/tests/gpu/loss_curves.py" "$darknet" --json "$work/losses.json"
    stage processes bin/darknet python3 "$root/tests/gpu/processes.py" "$darknet"
    stage profile bin/darknet python3 "$root/tests/gpu/profile.py" "$darknet"
    stage memcheck - sh "$part" sanitize memcheck
    stage racecheck - sh "$part" sanitize racecheck
    stage engines tests/test_conformance_gpu_conv sh "$part" engines
fi
stage leaky-slope tests/gpu_leaky_slope sh "$part" leaky_slope
for name in $left_out; do
    note "$name" skipped 0 "not in the plan of $budget s: $(command_for "$name")"
done

cat "$work/report"
[ "$reported" = 0 ] || failures=$((failures + 1))
[ -z "$left_out" ] || printf 'left out:%s; they run with\n    %s\n' "$left_out" "$(command_for $left_out)"
[ -z "$unfinished" ] || printf 'not complete:%s; they run with\n    %s\n' "$unfinished" "$(command_for $unfinished)"
echo "$failures failures, $cut cut off, $(($(date +%s) - started)) s"
[ $failures = 0 ] || exit 1
[ "$cut" = 0 ] || exit 75
