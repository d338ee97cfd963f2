#!/bin/bash
# The main step of action.yml: installs Rocade below the temporary directory of the job, makes its
# device known to all later steps, and tells its name. It needs no root.
#
# Later steps find the libraries by LD_LIBRARY_PATH and the settings by ROCADE_*, so programs need
# nothing in front of them. `rocade run -- CMD` shows CMD the files of the device, too.
set -euo pipefail

fail() {
    echo "::error title=rocade::$1"
    exit 1
}

prefix=${RUNNER_TEMP:-${TMPDIR:-/tmp}}/rocade
name=${INPUT_DEVICE_NAME:-rocade0}
# By default that of the default route, as for other devices of a runner.
interface=${INPUT_INTERFACE:-$(awk '$2 == "00000000" { print $1; exit }' /proc/net/route)}
interface=${interface:-lo}
version=${INPUT_VERSION:-source}

# Unpacks a package without its top directory.
unpack() {
    mkdir -p "$prefix"
    tar -xzf "$1" -C "$prefix" --strip-components=1 || fail "$1 is no package of Rocade (.tar.gz)"
}

download() {
    local file
    file=$(mktemp)
    curl --fail --silent --show-error --location --retry 3 --output "$file" "$1" ||
        fail "$1 cannot be downloaded: does that version exist, for this processor?"
    unpack "$file"
    rm -f "$file"
}

build() {
    command -v cargo > /dev/null || fail "cargo is missing, which \`version: source\` needs"
    local sources=$GITHUB_ACTION_PATH
    (cd "$sources" && cargo build --release --locked --target-dir "$prefix-build")
    "$prefix-build/release/rocade" install --prefix "$prefix" > /dev/null
    rm -rf "$prefix-build"
}

if ! [ -x "$prefix/bin/rocade" ]; then
    case $version in
    source) build ;;
    http://* | https://*) download "$version" ;;
    *.tar.gz) unpack "$version" ;;
    *)
        repository=${GITHUB_SERVER_URL:-https://github.com}/${GITHUB_ACTION_REPOSITORY:-}
        [ -n "${GITHUB_ACTION_REPOSITORY:-}" ] || fail "version $version: the repository is unknown"
        file=rocade-${version#v}-$(uname -m)-linux.tar.gz
        download "$repository/releases/download/v${version#v}/$file"
        ;;
    esac
fi

export ROCADE_DEVICES=$name=$interface
if [ -n "${INPUT_FAULT:-}" ]; then
    ROCADE_FAULT=$(tr '\n' ';' <<< "$INPUT_FAULT" | sed 's/;*$//')
    export ROCADE_FAULT
fi
devices=$("$prefix/bin/rocade" devices) || fail "the device cannot be made: see the line above"
# The last columns are index, GID and address. The first IPv4 GID counts, or else the first one.
gid=$(awk 'NF > 2 && $(NF - 2) ~ /^[0-9]+$/ { print ($NF ~ /:/), $(NF - 2), $NF }' <<< "$devices" |
    sort -s -k 1,1 | cut -d ' ' -f 2- | head -n 1)
[ -n "$gid" ] || fail "$interface has no address"

{
    echo "device=$name"
    echo "gid-index=${gid% *}"
    echo "address=${gid#* }"
    echo "interface=$interface"
} >> "$GITHUB_OUTPUT"
{
    echo "ROCADE_DEVICES=$ROCADE_DEVICES"
    echo "LD_LIBRARY_PATH=$prefix/lib/rocade${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
    [ -z "${ROCADE_FAULT:-}" ] || echo "ROCADE_FAULT=$ROCADE_FAULT"
} >> "$GITHUB_ENV"
echo "$prefix/bin" >> "$GITHUB_PATH"
echo "$devices"
