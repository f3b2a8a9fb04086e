#!/usr/bin/env bash
# Times this crate against its rivals, interleaved in one run:
#
#   benches/peers/run.sh [--quick] [--only GROUP [--rows ROWS]] [--threads N] [--hold avx2 | avx512]
#                        [--json | --markdown] [--plot FILE]
#
# Installs the rivals at pinned versions into virtual environments, target/peers/venv (several GB
# the first time) and target/peers/python, builds our side and the rivals in Rust (minutes the
# first time), and hands over to run.py, which explains the rest. A rival of rivals/*.py that does
# not install, or is not for this CPU, is skipped with a line that says why. --hold lets ours and the
# rivals that hold.py knows find no newer instruction sets than AVX2, or AVX512 without VNNI. The tables of RESULTS.md,
# in this folder, are the output of
#
#   benches/peers/run.sh --markdown --plot assets/peak.svg
set -euo pipefail
cd "$(dirname "$0")/../.."

source benches/peers/setup.sh

install
echo "building" >&2
arguments=(--ours "$(build --bench peers)")
rivals=(--manifest-path benches/peers/rivals/Cargo.toml --locked --target-dir target/peers/rust)
# Both builds have one name, so each is copied before the next.
cp "$(build "${rivals[@]}")" target/peers/rivals
arguments+=(--rival target/peers/rivals)
if grep -qs avx512f /proc/cpuinfo; then
    cp "$(build "${rivals[@]}" --features x86-v4)" target/peers/rivals-x86-v4
    arguments+=(--rival target/peers/rivals-x86-v4)
fi
while read -r name python; do
    arguments+=(--python "$name" "$python")
done < <("$venv/bin/python" benches/peers/install.py "$venv" target/peers/python)
if [[ " $* " =~ \ --hold\ (avx2|avx512)\  ]]; then
    mapfile -d '' arguments < <(python3 benches/peers/hold/hold.py target/peers/hold "$venv" "${arguments[@]}")
    venv="target/peers/hold/venv"
    export HOLD="${BASH_REMATCH[1]}" LD_PRELOAD="$PWD/target/peers/hold/hold.so"
fi
exec "$venv/bin/python" benches/peers/run.py "${arguments[@]}" "$@"
