# Runs in the job: fetch one commit, make the Python environment, run the command. Needs bash, git, and curl where uv or
# conda has to be installed first. The variables are those of gantry, so that code which looks at them finds them.
set -eo pipefail

RESULTS_DIR="${RESULTS_DIR:-/results}"
notes="$RESULTS_DIR/.gantry"
logs="$notes/logs"
mkdir -p "$logs" "${GANTRY_RUNTIME_DIR:=/gantry-runtime}"
cd "$GANTRY_RUNTIME_DIR"
started=$SECONDS
num_logs=0

say() { printf 'windlass: %s\n' "$*"; }
die() { printf 'windlass: error: %s\n' "$*" >&2; exit 1; }

# logged NAME COMMAND...: the output goes to a file of the results, and is shown where the command fails.
logged() {
    num_logs=$((num_logs + 1))
    local file
    file="$logs/$(printf '%03d' "$num_logs")_$1.log"
    shift
    "$@" >"$file" 2>&1 && return 0
    local code=$?
    printf 'windlass: error: `%s` failed with code %s:\n' "$*" "$code" >&2
    cat "$file" >&2
    return "$code"
}

# again TIMES COMMAND...: with a pause that doubles, up to 30 s.
again() {
    local times=$1 pause=${GANTRY_RETRY_PAUSE_S:-1} attempt
    shift
    for ((attempt = 1; ; attempt++)); do
        "$@" && return 0
        ((attempt < times)) || return 1
        say "attempt $attempt of $times failed; again in $pause s"
        sleep "$pause"
        pause=$((pause * 2 > 30 ? 30 : pause * 2))
    done
}

# custom WHAT COMMAND: a file *.sh is sourced, so that it can set variables; anything else is evaluated.
custom() {
    say "$1: $2"
    if [[ -f $2 && $2 == *.sh ]]; then
        # shellcheck disable=SC1090
        source "$2" || return 1
        set +x -eo pipefail
    else
        eval "$2" || return 1
    fi
}

has() { command -v "$1" >/dev/null 2>&1; }

is_several_nodes() {
    [[ ${BEAKER_REPLICA_COUNT:-1} -gt 1 && -n ${BEAKER_LEADER_REPLICA_HOSTNAME:-} && ${BEAKER_ASSIGNED_GPU_COUNT:-0} -gt 0 ]]
}

# git_setting KEY VALUE: for this job alone, not in a home folder that other jobs may share.
git_setting() {
    local at=${GIT_CONFIG_COUNT:-0}
    export "GIT_CONFIG_KEY_$at=$1" "GIT_CONFIG_VALUE_$at=$2" "GIT_CONFIG_COUNT=$((at + 1))"
}

credentials() {
    if [[ -n ${GITHUB_TOKEN:-} ]]; then
        # shellcheck disable=SC2016
        git_setting credential.https://github.com.helper \
            '!f() { test "$1" = get && printf "username=x-access-token\npassword=%s\n" "$GITHUB_TOKEN"; }; f'
    fi
    local mask
    mask=$(umask)
    umask 077
    if [[ -n ${GANTRY_AWS_CONFIG:-} ]]; then
        mkdir -p ~/.aws && printf '%s\n' "$GANTRY_AWS_CONFIG" >~/.aws/config
    fi
    if [[ -n ${GANTRY_AWS_CREDENTIALS:-} ]]; then
        mkdir -p ~/.aws && printf '%s\n' "$GANTRY_AWS_CREDENTIALS" >~/.aws/credentials
    fi
    if [[ -n ${GANTRY_GOOGLE_CREDENTIALS:-} ]]; then
        mkdir -p ~/.google && printf '%s\n' "$GANTRY_GOOGLE_CREDENTIALS" >~/.google/credentials.json
        export GOOGLE_APPLICATION_CREDENTIALS="$HOME/.google/credentials.json"
        if has gcloud; then
            logged gcloud_auth gcloud auth activate-service-account --key-file="$GOOGLE_APPLICATION_CREDENTIALS"
        fi
    fi
    umask "$mask"
}

