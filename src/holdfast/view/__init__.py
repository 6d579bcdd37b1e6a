"""`holdfast view`: the pages of a journal, served on this machine by a process of its own.

The package only reads: it knows no engine, and a run that is watched does not know that it is. What
models and tools said is text everywhere, never markup.

- `source`: The journal that is shown.
- `charts`: Charts as SVG.
- `rendering`: Pages from templates.
- `reading`: What pages know about runs and trajectories.
- `pages`: The pages.
- `http`: The server, and how it tells browsers that a page has changed.
"""
