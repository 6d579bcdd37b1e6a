"""The HTTP server of the pages.

- `live`: Tells browsers that a page has changed.
- `forks`: Begins forks from a page.
- `server`: The server, its addresses, and the checks of its requests.
"""