# The clusters with InfiniBand are known by the names of their hosts; TCPXO by what Google's host puts in the container.
nccl() {
    case "${BEAKER_NODE_HOSTNAME:-}" in
        jupiter* | titan* | ceres*)
            say "NCCL: InfiniBand"
            export NCCL_IB_HCA="^=mlx5_bond_0" NCCL_SOCKET_IFNAME=ib
            return
            ;;
    esac
    local folder=/var/lib/tcpxo/lib64
    [[ -d $folder ]] || return 0
    say "NCCL: TCPXO"
    export NCCL_LIB_DIR=$folder LD_LIBRARY_PATH="$folder:${LD_LIBRARY_PATH:-}"
    # shellcheck disable=SC1091
    source "$folder/nccl-env-profile.sh"
    export NCCL_PROTO=Simple,LL128
    export NCCL_TUNER_CONFIG_PATH=$folder/a3plus_tuner_config_ll128.textproto
    export NCCL_SHIMNET_GUEST_CONFIG_CHECKER_CONFIG_FILE=$folder/a3plus_guest_config_ll128.textproto
}

code() {
    say "fetching $GITHUB_REPO at $GIT_REF"
    git_setting advice.detachedHead false
    git_setting safe.directory "$PWD"
    logged git_init git init
    git remote remove origin 2>/dev/null || true
    logged git_remote git remote add origin "${WINDLASS_GIT_URL:-https://github.com/$GITHUB_REPO}"
    again 5 logged git_fetch git fetch --depth 1 origin "$GIT_REF"
    logged git_checkout git checkout --force --detach FETCH_HEAD
    if [[ -f .gitmodules ]]; then
        again 3 logged git_submodules git submodule update --init --recursive
    fi
}

