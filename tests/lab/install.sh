#!/usr/bin/env bash
# Install the Debian packages of packages.txt that are missing. A second call does nothing. No service is started:
# the tests run their own daemons, with their own sockets and ports.
set -euo pipefail

# What invoke-rc.d(8) asks before it starts a service; LAB_POLICY is another file when this script itself is tested.
policy=${LAB_POLICY:-/usr/sbin/policy-rc.d}
ours='for the time of make lab'

put_policy_back() {
    rm -f "$policy"
    if [[ -e $policy.before-lab || -L $policy.before-lab ]]; then mv "$policy.before-lab" "$policy"; fi
}

deny_services() {
    # One of ours is there when an installation was killed: what it put aside still lies there.
    if [[ -e $policy ]] && ! grep -q "$ours" "$policy"; then mv "$policy" "$policy.before-lab"; fi
    trap put_policy_back EXIT
    printf '#!/bin/sh\n# %s\nexit 101\n' "$ours" >"$policy"
    chmod 755 "$policy"
}

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
    deny_services
    apt-get -qq update
    apt-get -qq install --yes --no-install-recommends "${missing[@]}"
    echo "lab: installed ${missing[*]}"
fi
