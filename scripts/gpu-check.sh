#!/bin/sh
# Tests and measures on one NVIDIA GPU what needs one, without a network, in two calls of under six minutes.
#
#   sh scripts/gpu-check.sh [first|second] [--binaries FOLDER|PACK] [--plans FILE] [--out FOLDER]
#
#   first    at most 345 s: device properties, a small net, every operation against the reference, training (losses
#            beside FP32's, what must be the same to the bit, several processes), `amp profile`, speed and gradients of
#            yolov3-tiny beside PyTorch's, speed of yolov3
#   second   at most 310 s: our kernels under memcheck, and racecheck where cuDNN is not called; speed and gradients of
#            yolov3 beside stock Darknet and PyTorch's fastest; training with the loader
#   Without either: first, and second if nothing of ours failed.
#
#   --binaries   a build folder of the preset cuda (default: build/cuda) whose target gpu_check_programs is built, or a
#                folder or tarball of scripts/gpu-pack.sh
#   --plans      plans of convolutions of another run, its OUT/plans: they are not timed again, and engines that hung
#                or made the device fault are left out
#   --out        default: out/gpu-check. At most eight files, written after every verdict, so that a call that is
#                ended keeps what it has: gpu-check.json and .md (the record, to be committed, and its page),
#                verdicts.txt, logs.txt, plans; clocks.txt (the card's clocks), hang.txt (where programs hung) and
#                memcheck.txt (the small net under memcheck, after a failure)
#
# Programs, plans and results stay in $XDG_CACHE_HOME/darknet-amp/gpu-check (default: ~/.cache), where a second call on
# the same machine takes them up: OUT then has the results of both.
#
# What is timed has the card for itself, all else runs at once. A verdict is printed as it comes, and all of them
# again at the end. A stage passes, fails, is skipped with a reason, or is cut off: nothing of ours went wrong, but
# time ran out, a library is missing or PyTorch failed. After a failure of the small net or of yolov3-tiny the small net
# runs again with one way of the backend off, for each of them, and under memcheck. Exit status: 1 after a failure;
# 75 if nothing failed but something was cut off, also by a program that hangs on the device; 77 without a GPU, with
# one line.
#
# Yolov3 is measured with 16 images, which takes some 50 GB beside all others. PyTorch's environment must be python3's;
# if that has CUDA's libraries and cuDNN in nvidia/* packages, Darknet uses those too.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
    echo "gpu-check.sh: $*" >&2
    exit 1
}

parts="first second"
binaries=$root/build/cuda
plans=
out=$root/out/gpu-check
while [ $# -gt 0 ]; do
    case "$1" in
    first | second) parts=$1 ;;
    --binaries) binaries=${2:?--binaries needs a folder or tarball} && shift ;;
    --plans) plans=${2:?--plans needs a file} && shift ;;
    --out) out=${2:?--out needs a folder} && shift ;;
    *) fail "unknown argument \"$1\"; usage: scripts/gpu-check.sh [first|second] [--binaries FOLDER|PACK] [--plans FILE] [--out FOLDER]" ;;
    esac
    shift
done

if [ "${CUDA_VISIBLE_DEVICES-all}" = "" ] || { ! nvidia-smi -L >/dev/null 2>&1 && [ ! -e /dev/nvidia0 ]; }; then
    echo "SKIPPED gpu-check: no NVIDIA GPU here (no answer from nvidia-smi, no /dev/nvidia0, or hidden)"
    exit 77
fi

begun=$(date +%s)
work=${XDG_CACHE_HOME:-${HOME:?}/.cache}/darknet-amp/gpu-check
results=$work/results
kept=$work/cache/darknet-amp/plans
PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin:$root/build/toolkit/nvidia/cu13/bin # compute-sanitizer, cuda-gdb

. "$root/scripts/limits.sh"

# ---- verdicts ----

failures=0
cut=0
# What the tests' harness, the sanitizer and bench-gpu say of an error, long before they end.
error='^FAILED \|^========= \(Invalid\|Misaligned\|Error: Race\|Warning: Race\)\|^  \*\*.* PyTorch disagree'

