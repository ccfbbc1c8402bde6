"""Experiment files and overrides that are refused, each with the whole text that the user sees."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BAD_INPUTS", "BadInput"]


@dataclass(frozen=True)
class BadInput:
    """One refused input: the file `exp.yaml`, what is said about it, overrides."""

    name: str
    text: str
    said: str
    overrides: tuple[str, ...] = ()


LAUGHS = """\
name: hello
run: python train.py
params:
  a: &a [0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
  b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
  c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]
  d: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]
  e: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d, *d]
  f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e, *e]
"""

BAD_INPUTS = (
    BadInput(
        "empty file",
        "",
        """\
error: the file is empty                                      [no-tasks]
  exp.yaml
hint: write `key: value` lines
""",
    ),
    BadInput(
        "only a comment",
        """\
# nothing yet
""",
        """\
error: the file is empty                                      [no-tasks]
  exp.yaml
hint: write `key: value` lines
""",
    ),
    BadInput(
        "a list",
        """\
- a
- b
""",
        """\
error: the file must contain a mapping, not a list            [invalid-value]
  exp.yaml:1:1   - a
hint: write `key: value` lines
""",
    ),
    BadInput(
        "a word",
        """\
hello
""",
        """\
error: the file must contain a mapping, not the text `hello`  [invalid-value]
  exp.yaml:1:1   hello
hint: write `key: value` lines
""",
    ),
    BadInput(
        "no task",
        """\
name: hello
""",
        """\
error: the experiment has no task                             [no-tasks]
  exp.yaml:1:1   name: hello
hint: add `run: COMMAND`, or `tasks: {NAME: {run: COMMAND}}`
""",
    ),
    BadInput(
        "no name",
        """\
run: python train.py
""",
        """\
error: missing key `name`                                     [missing-key]
  exp.yaml:1:1   run: python train.py
hint: add `name:` (name of the experiment; runs are called NAME-xxxxxxxx)
""",
    ),
    BadInput(
        "run and tasks",
        """\
name: hello
run: python a.py
tasks:
  train: {run: python b.py}
""",
        """\
error: both `run` and `tasks` are set                         [conflicting-options]
  exp.yaml:2:1   run: python a.py
hint: `run` is short for `tasks.main.run`; keep one of them
""",
    ),
    BadInput(
        "unknown key in a task",
        """\
name: hello
tasks:
  train:
    run: python train.py
    nodez: 10
""",
        """\
error: unknown key `nodez` in tasks.train                     [unknown-key]
  exp.yaml:5:5   nodez: 10
hint: did you mean `nodes`?
""",
    ),
    BadInput(
        "unknown key, nothing near",
        """\
name: hello
run: python train.py
retry: {xyzzy: 1}
""",
        """\
error: unknown key `xyzzy` in retry                           [unknown-key]
  exp.yaml:3:9   retry: {xyzzy: 1}
hint: the keys here are: interrupted, failed
""",
    ),
    BadInput(
        "task key at the top",
        """\
name: hello
run: python train.py
nodes: 2
""",
        """\
error: unknown key `nodes` at the top level                   [unknown-key]
  exp.yaml:3:1   nodes: 2
hint: `nodes` belongs elsewhere: `tasks.NAME.nodes`
""",
    ),
    BadInput(
        "unknown key at the top",
        """\
name: hello
run: python train.py
parms: {lr: 1}
""",
        """\
error: unknown key `parms` at the top level                   [unknown-key]
  exp.yaml:3:1   parms: {lr: 1}
hint: did you mean `params`?
""",
    ),
    BadInput(
        "key written twice",
        """\
name: hello
run: python a.py
run: python b.py
""",
        """\
error: duplicate key `run`                                    [yaml-syntax]
  exp.yaml:3:1   run: python b.py
hint: the first one is on line 2
""",
    ),
    BadInput(
        "text for a number",
        """\
name: hello
tasks:
  train: {run: python train.py, nodes: two}
""",
        """\
error: `tasks.train.nodes` must be a whole number, not the text `two`  [invalid-value]
  exp.yaml:3:40   train: {run: python train.py, nodes: two}
""",
    ),
    BadInput(
        "quoted number",
        """\
name: hello
tasks:
  train:
    run: python train.py
    nodes: "2"
""",
        """\
error: `tasks.train.nodes` must be a whole number, not the text `2`  [invalid-value]
  exp.yaml:5:12   nodes: "2"
hint: remove the quotes: 2
""",
    ),
    BadInput(
        "fraction for a whole number",
        """\
name: hello
tasks:
  train:
    run: python train.py
    nodes: 1.5
""",
        """\
error: `tasks.train.nodes` must be a whole number, not the number `1.5`  [invalid-value]
  exp.yaml:5:12   nodes: 1.5
""",
    ),
    BadInput(
        "boolean for a number",
        """\
name: hello
tasks:
  train:
    run: python train.py
    nodes: true
""",
        """\
error: `tasks.train.nodes` must be a whole number, not `true`  [invalid-value]
  exp.yaml:5:12   nodes: true
