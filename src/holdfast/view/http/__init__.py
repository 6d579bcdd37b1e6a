"""The HTTP server of the pages.

- `live`: Tells browsers that a page has changed.
- `server`: Who may ask, and for what.
"""