# result STATUS LOG
result() {
    if [ "$1" = 77 ] || grep -q "Device not supported" "$2"; then
        echo skipped
        return
    fi
    case $1 in
    0) echo pass ;;
    75 | 124) if grep -q "$error" "$2"; then echo FAIL; else echo "cut off"; fi ;;
    *) echo FAIL ;;
    esac
}

say() {
    printf '%3s s  %s\n' "$(now)" "$*" | tee -a "$results/verdicts.txt"
}

# verdict NAME RESULT SECONDS WORDS
verdict() {
    case $2 in
    FAIL) failures=$((failures + 1)) ;;
    "cut off") cut=$((cut + 1)) ;;
    esac
    printf '%s\t%s\t%s\t%s\n' "$@" >>"$results/stages-$part"
    say "$(printf '%-7s  %s: %s' "$2" "$1" "$4")"
    save
}

# last_words LOG
last_words() {
    tr '\t' ' ' <"$1" | LC_ALL=C tr -cd '\n\40-\176' | grep -v '^ *$' | tail -n 1 | cut -c 1-200
}

save() {
    mkdir -p "$out"
    for log in "$results"/*.log; do
        [ -f "$log" ] || continue
        echo "==== ${log##*/}"
        tail -c 300000 "$log"
    done >"$out/logs.txt"
    for file in verdicts.txt clocks.txt hang.txt memcheck.txt; do
        [ ! -f "$results/$file" ] || cp "$results/$file" "$out/"
    done
    python3 "$root/scripts/gpu_report.py" "$results" "$kept" "$binaries" "$out"
    reported=$?
}

# ---- stages ----

# stage NAME SECONDS COMMAND...
stage() {
    start=$(now)
    seconds=$(within "$2")
    stage=$1
    shift 2
    if [ "$seconds" -lt 2 ]; then
        verdict "$stage" "cut off" 0 "no time left"
        return 75
    fi
    attempt "$seconds" "$stage" "$@"
    ended=$?
    log=$results/$stage.log
    verdict "$stage" "$(result $ended "$log")" $(($(now) - start)) "$(last_words "$log")"
    [ $ended = 0 ] || tail -n 10 "$log" | head -n 9 | cut -c 1-200 # the last one was said
    return $ended
}

# run_task NAME: by its name. Plans of made-up shapes, and those that are timed beside something else, are not kept
# among the others.
run_task() {
    XDG_CACHE_HOME=$work/cache-${1%%.*}
    darknet=$binaries/bin/darknet
    case $1 in
    losses.*)
        set -- "$1" python3 "$root/tests/gpu/loss_curves.py" "$darknet" --dtypes "${1#*.}" \
            --json "$results/losses-${1#*.}.json"
        ;;
    invariants) set -- "$1" python3 "$root/tests/gpu/invariants.py" "$darknet" --steps 4 ;;
    processes) set -- "$1" python3 "$root/tests/gpu/processes.py" "$darknet" ;;
    ladder.*)
        with_small_net attempt "$seconds" "$1" env "${1#*.}"
        return
        ;;
    *)
        export AMPK_CUDA_UNTIMED=1
        check_task "$1"
        return
        ;;
    esac
    attempt "$seconds" "$@"
}

# check_task NAME: one of the conformance tests, as it is or under the sanitizer. They run by the plans that the
# libraries guess to be fast: to time all for hundreds of shapes takes many minutes.
check_task() {
    gpu=$binaries/tests/test_conformance_gpu
    watch="compute-sanitizer --kernel-name kns=ampk_ --error-exitcode 9 --report-api-errors no --print-limit 5 --tool"
    case $1 in
    conv.*) set -- "$1" "${gpu}_conv" "${1#*.}" ;;
    memcheck.* | racecheck.*)
        program=${1#*.}
        test=${program#*.}
        [ "$test" != "$program" ] || test=
        set -- "$1" $watch "${1%%.*}" "${gpu}_${program%%.*}" $test
        ;;
    *) set -- "$1" "${gpu}_$1" ;;
    esac
    attempt "$seconds" "$@"
}

# each_verdict: of what ran together.
each_verdict() {
    while read -r status seconds task; do
        verdict "$task" "$(result "$status" "$results/$task.log")" "$seconds" "$(last_words "$results/$task.log")"
    done <"$work/ended"
}

