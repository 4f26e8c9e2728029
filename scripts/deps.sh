#!/usr/bin/env bash
# Installs missing packages with apt, for one purpose or several: build (which includes the tests), aarch64 (for
# test_aarch64.sh), fuzz, format, mutants, minilm, bench, torch, engines, docs, abi or release.
# DEPS=no installs nothing. LLVM_CONFIG set to another llvm-config means that LLVM is the caller's own business.
# g++ brings the archive of the C++ library, which goes into the code generator; tests use g++ and cmake as well,
# and musl.
set -euo pipefail

declare -A packages=(
    [aarch64]="gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
    [build]="gcc g++ libc6-dev make cmake binutils pkg-config libxxhash-dev libjansson-dev libsqlite3-dev
        libcmocka-dev libcurl4-openssl-dev minisign musl-tools"
    [fuzz]="clang-19 libclang-rt-19-dev"
    [format]="clang-format-19 git"
    [mutants]="git python3"
    [minilm]="python3-pip"
    [bench]="python3-venv"
    [torch]="python3-venv"
    [engines]="python3-venv"
    [docs]="doxygen python3-venv"
    [abi]="abigail-tools"
    [release]="build-essential debhelper dh-python devscripts lintian git doxygen python3-pip python3-setuptools
        python3-venv"
)

[ $# -gt 0 ] || { echo "usage: deps.sh PURPOSE…; there are: ${!packages[*]}" >&2; exit 2; }
wanted=
for purpose in "$@"; do
    [ -n "${packages[$purpose]:-}" ] || { echo "deps: no purpose '$purpose'; there are: ${!packages[*]}" >&2; exit 2; }
    wanted+=" ${packages[$purpose]}"
done
[[ $* = docs || $* = abi ]] || command -v "${LLVM_CONFIG:-llvm-config-19}" >/dev/null || wanted+=" llvm-19-dev"

missing=()
for package in $wanted; do
    # "ii" is installed; anything else, including unknown, is not.
    status=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
    [[ $status == ii* ]] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

if [ "${DEPS:-}" = no ]; then
    echo "deps: not installed (DEPS=no): ${missing[*]}" >&2
    exit 0
fi
if ! command -v apt-get >/dev/null; then
    echo "deps: no apt-get here; install these by other means: ${missing[*]}" >&2
    exit 0
fi
sudo=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "deps: neither root nor sudo; install: ${missing[*]}" >&2; exit 1; }
    sudo=(sudo)
fi
echo "deps: installing with apt: ${missing[*]}"
"${sudo[@]}" apt-get update -qq
DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
