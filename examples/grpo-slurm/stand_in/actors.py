"""Learners and engines as Ray actors, placed as open-instruct places them."""

import policy
import ray
from ray.util.placement_group import placement_group, placement_group_table
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

CPUS_PER_LEARNER, CPUS_PER_ENGINE = 10, 1
PLACE_TIMEOUT_S = 300


@ray.remote
class Learner:
    """A data-parallel learner: a whole copy of the policy, and a share of each step."""

    def __init__(self, args, table):
        self.args, self.table = args, table

    def gradient(self, groups):
        return policy.gradient(self.args, self.table, groups)

    def apply(self, step, shares):
        for rows in shares:
            policy.apply(self.args, self.table, rows)
        return policy.digest(step, self.table)

    def weights(self):
        return self.table


@ray.remote
class Engine:
    """Generates with the weights that it was given last, and computes the rewards."""

    def __init__(self, args, prompts):
        self.args, self.prompts, self.table = args, prompts, None

    def load(self, table):
        self.table = table

    def generate(self, step, chosen):
        return {prompt: policy.generate(self.args, self.prompts, self.table, step, prompt) for prompt in chosen}


class Fleet:
    """All actors of a run; `placement` says on which nodes they are."""

    def __init__(self, args, prompts, table):
        cpus = CPUS_PER_LEARNER, CPUS_PER_ENGINE
        if (
            min(node["Resources"].get("CPU", 0) for node in ray.nodes())
            < CPUS_PER_LEARNER * args.num_learners_per_node[0]
        ):
            print("these nodes have fewer CPUs than the real learners reserve, so only GPUs are reserved", flush=True)
            cpus = 0, 0
        learners = [{"GPU": num, "CPU": num * cpus[0]} for num in args.num_learners_per_node]
        engine = {"GPU": args.vllm_tensor_parallel_size, "CPU": args.vllm_tensor_parallel_size * cpus[1]}
        spread, self.learner_nodes = _place(learners, "STRICT_SPREAD")
        pack, self.engine_nodes = _place([engine] * args.vllm_num_engines, "PACK")
        self.learners = [
            _start(Learner, spread, index, 1, cpus[0]).remote(args, table)
            for index, num in enumerate(args.num_learners_per_node)
            for _ in range(num)
        ]
        self.engines = [
            _start(Engine, pack, index, args.vllm_tensor_parallel_size, engine["CPU"]).remote(args, prompts)
            for index in range(args.vllm_num_engines)
        ]
        self.sync()

    def sync(self):
        """Give the engines the learners' weights."""
        weights = self.learners[0].weights.remote()
        ray.get([engine.load.remote(weights) for engine in self.engines])

    def generate(self, step, chosen):
        """A group of answers per prompt; every engine takes its share of the prompts."""
        count = len(self.engines)
        shares = [engine.generate.remote(step, chosen[at::count]) for at, engine in enumerate(self.engines)]
        return {prompt: group for share in ray.get(shares) for prompt, group in share.items()}

    def learn(self, step, groups):
        """One step of all learners; their policies have to stay equal. Returns the digest of all they know."""
        count, chosen = len(self.learners), list(groups)
        shares = ray.get(
            [
                learner.gradient.remote({prompt: groups[prompt] for prompt in chosen[at::count]})
                for at, learner in enumerate(self.learners)
            ]
        )
        digests = set(ray.get([learner.apply.remote(step, shares) for learner in self.learners]))
        if len(digests) != 1:
            raise RuntimeError(f"the learners differ after step {step}: {sorted(digests)}")
        return digests.pop()

    def weights(self):
        return ray.get(self.learners[0].weights.remote())


def _place(bundles, strategy):
    """A placement group, and the name of the node of each bundle; fails by name when there is no room."""
    group = placement_group(bundles, strategy=strategy)
    if not group.wait(PLACE_TIMEOUT_S):
        raise RuntimeError(f"no room for {strategy} {bundles} in {ray.cluster_resources()}")
    names = {node["NodeID"]: node["NodeName"] for node in ray.nodes()}
    nodes = placement_group_table(group)["bundles_to_node_id"]
    return group, [names[nodes[bundle]] for bundle in sorted(nodes)]


def _start(actor, group, index, gpus, cpus):
    inside = PlacementGroupSchedulingStrategy(placement_group=group, placement_group_bundle_index=index)
    return actor.options(num_gpus=gpus, num_cpus=cpus, scheduling_strategy=inside)
