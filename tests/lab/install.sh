#!/usr/bin/env bash
# Install the Debian packages of packages.txt that are missing. A second call does nothing.
set -euo pipefail

mapfile -t packages < <(grep -vE '^(#|$)' "$(dirname "${BASH_SOURCE[0]}")/packages.txt")

if ! command -v dpkg-query >/dev/null; then
    echo "lab: not a Debian system; system tests need: ${packages[*]}"
    exit 0
fi

missing=()
for package in "${packages[@]}"; do
    status=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
done

if ((${#missing[@]} == 0)); then
    echo "lab: nothing to install (${packages[*]} are there)"
elif ((EUID != 0)); then
    echo "lab: missing ${missing[*]}; as root: apt-get install ${missing[*]}" >&2
    exit 1
else
    export DEBIAN_FRONTEND=noninteractive
    apt-get -qq update
    apt-get -qq install --yes --no-install-recommends "${missing[@]}"
    echo "lab: installed ${missing[*]}"
fi
