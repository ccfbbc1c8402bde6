#!/bin/sh
# score.sh ROWS OUT NAME=MODEL...: answers held-out prompts with each model (a reward model compares held-out pairs)
set -eu
rows=$1 out=$2
shift 2
for each; do
  name=${each%%=*} model=${each#*=}
  case $name in
  reward) set -- "$rows/held-pairs.jsonl" ;;
  *) set -- "$rows/held-prompts.jsonl" reward.verifiers='[gsm8k]' max_new_tokens=14 num_slots=128 ;;
  esac
  python -m windlass ckpt evaluate "hf:$model" "$@" --template plain --name "$name" --out "$out/$name.json"
done