install_uv() { curl -LsSf https://astral.sh/uv/install.sh | sh; }

install_conda() {
    curl -fsSL -o /tmp/miniconda.sh https://repo.anaconda.com/miniconda/Miniconda3-latest-Linux-x86_64.sh
    bash /tmp/miniconda.sh -b -p /opt/conda
}

uv_project() {
    if [[ -n ${GANTRY_INSTALL_CMD:-} ]]; then
        custom install "$GANTRY_INSTALL_CMD"
        return
    fi
    local file flags=("$@") extra
    if [[ -n ${GANTRY_UV_ALL_EXTRAS:-} ]]; then flags+=(--all-extras); fi
    for extra in ${GANTRY_UV_EXTRAS:-}; do flags+=("--extra=$extra"); done
    for file in pyproject.toml setup.py setup.cfg; do
        if [[ -f $file ]]; then
            logged uv_install uv pip install "${flags[@]}" -r "$file" .
            return
        fi
    done
    if [[ -f requirements.txt ]]; then logged uv_install uv pip install "$@" -r requirements.txt; fi
}

uv_environment() {
    has uv || again 5 logged install_uv install_uv
    export PATH="$HOME/.local/bin:$HOME/.cargo/bin:$PATH"
    local flags=()
    if [[ -n ${GANTRY_UV_VENV:-} ]]; then
        [[ -f $GANTRY_UV_VENV/bin/activate ]] || die "--uv-venv: $GANTRY_UV_VENV is no virtual environment"
        # shellcheck disable=SC1091
        source "$GANTRY_UV_VENV/bin/activate"
        export UV_PROJECT_ENVIRONMENT="$GANTRY_UV_VENV"
    elif [[ -n ${GANTRY_USE_SYSTEM_PYTHON:-} ]]; then
        has python || die "--system-python: the image has no python"
        flags=(--system --break-system-packages)
    else
        logged uv_venv uv venv ${GANTRY_DEFAULT_PYTHON_VERSION:+"--python=$GANTRY_DEFAULT_PYTHON_VERSION"}
        # shellcheck disable=SC1091
        source .venv/bin/activate
    fi
    UV_PYTHON="$(command -v python)"
    export UV_PYTHON
    local lock="$notes/uv.lock"
    if [[ -n ${UV_CACHE_DIR:-} ]]; then mkdir -p "$UV_CACHE_DIR" && lock="$UV_CACHE_DIR/lockfile"; fi
    exec 200>"$lock"  # several jobs may share the cache, and uv alone does not keep them apart on every filesystem
    if has flock; then flock -x 200; fi
    uv_project "${flags[@]}"
    exec 200>&-
    uv pip freeze >"$notes/requirements.txt" 2>/dev/null || true
}

conda_environment() {
    if [[ -n ${GANTRY_CONDA_FILE:-} && ! -f $GANTRY_CONDA_FILE ]]; then die "--conda-file: no file $GANTRY_CONDA_FILE"; fi
    has conda || again 5 logged install_conda install_conda
    export PATH="$PATH:/opt/conda/bin"
    eval "$(conda shell.bash hook)"
    local name=gantry
    if [[ -n ${GANTRY_CONDA_ENV:-} ]]; then name=$GANTRY_CONDA_ENV; elif [[ -n ${GANTRY_USE_SYSTEM_PYTHON:-} ]]; then name=base; fi
    if [[ $name != gantry ]]; then
        conda activate "$name"
        if [[ -n ${GANTRY_CONDA_FILE:-} ]]; then logged conda_update conda env update -f "$GANTRY_CONDA_FILE"; fi
    elif [[ -n ${GANTRY_CONDA_FILE:-} ]]; then
        logged conda_create conda env create -n gantry -f "$GANTRY_CONDA_FILE"
        conda activate gantry
    else
        logged conda_create conda create -y -n gantry "python${GANTRY_DEFAULT_PYTHON_VERSION:+=$GANTRY_DEFAULT_PYTHON_VERSION}" pip
        conda activate gantry
    fi
    if [[ -n ${GANTRY_INSTALL_CMD:-} ]]; then
        custom install "$GANTRY_INSTALL_CMD"
    elif [[ -f pyproject.toml || -f setup.py || -f setup.cfg ]]; then
        logged pip_install python -m pip install .
    elif [[ -f requirements.txt ]]; then
        logged pip_install python -m pip install -r requirements.txt
    fi
    python -m pip freeze >"$notes/requirements.txt"
}

if [[ -n ${GANTRY_PRE_SETUP_CMD:-} ]]; then custom pre-setup "$GANTRY_PRE_SETUP_CMD"; fi
for name in GITHUB_REPO GIT_REF; do [[ -n ${!name:-} ]] || die "the variable $name is not set"; done
has git || die "the image has no git"
if [[ -n ${GANTRY_USE_TORCHRUN:-} && ${BEAKER_ASSIGNED_GPU_COUNT:-0} -lt 1 ]]; then die "--torchrun: the job has no GPU"; fi
export PYTHONUNBUFFERED="${PYTHONUNBUFFERED:-1}"
credentials
if [[ -n ${PYTORCH_KERNEL_CACHE_PATH:-} ]]; then mkdir -p "$PYTORCH_KERNEL_CACHE_PATH"; fi
if is_several_nodes && [[ -z ${GANTRY_SKIP_NCCL_SETUP:-} ]]; then nccl; fi
code
if [[ -z ${GANTRY_NO_PYTHON:-} ]]; then
    "${GANTRY_PYTHON_MANAGER:-uv}_environment"
    export PYTHONPATH="${PYTHONPATH:+$PYTHONPATH:}$PWD"
elif [[ -n ${GANTRY_INSTALL_CMD:-} ]]; then
    custom install "$GANTRY_INSTALL_CMD"
fi
if [[ -n ${GANTRY_POST_SETUP_CMD:-} ]]; then custom post-setup "$GANTRY_POST_SETUP_CMD"; fi
say "ready after $((SECONDS - started)) s"

words=()
if [[ -n ${GANTRY_USE_TORCHRUN:-} ]]; then
    words=(torchrun "--nproc-per-node=$BEAKER_ASSIGNED_GPU_COUNT")
    if is_several_nodes; then
        words+=(
            "--nnodes=$BEAKER_REPLICA_COUNT:$BEAKER_REPLICA_COUNT" "--node-rank=$BEAKER_REPLICA_RANK"
            --rdzv-backend=static "--rdzv-id=${GANTRY_RDZV_ID:?}" "--rdzv-conf=read_timeout=420"
            "--rdzv-endpoint=$BEAKER_LEADER_REPLICA_HOSTNAME:${GANTRY_RDZV_PORT:?}"
        )
    fi
    if [[ $1 != *.py ]]; then words+=(--no-python); fi
fi
words+=("$@")
if [[ ${GANTRY_EXEC_METHOD:-exec} == bash ]]; then exec bash -c "${words[*]}"; fi
exec "${words[@]}"