""",
    ),
    BadInput(
        "token for a number",
        """\
name: hello
tasks:
  train:
    run: python train.py
    nodes: ${params.n}
""",
        """\
error: `tasks.train.nodes` must be a whole number, not the text `${params.n}`  [invalid-value]
  exp.yaml:5:12   nodes: ${params.n}
hint: `${...}` works in text only; write the value itself
""",
    ),
    BadInput(
        "too many nodes",
        """\
name: hello
tasks:
  train:
    run: python train.py
    nodes: 10001
""",
        """\
error: `tasks.train.nodes` is `10001`, which is out of range  [invalid-value]
  exp.yaml:5:12   nodes: 10001
hint: it must be between 1 and 10000
""",
    ),
    BadInput(
        "no nodes",
        """\
name: hello
tasks:
  train:
    run: python train.py
    nodes: 0
""",
        """\
error: `tasks.train.nodes` is `0`, which is out of range      [invalid-value]
  exp.yaml:5:12   nodes: 0
hint: it must be between 1 and 10000
""",
    ),
    BadInput(
        "number for text",
        """\
name: 42
run: python train.py
""",
        """\
error: `name` must be text, not the number `42`               [invalid-value]
  exp.yaml:1:7   name: 42
hint: quote it: "42"
""",
    ),
    BadInput(
        "boolean for text",
        """\
name: hello
why: true
run: python train.py
""",
        """\
error: `why` must be text, not `true`                         [invalid-value]
  exp.yaml:2:6   why: true
hint: quote it: "true"
""",
    ),
    BadInput(
        "nothing for text",
        """\
name: hello
why:
run: python train.py
""",
        """\
error: `why` must be text, not nothing (null)                 [invalid-value]
  exp.yaml:2:5   why:
hint: write a value, or remove `why`; empty text is `""`
""",
    ),
    BadInput(
        "mapping for text",
        """\
name: hello
why: {faster: than}
run: python train.py
""",
        """\
error: `why` must be text, not a mapping                      [invalid-value]
  exp.yaml:2:6   why: {faster: than}
hint: put quotes around text that contains `: `
""",
    ),
    BadInput(
        "number for a command",
        """\
name: hello
run: 5
""",
        """\
error: `tasks.main.run` must be text, not the number `5`      [invalid-value]
  exp.yaml:2:6   run: 5
hint: quote it: "5"
""",
    ),
    BadInput(
        "number in an argument list",
        """\
name: hello
run: [python, train.py, --seed, 1]
""",
        """\
error: `tasks.main.run.3` must be text, not the number `1`    [invalid-value]
  exp.yaml:2:33   run: [python, train.py, --seed, 1]
hint: quote it: "1"
""",
    ),
    BadInput(
        "empty command",
        """\
name: hello
run: ""
""",
        """\
error: `run` is empty                                         [invalid-value]
  exp.yaml:2:6   run: ""
hint: write the command, such as `python train.py`
""",
    ),
    BadInput(
        "task without a command",
        """\
name: hello
tasks:
  train: {nodes: 2}
""",
        """\
error: missing key `run` in tasks.train                       [missing-key]
  exp.yaml:3:10   train: {nodes: 2}
hint: add `run:` (a line for /bin/sh, or a list of arguments, such as `[bash, -c, LINE]`)
""",
    ),
    BadInput(
        "task that is nothing",
        """\
name: hello
tasks:
  train:
""",
        """\
error: `tasks.train` must be a mapping, not nothing (null)    [invalid-value]
  exp.yaml:3:9   train:
hint: indent what belongs to `train` below it, or remove `train`
""",
    ),
    BadInput(
        "tasks as a list",
        """\
name: hello
tasks:
  - run: python train.py
""",
        """\
error: `tasks` must be a mapping, not a list                  [invalid-value]
  exp.yaml:3:3   - run: python train.py
""",
    ),
    BadInput(
        "yes for a boolean",
        """\
name: hello
run: python train.py
context: {preemptible: yes}
""",
        """\
error: `context.preemptible` must be `true` or `false`, not the text `yes`  [invalid-value]
  exp.yaml:3:24   context: {preemptible: yes}
hint: write `true`
""",
    ),
    BadInput(
        "priority misspelt",
        """\
name: hello
run: python train.py
context: {priority: hihg}
""",
        """\
error: `context.priority` cannot be the text `hihg`           [invalid-value]
  exp.yaml:3:21   context: {priority: hihg}
hint: did you mean `high`? it must be one of low, normal, high, urgent
""",
    ),
    BadInput(
        "unknown cluster",
        """\
name: hello
tasks:
  train:
    run: python train.py
    cluster: slurm
""",
        """\
error: `tasks.train.cluster` cannot be the text `slurm`       [invalid-value]
  exp.yaml:5:14   cluster: slurm
hint: it must be one of none, torchrun, accelerate, srun, mpi, ray
""",
    ),
    BadInput(
        "unknown compat",
        """\
name: hello
tasks:
  train:
    run: python train.py
    compat: [gantry]
""",
        """\
