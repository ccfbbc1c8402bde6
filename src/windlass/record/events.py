"""Kinds of records, who writes them, and the facts in each.

    kind                writer      facts
    run-created         client      run, name, why, plan_hash, tasks {task: {after, replicas, interrupted, failed, evaluates}}
    job-intended        client      task, job, token, backend, resets_budgets
    job-submitted       client      task, job, backend_id, locator, is_held       held: it waits in the queue until the tasks it depends on have ended
    job-refused         client      task, job, cause, message             nothing was started: the backend refused, or was not called
    job-lost            client      task, job, attempt, cause, message    the backend's job disappeared without reporting an end
    job-gone            client      task, job                             nothing of it is left at its site, not even in a queue
    stop-requested      client      tasks {task: newest job}, reason, is_checkpoint_wanted
    task-queued         supervisor  task, job, reason                     why it does not start yet; empty: it starts
    link-queued         both        task, job, link, backend_id           one of the scheduler's jobs that make up this job's chain
    link-started        supervisor  task, job, link, backend_id, incarnation, host
    node-avoided        supervisor  task, host, reason                    later links exclude it
    attempt-started     supervisor  task, job, attempt, epoch, leader, address, port, link, incarnation, evaluates {path, step, digest}
    process-starting    supervisor  task, attempt, rank, incarnation      written before any user code is executed
    process-started     supervisor  task, attempt, rank, host, process, argv
    process-ended       both        task, attempt, rank, end
    attempt-ended       supervisor  task, job, attempt, epoch, end
    task-ended          both        task, job, attempt, verdict, cause, message
    checkpoint          report      task, attempt, rank, path, step, phase_s
    evaluation-skipped  supervisor  task, path, step, reason              a selected checkpoint that this task will not evaluate
    progress-entry      supervisor  task, attempt, path                   a complete entry in the checkpoints folder that matches the task's pattern
    progress            report      task, attempt, rank, phase, step, waits_for, since      what its code waits for, since when; empty: nothing
    metrics             report      task, attempt, rank, step, values
    finish              report      task, attempt, rank, code, cause, message
    cooperates          report      task, attempt, rank                   the code calls should_stop(), so it may save first
    outputs             supervisor  task, attempt, num_files, bytes, digest        the manifest of `out` has been written
    note                both        task, message                         for the user

`end` is the JSON form of `windlass.record.state.End`.
"""

from __future__ import annotations

__all__ = [
    "ATTEMPT_ENDED",
    "ATTEMPT_STARTED",
    "CHECKPOINT",
    "COOPERATES",
    "EVALUATION_SKIPPED",
    "FINISH",
    "JOB_GONE",
    "JOB_INTENDED",
    "JOB_LOST",
    "JOB_REFUSED",
    "JOB_SUBMITTED",
    "LINK_QUEUED",
    "LINK_STARTED",
    "METRICS",
    "NODE_AVOIDED",
    "NOTE",
    "OUTPUTS",
    "PROCESS_ENDED",
    "PROCESS_STARTED",
    "PROCESS_STARTING",
    "PROGRESS",
    "PROGRESS_ENTRY",
    "RUN_CREATED",
    "STOP_REQUESTED",
    "TASK_ENDED",
    "TASK_QUEUED",
]

RUN_CREATED = "run-created"
JOB_INTENDED = "job-intended"
JOB_SUBMITTED = "job-submitted"
JOB_REFUSED = "job-refused"
JOB_LOST = "job-lost"
JOB_GONE = "job-gone"
STOP_REQUESTED = "stop-requested"
TASK_QUEUED = "task-queued"
LINK_QUEUED = "link-queued"
LINK_STARTED = "link-started"
NODE_AVOIDED = "node-avoided"
ATTEMPT_STARTED = "attempt-started"
PROCESS_STARTING = "process-starting"
PROCESS_STARTED = "process-started"
PROCESS_ENDED = "process-ended"
ATTEMPT_ENDED = "attempt-ended"
TASK_ENDED = "task-ended"
CHECKPOINT = "checkpoint"
EVALUATION_SKIPPED = "evaluation-skipped"
PROGRESS_ENTRY = "progress-entry"
PROGRESS = "progress"
METRICS = "metrics"
FINISH = "finish"
COOPERATES = "cooperates"
OUTPUTS = "outputs"
NOTE = "note"
