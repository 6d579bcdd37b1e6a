"""Workers on many machines, placed by Ray. Needs the extra `ray`.

There is no scheduler here: Ray places processes, and each of them leases its work from the journal.
What goes through Ray is bytes that our codecs wrote: options, keys of trajectories by way of the
journal's leases, addresses. Never a trajectory, and never an object of ours: a handle into Ray's
object store dies with its owner, and what a worker dies holding must be found by the next one.

- `variables`: Which environment variables travel.
- `folder`: The folder with the user's code, which travels.
- `messages`: What the driver, the actors and the processes send each other.
- `connection`: Ray, imported when it is used, and the connection to a cluster, checked.
- `nodes`: Its machines, and whether they have what the run needs.
- `host_actor`: The actor that starts one process on its node, and ends it.
- `child`: The process's side: its job, its orders, its reports.
- `member`: One process of the fleet, from its start to its end.
- `fleet`: All of them: as many as the queue wants, each replaced when it is gone.
- `run_workers`: The workers of one run and their scorers, until the run is over.
- `scorer_process`: The process of a scorer that others reach over the network.
"""
