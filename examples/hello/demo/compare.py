"""Compare two runs by what `windlass show --json` said: same outputs, although the second one was killed midway?"""

import json
import sys
from pathlib import Path

TASK = "train"


def read(path):
    run = json.loads(Path(path).read_text())
    result = json.loads(Path(run["outputs"][TASK]["path"], "result.json").read_text())
    return run, result


def lines_of(label, run, result):
    yield f"{label:<8} {run['run']}: {run['state']}, held-out accuracy {result['accuracy']:.3f}"
    for attempt in run["tasks"][TASK]["attempts"]:
        end = attempt["end"]
        who = f" (replica {end['rank']})" if end.get("rank", -1) >= 0 else ""
        seconds = attempt["ended_at"] - attempt["started_at"]
        yield f"{'':<8} attempt {attempt['number']}: {seconds:4.1f} s, {end['cause']}{who}, saved up to step {attempt['checkpoint_step']}"
    yield f"{'':<8} sha256 of the weights  {result['weights_sha256']}"
    yield f"{'':<8} digest of its outputs  {run['outputs'][TASK]['digest']}"


def main():
    (first, first_result), (second, second_result) = read(sys.argv[1]), read(sys.argv[2])
    for label, run, result in (("first", first, first_result), ("second", second, second_result)):
        print("\n".join(f"   {line}" for line in lines_of(label, run, result)))
    attempts = second["tasks"][TASK]["attempts"]
    checks = {
        "both runs succeeded": first["state"] == second["state"] == "succeeded",
        "the first took one attempt": len(first["tasks"][TASK]["attempts"]) == 1,
        "the second was killed and started again by itself": len(attempts) == 2
        and attempts[0]["end"]["cause"] == "killed",
        "it went on from a checkpoint": attempts[0]["checkpoint_step"] > 0,
        "more than 90 % of the held-out digits are right": min(first_result["accuracy"], second_result["accuracy"])
        > 0.9,
        "the weights are equal, bit for bit": first_result["weights_sha256"] == second_result["weights_sha256"],
        "so are all outputs": first["outputs"][TASK]["digest"] == second["outputs"][TASK]["digest"],
    }
    print()
    for text, is_so in checks.items():
        print(f"   {'yes' if is_so else 'NO '}  {text}")
    return 0 if all(checks.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
