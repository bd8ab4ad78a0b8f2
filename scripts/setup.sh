# What scripts/demo.sh and scripts/compare.sh share: installing what is missing, building.
# To be sourced; $root is the repository, $yes=1 installs without asking.

. "$root/scripts/packages.sh"
. "$root/scripts/preset.sh"

fail() {
    echo "$(basename "$0" .sh): $*" >&2
    exit 1
}

# set_up PRESET [PACKAGE...]: all that a training needs, and these packages. $program is the Darknet
# that was built. PRESET auto: the one that fits this machine.
set_up() {
    local from=$PWD
    preset=$1
    shift
    command -v dpkg-query >/dev/null || fail "this script needs Debian 12 or Ubuntu 24.04, or later"
    install_missing build-essential cmake pkg-config dpkg-dev xz-utils patch ca-certificates \
        libopencv-dev libdnnl-dev libjpeg-dev libxxhash-dev python3 python3-numpy python3-pil "$@" || exit 1
    cd "$root"
    echo "== Darknet's source"
    scripts/get-darknet.sh
    echo "== Build"
    configure
    cmake --build --preset "$preset" --target darknet --parallel "$(nproc)" ||
        fail "the preset $preset does not build$(offer_cpu)"
    program=$root/build/bin/darknet
    [ "$preset" = cpu ] || program=$root/build/$preset/bin/darknet
    cd "$from"
}

configure() {
    local asked=$preset
    [ "$asked" != auto ] || choose_preset
    case $asked/$preset in
    auto/cuda) ;; # it was chosen because it could be configured
    cuda/cuda) insist_on_cuda ;;
    *) cmake --preset "$preset" ;;
    esac
}

insist_on_cuda() {
    if ! { find_gpus && find_cuda; }; then
        echo "Preset cuda without a GPU that it can use: $reason"
        configure_cuda || fail "$reason"
    fi
    print_cuda
}

offer_cpu() {
    [ "$preset" != cuda ] || echo "; --preset cpu does without the GPU"
}