# one_verdict NAME START: of all that ran together; the first failures with their last lines.
one_verdict() {
    good=0
    wrong=
    unfinished=
    why=
    while read -r status seconds task; do
        log=$results/$task.log
        case $task,$(result "$status" "$log") in
        *,pass) good=$((good + 1)) ;;
        *,skipped) why=$(last_words "$log") ;;
        *,FAIL) wrong="$wrong $task($status)" ;;
        *) unfinished="$unfinished $task" ;;
        esac
    done <"$work/ended"
    found=pass
    [ $good -gt 0 ] || found=skipped
    [ -z "$unfinished" ] || found="cut off"
    [ -z "$wrong" ] || found=FAIL
    verdict "$1" "$found" $(($(now) - $2)) "$good of $(wc -l <"$work/ended") pass${wrong:+; wrong:$wrong}\
${unfinished:+; cut off:$unfinished}${why:+; $why}"
    for task in $(echo $wrong | cut -d ' ' -f 1-3); do
        echo "== $task"
        tail -n 8 "$results/${task%(*}.log" | cut -c 1-200
    done
}

# Every operation against the reference: a process for each test of convolutions and for each other program.
conformance() {
    start=$(now)
    tasks=
    for program in "$binaries"/tests/test_conformance_gpu_*; do
        [ "${program##*_gpu_}" = conv ] || tasks="$tasks ${program##*_gpu_}"
    done
    for test in $("$binaries/tests/test_conformance_gpu_conv" --list); do tasks="conv.$test $tasks"; done
    together 100 $tasks
    one_verdict conformance "$start"
}

# Racecheck cannot be used where cuDNN runs: its kernels then fault. Those that order their accesses in the hardest way,
# with several tiles for a block or a warp, come first.
sanitize() {
    start=$(now)
    if ! command -v compute-sanitizer >/dev/null; then
        verdict sanitizers skipped 0 "compute-sanitizer is not here"
        return
    fi
    together 80 memcheck.image_gradient.conv_bn_backward_of_several_tiles_a_warp \
        memcheck.conv.conv_forward_of_large_images memcheck.conv.conv_forward_of_images \
        racecheck.batchnorm racecheck.batchnorm_pool racecheck.losses \
        memcheck.batchnorm memcheck.batchnorm_pool memcheck.losses memcheck.conv_update
    one_verdict sanitizers "$start"
}

# with_small_net COMMAND...: eight steps of a small net in mixed precision.
with_small_net() {
    "$@" "$binaries/bin/bench_step" "$work/small.cfg" none --gpu 0 --steps 4 --warmup 4
}

# ladder: after something of ours failed: the small net with one way of the backend off, all at once. The same under
# memcheck then says which kernel of ours, if any.
ladder() {
    together 60 ladder.AMPK_CUDA_UNRECORDED=1 ladder.AMPK_CUDA_IMAGE_FORWARD=0 \
        ladder.AMPK_CUDA_IMAGE_GRADIENT=0 ladder.AMPK_CUDA_UNTIMED=1 ladder.CUDA_LAUNCH_BLOCKING=1
    while read -r status seconds task; do
        say "the small net with ${task#*.}: exit status $status; $(last_words "$results/$task.log" | cut -c 1-100)"
    done <"$work/ended"
    seconds=$(within 80)
    [ "$seconds" -lt 5 ] || with_small_net timeout -k 5 "$seconds" compute-sanitizer --kernel-name kns=ampk_ \
        --print-limit 5 >"$results/memcheck.txt" 2>&1
    save
}

# compile NET: what torch.compile makes of it is kept for its turn. It takes a minute; nothing is timed meanwhile.
compile() {
    cfg=$binaries/cfg/$1.cfg
    [ -f "$cfg" ] || cfg=$root/darknet/upstream/cfg/$1.cfg
    net=$work/compile
    mkdir -p "$net"
    {
        PYTHONPATH=$root/scripts python3 -c '
import bench_lib, pathlib, sys
print(bench_lib.make_cfg(pathlib.Path(sys.argv[1]).read_text(), 16, width=416, height=416, learning_rate="0.000001"))' \
            "$cfg" >"$net/net.cfg" &&
            timeout -k 5 60 python3 "$root/scripts/torch_net.py" "$net/net.cfg" "$net/weights" --prepare "$net" &&
            timeout -k 5 90 python3 "$root/scripts/torch_net.py" "$net/net.cfg" "$net/weights" --device cuda --amp fp16 \
                --layout channels_last --compile reduce-overhead --steps 1 --warmup 12
    } >"$results/compile.log" 2>&1
}

