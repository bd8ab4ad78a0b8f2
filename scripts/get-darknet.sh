#!/bin/sh
# Fetches Darknet's source into darknet/upstream: Debian's source package with the patches that
# scripts/darknet-source.sha256 lists (newer packages have more; the source is the same everywhere).
#
#   scripts/get-darknet.sh              download with apt
#   scripts/get-darknet.sh --from DIR   use the package's files already in DIR
#
# apt is given source lists derived from this machine's own, in a temporary folder: the system's apt
# configuration and package lists stay as they are, and no root rights are needed. The tarball and
# the patches must match their checksums. Does nothing when the source is there.
set -eu

upstream_version=0.0.0+git20180914.61c9d02e
root=$(cd "$(dirname "$0")/.." && pwd)
target=$root/darknet/upstream
sums=$root/scripts/darknet-source.sha256
stamp=$(sha256sum <"$sums" | cut -d' ' -f1)

fail() {
    echo "get-darknet: $*" >&2
    exit 1
}

from=
case "${1-}" in
"") ;;
--from) from=${2:?--from needs a folder} ;;
*) fail "unknown argument \"$1\"; usage: scripts/get-darknet.sh [--from DIR]" ;;
esac

if [ "$(cat "$target/.source-stamp" 2>/dev/null)" = "$stamp" ]; then
    echo "Darknet $upstream_version is in $target"
    exit 0
fi
# What an older version of this script put there is replaced.
[ ! -e "$target" ] || [ -f "$target/.source-stamp" ] ||
    fail "$target exists but was not put there by this script; remove it first"

for tool in tar xz patch sha256sum; do
    command -v "$tool" >/dev/null || fail "\"$tool\" is missing; apt-get install dpkg-dev xz-utils patch"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 1' HUP INT TERM

# Source lists: the machine's enabled binary entries, turned into deb-src.
write_source_lists() {
    etc=${APT_ETC:-/etc/apt}
    mkdir -p "$work/sources.d" "$work/lists/partial" "$work/cache/archives/partial"
    for list in "$etc/sources.list" "$etc"/sources.list.d/*.list; do
        [ -f "$list" ] || continue
        sed -n '/cdrom:/d; s/^[[:space:]]*deb\(-src\)\{0,1\}[[:space:]]/deb-src /p' "$list" >>"$work/one-line"
    done
    [ ! -s "$work/one-line" ] || sort -u "$work/one-line" >"$work/sources.d/machine.list"
    for list in "$etc"/sources.list.d/*.sources; do
        [ -f "$list" ] || continue
        sed 's/^[Tt]ypes:.*/Types: deb-src/' "$list" >"$work/sources.d/$(basename "$list")"
    done
    [ -n "$(ls "$work/sources.d")" ] || fail "no apt sources found in $etc"
}

with_apt() {
    command=$1
    shift
    "$command" -q -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts="$work/sources.d" \
        -o Dir::State::Lists="$work/lists" -o Dir::Cache="$work/cache" \
        -o APT::Sandbox::User="$(id -un)" "$@"
}

download() {
    command -v apt-get >/dev/null ||
        fail "this machine has no apt; download the source package darknet $upstream_version and use --from DIR"
    write_source_lists
    # A third-party list without sources makes the update fail in part; what counts is the package.
    with_apt apt-get update >"$work/log" 2>&1 || true
    version=$(with_apt apt-cache showsrc darknet 2>>"$work/log" |
        sed -n 's/^Version: //p' | grep -F "$upstream_version-" | sort -V | tail -n 1) || true
    if [ -z "$version" ]; then
        cat "$work/log" >&2
        fail "apt's sources have no source package darknet $upstream_version (Debian: component main, Ubuntu: universe)"
    fi
    (cd "$work/files" && with_apt apt-get source --download-only "darknet=$version") \
        >>"$work/log" 2>&1 || {
        cat "$work/log" >&2
        fail "apt could not download darknet $version; try again, or download its files and use --from DIR"
    }
}

# check FILE NAME: FILE must have the checksum pinned for NAME.
check() {
    pinned=$(awk -v name="$2" '$2 == name { print $1 }' "$sums")
    [ -n "$pinned" ] || fail "$2 is not listed in $sums"
    actual=$(sha256sum "$1" | cut -d' ' -f1)
    [ "$actual" = "$pinned" ] || fail "$1 has sha256 $actual, expected $pinned"
}

if [ -n "$from" ]; then
    files=$from
else
    files=$work/files
    mkdir "$files"
    echo "Downloading the source package darknet $upstream_version"
    download
fi
orig=darknet_$upstream_version.orig.tar.xz
[ -f "$files/$orig" ] || fail "$files has no $orig"
check "$files/$orig" "$orig"
set -- "$files/darknet_$upstream_version"-*.debian.tar.xz
[ -f "$1" ] || fail "$files has no darknet_$upstream_version-N.debian.tar.xz"

mkdir "$work/tree"
tar -xf "$files/$orig" -C "$work/tree" --strip-components=1
tar -xf "$1" -C "$work/tree"
for name in $(awk '/debian\/patches\// { print $2 }' "$sums"); do
    [ -f "$work/tree/$name" ] || fail "$1 has no $name"
    check "$work/tree/$name" "$name"
    patch -d "$work/tree" -p1 -s <"$work/tree/$name" || fail "$name does not apply"
done
echo "$stamp" >"$work/tree/.source-stamp"

# The copy becomes visible complete or not at all.
mkdir -p "$root/darknet"
rm -rf "$target.new"
cp -a "$work/tree" "$target.new"
rm -rf "$target"
mv "$target.new" "$target"
echo "Darknet $upstream_version is in $target"
