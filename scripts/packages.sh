# Sourced by scripts:
#
#   install_missing PACKAGE...   asks apt for what is not there
#   agreed QUESTION              status 1 where somebody is asked and says no
#
# Somebody is asked where $yes is 0 and there is a terminal.

agreed() {
    [ "${yes-1}" = 0 ] && [ -t 0 ] || return 0
    printf '%s [y/N] ' "$1"
    read -r answer || answer=
    case $answer in [yY]*) ;; *) return 1 ;; esac
}

is_installed() {
    case "$(dpkg-query -W -f '${Status}' "$1" 2>/dev/null)" in *" installed") ;; *) return 1 ;; esac
}

as_root() {
    if [ "$(id -u)" = 0 ]; then
        "$@"
    elif command -v sudo >/dev/null; then
        sudo "$@"
    else
        echo "$(basename "$0"): run this as root: apt-get install$missing" >&2
        return 1
    fi
}

install_missing() {
    command -v dpkg-query >/dev/null || {
        echo "$(basename "$0"): no Debian packages here; needed are the likes of: $*"
        return
    }
    missing=
    for package in "$@"; do
        is_installed "$package" || missing="$missing $package"
    done
    [ -n "$missing" ] || return 0
    echo "These packages are missing:$missing"
    agreed "Install them with apt-get now?" || {
        echo "$(basename "$0"): nothing installed" >&2
        return 1
    }
    as_root apt-get -q update || return 1
    # shellcheck disable=SC2086 # several packages
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing
}