# bench NAME SECONDS ARGUMENT...: it ends by itself, at most 30 s after its budget, and then writes its record.
bench() {
    start=$(now)
    seconds=$(within "$2")
    stage=bench-$1
    record=$results/$stage.json
    shift 2
    if [ "$seconds" -lt 45 ]; then
        verdict "$stage" "cut off" 0 "no time left"
        return 75
    fi
    timeout -k 5 "$seconds" python3 "$root/scripts/bench-gpu" --binaries "$binaries" --budget $((seconds - 35)) \
        --json "$record" --batches 16 --rounds 3 --seconds 0.4 "$@" >"$results/$stage.log" 2>&1
    ended=$?
    [ $ended -lt 124 ] || ended=124
    verdict "$stage" "$(result $ended "$results/$stage.log")" $(($(now) - start)) "$(last_words "$results/$stage.log")"
    grep -E '^  (\*\*|round 3|.* failed|fixed:|fp16:|fp32:)|disagree|weight gradients|^\| [a-z0-9-]+ (\||/)|^\| (ratio|bar) |fastest torch|^bench-gpu' \
        "$results/$stage.log" | cut -c 1-170 | tail -n 30
    return $ended
}

# ---- the two parts ----

# plan MOST_SECONDS "STAGE SECONDS, STAGE+STAGE SECONDS...": by estimate, as they were on an H100.
plan() {
    most=$1
    echo "$part, in seconds by estimate: $2; in all$(echo "$2" | tr ',' '\n' |
        awk '{ all += $NF } END { print " " all }') of at most $most"
}

first() {
    plan 345 "start 5, device 3, smoke 5, conformance 25, losses.fp16+losses.bf16+invariants+processes 45, profile 15, bench-tiny 65, bench-yolov3 65"
    compile yolov3-tiny &
    compiling=$!
    stage device 60 "$binaries/tests/gpu_device_properties" &&
        cp "$results/device.log" "$results/device.json"
    if ! with_small_net stage smoke 80 env AMPK_CUDA_UNTIMED=1; then
        ladder
        return
    fi
    conformance
    together 90 losses.fp16 losses.bf16 invariants processes
    each_verdict
    wait $compiling
    compiling=
    stage profile 40 python3 "$root/tests/gpu/profile.py" "$binaries/bin/darknet"
    bench tiny 120 --models yolov3-tiny-416 --check-batch 16 --contestants fixed,torch,torch-graphs,fp16,stock-tf32,torch-compile
    [ $? != 1 ] || ladder
    bench yolov3 160 --models yolov3-416 --no-check --contestants fixed,torch,torch-graphs,fp16
}

second() {
    plan 310 "start 5, sanitizers 75, bench-all 200"
    compile yolov3 &
    compiling=$!
    sanitize
    wait $compiling
    compiling=
    bench all 235 --models yolov3-416 --check-batch 16 --end-to-end \
        --contestants fixed,torch,torch-graphs,torch-compile,fp16,stock,stock-tf32,fixed-library-image,fixed-library-image-gradient
}

# ---- programs and libraries ----

unpack() {
    sum=$(cksum <"$1")
    [ "$(cat "$work/packed" 2>/dev/null)" != "$sum" ] || return 0
    rm -rf "$work/pack" "$work/packed"
    mkdir "$work/pack"
    tar -C "$work/pack" -xf "$1" 2>"$work/tar.err" ||
        python3 -m tarfile -e "$1" "$work/pack" || # where tar finds no xz
        fail "cannot unpack $1: $(cat "$work/tar.err")"
    echo "$sum" >"$work/packed"
}

