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
# Names of those there was no time to begin, of those that were stopped without an error, and of those that cannot
# start, with the library that is missing.
left_out=
unfinished=
cannot_start=

left() {
    echo $((end - $(date +%s)))
}

# part_of_it N M: N of every M seconds that are left.
part_of_it() {
    echo $(($(left) * $1 / $2))
}

# missing PROGRAM: the libraries that are not here, and that it cannot start without.
missing() {
    ldd "$1" 2>&1 | awk '/not found/ { print $1 }' | sort -u | tr '\n' ' '
}

# can_start NAME PROGRAM: whether its libraries are here.
can_start() {
    libraries=$(missing "$2")
    [ -n "$libraries" ] || return 0
    cannot_start="$cannot_start $1 (without $libraries)"
    return 1
}

# attempt NAME MOST_SECONDS COMMAND...: counts how it ended; what there is no time for is left out, and
# what is not done when its time ends is stopped.
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
    timeout -k 2 "$seconds" "$@" # also ends what the sanitizer started
    status=$?
    if [ $status = 0 ]; then
        good=$((good + 1))
    elif [ $(($(date +%s) - begin)) -ge "$seconds" ]; then
        echo "$name: stopped after $seconds s"
        unfinished="$unfinished $name"
    else
        echo "$name: exit status $status"
        wrong=$((wrong + 1))
    fi
}

# finish WHAT: the last line and the exit status.
finish() {
    echo "$1: $good without an error, $wrong with errors${unfinished:+; stopped before their end:$unfinished}"\
"${left_out:+; no time for$left_out}${cannot_start:+; cannot start:$cannot_start}"
    [ $wrong = 0 ] || return 1
    [ -z "$left_out$unfinished" ] || return 75
    [ -z "$cannot_start" ] || return $((good > 0 ? 75 : 77))
    [ $good -gt 0 ]
}

# conformance ROUNDS SECONDS: every program, fresh inputs in every round; no further round is begun after
# so many seconds. Convolutions come first: by the plans that the libraries guess to be fast, since to time
# all for hundreds of shapes takes many minutes. So gradients run one after the other, and batch-norm's sums
# and those of gradients are our kernel's. Then each way that a contest could choose is forced, by itself: what
# a library gets wrong shows under the name of its way, and hides nothing of the others.
conformance() {
    export AMPK_CUDA_UNTIMED=1
    next=$(($(date +%s) + $2))
    for round in $(seq "$1"); do
        [ "$round" = 1 ] || [ "$(date +%s)" -le $next ] || break
        fresh_inputs
        echo "round $round, seed $AMP_TEST_SEED"
        if can_start conv "$conv"; then
            attempt conv "$(part_of_it 1 2)" "$conv"
            forced side-stream AMPK_CUDA_SIDE_STREAM=1 conv_backward
            forced epilogue-sums AMPK_CUDA_EPILOGUE_SUMS=1 conv_forward
            forced gradient-sums AMPK_CUDA_GRADIENT_SUMS=1 conv_backward_summed
            forced image-forward "AMPK_CUDA_IMAGE_FORWARD=1 AMPK_CUDA_EPILOGUE_SUMS=0" conv_forward_of
        fi
        for program in $(programs); do
            part=${program##*_gpu_}
            [ "$part" != conv ] && can_start "$part" "$program" && attempt "$part" "$(left)" "$program"
        done
    done
    finish programs
}

# forced NAME VARIABLES TESTS: the tests of convolutions with that in their names, by that way. Images that
# overflow FP16 are drawn only where cuDNN takes no sums, which it may take before it rounds.
forced() {
    attempt "$1" "$(part_of_it 1 3)" env $2 "$conv" "$3"
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

programs() {
    for program in "$binaries"/tests/test_conformance_gpu_*; do echo "$program"; done
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

# sanitize TOOL: every kernel of our own, which have ampk_ in their names. The libraries' kernels run as they are:
# to watch them takes too long, and they order their accesses in ways that racecheck does not know. First the two
# kernels that order their accesses in the hardest way, where a block or a warp takes several tiles, one after the
# other in the same shared memory; memcheck begins with two steps of the small net, which alone has recordings. These
# have three shares of the time that is left, every program then one.
sanitize() {
    tool=$1
    export AMPK_CUDA_UNTIMED=1
    sanitizer=$(find_sanitizer)
    if [ -z "$sanitizer" ]; then
        echo "compute-sanitizer is not here"
        return 77
    fi
    if ! "$sanitizer" --help | grep -q -e '--kernel-name '; then
        echo "$sanitizer cannot choose kernels by name (--kernel-name); it must be that of CUDA 12 or later"
        return 77
    fi
    fresh_inputs
    echo "seed $AMP_TEST_SEED"
    shares=$(($(programs | wc -l) + 7))
    if [ "$tool" = memcheck ]; then
        shares=$((shares + 3))
        sed -e 's/^batch=.*/batch=4/' -e 's/^\[net\]/[net]\nmixed_precision=1/' \
            "$root/cfg/small160.cfg" >"$work/small.cfg"
        under_sanitizer 3 bench_step "$binaries/bin/bench_step" "$work/small.cfg" none --gpu 0 --steps 1 --warmup 1
    fi
    export AMPK_CUDA_IMAGE_FORWARD=1
    under_sanitizer 3 image_conv_tiles "$conv" conv_forward_of_large_images
    for program in $(programs | grep _image_gradient); do
        under_sanitizer 3 image_gradient_tiles "$program" conv_bn_backward_of_several_tiles_a_warp
    done
    under_sanitizer 1 image_conv "$conv" conv_forward_of_images
    unset AMPK_CUDA_IMAGE_FORWARD
    for program in $(programs); do
        under_sanitizer 1 "${program##*_gpu_}" "$program"
    done
    finish "$tool"
}

# under_sanitizer SHARES NAME PROGRAM ARGUMENT...: what the sanitizer says of it, and its own last words.
under_sanitizer() {
    called=$2
    part=$(part_of_it $1 $shares)
    shares=$((shares - $1))
    shift 2
    can_start "$called" "$1" || return
    attempt "$called" "$part" "$sanitizer" --tool "$tool" --kernel-name kns=ampk_ --error-exitcode 9 \
        --report-api-errors no --print-limit 20 "$@" >"$work/$tool.out" 2>&1
    if grep -q "Device not supported" "$work/$tool.out"; then
        echo "compute-sanitizer does not support this device or machine"
        exit 77
    fi
    grep '=========' "$work/$tool.out"
    grep -v '=========' "$work/$tool.out" | tail -n 20
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
