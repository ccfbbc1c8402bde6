"""The flags of the port: what open_instruct/grpo_fast.py is given by experiment.yaml, and nothing else."""

import argparse
from pathlib import Path


def switch(text):
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return text == "true"


def parse(arguments=None):
    """A flag that is misspelt ends the program, as it would end the real one."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    add = parser.add_argument
    # Used here too.
    add("--num_learners_per_node", type=int, nargs="+", required=True)
    add("--vllm_num_engines", type=int, required=True)
    add("--vllm_tensor_parallel_size", type=int, default=1)
    add("--dataset_mixer_list", nargs="+", required=True)
    add("--num_unique_prompts_rollout", type=int, required=True)
    add("--num_samples_per_prompt_rollout", type=int, required=True)
    add("--total_episodes", type=int, required=True)
    add("--learning_rate", type=float, required=True)
    add("--temperature", type=float, default=1.0)
    add("--beta", type=float, default=0.0)
    add("--clip_higher", type=float, default=0.272)
    add("--seed", type=int, default=1)
    add("--checkpoint_state_freq", type=int, required=True)
    add("--checkpoint_state_dir", type=Path, required=True)
    add("--keep_last_n_checkpoints", type=int, default=-1)
    add("--output_dir", type=Path, required=True)
    add("--local_eval_every", type=int, default=50)
    # Understood, and without a meaning where there is no language model.
    for name in ("exp_name", "model_name_or_path", "chat_template_name", "lr_scheduler_type", "vllm_sync_backend"):
        add(f"--{name}")
    for name in ("llm_judge_model", "llm_judge_timeout", "llm_judge_max_tokens", "llm_judge_max_context_length"):
        add(f"--{name}")
    for name in ("kl_estimator", "num_mini_batches", "num_epochs", "per_device_train_batch_size", "async_steps"):
        add(f"--{name}", type=int)
    for name in ("max_prompt_token_length", "response_length", "pack_length", "deepspeed_stage", "save_freq"):
        add(f"--{name}", type=int)
    for name in ("inflight_updates", "apply_verifiable_reward", "mask_truncated_completions", "non_stop_penalty"):
        add(f"--{name}", type=switch)
    for name in ("gradient_checkpointing", "vllm_enable_prefix_caching", "push_to_hub", "with_tracking"):
        add(f"--{name}", type=switch)
    for name in ("dataset_mixer_list_splits", "dataset_mixer_eval_list", "dataset_mixer_eval_list_splits"):
        add(f"--{name}", nargs="+")
    add("--stop_strings", nargs="+")
    add("--truncated_importance_sampling_ratio_cap", type=float)
    args = parser.parse_args(arguments)
    if args.beta:
        parser.error(f"--beta {args.beta}: the stand-in keeps no reference policy; leave it at 0.0")
    return args
