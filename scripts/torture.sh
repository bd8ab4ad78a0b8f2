#!/bin/sh
# Repeats the random reliability tests with fresh seeds, or fuzzes.
#
#   scripts/torture.sh --minutes N [--seed S]      runs the tests of the table below one after the other with
#       seeds S, S+1, .. (default: from the clock) until N minutes are over or one fails; the last line is then
#       the command that repeats it
#   scripts/torture.sh --fuzz TARGET [--minutes M]  fuzzes one target of tests/fuzz, or `all`, until M CPU minutes
#       (default: 30) without a finding; goes on where it stopped. Keeps corpus, findings and account in
#       build/fuzz-state or $AMP_FUZZ_STATE. Needs clang.
#   scripts/torture.sh --list                      lists the tests and the fuzz targets
#   scripts/torture.sh --help
#
# Installs what is missing, and builds first.
set -eu
cd "$(dirname "$0")/.."

# name | command from the root of the repository; {seed} stands for the seed.
tests='
killed         | python3 -B tests/train/killed.py $PWD/build/tests/fixed_training_linked $PWD/build/bin/darknet $PWD/build/tests/saved_files --rounds 12 --seed {seed}
stopped        | python3 -B tests/train/stopped.py $PWD/build/bin/darknet $PWD/build/tests/saved_files --seed {seed}
injection      | AMP_TEST_SEED={seed} build/tests/test_injection
divergence     | AMP_TEST_SEED={seed} build/tests/test_divergence
two_networks   | AMP_TEST_SEED={seed} build/tests/test_two_networks
cfg_hunt       | python3 -B tests/input/cfg_hunt.py build/bin/darknet darknet/upstream/cfg --rounds 25 --seed {seed}
graph          | AMP_TEST_SEED={seed} build/tests/test_graph
conformance    | AMP_TEST_SEED={seed} ctest --preset cpu -L conformance
'

. scripts/packages.sh

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }

fail() {
    echo "torture.sh: $*" >&2
    exit 1
}

is_number() { case $1 in '' | *[!0-9.]*) return 1 ;; esac; }
is_whole() { case $1 in '' | *[!0-9]*) return 1 ;; esac; }

# The table, "name|command" a line.
rows() { printf '%s' "$tests" | sed -n 's/^\([a-z_]*\) *| */\1|/p'; }

list() {
    echo "tests:"
    rows | sed 's/^\([^|]*\)|\(.*\)/  \1: \2/'
    echo "fuzz targets:"
    python3 -B scripts/fuzz.py list | sed 's/^/  /'
}

# build PRESET [TARGET...]
build() {
    preset=$1
    shift
    cmake --preset "$preset" >/dev/null
    cmake --build --preset "$preset" -j "$(nproc)" ${1:+--target} "$@" >/dev/null
}

fuzz() {
    install_missing cmake make g++ clang libclang-rt-dev python3
    [ "$1" = all ] && set -- $(python3 -B scripts/fuzz.py list)
    for target in "$@"; do
        python3 -B scripts/fuzz.py list | grep -qx -e "$target" || fail "there is no fuzz target \"$target\"; see --list"
        build fuzz "fuzz_$target"
        python3 -B scripts/fuzz.py run "$target" --minutes "$minutes"
    done
}

run_test() {
    command=$(printf '%s' "$2" | sed "s/{seed}/$seed/g")
    echo "== $1, seed $seed"
    sh -c "$command" && return
    echo "torture.sh: $1 failed with seed $seed; again:" >&2
    echo "  $command" >&2
    exit 1
}

torture() {
    install_missing build-essential cmake pkg-config libopencv-dev libdnnl-dev libjpeg-dev libxxhash-dev python3 patch xz-utils
    scripts/get-darknet.sh
    build cpu
    end=$(($(date +%s) + minutes * 60)) rounds=0
    while :; do
        number=1
        while row=$(rows | sed -n "${number}p") && [ -n "$row" ]; do
            [ "$(date +%s)" -lt "$end" ] || {
                echo "torture.sh: $minutes minutes are over, $rounds tests passed"
                return
            }
            run_test "${row%%|*}" "${row#*|}"
            rounds=$((rounds + 1)) number=$((number + 1))
        done
        seed=$((seed + 1))
    done
}

action= target= minutes= seed=$(date +%s)
while [ $# -gt 0 ]; do
    case $1 in
    --list) action=list ;;
    --fuzz)
        [ -n "${2-}" ] || fail "--fuzz needs a target"
        action=fuzz target=$2
        shift
        ;;
    --minutes)
        is_number "${2-}" || fail "--minutes needs a number"
        minutes=$2
        shift
        ;;
    --seed)
        is_whole "${2-}" || fail "--seed needs a whole number"
        seed=$2
        shift
        ;;
    -h | --help)
        usage
        exit 0
        ;;
    *)
        usage >&2
        fail "unknown argument \"$1\""
        ;;
    esac
    shift
done
case $action in
list) list ;;
fuzz)
    minutes=${minutes:-30}
    fuzz "$target"
    ;;
*)
    is_whole "$minutes" || fail "give --minutes N (a whole number), --fuzz TARGET or --list"
    torture
    ;;
esac
