# What scripts/demo.sh and scripts/compare.sh share: installing what is missing, building.
# To be sourced; $root is the repository, $yes=1 installs without asking.

. "$root/scripts/preset.sh"

fail() {
    echo "$(basename "$0" .sh): $*" >&2
    exit 1
}

is_installed() {
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_missing PACKAGE...: installs those that are not there.
install_missing() {
    local package missing=() as_root=()
    for package in "$@"; do
        is_installed "$package" || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "These packages are missing: ${missing[*]}"
    if [ "$yes" = 0 ] && [ -t 0 ]; then
        read -r -p "Install them with apt-get now? [y/N] " answer
        case $answer in [yY]*) ;; *) fail "nothing installed" ;; esac
    fi
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || fail "run this as root: apt-get install ${missing[*]}"
        as_root=(sudo)
    fi
    "${as_root[@]}" apt-get update
    "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends "${missing[@]}"
}

# set_up PRESET [PACKAGE...]: all that a training needs, and these packages. $program is the Darknet
# that was built. PRESET auto: the one that fits this machine.
set_up() {
    local from=$PWD
    preset=$1
    shift
    command -v dpkg-query >/dev/null || fail "this script needs Debian 12 or Ubuntu 24.04, or later"
    install_missing build-essential cmake pkg-config dpkg-dev xz-utils patch ca-certificates \
        libopencv-dev libdnnl-dev python3 python3-numpy python3-pil "$@"
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
    if ! { find_gpus && find_nvcc && match_gpus; }; then
        echo "Preset cuda without a GPU that it can use: $reason"
    fi
    configure_cuda || fail "$reason"
    tell_cuda
}

offer_cpu() {
    [ "$preset" != cuda ] || echo "; --preset cpu does without the GPU"
}
