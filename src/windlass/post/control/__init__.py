"""Control of rollouts: which prompts are answered with which weights, and how samples become batches."""
