"""A policy small enough for plain Python: one row of scores per prompt, one score per answer it may give.

Whatever is random follows from seed, step, prompt and sample. So the result does not depend on how many engines
sampled it, how many learners took part in it, or how often it was interrupted.
"""

import hashlib
import json
import math
import random
from pathlib import Path

LEARNS_FASTER = 2e8
"""A table takes larger steps than seven billion weights; with this the learning rate of the real run teaches it."""


def load_prompts(path):
    """Question and right answer of every line."""
    rows = [json.loads(line) for line in Path(path).read_text().splitlines()]
    return [(row["messages"][-1]["content"], row["ground_truth"]) for row in rows]


def answers_of(prompts):
    return sorted({truth for _, truth in prompts})


def fresh(prompts):
    return [[0.0] * len(answers_of(prompts)) for _ in prompts]


def chances(scores, temperature):
    highest = max(scores)
    weights = [math.exp((score - highest) / temperature) for score in scores]
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def chosen(args, step, num_prompts):
    """The prompts of a step, none of them twice."""
    count = min(args.num_unique_prompts_rollout, num_prompts)
    return random.Random(f"{args.seed}/{step}").sample(range(num_prompts), count)


def generate(args, prompts, table, step, prompt):
    """A group of answers to one prompt with their rewards: (answer, reward), as many as there are samples."""
    answers, truth = answers_of(prompts), prompts[prompt][1]
    group = []
    for sample in range(args.num_samples_per_prompt_rollout):
        dice = random.Random(f"{args.seed}/{step}/{prompt}/{sample}")
        [answer] = dice.choices(range(len(answers)), chances(table[prompt], args.temperature))
        group.append((answer, float(answers[answer] == truth)))
    return group


def gradient(args, table, groups):
    """What the groups teach, per prompt: the clipped objective at ratio 1, advantages centred in their group."""
    rows = {}
    for prompt, group in groups.items():
        mean = math.fsum(reward for _, reward in group) / len(group)
        if all(reward == mean for _, reward in group):
            continue  # all right or all wrong: nothing to learn from
        now = chances(table[prompt], args.temperature)
        row = [0.0] * len(now)
        for answer, reward in group:
            for other, chance in enumerate(now):
                row[other] += (reward - mean) * ((other == answer) - chance)
        rows[prompt] = row
    return rows


def apply(args, table, rows):
    """One step of plain gradient ascent; every row comes from one learner, so the order does not matter."""
    num_samples = args.num_unique_prompts_rollout * args.num_samples_per_prompt_rollout
    rate = args.learning_rate * LEARNS_FASTER / num_samples
    for prompt, row in rows.items():
        table[prompt] = [score + rate * slope for score, slope in zip(table[prompt], row, strict=True)]


def digest(step, table):
    return hashlib.sha256(repr((step, table)).encode()).hexdigest()