error: `tasks.train.compat.0` cannot be the text `gantry`     [invalid-value]
  exp.yaml:5:14   compat: [gantry]
hint: it must be `beaker`
""",
    ),
    BadInput(
        "checkpoint pattern that leaves its folder",
        """\
name: hello
tasks:
  train:
    run: python train.py
    checkpoints: {pattern: ../step_*}
""",
        """\
error: the pattern `../step_*` points outside the folder of checkpoints  [invalid-value]
  exp.yaml:5:28   checkpoints: {pattern: ../step_*}
hint: write a pattern of names below ${checkpoints}, such as `step_*` or `*/model.pt`
""",
    ),
    BadInput(
        "checkpoint pattern with half a double star",
        """\
name: hello
tasks:
  train:
    run: python train.py
    checkpoints: {pattern: step**}
""",
        """\
error: invalid pattern `step**`                               [invalid-value]
  exp.yaml:5:28   checkpoints: {pattern: step**}
hint: write a pattern of names below ${checkpoints}, such as `step_*` or `*/model.pt`
""",
    ),
    BadInput(
        "duration without a unit",
        """\
name: hello
run: python train.py
limit: {time: 3600}
""",
        """\
error: `limit.time` must be a duration such as `20m`, not the number `3600`  [invalid-value]
  exp.yaml:3:15   limit: {time: 3600}
hint: add a unit: `3600s`, `3600m`, `3600h` or `3600d`
""",
    ),
    BadInput(
        "duration as a clock",
        """\
name: hello
run: python train.py
limit: {time: 24:00:00}
""",
        """\
error: `limit.time` cannot be the text `24:00:00`             [invalid-value]
  exp.yaml:3:15   limit: {time: 24:00:00}
hint: write `1d`
""",
    ),
    BadInput(
        "duration as Slurm writes it",
        """\
name: hello
run: python train.py
limit: {time: 5-00:00:00}
""",
        """\
error: `limit.time` cannot be the text `5-00:00:00`           [invalid-value]
  exp.yaml:3:15   limit: {time: 5-00:00:00}
hint: write `5d`
""",
    ),
    BadInput(
        "duration in words",
        """\
name: hello
run: python train.py
limit: {time: two days}
""",
        """\
error: `limit.time` cannot be the text `two days`             [invalid-value]
  exp.yaml:3:15   limit: {time: two days}
hint: a duration is a number with a unit: 90s, 20m, 1h30m, 5d
""",
    ),
    BadInput(
        "duration too short",
        """\
name: hello
run: python train.py
limit: {per_job: 500ms}
""",
        """\
error: `limit.per_job` is `500ms`, which is out of range      [invalid-value]
  exp.yaml:3:18   limit: {per_job: 500ms}
hint: it must be at least 1s
""",
    ),
    BadInput(
        "job longer than the run",
        """\
name: hello
run: python train.py
limit: {time: 1h, per_job: 24h}
""",
        """\
error: limit.per_job (1d) is longer than limit.time (1h)      [conflicting-options]
  exp.yaml:3:28   limit: {time: 1h, per_job: 24h}
hint: raise `time` or lower `per_job`
""",
    ),
    BadInput(
        "size without a unit",
        """\
name: hello
tasks:
  train:
    run: python train.py
    memory: 64
""",
        """\
error: `tasks.train.memory` must be a size such as `16GiB`, not the number `64`  [invalid-value]
  exp.yaml:5:13   memory: 64
hint: add a unit: `64MiB`, `64GiB` or `64TiB`
""",
    ),
    BadInput(
        "size in words",
        """\
name: hello
tasks:
  train:
    run: python train.py
    memory: lots
""",
        """\
error: `tasks.train.memory` cannot be the text `lots`         [invalid-value]
  exp.yaml:5:13   memory: lots
hint: a size is a number with a unit: 512MiB, 16GiB, 1.5TB
""",
    ),
    BadInput(
        "negative retries",
        """\
name: hello
run: python train.py
retry: {failed: -1}
""",
        """\
error: `retry.failed` is `-1`, which is out of range          [invalid-value]
  exp.yaml:3:17   retry: {failed: -1}
hint: it must be at least 0
""",
    ),
    BadInput(
        "no GPU-hours",
        """\
name: hello
run: python train.py
limit: {gpu_hours: 0}
""",
        """\
error: `limit.gpu_hours` is `0`, which is out of range        [invalid-value]
  exp.yaml:3:20   limit: {gpu_hours: 0}
hint: it must be above 0
""",
    ),
    BadInput(
        "number too large",
        """\
name: hello
run: python train.py
params: {lr: 1e999}
""",
        """\
error: the number `1e999` is too large                        [invalid-value]
  exp.yaml:3:14   params: {lr: 1e999}
hint: quote it if it is meant as text
""",
    ),
    BadInput(
        "GPUs the wrong way round",
        """\
name: hello
tasks:
  train:
    run: python train.py
    gpus: gh200 x 4
""",
        """\
error: `tasks.train.gpus` cannot be the text `gh200 x 4`      [invalid-value]
  exp.yaml:5:11   gpus: gh200 x 4
