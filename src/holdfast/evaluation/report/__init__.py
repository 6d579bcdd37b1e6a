"""Writes a run as one HTML file that needs no server, no network and no other file.

- `preview`: Previews, which are the beginnings of a trajectory's input, target and answer, for
  lists.
- `row_table`: the table of rows on a terminal, with input, target and answer, by task.
- `timeline`: the events of a trajectory in order, as small arrays that the page draws.
- `writer`: The report's writer, which reads a run once, with one trajectory in memory.
"""
