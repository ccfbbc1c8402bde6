"""Names of metrics that are filled in or have a special meaning, under Ray Tune's import path."""

from __future__ import annotations

__all__ = [
    "DONE",
    "EPISODES_TOTAL",
    "EPISODE_REWARD_MEAN",
    "EXPERIMENT_TAG",
    "HOSTNAME",
    "MEAN_ACCURACY",
    "MEAN_LOSS",
    "NODE_IP",
    "PID",
    "SHOULD_CHECKPOINT",
    "TIMESTEPS_TOTAL",
    "TIME_THIS_ITER_S",
    "TIME_TOTAL_S",
    "TRAINING_ITERATION",
    "TRIAL_ID",
]

DONE = "done"
EPISODES_TOTAL = "episodes_total"
EPISODE_REWARD_MEAN = "episode_reward_mean"
EXPERIMENT_TAG = "experiment_tag"
HOSTNAME = "hostname"
MEAN_ACCURACY = "mean_accuracy"
MEAN_LOSS = "mean_loss"
NODE_IP = "node_ip"
PID = "pid"
SHOULD_CHECKPOINT = "should_checkpoint"
TIMESTEPS_TOTAL = "timesteps_total"
TIME_THIS_ITER_S = "time_this_iter_s"
TIME_TOTAL_S = "time_total_s"
TRAINING_ITERATION = "training_iteration"
TRIAL_ID = "trial_id"