hint: write the number of GPUs per node, optionally with a type: `4` or `4 x gh200`
""",
    ),
    BadInput(
        "GPUs as a boolean",
        """\
name: hello
tasks:
  train:
    run: python train.py
    gpus: true
""",
        """\
error: `tasks.train.gpus` must be a whole number, text or a mapping, not `true`  [invalid-value]
  exp.yaml:5:11   gpus: true
""",
    ),
    BadInput(
        "gpus and total_gpus",
        """\
name: hello
tasks:
  train:
    run: python train.py
    gpus: 4
    total_gpus: 40
""",
        """\
error: both `gpus` and `total_gpus` are set                   [conflicting-options]
  exp.yaml:6:17   total_gpus: 40
hint: keep `gpus` (per node) or `total_gpus` (of all nodes together)
""",
    ),
    BadInput(
        "procs_per_node without a launcher",
        """\
name: hello
tasks:
  train:
    run: python train.py
    procs_per_node: 4
""",
        """\
error: `procs_per_node` has no effect with `cluster: none`    [setting-unused]
  exp.yaml:5:21   procs_per_node: 4
hint: use `cluster: torchrun` or `cluster: accelerate`, or remove it
""",
    ),
    BadInput(
        "illegal experiment name",
        """\
name: My Experiment
run: python train.py
""",
        """\
error: `name` cannot be the text `My Experiment`              [invalid-name]
  exp.yaml:1:7   name: My Experiment
hint: did you mean `my-experiment`? a name consists of small letters, digits, '-', '_' and '.', at most 64, beginning and ending with a letter or digit
""",
    ),
    BadInput(
        "illegal task name",
        """\
name: hello
tasks:
  Train: {run: python train.py}
""",
        """\
error: `Train` in tasks is not a valid name                   [invalid-name]
  exp.yaml:3:3   Train: {run: python train.py}
hint: did you mean `train`? a name consists of small letters, digits, '-' and '_', at most 64, beginning and ending with a letter or digit
""",
    ),
    BadInput(
        "illegal data name",
        """\
name: hello
run: python train.py
data:
  train.v2: file:train.bin
""",
        """\
error: `train.v2` in data is not a valid name                 [invalid-name]
  exp.yaml:4:3   train.v2: file:train.bin
hint: did you mean `train-v2`? a name consists of small letters, digits, '-' and '_', at most 64, beginning and ending with a letter or digit
""",
    ),
    BadInput(
        "illegal parameter name",
        """\
name: hello
run: python train.py
params: {2lr: 1}
""",
        """\
error: `2lr` in params is not a valid name                    [invalid-name]
  exp.yaml:3:10   params: {2lr: 1}
hint: a parameter's name consists of letters, digits, '_' and '-', the first a letter or '_'
""",
    ),
    BadInput(
        "illegal variable name",
        """\
name: hello
run: python train.py
env:
  vars: {MY-VAR: 1}
""",
        """\
error: `MY-VAR` in env.vars is not a valid name               [invalid-name]
  exp.yaml:4:10   vars: {MY-VAR: 1}
hint: a variable's name consists of letters, digits and '_', the first not a digit
""",
    ),
    BadInput(
        "illegal secret name",
        """\
name: hello
run: python train.py
env:
  secrets: [hf token]
""",
        """\
error: `env.secrets.0.name` cannot be the text `hf token`     [invalid-name]
  exp.yaml:4:13   secrets: [hf token]
hint: a variable's name consists of letters, digits and '_', the first not a digit
""",
    ),
    BadInput(
        "secret twice",
        """\
name: hello
run: python train.py
env:
  secrets: [HF_TOKEN, HF_TOKEN]
""",
        """\
error: duplicate secret `HF_TOKEN`                            [conflicting-options]
  exp.yaml:4:23   secrets: [HF_TOKEN, HF_TOKEN]
hint: remove one
""",
    ),
    BadInput(
        "secret delivered oddly",
        """\
name: hello
run: python train.py
env:
  secrets: [{name: HF_TOKEN, as: argument}]
""",
        """\
error: `env.secrets.0.as` cannot be the text `argument`       [invalid-value]
  exp.yaml:4:34   secrets: [{name: HF_TOKEN, as: argument}]
hint: it must be one of env, file
""",
    ),
    BadInput(
        "secret value in vars",
        """\
name: hello
run: python train.py
env:
  vars: {HF_TOKEN: abc}
  secrets: [HF_TOKEN]
""",
        """\
error: `HF_TOKEN` is both a secret and a variable             [conflicting-options]
  exp.yaml:4:20   vars: {HF_TOKEN: abc}
hint: remove `HF_TOKEN` from `vars`; its value comes from the vault
""",
    ),
    BadInput(
        "secret hidden by a task",
        """\
name: hello
env:
  secrets: [HF_TOKEN]
tasks:
  train:
    run: python train.py
    vars: {HF_TOKEN: abc}
""",
        """\
error: `HF_TOKEN` is both a secret and a variable of task `train`  [conflicting-options]
  exp.yaml:7:22   vars: {HF_TOKEN: abc}
