"""A Ray cluster of several nodes on this machine, in a process of its own.

Lines on its standard input: `add [CPUS [GPUS [FOLDER]]]` starts a node, whose Python imports from
that folder first, `kill INDEX` kills one with SIGKILL (index 0 is the head, which is not to be
killed). Each is answered by a line of JSON. It ends, and all nodes with it, when its standard input
closes.
"""

import json
import os
import signal
import sys

from ray.cluster_utils import Cluster

# A node that is dead is known to be so within three seconds, and not fifteen; one that is only
# slow, as on a machine that does much else, is not.
QUICK = {
    "health_check_initial_delay_ms": 1000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 10000,
    "health_check_failure_threshold": 5,
}


def main() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    cluster = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": int(sys.argv[1]),
            "include_dashboard": False,
            "object_store_memory": 80_000_000,
            "_system_config": QUICK,
        },
    )
    nodes = [cluster.head_node]
    try:
        say(address=cluster.address, pid=raylet(nodes[0]))
        for line in sys.stdin:
            command, *arguments = line.split()
            if command == "add":
                cpus, gpus = (int(word) for word in [*arguments, "0", "0"][:2])
                node = cluster.add_node(
                    num_cpus=cpus,
                    num_gpus=gpus,
                    object_store_memory=80_000_000,
                    env_vars={"PYTHONPATH": arguments[2]} if len(arguments) > 2 else None,
                )
                nodes.append(node)
                say(index=len(nodes) - 1, node=node.node_id, pid=raylet(node))
            elif command == "kill":
                node = nodes[int(arguments[0])]
                os.kill(raylet(node), signal.SIGKILL)
                say(killed=node.node_id)
                cluster.remove_node(node, allow_graceful=False)
    finally:
        cluster.shutdown()


def raylet(node) -> int:
    return node.all_processes["raylet"][0].process.pid


def say(**answer: object) -> None:
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
