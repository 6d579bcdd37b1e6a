"""`holdfast view`: serves the pages of a journal on this machine, in a separate process.

The package reads the journal, and changes nothing but tags. It uses no engine, and looking at a run
does not affect the run. Texts of models and tools are always shown as text, never as markup.

- `source`: The journal that is shown.
- `charts`: Draws charts as SVG.
- `rendering`: Renders pages from templates.
- `reading`: Reads the data about runs and trajectories that pages show.
- `pages`: The pages.
- `http`: The server, and how it tells browsers that a page has changed.
"""
