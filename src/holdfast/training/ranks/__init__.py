"""The ranks of a training are processes of one machine that compute each step together.

- `place`: the place that torchrun gave to this process
- `launch`: the processes of the other ranks, started by rank 0 or by torchrun
- `group`: the messages between ranks, their sums, and the watch for dead ranks
"""
