"""Metrics of post-training: the table of their names, and those of rollouts, recorded with the step that learns."""

from __future__ import annotations

from dataclasses import dataclass

from windlass.post.control.rollouts import RolloutLoader
from windlass.train.callbacks.protocol import TrainerCallback

__all__ = ["METRICS", "Metric", "RolloutMetrics", "metric_of"]


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of post-training.

    Attributes:
        name: as recorded; `NAME` stands for a verifier, a loss or a reason.
        unit: what it is counted in.
        meaning: what is measured.
    """

    name: str
    unit: str
    meaning: str


METRICS: tuple[Metric, ...] = (
    Metric("rollout/learner_wait_s", "seconds", "The learner waits: time until the batch that it wanted was there."),
    Metric("rollout/samples_wait_s", "seconds", "Samples wait: mean time from a complete group to its batch."),
    Metric("speed/data_wait_s", "seconds", "Time until the batch of this step was there, in every run."),
    Metric("rollout/lag", "optimiser steps", "Mean age of the oldest token of an answer when the step began."),
    Metric("rollout/lag_max", "optimiser steps", "The largest of these ages; at most `async.bound`."),
    Metric("rollout/reward", "reward", "Mean sum of the verifiers, each times its weight, over scored answers."),
    Metric("rollout/reward_NAME", "reward", "Mean value of a verifier, without its weight."),
    Metric("rollout/shaping", "reward", "Mean of what shaping by length adds."),
    Metric("rollout/unscored", "answers", "Answers that a verifier could not score."),
    Metric("rollout/constant_groups", "groups", "Groups whose rewards are all equal."),
    Metric("rollout/groups", "groups", "Groups that were generated for the batch, replaced ones included."),
    Metric("rollout/retired_prompts", "prompts", "Prompts that are solved and not used again."),
    Metric("rollout/pool_NAME", "prompts", "Prompts that were easy or hard at their last visit."),
    Metric("rollout/passed_over_NAME", "groups, since the start", "Turns of prompts that were not used, by pool."),
    Metric("rollout/trained_answers", "answers", "Answers of the batch that are learned."),
    Metric("rollout/answer_tokens", "tokens", "Mean length of an answer."),
    Metric("rollout/truncated", "share of answers", "Answers that reached the limit of tokens."),
    Metric("rollout/worker_deaths", "workers, since the start", "Workers that died and were started again."),
    Metric("rollout/given_back", "answers, since the start", "Answers that a worker did not finish before it died."),
    Metric("rollout/repeated", "answers, since the start", "Answers that arrived twice and were ignored."),
    Metric("rollout/judge_requests", "requests, since the start", "Requests to a judge."),
    Metric("rollout/judge_recorded", "answers, since the start", "Answers whose recorded reply was used instead."),
    Metric("rollout/judge_tokens_read", "tokens, since the start", "Tokens that a judge read."),
    Metric("rollout/judge_tokens_written", "tokens, since the start", "Tokens that a judge wrote."),
    Metric(
        "rollout/adopted", "answers, since the start", "Answers that workers began for an earlier learner, and kept."
    ),
    Metric(
        "rollout/unproven", "answers, since the start", "Those of them that were dropped: their weights are others."
    ),
    Metric("rollout/refused", "answers, since the start", "Answers that arrived too late and were ignored."),
    Metric("rollout/refused_tokens", "tokens, since the start", "Tokens of these."),
    Metric("rollout/dropped_NAME", "groups, since the start", "Groups that were not learned, by reason."),
    Metric("rollout/dropped_tokens", "tokens, since the start", "Tokens of these."),
    Metric("rollout/kept", "groups, since the start", "Groups that would be dropped and are kept: a batch has one."),
    Metric("environment/answers_NAME", "answers", "Answers of the batch in an environment."),
    Metric("environment/reward_NAME", "reward", "Mean sum of an environment's rewards, over those that it finished."),
    Metric("environment/turns_NAME", "turns", "Mean number of the model's turns in an environment."),
    Metric(
        "environment/unscored_NAME", "answers", "Answers that an environment did not finish: no reward, not learned."
    ),
    Metric("environment/forks_NAME", "sequences", "Extra sequences, because the template rewrote earlier turns."),
    Metric("train/loss", "loss", "The sum of all losses, each over its own weight in the whole batch."),
    Metric("train/loss_NAME", "loss", "One of them, if there are several."),
    Metric("train/accuracy", "share of pairs", "Pairs whose chosen answer has the higher reward."),
    Metric("train/margin", "reward", "Mean difference of the rewards of a pair."),
    Metric("train/reward_chosen", "reward", "Mean reward of chosen answers."),
    Metric("train/reward_rejected", "reward", "Mean reward of rejected answers."),
    Metric("train/ratio", "ratio", "Mean of policy / proximal over tokens."),
    Metric("train/clip_low", "share of tokens", "Tokens that the lower bound clips."),
    Metric("train/clip_high", "share of tokens", "Tokens that the upper bound clips."),
    Metric("train/correction", "ratio", "Mean weight of tokens that another policy sampled."),
    Metric("train/correction_dropped", "share of tokens", "Tokens whose weight is 0."),
    Metric("train/kl", "nats per token", "Mean estimate of the divergence from the reference model."),
    Metric("train/entropy", "nats per token", "Mean entropy of the policy."),
    Metric("train/reverse_kl", "nats per token", "Mean log ratio of student and teacher."),
)
"""Metrics of post-training by name, besides those of every training run."""


def metric_of(name: str) -> Metric | None:
    """Return the row of a recorded metric; None if there is none."""
    rows = {row.name: row for row in METRICS}
    if name in rows:
        return rows[name]
    return next(
        (row for row in METRICS if row.name.endswith("_NAME") and name.startswith(row.name.removesuffix("NAME"))), None
    )


class RolloutMetrics(TrainerCallback):
    """Records the metrics of each batch of rollouts."""

    def __init__(self, loader: RolloutLoader) -> None:
        self._loader = loader

    def on_end(self) -> None:
        """End workers and the processes of verifiers."""
        self._loader.close(is_finished=self.trainer.is_complete)

    def on_save(self, path: str, step: int) -> None:
        """Record the checkpoint in the log of samples."""
        del path
        kept = [each.step for each in self.trainer.store.committed()] if self.trainer.store is not None else []
        self._loader.commit(step, oldest_step=min([step, *kept]))

    def on_step_start(self, batch: object) -> None:
        """Record the metrics of the batch that this step learns from."""
        del batch
        for name, value in self._loader.metrics.items():
            self.trainer.record(name, value)
