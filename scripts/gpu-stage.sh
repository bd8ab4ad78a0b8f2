#!/bin/sh
# One stage of scripts/gpu-check.sh, which sets AMP_BINARIES, AMP_WORK and AMP_END, the time (in seconds
# as `date +%s` has them) at which it stops the stage:
#
#   sh scripts/gpu-stage.sh properties | conformance ROUNDS SECONDS | engines | sanitize TOOL
#                           | leaky_slope
#
# Exit status 75: nothing was wrong, but not all was run; the last line says what.
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
binaries=${AMP_BINARIES:?}
work=${AMP_WORK:?}
end=$((${AMP_END:?} - 3))
conv=$binaries/tests/test_conformance_gpu_conv

good=0
wrong=0
left_out= # names

left() {
    echo $((end - $(date +%s)))
}

# part_of_it N M: N of every M seconds that are left.
part_of_it() {
    echo $(($(left) * $1 / $2))
}

# attempt NAME MOST_SECONDS COMMAND...: counts how it ended; what there is no time for is left out, and
# what is not done when its time ends is stopped and left out too.
attempt() {
    name=$1
    seconds=$(left)
    [ "$seconds" -le "$2" ] || seconds=$2
    shift 2
    if [ "$seconds" -lt 2 ]; then
        left_out="$left_out $name"
        return
    fi
    echo "$name"
    begin=$(date +%s)
    # In the foreground it stays in this stage's process group, and ends with it.
    timeout --foreground -k 2 "$seconds" "$@"
    status=$?
    if [ $status = 0 ]; then
        good=$((good + 1))
    elif [ $(($(date +%s) - begin)) -ge "$seconds" ]; then
        echo "$name: stopped after $seconds s"
        left_out="$left_out $name"
    else
        echo "$name: exit status $status"
        wrong=$((wrong + 1))
    fi
}

# finish WHAT: the last line and the exit status.
finish() {
    echo "$1: $good without an error, $wrong with errors${left_out:+; no time for$left_out}"
    [ $wrong = 0 ] || return 1
    [ -z "$left_out" ] || return 75
    [ $good -gt 0 ]
}

# conformance ROUNDS SECONDS: every program, fresh inputs in every round; no further round is begun after
# so many seconds. Convolutions come first: by the plans that the libraries guess to be fast, since to time
# all for hundreds of shapes takes many minutes. So gradients run one after the other, and batch-norm's sums
# and those of gradients are our kernel's; then gradients run beside each other, the sums are cuDNN's, and
# what reads images is our kernel.
conformance() {
    export AMPK_CUDA_UNTIMED=1
    next=$(($(date +%s) + $2))
    for round in $(seq "$1"); do
        [ "$round" = 1 ] || [ "$(date +%s)" -le $next ] || break
        fresh_inputs
        echo "round $round, seed $AMP_TEST_SEED"
        attempt conv "$(part_of_it 1 2)" "$conv"
        attempt conv-forced "$(part_of_it 2 3)" env AMPK_CUDA_SIDE_STREAM=1 AMPK_CUDA_EPILOGUE_SUMS=1 \
            AMPK_CUDA_GRADIENT_SUMS=1 AMPK_CUDA_IMAGE_FORWARD=1 "$conv"
        for program in $(our_kernels); do
            attempt "${program##*_gpu_}" "$(left)" "$program"
        done
    done
    finish programs
}

# engines: convolutions by what is fastest here, test by test; those of every shape first.
engines() {
    fresh_inputs
    echo "seed $AMP_TEST_SEED"
    tests=$("$conv" --list) || return 1
    begun=
    for test in $(echo "$tests" | grep -x 'conv_forward\|conv_backward') $tests; do
        for part in $begun; do # a name runs all tests that have it in theirs
            case $test in *"$part"*) continue 2 ;; esac
        done
        begun="$begun $test"
        attempt "$test" "$(left)" "$conv" "$test"
    done
    finish tests
}

# Plans of random shapes are of no use later.
fresh_inputs() {
    XDG_CACHE_HOME=$work/cache
    AMP_TEST_SEED=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
    export XDG_CACHE_HOME AMP_TEST_SEED
}

# The programs that run no kernels but our own.
our_kernels() {
    for program in "$binaries"/tests/test_conformance_gpu_*; do
        case $program in *_conv) ;; *) echo "$program" ;; esac
    done
}

find_sanitizer() {
    for candidate in "$(command -v compute-sanitizer)" "${CUDA_HOME:-/usr/local/cuda}"/bin/compute-sanitizer \
        "$root/build/toolkit/nvidia/cu13/bin/compute-sanitizer" /usr/local/cuda*/bin/compute-sanitizer; do
        if [ -x "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
}

# sanitize TOOL: every kernel of our own; before them, with at most half of the time, two steps of the small
# net, which alone has recordings and the libraries' kernels. Racecheck does without: it does not know how
# those order their accesses.
sanitize() {
    tool=$1
    export AMPK_CUDA_UNTIMED=1
    sanitizer=$(find_sanitizer)
    if [ -z "$sanitizer" ]; then
        echo "compute-sanitizer is not here"
        return 77
    fi
    if [ "$tool" = memcheck ]; then
        sed -e 's/^batch=.*/batch=4/' -e 's/^\[net\]/[net]\nmixed_precision=1/' \
            "$root/cfg/small160.cfg" >"$work/small.cfg"
        under_sanitizer bench_step "$(part_of_it 1 2)" "$binaries/bin/bench_step" "$work/small.cfg" none \
            --gpu 0 --steps 1 --warmup 1
    fi
    for program in $(our_kernels); do
        under_sanitizer "${program##*_gpu_}" "$(left)" "$program"
    done
    finish "$tool"
}

# under_sanitizer NAME MOST_SECONDS PROGRAM ARGUMENT...: what the sanitizer says of it, or its own last words.
under_sanitizer() {
    called=$1
    most=$2
    shift 2
    attempt "$called" "$most" "$sanitizer" --tool "$tool" --error-exitcode 9 --report-api-errors no \
        --print-limit 20 "$@" >"$work/$tool.out" 2>&1
    if grep -q "Device not supported" "$work/$tool.out"; then
        echo "compute-sanitizer does not support this device or machine"
        exit 77
    fi
    if grep -q '=========' "$work/$tool.out"; then
        grep -e '=========' -e "^$called" "$work/$tool.out"
    else
        tail -n 20 "$work/$tool.out"
    fi
}

# properties: cuDNN's device properties into a file.
properties() {
    "$binaries/tests/gpu_device_properties" >"$work/device.json"
    status=$?
    cat "$work/device.json"
    return $status
}

leaky_slope() {
    "$binaries/tests/gpu_leaky_slope" >"$work/leaky_slope.json"
    status=$?
    cat "$work/leaky_slope.json"
    return $status
}

"$@"