hint: remove `HF_TOKEN` from `vars`; its value comes from the vault
""",
    ),
    BadInput(
        "two environments",
        """\
name: hello
run: python train.py
env: {uv: ., image: Dockerfile}
""",
        """\
error: env has `image` and `uv`                               [conflicting-options]
  exp.yaml:3:11   env: {uv: ., image: Dockerfile}
hint: keep one of `image`, `uv` and `python`
""",
    ),
    BadInput(
        "a secret as a build argument",
        """\
name: hello
run: python train.py
env: {image: {dockerfile: Dockerfile, args: {HF_TOKEN: abc}}}
""",
        """\
error: the build argument `HF_TOKEN` looks like a secret, and arguments stay in the image  [image-secret-argument]
  exp.yaml:3:56   env: {image: {dockerfile: Dockerfile, args: {HF_TOKEN: abc}}}
hint: windlass secret set HF_TOKEN; `secrets: HF_TOKEN`; RUN --mount=type=secret,id=HF_TOKEN in the Dockerfile
""",
    ),
    BadInput(
        "extras without uv",
        """\
name: hello
run: python train.py
env: {extras: [train]}
""",
        """\
error: env.extras has no effect without `uv`                  [setting-unused]
  exp.yaml:3:15   env: {extras: [train]}
hint: add `uv: .` or remove `extras`
""",
    ),
    BadInput(
        "after itself",
        """\
name: hello
tasks:
  train: {run: python train.py, after: train}
""",
        """\
error: task `train` waits for itself                          [dependency-cycle]
  exp.yaml:3:40   train: {run: python train.py, after: train}
hint: remove `train` from its own `after`
""",
    ),
    BadInput(
        "after nobody",
        """\
name: hello
tasks:
  prep: {run: python prep.py}
  train: {run: python train.py, after: perp}
""",
        """\
error: unknown task `perp` in tasks.train.after               [unknown-task]
  exp.yaml:4:40   train: {run: python train.py, after: perp}
hint: did you mean `prep`?
""",
    ),
    BadInput(
        "after in a circle",
        """\
name: hello
tasks:
  prep: {run: python prep.py, after: score}
  train: {run: python train.py, after: prep}
  score: {run: python score.py, after: [train]}
""",
        """\
error: the tasks wait for each other: prep -> score -> train -> prep  [dependency-cycle]
  exp.yaml:3:38   prep: {run: python prep.py, after: score}
hint: remove one `after` of the cycle
""",
    ),
    BadInput(
        "data without a scheme",
        """\
name: hello
run: python train.py
data: {prompts: data/prompts.jsonl}
""",
        """\
error: invalid data source `data/prompts.jsonl`               [unsupported-source]
  exp.yaml:3:17   data: {prompts: data/prompts.jsonl}
hint: did you mean `file:data/prompts.jsonl`? a source begins with one of file:, store:, s3:, gs:, hf:, beaker:, run:, http:, https:
""",
    ),
    BadInput(
        "data with an unknown scheme",
        """\
