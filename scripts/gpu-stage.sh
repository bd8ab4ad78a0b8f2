#!/bin/sh
# One stage of scripts/gpu-check.sh, which sets AMP_BINARIES and AMP_WORK:
#
#   scripts/gpu-stage.sh properties | conformance ROUNDS SECONDS | sanitize TOOL | leaky_slope
set -u
root=$(cd "$(dirname "$0")/.." && pwd)
binaries=${AMP_BINARIES:?}
work=${AMP_WORK:?}

# conformance ROUNDS SECONDS: every program, fresh inputs in every round; none is begun after so many
# seconds.
conformance() {
    XDG_CACHE_HOME=$work/cache # plans of random shapes are of no use later
    export XDG_CACHE_HOME
    wrong=0
    found=0
    end=$(($(date +%s) + $2))
    for round in $(seq "$1"); do
        if [ "$round" -gt 1 ] && [ "$(date +%s)" -gt "$end" ]; then break; fi
        AMP_TEST_SEED=$(od -An -N6 -tu8 /dev/urandom | tr -d ' ')
        export AMP_TEST_SEED
        for program in "$binaries"/tests/test_conformance_gpu_*; do
            [ -x "$program" ] || continue
            found=1
            echo "round $round, seed $AMP_TEST_SEED: ${program##*/}"
            "$program" || wrong=$((wrong + 1))
            case $program in
            *_conv) AMPK_CUDA_SIDE_STREAM=1 "$program" || wrong=$((wrong + 1)) ;;
            esac
        done
    done
    if [ $found = 0 ]; then
        echo "no test_conformance_gpu_* in $binaries/tests"
        return 77
    fi
    [ $wrong = 0 ] || echo "$wrong programs failed"
    return $((wrong > 0))
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

# sanitize TOOL: two steps of the small net.
sanitize() {
    sanitizer=$(find_sanitizer)
    if [ -z "$sanitizer" ]; then
        echo "compute-sanitizer is not here"
        return 77
    fi
    sed -e 's/^batch=.*/batch=4/' -e 's/^\[net\]/[net]\nmixed_precision=1/' \
        "$root/cfg/small160.cfg" >"$work/small.cfg"
    "$sanitizer" --tool "$1" --error-exitcode 9 --report-api-errors no --print-limit 20 \
        "$binaries/bin/bench_step" "$work/small.cfg" none --gpu 0 --steps 1 --warmup 1 >"$work/$1.out" 2>&1
    status=$?
    if grep -q "Device not supported" "$work/$1.out"; then
        echo "compute-sanitizer does not support this device or machine"
        return 77
    fi
    grep '=========' "$work/$1.out" || tail -n 20 "$work/$1.out"
    return $status
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
