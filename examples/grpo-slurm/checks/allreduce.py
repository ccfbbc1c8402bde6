"""Step 2 of the ladder: two nodes sum numbers, with NCCL where there are GPUs, and say how fast.

Without torch (the stand-in's environment has none) the sum goes over TCP: then only the way between nodes is proved.
"""

import importlib.util
import json
import socket
import sys
import time

from windlass import report

NUM_ELEMENTS = 64 << 20
ROUNDS = 5


def over_torch(place):
    """(sum, hosts, how, GB/s) of all ranks' 1, 2, ... through torch.distributed, one rank per node."""
    import torch
    import torch.distributed as dist

    is_gpu = torch.cuda.is_available()
    address = f"tcp://{place.address}:{place.port}"
    backend = "nccl" if is_gpu else "gloo"
    dist.init_process_group(backend, init_method=address, rank=place.rank, world_size=place.num_replicas)
    hosts = [None] * place.num_replicas
    dist.all_gather_object(hosts, socket.gethostname())
    size = NUM_ELEMENTS if is_gpu else NUM_ELEMENTS >> 6
    numbers = torch.full((size,), float(place.rank + 1), device="cuda" if is_gpu else "cpu")
    dist.all_reduce(numbers)
    total = float(numbers.min()) if bool((numbers == numbers[0]).all()) else float("nan")
    took_s = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        dist.all_reduce(numbers)
        numbers[0].item()  # until it is done
        took_s.append(time.perf_counter() - began)
    num_bytes = 2 * (place.num_replicas - 1) / place.num_replicas * numbers.numel() * numbers.element_size()
    dist.destroy_process_group()
    return total, hosts, backend, num_bytes / min(took_s) / 1e9


def over_tcp(place):
    """The same with plain sockets: everyone tells the first rank, which tells everyone."""
    mine = (place.rank + 1, socket.gethostname())
    if place.rank:
        with connect(place.address, place.port) as peer, peer.makefile("rw") as stream:
            stream.write(json.dumps(mine) + "\n")
            stream.flush()
            return (*json.loads(stream.readline()), "tcp", None)
    with socket.create_server((place.address, place.port)) as server:
        server.settimeout(60.0)
        streams = [server.accept()[0].makefile("rw") for _ in range(place.num_replicas - 1)]
    told = [mine, *(json.loads(stream.readline()) for stream in streams)]
    answer = sum(number for number, _ in told), [host for _, host in told]
    for stream in streams:
        stream.write(json.dumps(answer) + "\n")
        stream.close()
    return (*answer, "tcp", None)


def connect(address, port):
    give_up_at = time.monotonic() + 60.0
    while True:
        try:
            return socket.create_connection((address, port), timeout=60.0)
        except ConnectionRefusedError:  # the first rank is not there yet
            if time.monotonic() > give_up_at:
                raise
            time.sleep(0.05)


def main():
    place = report.place()
    has_torch = importlib.util.find_spec("torch") is not None
    total, hosts, how, speed = over_torch(place) if has_torch else over_tcp(place)
    expected = place.num_replicas * (place.num_replicas + 1) / 2
    if total != expected:
        sys.exit(f"the sum over {len(hosts)} nodes is {total}, and {expected} is right")
    if place.rank == 0:
        place.out.mkdir(parents=True, exist_ok=True)
        (place.out / "proof.json").write_text(json.dumps({"hosts": sorted(hosts), "how": how, "gb_per_s": speed}))
        print(f"{len(hosts)} nodes, {how}: the sum is right", flush=True)


if __name__ == "__main__":
    main()
