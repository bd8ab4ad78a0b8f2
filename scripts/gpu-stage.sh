#!/bin/sh
# One stage of scripts/gpu-check.sh, which sets AMP_BINARIES and AMP_WORK:
#
#   scripts/gpu-stage.sh properties | conformance ROUNDS SECONDS | engines | sanitize TOOL SECONDS
#                        | leaky_slope
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
binaries=${AMP_BINARIES:?}
work=${AMP_WORK:?}

# conformance ROUNDS SECONDS: every program, fresh inputs in every round; none is begun after so many
# seconds. Convolutions come last. They are those that the libraries guess to be fast: to time all for
# hundreds of shapes would take many minutes. Gradients run one after the other so, and batch-norm's sums
# are our kernel's; then gradients run beside each other, and the sums are cuDNN's.
conformance() {
    wrong=0
    end=$(($(date +%s) + $2))
    for round in $(seq "$1"); do
        fresh_inputs
        for program in $(our_kernels) "$binaries"/tests/test_conformance_gpu_conv; do
            [ "$round" = 1 ] || [ "$(date +%s)" -le "$end" ] || break
            [ -x "$program" ] || { echo "$program is missing" && return 1; }
            echo "round $round, seed $AMP_TEST_SEED: ${program##*/}"
            AMPK_CUDA_UNTIMED=1 "$program" || wrong=$((wrong + 1))
            case $program in
            *_conv)
                AMPK_CUDA_UNTIMED=1 AMPK_CUDA_SIDE_STREAM=1 AMPK_CUDA_EPILOGUE_SUMS=1 \
                    AMPK_CUDA_GRADIENT_SUMS=1 "$program" || wrong=$((wrong + 1))
                ;;
            esac
        done
    done
    [ $wrong = 0 ] || echo "$wrong programs failed"
    return $((wrong > 0))
}

# engines: convolutions by what is fastest here.
engines() {
    fresh_inputs
    echo "seed $AMP_TEST_SEED"
    "$binaries/tests/test_conformance_gpu_conv"
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
        /usr/local/cuda*/bin/compute-sanitizer; do
        if [ -x "$candidate" ]; then
            echo "$candidate"
            return
        fi
    done
}

# sanitize TOOL SECONDS: every kernel of our own, then two steps of the small net; no program is begun
# after so many seconds, and one that takes as many by itself is stopped.
sanitize() {
    tool=$1
    most=$2
    end=$(($(date +%s) + most))
    wrong=0
    good=0
    sanitizer=$(find_sanitizer)
    if [ -z "$sanitizer" ]; then
        echo "compute-sanitizer is not here"
        return 77
    fi
    sed -e 's/^batch=.*/batch=4/' -e 's/^\[net\]/[net]\nmixed_precision=1/' \
        "$root/cfg/small160.cfg" >"$work/small.cfg"
    for program in $(our_kernels); do
        under_sanitizer "$program"
    done
    under_sanitizer "$binaries/bin/bench_step" "$work/small.cfg" none --gpu 0 --steps 1 --warmup 1
    echo "$tool: $good programs without an error, $wrong with errors"
    [ $wrong = 0 ] && [ $good -gt 0 ]
}

# under_sanitizer PROGRAM ARGUMENT...
under_sanitizer() {
    [ "$(date +%s)" -lt "$end" ] || return
    AMPK_CUDA_UNTIMED=1 timeout "$most" "$sanitizer" --tool "$tool" --error-exitcode 9 \
        --report-api-errors no --print-limit 20 "$@" >"$work/$tool.out" 2>&1
    status=$?
    if grep -q "Device not supported" "$work/$tool.out"; then
        echo "compute-sanitizer does not support this device or machine"
        exit 77
    fi
    echo "${1##*/}: exit status $status"
    grep '=========' "$work/$tool.out" || tail -n 20 "$work/$tool.out"
    case $status in
    0) good=$((good + 1)) ;;
    124) ;; # stopped
    *) wrong=$((wrong + 1)) ;;
    esac
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
