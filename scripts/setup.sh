# Sourced by demo and check: installs what is missing, without asking; sets $python.
# Works on a plain Debian 12 or Ubuntu 24.04 with python3, as root.

set -euo pipefail

top=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=${TIERFS_VENV:-$top/.venv}
python=$venv/bin/python

system_packages=(
    fuse3 libfuse3-dev pkg-config gcc libc6-dev python3-dev python3-venv
    xfsprogs e2fsprogs attr acl util-linux mount
)

refuse() {
    printf '%s\n' "$*" >&2
    exit 1
}

check_machine() {
    [ "$(id -u)" = 0 ] || refuse "needs root (mounting): sudo $0"
    [ -e /dev/fuse ] || modprobe fuse 2>/dev/null || true
    [ -e /dev/fuse ] ||
        refuse "no /dev/fuse: load the kernel module fuse, or start the container with --device /dev/fuse --privileged"
    python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        refuse "needs Python 3.11 or newer; this is $(python3 --version 2>&1)"
}

install_system_packages() {
    local package missing=()
    for package in "${system_packages[@]}"; do
        dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
    done
    [ ${#missing[@]} -gt 0 ] || return 0
    echo "Installing system packages: ${missing[*]}"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

# install_into VENV STAMP-OF WORDS…: a virtual environment in VENV with `pip install WORDS`, once
# for each version of the file STAMP-OF.
install_into() {
    local where=$1 source=$2 stamp
    shift 2
    stamp=$where/.installed-$(sha256sum "$source" | cut -c1-16)
    [ ! -e "$stamp" ] || return 0
    echo "Installing into $where (a minute or more)"
    [ -x "$where/bin/python" ] || python3 -m venv "$where"
    "$where/bin/python" -m pip install --quiet --disable-pip-version-check "$@"
    touch "$stamp"
}

set_up() {
    check_machine
    install_system_packages
    install_into "$venv" "$top/pyproject.toml" --editable "$top[test]"
}
