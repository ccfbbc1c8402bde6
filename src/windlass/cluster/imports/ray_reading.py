"""Conversion of one of Ray's cluster files, as data, to our settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.cluster.config import HEAD
from windlass.cluster.imports.pruning import pruned
from windlass.cluster.imports.ray_docker import RayContainers
from windlass.cluster.imports.ray_file import DEFAULT_HEAD, DEFAULT_MOST, DEFAULT_WORKER, RayFile, RayNodeType
from windlass.cluster.imports.ray_paths import ray_path
from windlass.cluster.imports.ray_start import is_limit, start_problems
from windlass.config.path import join_path, split_path
from windlass.core.errors import Problem, SourcePlace

__all__ = ["RayReading"]

_NOT_OURS = ("IamInstanceProfile", "KeyName", "InstanceMarketOptions", "InstanceType", "SubnetIds")
_SET_BY_US = ("MinCount", "MaxCount", "ClientToken", "UserData", "InstanceInitiatedShutdownBehavior", "DryRun")
"""Fields of EC2's request that windlass needs itself."""


class RayReading:
    """Conversion of a file; collects problems and notes.

    Args:
        origins: places of the file's keys.
    """

    def __init__(self, file: RayFile, origins: Mapping[str, SourcePlace], source: str) -> None:
        self._file, self._origins, self.source = file, origins, source
        self._types: dict[str, str] = {}
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self._containers = RayContainers(file, self.notes)

    def place_of(self, path: str) -> SourcePlace:
        """Return where the file states what became a setting of ours."""
        found = ray_path(path, self._types)
        _, is_docker, key = found.partition(".docker.")
        return self._place(f"docker.{key}" if is_docker and found not in self._origins else found)

    def data(self) -> dict[str, Any]:
        """Return our settings as plain data."""
        file = self._file
        name = re.sub(r"[^a-z0-9_-]+", "-", file.cluster_name.lower()).strip("-_")
        if not name:
            self._refuse("cluster_name", f"cluster_name: `{file.cluster_name}` has no letter or digit", "name it")
        elif name != file.cluster_name:
            self.notes.append(f"the cluster is called `{name}`, not `{file.cluster_name}`")
        head, groups = self._groups()
        self._check_start_commands()
        is_local = file.provider.type == "local"
        if is_local and "idle_timeout_minutes" in self._origins:
            self.notes.append("`idle_timeout_minutes` has no effect: hosts of `local` exist, and are not ended")
        return pruned(
            {
                "name": name,
                "place": self._place_data(),
                "head": head,
                "groups": groups,
                "host_setup": file.initialization_commands,
                "setup": file.setup_commands,
                **self._containers.cluster(),
                "files": dict(file.file_mounts),
                "exclude": file.rsync_exclude,
                "exclude_from": file.rsync_filter,
                "idle": None if is_local else f"{max(1.0, file.idle_timeout_minutes * 60):.12g}s",
                "upscaling_speed": None if is_local else file.upscaling_speed,
                "max_nodes": None if is_local or not groups else self._most(),
            }
        )

    def _most(self) -> int:
        return DEFAULT_MOST if self._file.max_workers is None else self._file.max_workers

    def _place(self, path: str) -> SourcePlace:
        """Return the place of a key or, if it is not in the file, of what it belongs to."""
        parts = split_path(path) if path else ()
        for length in range(len(parts), -1, -1):
            found = self._origins.get(join_path(parts[:length]))
            if found is not None:
                return found
        return SourcePlace(self.source)

    def _refuse(self, path: str, message: str, hint: str, code: str = "unsupported-setting") -> None:
        self.problems.append(Problem(message, code, self._place(path), hint))

    # Places

    def _place_data(self) -> dict[str, Any]:
        return {"ssh": self._ssh()} if self._file.provider.type == "local" else {"aws": self._aws()}

    def _ssh(self) -> dict[str, Any]:
        provider, auth = self._file.provider, self._file.auth
        if not provider.head_ip:
            self._refuse("provider", "provider.head_ip is missing", "add `head_ip: HOST`", "missing-key")
        for key in ("region", "availability_zone", "key_pair", "security_group", "subnet_id", "tags"):
            if getattr(provider, key):
                self._refuse(f"provider.{key}", f"`provider.{key}` has no effect on hosts that exist", "remove it")
        hosts = [provider.head_ip, *provider.worker_ips]
        for number, host in enumerate(hosts):
            if number and host in hosts[:number]:
                path = f"provider.worker_ips.{number - 1}"
                self._refuse(path, f"provider.worker_ips: duplicate host `{host}`", "remove it", "invalid-value")
        return {
            "hosts": hosts,
            "user": auth.ssh_user,
            "key": auth.ssh_private_key,
            "proxy": auth.ssh_proxy_command,
        }

    def _aws(self) -> dict[str, Any]:
        provider, auth = self._file.provider, self._file.auth
        if not provider.region:
            self._refuse("provider", "provider.region is missing", "add `region: us-west-2`", "missing-key")
        for key in ("head_ip", "worker_ips"):
            if getattr(provider, key):
                self._refuse(f"provider.{key}", f"`provider.{key}` is for hosts that exist, not for EC2", "remove it")
        if provider.cache_stopped_nodes and "provider.cache_stopped_nodes" in self._origins:
            self.notes.append("machines are ended, not stopped and kept (`cache_stopped_nodes`)")
        for key in sorted(set(provider.security_group) - {"GroupName"}):
            hint = "open the ports in a group of your own and name it as `GroupName`, or remove it"
            self._refuse("provider.security_group", f"`security_group.{key}` cannot be honoured", hint)
        for key in sorted(set(provider.key_pair) - {"key_name"}):
            self._refuse("provider.key_pair", f"`key_pair.{key}` cannot be honoured", "name the pair as `key_name`")
        security = provider.security_group.get("GroupName")
        key_name = self._key_name()
        if auth.ssh_private_key and not key_name:
            hint = "add `key_pair: {key_name: NAME}` to `provider`, or remove it: a key is made for the cluster"
            message = "auth.ssh_private_key needs the key pair's name at EC2"
            self._refuse("auth.ssh_private_key", message, hint, "missing-key")
        elif key_name and not auth.ssh_private_key:
            self.notes.append(
                f"the cluster has a key of its own, not `{key_name}`, since no `ssh_private_key` is named"
            )
            key_name = ""
        return {
            "region": provider.region,
            "zones": [zone.strip() for zone in provider.availability_zone.split(",") if zone.strip()],
            "subnets": self._subnets(),
            "security_groups": [security] if security else [],
            "user": auth.ssh_user or "ubuntu",
            "key": auth.ssh_private_key,
            "key_name": key_name,
            "profile": self._profile(),
            "proxy": auth.ssh_proxy_command,
            "is_private": provider.use_internal_ips,
            "tags": dict(provider.tags),
        }

    def _requests(self) -> list[Mapping[str, Any]]:
        """Return EC2's requests of the file."""
        file = self._file
        typed = [kind.node_config for kind in file.available_node_types.values()]
        return [request for request in (*typed, file.head_node, file.worker_nodes) if request]

    def _key_name(self) -> str:
        """Return the key pair that the file names for all nodes, if any."""
        names = {str(each["KeyName"]) for each in self._requests() if "KeyName" in each}
        named = self._file.provider.key_pair.get("key_name")
        names |= {str(named)} if named else set()
        if len(names) > 1:
            message = f"several key pairs: {', '.join(sorted(names))}"
            self._refuse("available_node_types", message, "use one `KeyName` for all nodes")
        return min(names, default="")

    def _profile(self) -> str:
        """Return the name of the instance profile that all nodes have, if any."""
        stated = [each.get("IamInstanceProfile") for each in self._requests()]
        first = next((each for each in stated if each is not None), None)
        if first is None:
            return ""
        name = first.get("Name") or first.get("Arn") if isinstance(first, Mapping) else None
        if not isinstance(name, str) or any(each != first for each in stated):
            hint = "write the same `IamInstanceProfile: {Name: NAME}` for all nodes, or remove it"
            self._refuse("available_node_types", "`IamInstanceProfile` is not the same for all nodes", hint)
            return ""
        return name.rpartition("/")[2]

    def _subnets(self) -> list[str]:
        """Return the subnets that all nodes have, in order."""
        subnet = self._file.provider.subnet_id
        lists = [each.get("SubnetIds") for each in self._requests()]
        shared = lists[0] if lists and all(each == lists[0] for each in lists) else None
        if isinstance(shared, list):
            return [str(each) for each in shared]
        return [subnet] if subnet else []

    # Groups

    def _groups(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the head, and the groups of other nodes."""
        file = self._file
        if file.available_node_types:
            for key in ("head_node", "worker_nodes", "min_workers", "initial_workers"):
                if getattr(file, key):
                    message = f"both `available_node_types` and `{key}`, of the form of 2019, are set"
                    self._refuse(key, message, f"remove `{key}`")
            return self._typed_groups()
        if file.head_node_type:
            self._refuse("head_node_type", "`head_node_type` needs `available_node_types`", "add them, or remove it")
        return self._hosts() if file.provider.type == "local" else self._old_groups()

    def _typed_groups(self) -> tuple[dict[str, Any], dict[str, Any]]:
        file = self._file
        if file.provider.type == "local":
            message = "`available_node_types` choose machines, and hosts of `local` exist"
            self._refuse("available_node_types", message, "remove them")
        if file.head_node_type not in file.available_node_types:
            message = f"head_node_type: no node type `{file.head_node_type}`"
            if not file.head_node_type:
                message = "`head_node_type` is missing"
            names = ", ".join(file.available_node_types)
            self._refuse("head_node_type", message, f"use one of: {names}", "invalid-value")
            return {}, {}
        groups: dict[str, Any] = {}
        head: dict[str, Any] = {}
        for name, kind in file.available_node_types.items():
            path = join_path(("available_node_types", name))
            if name == file.head_node_type:
                self._types[HEAD] = path
                head = {**self._group(kind, path), **self._containers.head(), "setup": file.head_setup_commands}
                head.pop("priority")
                if not kind.max_workers and not kind.min_workers:
                    if kind.docker.worker_image or kind.docker.worker_run_options:
                        message = f"`{path}.docker` has no effect: its nodes are heads"
                        hint = "write `head_image` or `head_run_options` in `docker`"
                        self._refuse(f"{path}.docker", message, hint)
                    continue
            groups[self._new_name(name, path, groups)] = self._workers(kind, path)
        least = sum(group["min"] for group in groups.values())
        if least > self._most():
            message = f"`max_workers` is {self._most()}, and the node types have at least {least}"
            self._refuse("max_workers", message, "raise `max_workers`, or lower `min_workers`", "invalid-value")
        return head, groups

    def _workers(self, kind: RayNodeType, path: str) -> dict[str, Any]:
        most = kind.max_workers if kind.max_workers is not None else max(self._most(), kind.min_workers)
        if most < kind.min_workers:
            message = f"`{path}.max_workers` is {most}, and `min_workers` is {kind.min_workers}"
            self._refuse(f"{path}.max_workers", message, "raise `max_workers`, or lower `min_workers`", "invalid-value")
        own = kind.worker_setup_commands
        setup = self._file.worker_setup_commands if own is None else own
        inside = self._containers.workers(kind.docker)
        return {**self._group(kind, path), **inside, "setup": setup, "min": kind.min_workers, "max": most}

    def _new_name(self, name: str, path: str, groups: Mapping[str, Any]) -> str:
        """Return a group's name; two types never share one."""
        short = re.sub(r"[^a-z0-9_-]+", "-", name.lower()).strip("-_")[:64].rstrip("-_") or "workers"
        if short == HEAD:
            short = "head-workers"
        if short in groups:
            message = f"the node types `{name}` and `{self._type_of(short)}` would both be the group `{short}`"
            self._refuse(path, message, "rename one of them", "invalid-name")
        if short != name:
            self.notes.append(f"the node type `{name}` is the group `{short}`")
        self._types[short] = path
        return short

    def _type_of(self, group: str) -> str:
        return split_path(self._types[group])[-1]

    def _group(self, kind: RayNodeType, path: str) -> dict[str, Any]:
        idle = kind.idle_timeout_s
        return {
            **self._request(kind.node_config, f"{path}.node_config"),
            "resources": dict(kind.resources),
            "labels": dict(kind.labels),
            "priority": kind.priority,
            "idle": None if idle is None else f"{max(1.0, idle):.12g}s",
            "host_setup": kind.initialization_commands,
        }

    def _request(self, request: Mapping[str, Any], path: str) -> dict[str, Any]:
        """Return a group's machine from the fields of EC2's request."""
        options = {key: value for key, value in request.items() if key not in _NOT_OURS}
        found: dict[str, Any] = {"options": options}
        kind = request.get("InstanceType")
        if isinstance(kind, str) and kind:
            found["types"] = [kind]
        elif self._file.provider.type == "aws":
            what = "names no InstanceType" if kind is None else f"has the InstanceType `{kind}`, which is not a name"
            self._refuse(path, f"`{path}` {what}", "add `InstanceType: m5.large`", "missing-key")
        if options.get("ImageId") == "latest_dlami":
            message = f"`{path}.ImageId`: `latest_dlami` is a name that only Ray knows"
            self._refuse(f"{path}.ImageId", message, "write the id of an image, such as `ami-0123456789abcdef0`")
        for key in _SET_BY_US:
            if key in options:
                hint = "remove it; counts are `min_workers` and `max_workers`" if "Count" in key else "remove it"
                self._refuse(f"{path}.{key}", f"`{path}.{key}` cannot be honoured: windlass sets it", hint)
        placement = options.get("Placement")
        if isinstance(placement, Mapping) and "AvailabilityZone" in placement:
            message = f"`{path}.Placement.AvailabilityZone` cannot be honoured"
            self._refuse(f"{path}.Placement", message, "write `availability_zone` in `provider`")
        self._read_subnets(request.get("SubnetIds"), path, options)
        self._read_market(request.get("InstanceMarketOptions"), path, found)
        return found

    def _read_subnets(self, subnets: Any, path: str, options: dict[str, Any]) -> None:
        """Read Ray's own field `SubnetIds`: EC2's request has room for one subnet."""
        if subnets is None:
            return
        if not isinstance(subnets, list) or not subnets or not all(isinstance(each, str) for each in subnets):
            message = f"`{path}.SubnetIds` must be a list of ids"
            self._refuse(f"{path}.SubnetIds", message, "write `SubnetIds: [subnet-0123]`", "invalid-value")
        elif len(subnets) == 1:
            options["SubnetId"] = subnets[0]
        elif any(each.get("SubnetIds") != subnets for each in self._requests()):
            message = f"`{path}.SubnetIds` names several subnets, and other nodes have others"
            self._refuse(f"{path}.SubnetIds", message, "name one for each, or the same ones for all nodes")

    def _read_market(self, market: Any, path: str, found: dict[str, Any]) -> None:
        if market is None:
            return
        if not isinstance(market, Mapping) or market.get("MarketType", "spot") != "spot":
            message = f"`{path}.InstanceMarketOptions` cannot be honoured"
            hint = "write `InstanceMarketOptions: {MarketType: spot}`, or remove it"
            self._refuse(f"{path}.InstanceMarketOptions", message, hint)
            return
        found["market"] = "spot"
        for key in sorted(set(market) - {"MarketType", "SpotOptions"}):
            full = join_path((*split_path(path), "InstanceMarketOptions", key))
            self._refuse(full, f"`{full}` cannot be honoured", "remove it")
        if market.get("SpotOptions"):
            found["options"]["InstanceMarketOptions"] = {"SpotOptions": market["SpotOptions"]}

    def _hosts(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return head and workers on hosts that exist."""
        file = self._file
        for key in ("head_node", "worker_nodes"):
            if getattr(file, key):
                self._refuse(key, f"`{key}` chooses machines, and hosts of `local` exist", "remove it")
        self._types["workers"] = "provider"
        number = len(file.provider.worker_ips)
        wanted = number if file.max_workers is None else min(file.max_workers, number)
        least = wanted if file.min_workers is None else file.min_workers
        if file.max_workers is not None and least > file.max_workers:
            self._check_counts(least, file.max_workers)
        elif least > number:
            message = f"`min_workers` is {least}, and `worker_ips` names {number} hosts"
            self._refuse("min_workers", message, "name more hosts, or lower it", "invalid-value")
        elif least < wanted:
            self.notes.append(f"all {wanted} workers are nodes from the start: their hosts exist, and nothing scales")
        unused = file.provider.worker_ips[wanted:]
        if unused:
            self.notes.append(f"not used, as `max_workers` is {file.max_workers}: {', '.join(unused)}")
        head = {**self._containers.head(), "setup": file.head_setup_commands}
        workers = {**self._containers.workers(), "setup": file.worker_setup_commands, "count": wanted}
        return head, {"workers": workers} if wanted else {}

    def _old_groups(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return head and workers of a file without node types: Ray's default ones, or those of 2019."""
        file = self._file
        self._types |= {HEAD: "head_node", "workers": "worker_nodes"}
        least, most = file.min_workers or 0, self._most()
        self._check_counts(least, most)
        initial = file.initial_workers or 0
        if initial > most:
            message = f"`initial_workers` is {initial}, and `max_workers` is {most}"
            self._refuse("initial_workers", message, "lower it, or raise `max_workers`", "invalid-value")
        head_request, request = file.head_node or DEFAULT_HEAD, file.worker_nodes or DEFAULT_WORKER
        if not file.head_node:
            self.notes.append("the head is an m5.large, as Ray's default, since no machine is named")
        inside = self._containers.head()
        head = {**self._request(head_request, "head_node"), **inside, "setup": file.head_setup_commands}
        if not most:
            return head, {}
        if not file.worker_nodes:
            self.notes.append("workers are spot m5.large, as Ray's default, since no machine is named")
        inside = self._containers.workers()
        workers = {**self._request(request, "worker_nodes"), **inside, "setup": file.worker_setup_commands}
        return head, {"workers": {**workers, "min": least, "max": most, "initial": initial}}

    def _check_counts(self, least: int, most: int) -> None:
        if least > most:
            stated = "is" if self._file.max_workers is not None else "is by default"
            message = f"`min_workers` is {least}, and `max_workers` {stated} {most}"
            self._refuse("min_workers", message, "raise `max_workers`, or lower `min_workers`", "invalid-value")

    def _check_start_commands(self) -> None:
        """Refuse start commands that do more than start Ray as windlass does."""
        hint = "windlass starts Ray itself: move commands to `setup_commands`, and state `resources` and `labels` of node types"
        has_limit = False
        for key in ("head_start_ray_commands", "worker_start_ray_commands"):
            for number, line in enumerate(getattr(self._file, key)):
                has_limit = has_limit or is_limit(line)
                for problem in start_problems(line):
                    self._refuse(f"{key}.{number}", f"{key}: {problem}", hint)
        if has_limit:
            self.notes.append("`ulimit` of start commands is not run: Ray has the limits of the machine")
