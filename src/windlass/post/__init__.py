"""Post-training: supervised fine-tuning, reward models, preference learning, reinforcement learning, distillation."""
