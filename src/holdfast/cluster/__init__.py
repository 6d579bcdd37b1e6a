"""Runs workers on many machines, on which Ray places them. Needs the extra `ray`.

Holdfast has no scheduler here: Ray places processes, and each process leases its work from the
journal. Only bytes that Holdfast's codecs wrote go through Ray, such as options and addresses. No
trajectory and no object of Holdfast goes through Ray, because a handle into Ray's object store dies
with its owner, and the next worker must find the work of a worker that died.

- `variables`: Which environment variables travel.
- `folder`: The folder with the user's code, which travels.
- `messages`: Messages between the driver, the actors and the processes.
- `connection`: Imports Ray when it is used, and connects to a cluster, with checks.
- `nodes`: The machines of the cluster, and whether they have everything that the run needs.
- `host_actor`: The actor that starts one process on its node, and ends it.
- `child`: The process's side: its job, its orders, its reports.
- `member`: One process of the fleet, from its start to its end.
- `fleet`: All processes of one kind: as many as the queue needs, each replaced when it is gone.
- `run_workers`: The workers of one run and their scorers, until the run is over.
- `scorer_process`: The process of a scorer that others reach over the network.
"""