name: hello
run: python train.py
data: {prompts: s4://bucket/prompts}
""",
        """\
error: unknown scheme `s4:` in the data source `s4://bucket/prompts`  [unsupported-source]
  exp.yaml:3:17   data: {prompts: s4://bucket/prompts}
hint: a source begins with one of file:, store:, s3:, gs:, hf:, beaker:, run:, http:, https:
""",
    ),
    BadInput(
        "data with a foreign scheme",
        """\
name: hello
run: python train.py
data: {prompts: mailto:me}
""",
        """\
error: unknown scheme `mailto:` in the data source `mailto:me`  [unsupported-source]
  exp.yaml:3:17   data: {prompts: mailto:me}
hint: a source begins with one of file:, store:, s3:, gs:, hf:, beaker:, run:, http:, https:
""",
    ),
    BadInput(
        "data without a place",
        """\
name: hello
run: python train.py
data: {prompts: "file:"}
""",
        """\
error: the data source `file:` has no path                    [unsupported-source]
  exp.yaml:3:17   data: {prompts: "file:"}
hint: write the path, such as `file:PATH`
""",
    ),
    BadInput(
        "data from nobody",
        """\
name: hello
run: python train.py
data:
  tokens: {from: prompts, build: python prep.py}
""",
        """\
error: unknown data `prompts` in data.tokens.from             [unknown-name]
  exp.yaml:4:18   tokens: {from: prompts, build: python prep.py}
hint: write a source that begins with one of file:, store:, s3:, gs:, hf:, beaker:, run:, http:, https:
""",
    ),
    BadInput(
        "data in a circle",
        """\
name: hello
run: python train.py
data:
  a: {from: b, build: python a.py}
  b: {from: a, build: python b.py}
""",
        """\
error: the data is built from itself: a -> b -> a             [dependency-cycle]
  exp.yaml:4:13   a: {from: b, build: python a.py}
hint: build one of them from a source
""",
    ),
    BadInput(
        "data with from alone",
        """\
name: hello
run: python train.py
data:
  a: file:a.bin
  b: {from: a}
""",
        """\
error: data has `from` but no `build`                         [conflicting-options]
  exp.yaml:5:13   b: {from: a}
hint: add `build: COMMAND`, or write the source alone
""",
    ),
    BadInput(
        "data with source and build",
        """\
name: hello
run: python train.py
data:
  a: {source: file:a.bin, build: python a.py}
""",
        """\
error: data has both `source` and `from` or `build`           [conflicting-options]
  exp.yaml:4:15   a: {source: file:a.bin, build: python a.py}
hint: write the source as `from`, next to `build`
""",
    ),
    BadInput(
        "data with nothing",
        """\
name: hello
run: python train.py
data:
  a: {}
""",
        """\
error: data has no source                                     [conflicting-options]
  exp.yaml:4:6   a: {}
hint: write `file:PATH`, or `{from: NAME, build: COMMAND}`
""",
    ),
    BadInput(
        "a tab",
        "name: hello\ntasks:\n\ttrain: {run: python train.py}\n",
        """\
error: a tab is used for indentation                          [yaml-syntax]
  exp.yaml:3:1   train: {run: python train.py}
hint: indent with spaces
""",
    ),
    BadInput(
        "open quote",
        """\
name: hello
why: "does it work?
run: python train.py
""",
        """\
error: a quote is never closed                                [yaml-syntax]
  exp.yaml:2:6   why: "does it work?
hint: add the closing quote
""",
    ),
    BadInput(
        "open list",
        """\
name: hello
run: [python, train.py
retry: {failed: 1}
""",
        """\
error: a list `[...]` or a mapping `{...}` is never closed, or lacks a comma  [yaml-syntax]
  exp.yaml:2:6   run: [python, train.py
hint: add the bracket or the comma
""",
    ),
    BadInput(
        "colon in text",
        """\
name: hello
why: question: does it work?
run: python train.py
""",
        """\
error: unexpected `:`: a key cannot be here                   [yaml-syntax]
  exp.yaml:2:14   why: question: does it work?
hint: check the indentation and the line above; put quotes around text that contains `: `
""",
    ),
    BadInput(
        "crooked indentation",
        """\
name: hello
tasks:
  train:
    run: python train.py
   nodes: 2
""",
        """\
error: the indentation does not fit the lines above           [yaml-syntax]
  exp.yaml:5:4   nodes: 2
hint: indent the keys of one mapping equally
""",
    ),
    BadInput(
        "text after a quote",
        """\
name: hello
why: 'it's faster'
run: python train.py
""",
        """\
error: text follows a closing quote                           [yaml-syntax]
  exp.yaml:2:10   why: 'it's faster'
hint: put the whole text in quotes; inside '...' a quote is written twice
""",
    ),
    BadInput(
        "text that begins with @",
        """\
name: hello
run: @train
""",
        """\
error: no value can begin with `@`                            [yaml-syntax]
  exp.yaml:2:6   run: @train
hint: put quotes around the text
""",
    ),
    BadInput(
        "two documents",
        """\
name: hello
run: python train.py
---
name: other
""",
        """\
error: the file contains several documents                    [yaml-syntax]
  exp.yaml:3:1   ---
hint: keep one; remove the line `---`
""",
    ),
    BadInput(
        "merge key",
        """\
name: hello
tasks:
  a: &a {run: python train.py}
  b:
    <<: *a
    nodes: 2
""",
        """\
error: merging with `<<` is not part of YAML 1.2              [yaml-syntax]
  exp.yaml:5:5   <<: *a
hint: write the keys out, or use `key: *alias` for a whole value
error: missing key `run` in tasks.b                           [missing-key]
  exp.yaml:5:5   <<: *a
hint: add `run:` (a line for /bin/sh, or a list of arguments, such as `[bash, -c, LINE]`)
""",
    ),
    BadInput(
        "unknown alias",
        """\
name: hello
run: *train
""",
        """\
error: unknown alias `*train`                                 [yaml-syntax]
  exp.yaml:2:6   run: *train
hint: write `&train` before a value first, or quote the text
""",
    ),
    BadInput(
        "alias of itself",
        """\
name: hello
run: python train.py
params: {a: &a [1, *a]}
""",
        """\
error: the alias `*a` is inside its own anchor                [yaml-limits]
  exp.yaml:3:20   params: {a: &a [1, *a]}
hint: write the value out
""",
    ),
    BadInput(
        "a tag",
        """\
name: hello
run: !!python/object/apply:os.system ["echo"]
""",
        """\
error: unknown tag `!!python/object/apply:os.system`          [yaml-syntax]
  exp.yaml:2:6   run: !!python/object/apply:os.system ["echo"]
hint: remove it; tags have no meaning here
""",
    ),
    BadInput(
        "list as a key",
        """\
name: hello
run: python train.py
params: {[a, b]: 1}
""",
        """\
error: a key must be text, not a list or a mapping            [yaml-syntax]
  exp.yaml:3:10   params: {[a, b]: 1}
hint: quote it if it begins with `[` or `{`
""",
    ),
    BadInput(
        "control character",
        'name: hello\nwhy: "a\x07b"\nrun: python train.py\n',
        """\
error: the character U+0007 is not allowed in YAML            [yaml-syntax]
  exp.yaml:2:8   why: "a\\x07b"
hint: remove it, or write it with an escape inside double quotes: "\\u..."
""",
    ),
    BadInput(
        "nested too deep",
        "name: hello\nrun: python train.py\nparams: {a: " + "[" * 80 + "]" * 80 + "}\n",
        """\
error: nested more than 64 levels deep                        [yaml-limits]
  exp.yaml:3:76   params: {a: [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]...
hint: flatten it
""",
    ),
    BadInput(
        "a billion laughs",
        LAUGHS,
        """\
error: the file expands to more than 200000 values            [yaml-limits]
  exp.yaml:9:10   f: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e, *e]
hint: use fewer aliases
""",
    ),
    BadInput(
        "several at once",
        """\
name: Hello
tasks:
  train:
    run: python train.py
    nodez: 10
    ready_timeout: 10
  score:
    after: trian
    run: python eval.py
limit: {time: 1h, per_job: 2h}
""",
        """\
error: `name` cannot be the text `Hello`                      [invalid-name]
  exp.yaml:1:7   name: Hello
hint: did you mean `hello`? a name consists of small letters, digits, '-', '_' and '.', at most 64, beginning and ending with a letter or digit
error: unknown key `nodez` in tasks.train                     [unknown-key]
  exp.yaml:5:5   nodez: 10
hint: did you mean `nodes`?
error: `tasks.train.ready_timeout` must be a duration such as `20m`, not the number `10`  [invalid-value]
  exp.yaml:6:20   ready_timeout: 10
hint: add a unit: `10s`, `10m`, `10h` or `10d`
error: unknown task `trian` in tasks.score.after              [unknown-task]
  exp.yaml:8:12   after: trian
hint: did you mean `train`?
error: limit.per_job (2h) is longer than limit.time (1h)      [conflicting-options]
  exp.yaml:10:28   limit: {time: 1h, per_job: 2h}
hint: raise `time` or lower `per_job`
error: `tasks.train.gpus.count` is `-1`, which is out of range  [invalid-value]
  command line   tasks.train.gpus=-1
hint: it must be between 0 and 1024
""",
        overrides=("tasks.train.gpus=-1",),
    ),
    BadInput(
        "override of an unknown key",
        """\
name: hello
tasks:
  train: {run: python train.py}
""",
        """\
error: unknown key `nodez` in tasks.train                     [unknown-key]
  command line   tasks.train.nodez=2
hint: did you mean `nodes`?
""",
        overrides=("tasks.train.nodez=2",),
    ),
    BadInput(
        "override of an unknown task",
        """\
name: hello
tasks:
  train: {run: python train.py}
""",
        """\
error: missing key `run` in tasks.trian                       [missing-key]
  command line   tasks.trian.nodes=2
hint: did you mean `tasks.train`?
""",
        overrides=("tasks.trian.nodes=2",),
    ),
    BadInput(
        "override without a value",
        """\
name: hello
run: python train.py
""",
        """\
error: the override `tasks.main.nodes` sets nothing           [invalid-override]
  command line   tasks.main.nodes
hint: write `tasks.main.nodes=VALUE`
""",
        overrides=("tasks.main.nodes",),
    ),
    BadInput(
        "bare override of a number",
        """\
name: hello
run: python train.py
""",
        """\
error: `tasks.main.nodes` must be a whole number, not `true`  [invalid-value]
  command line   --tasks.main.nodes
hint: write `--tasks.main.nodes=VALUE`
""",
        overrides=("--tasks.main.nodes",),
    ),
    BadInput(
        "override without a path",
        """\
name: hello
run: python train.py
""",
        """\
error: the override `=2` has no path                          [invalid-override]
  command line   =2
hint: a path is keys joined by dots, such as `tasks.train.nodes` or `params."a.b"`
""",
        overrides=("=2",),
    ),
    BadInput(
        "override with a broken list",
        """\
name: hello
run: python train.py
""",
        """\
error: the value `[a, b` is not YAML: a list `[...]` or a mapping `{...}` is never closed, or lacks a comma  [invalid-override]
  command line   where=[a, b
hint: put the whole value in quotes if it is text
""",
        overrides=("where=[a, b",),
    ),
    BadInput(
        "override with a broken path",
        """\
name: hello
run: python train.py
""",
        """\
error: the override `params..lr=1` has no path                [invalid-override]
  command line   params..lr=1
hint: a path is keys joined by dots, such as `tasks.train.nodes` or `params."a.b"`
""",
        overrides=("params..lr=1",),
    ),
    BadInput(
        "override with an open quote",
        """\
name: hello
run: python train.py
""",
        """\
error: the override `params."lr=1` has an open quote          [invalid-override]
  command line   params."lr=1
hint: write `a.b=VALUE`, `--a.b=VALUE`, `--a.b` (true) or `~a.b` (remove)
""",
        overrides=('params."lr=1',),
    ),
    BadInput(
        "number as text in an override",
        """\
name: hello
run: python train.py
""",
        """\
error: `why` must be text, not the number `3`                 [invalid-value]
  command line   why=3
hint: quote it twice, for the shell and for YAML: why='"3"'
""",
        overrides=("why=3",),
    ),
    BadInput(
        "override below a scalar",
        """\
name: hello
run: python train.py
""",
        """\
error: `name.x` cannot be set: `name` is the text `hello`     [invalid-override]
  command line   name.x=3
hint: `name` takes text: write `name=VALUE`
""",
        overrides=("name.x=3",),
    ),
    BadInput(
        "override past the end of a list",
        """\
name: hello
run: python train.py
where: [lab]
""",
        """\
error: `2` is not a position in `where`                       [invalid-override]
  command line   where.2=home
hint: `where` has positions 0 to 1
""",
        overrides=("where.2=home",),
    ),
    BadInput(
        "removal of what is not there",
        """\
name: hello
run: python train.py
limit: {time: 1h}
""",
        """\
error: `limit.tiem` is not set, so it cannot be removed       [invalid-override]
  command line   ~limit.tiem
hint: did you mean `~limit.time`?
""",
        overrides=("~limit.tiem",),
    ),
    BadInput(
        "removal with a value",
        """\
name: hello
run: python train.py
""",
        """\
error: the override `~limit.time=1h` both removes and sets    [invalid-override]
  command line   ~limit.time=1h
hint: write `a.b=VALUE`, `--a.b=VALUE`, `--a.b` (true) or `~a.b` (remove)
""",
        overrides=("~limit.time=1h",),
    ),
    BadInput(
        "removal of the name",
        """\
name: hello
run: python train.py
""",
        """\
error: missing key `name`                                     [missing-key]
  exp.yaml:1:1   name: hello
hint: add `name:` (name of the experiment; runs are called NAME-xxxxxxxx)
""",
        overrides=("~name",),
    ),
    BadInput(
        "run set beside tasks",
        """\
name: hello
tasks:
  train: {run: python train.py}
""",
        """\
error: `run` cannot be set: the file has `tasks.train`        [invalid-override]
  command line   run=python other.py
hint: `run` is short for `tasks.main.run`
""",
        overrides=("run=python other.py",),
    ),
    BadInput(
        "override out of range",
        """\
name: hello
run: python train.py
""",
        """\
error: `tasks.main.nodes` is `0`, which is out of range       [invalid-value]
  command line   tasks.main.nodes=0
hint: it must be between 1 and 10000
""",
        overrides=("tasks.main.nodes=0",),
    ),
    BadInput(
        "unit forgotten in an override",
        """\
name: hello
run: python train.py
""",
        """\
error: `limit.time` must be a duration such as `20m`, not the number `2`  [invalid-value]
  command line   limit.time=2
hint: add a unit: `2s`, `2m`, `2h` or `2d`
""",
        overrides=("limit.time=2",),
    ),
    BadInput(
        "no site",
        """\
name: hello
run: python train.py
where: []
""",
        """\
error: `where` names no site                                  [invalid-value]
  exp.yaml:3:8   where: []
hint: write `where: local`, or remove it
""",
    ),
    BadInput(
        "after the same task twice",
        """\
name: hello
tasks:
  a: {run: python a.py}
  b: {run: python b.py, after: [a, a]}
""",
        """\
error: task `a` is listed twice in tasks.b.after              [invalid-value]
  exp.yaml:4:36   b: {run: python b.py, after: [a, a]}
hint: remove one
""",
    ),
    BadInput(
        "data built from an unknown scheme",
        """\
name: hello
run: python train.py
data:
  a: {from: "s4:x", build: python a.py}
""",
        """\
error: unknown scheme `s4:` in the data source `s4:x`         [unsupported-source]
  exp.yaml:4:13   a: {from: "s4:x", build: python a.py}
hint: a source begins with one of file:, store:, s3:, gs:, hf:, beaker:, run:, http:, https:
""",
    ),
    BadInput(
        "a line separator in text",
        "name: hello\nwhy: faster\u2028or not\nrun: python train.py\n",
        """\
error: the character U+2028 is not allowed in YAML            [yaml-syntax]
  exp.yaml:2:12   why: faster\\u2028or not
hint: remove it, or write it with an escape inside double quotes: "\\u..."
""",
    ),
    BadInput(
        "an override in the wrong encoding",
        """\
name: hello
run: python train.py
""",
        """\
error: the override 'why=\\udcff' is not UTF-8                 [invalid-override]
  command line   why=\\udcff
hint: check the terminal's encoding
""",
        overrides=("why=\udcff",),
    ),
    BadInput(
        "a NUL in a command",
        'name: hello\nrun: "a\\0b"\n',
        """\
error: `tasks.main.run` contains a NUL character              [invalid-value]
  exp.yaml:2:6   run: "a\\0b"
hint: remove it
""",
    ),
)
