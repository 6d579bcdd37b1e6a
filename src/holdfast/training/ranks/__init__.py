"""The ranks of a training: processes of one machine that compute each step together.

- `place`: which of them torchrun has made this process
- `launch`: the processes of the other ranks, started by rank 0 or by torchrun
- `watch`: notices at once when a rank has died
- `group`: what ranks say to each other, and what they add up
"""
