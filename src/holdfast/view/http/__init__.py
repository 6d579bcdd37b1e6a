"""The HTTP server of the pages.

- `live`: Tells browsers that a page has changed.
- `forks`: Forks that are begun from a page.
- `server`: Who may ask, and for what.
"""