missing() {
    ldd "$binaries/bin/bench_step" "$binaries/bin/darknet" "$binaries"/tests/test_conformance_gpu_* \
        "$binaries"/tests/gpu_* 2>&1 | awk '/not found/ { print $1 }' | sort -u
}

# find_libraries: adds the folders of those that the linker does not know.
find_libraries() {
    for library in $(missing); do
        at=$(find / -xdev -name "$library*" -not -path '/proc/*' 2>/dev/null | head -n 1)
        say "missing $library; found: ${at:-nowhere}"
        [ -z "$at" ] || LD_LIBRARY_PATH=$LD_LIBRARY_PATH:$(dirname "$at")
    done
    lacking=$(missing | tr '\n' ' ')
    [ -z "$lacking" ] ||
        verdict libraries "cut off" "$(now)" "not found: ${lacking}: install them, or their nvidia-* packages for python3"
    [ -z "$lacking" ]
}

# Results of another card or commit are not joined with these.
begin() {
    card=$(nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv,noheader | head -n 1)
    about="$card; $(PYTHONPATH=$root/scripts python3 -c 'import bench_lib, sys; print(bench_lib.commit(sys.argv[1]))' "$binaries")"
    if [ "$part" = first ] || [ "$(cat "$work/about" 2>/dev/null)" != "$about" ]; then
        rm -rf "$results" "$out/hang.txt" "$out/memcheck.txt"
    fi
    mkdir -p "$results"
    rm -f "$results/stages-$part"
    echo "$about" >"$work/about"
    echo "$card" | tee "$results/card"
    memory=$(echo "$card" | sed -n 's/.* \([0-9]*\) MiB.*/\1/p')
    at_once=$((${memory:-4096} / 4096))
    [ $at_once -le 14 ] || at_once=14
    [ $at_once -ge 1 ] || at_once=1
}

mkdir -p "$work/cache/darknet-amp"
[ ! -f "$binaries" ] || { unpack "$binaries" && binaries=$work/pack; }
binaries=$(cd "$binaries" && pwd) || fail "no folder $binaries"
for program in bin/bench_step bin/darknet tests/gpu_device_properties tests/test_conformance_gpu_conv; do
    [ -x "$binaries/$program" ] || fail "$binaries/$program is missing; build the target gpu_check_programs of the preset cuda"
done
[ -z "$plans" ] || cp "$plans" "$kept" || fail "no plans in $plans"
export PYTHONDONTWRITEBYTECODE=1 XDG_CACHE_HOME="$work/cache" TORCHINDUCTOR_CACHE_DIR="$work/inductor"
# A library that PyTorch also uses is to be the one it came with.
LD_LIBRARY_PATH=$(PYTHONPATH=$root/scripts${PYTHONPATH:+:$PYTHONPATH} \
    python3 -c 'import bench_lib, sys; print(bench_lib.library_path(sys.argv[1]))' "$binaries") ||
    fail "python3 cannot run scripts/bench_lib.py"
export LD_LIBRARY_PATH
sed 's/^\[net\]/[net]\nmixed_precision=1/; s/^batch=.*/batch=4/; s/^subdivisions=.*/subdivisions=1/' \
    "$root/cfg/small160.cfg" >"$work/small.cfg"

reported=0
clocks=
compiling=
end_others() {
    kill $clocks $compiling $(cat "/proc/$compiling/task/$compiling/children") 2>/dev/null
}
trap 'end_others 2>/dev/null' EXIT
for part in $parts; do
    begin
    if [ -z "$clocks" ]; then
        nvidia-smi dmon -s puc -d 2 -o T >>"$results/clocks.txt" 2>&1 & # also keeps the driver up
        clocks=$!
    fi
    find_libraries && $part
    say "END $part: $failures failures, $cut cut off"
    [ $failures = 0 ] || break
    begun=$(date +%s)
done
save

echo "== all verdicts; results are in $out"
for part in $parts; do
    [ ! -f "$results/stages-$part" ] ||
        awk -F '\t' '{ printf "%-8s %s, %s s: %s\n", $2, $1, $3, $4 }' "$results/stages-$part" | cut -c 1-150
done
[ $reported = 0 ] || failures=$((failures + 1))
[ $failures = 0 ] || exit 1
[ $cut = 0 ] || exit 75
