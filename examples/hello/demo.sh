#!/usr/bin/env bash
# The tour: train twice, kill a replica of the second run midway, and show that both end with the same weights.
# `make demo` calls it; it needs windlass on the PATH and git, and writes below build/demo only.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
place=$(cd "$here/../.." && pwd)/build/demo
project=$place/hello
windlass=$(command -v windlass) || { echo 'demo: windlass is not on the PATH (make demo sees to that)' >&2; exit 1; }
python=$(dirname "$(readlink -f "$windlass")")/python

unset "${!GIT_@}" "${!WINDLASS_@}"  # a git hook's repository and a user's settings stay out of it
export WINDLASS_HOME=$place/home XDG_CACHE_HOME=$place/cache GIT_CONFIG_GLOBAL=/dev/null

say() { printf '\n== %s\n' "$*"; }

fresh_project() {
    rm -rf "$project"
    mkdir -p "$project"
    cp "$here"/{README.md,experiment.yaml,train.py,allreduce.py,pyproject.toml,requirements.txt} "$project"
    cd "$project"
    git -c init.defaultBranch=main init --quiet --template=
    git add --all
    git -c user.name=demo -c user.email=demo@localhost commit --quiet --message 'The hello example'
}

killer=
leave() {  # also after Ctrl-C: no run and no helper stays
    [ -z "$killer" ] || kill "$killer" 2>/dev/null || true
    windlass stop last >/dev/null 2>&1 || true
}
trap 'leave; exit 130' INT TERM

say "A copy of examples/hello becomes a git repository of its own: $project"
fresh_project

say 'First run: two replicas train on handwritten digits, and nobody disturbs them (windlass launch experiment.yaml)'
windlass launch experiment.yaml
windlass show last --json >"$place/first.json"

say 'Second run: the same, but replica 1 is killed with SIGKILL after the third checkpoint'
"$python" "$here/demo/kill_replica.py" --unlike "$place/first.json" --checkpoints 3 &
killer=$!
windlass launch experiment.yaml || { leave; exit 1; }
wait "$killer" || { echo 'demo: no replica was killed' >&2; exit 1; }
killer=
windlass show last --json >"$place/second.json"

say 'Are they the same?'
"$python" "$here/demo/compare.py" "$place/first.json" "$place/second.json"

say 'Look around'
printf '   cd %s; export WINDLASS_HOME=%s\n' "$project" "$WINDLASS_HOME"
printf '   export PATH=%s:$PATH; windlass show last\n' "$(dirname "$(command -v windlass)")"
printf '   then edit train.py, `git commit -a`, and `windlass launch experiment.yaml`\n'
