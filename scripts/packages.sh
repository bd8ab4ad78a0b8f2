# Sourced by scripts: install_missing "PACKAGE...", which asks apt for what is not there.

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

install_missing() {
    command -v dpkg-query >/dev/null || {
        echo "$(basename "$0"): no Debian packages here; needed are the likes of: $1"
        return
    }
    missing=
    for package in $1; do
        case "$(dpkg-query -W -f '${Status}' "$package" 2>/dev/null)" in
        *" installed") ;;
        *) missing="$missing $package" ;;
        esac
    done
    [ -n "$missing" ] || return 0
    echo "Installing:$missing"
    as_root apt-get -q update
    as_root env DEBIAN_FRONTEND=noninteractive apt-get -q -y install --no-install-recommends $missing
}
